//! `tidelane reload`: makes the service (`tidelaned`) read its configuration again.

use serde_json::Value;

use crate::{admin::ServiceName, failure::Failure};

/// Makes the service read its configuration again. The service rejects an invalid configuration and
/// keeps the old one.
pub fn reload(service: &ServiceName) -> Result<(), Failure> {
    service.ask::<Value>("reload")?;
    println!(
        "tidelane: service {:?} has read its configuration",
        service.name
    );
    Ok(())
}
