//! The warning about firewall rules of the host that do not apply to accelerated connections. The
//! service (`tidelaned`) carries these connections instead of the kernel.

use serde::Deserialize;

/// The part of the service's answer that lists the bypassed firewall rules of the host.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub struct Firewall {
    /// Descriptions of the kernel's hooks whose rules are bypassed.
    bypassed: Vec<String>,
}

impl Firewall {
    /// Prints the bypassed rules to standard error, because scripts parse standard output.
    pub fn warn(&self) {
        for hook in &self.bypassed {
            eprintln!("tidelane: bypassed by connections of this service: {hook}");
        }
    }
}
