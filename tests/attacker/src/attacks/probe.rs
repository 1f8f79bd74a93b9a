//! The attack `probe`: asks the service (`tidelaned`), by the message PROBE, whether it admits this
//! user in this network namespace.

use serde_json::json;

use crate::{
    Target,
    protocol::{Failure, verdict},
    report,
};

/// Sends PROBE and prints a line with the answer.
pub fn run(target: &Target) -> Result<(), Failure> {
    let answer = target.connect().and_then(|service| service.probe());
    report(&json!({ "attack": "probe", "probe": verdict(&answer) }));
    Ok(())
}
