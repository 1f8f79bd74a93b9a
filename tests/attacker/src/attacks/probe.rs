//! Checks that the service answers this user in this namespace.

use serde_json::json;

use crate::{
    Target,
    protocol::{Failure, verdict},
    report,
};

/// Sends PROBE.
pub fn run(target: &Target) -> Result<(), Failure> {
    let answer = target.connect().and_then(|service| service.probe());
    report(&json!({ "attack": "probe", "probe": verdict(&answer) }));
    Ok(())
}
