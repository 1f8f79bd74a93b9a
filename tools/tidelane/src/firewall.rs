//! The warning about bypassed firewall rules, above the listings of a service.

use serde::Deserialize;

/// The service's answer about the host's rules.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub struct Firewall {
    bypassed: Vec<String>,
}

impl Firewall {
    /// Prints the bypassed rules to standard error, since scripts read standard output.
    pub fn warn(&self) {
        for hook in &self.bypassed {
            eprintln!("tidelane: bypassed by connections of this service: {hook}");
        }
    }
}
