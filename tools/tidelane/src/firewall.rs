//! The warning about firewall rules of the host that do not apply to accelerated connections. The
//! service (`tidelaned`) carries these connections instead of the kernel.

use serde::Deserialize;

/// The part of the service's answer that lists the firewall rules of the host that accelerated
/// connections bypass.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub struct Firewall {
    /// A description of each hook of the kernel (firewall rules or BPF programs) that accelerated
    /// connections bypass.
    bypassed: Vec<String>,
}

impl Firewall {
    /// Prints a warning for each bypassed hook. The warnings go to standard error, because scripts
    /// parse standard output.
    pub fn warn(&self) {
        for hook in &self.bypassed {
            eprintln!("tidelane: bypassed by connections of this service: {hook}");
        }
    }
}
