//! The hooks that a service bypasses, above its listings.

use serde::Deserialize;

/// A service's knowledge of the host's own rules.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub struct Firewall {
    bypassed: Vec<String>,
}

impl Firewall {
    /// Names on standard error what connections of the service bypass: scripts read the other one.
    pub fn warn(&self) {
        for hook in &self.bypassed {
            eprintln!("tidelane: bypassed by connections of this service: {hook}");
        }
    }
}
