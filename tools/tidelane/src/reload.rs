//! `tidelane reload`: the service reads its configuration again.

use serde_json::Value;

use crate::{admin::ServiceName, failure::Failure};

/// Has the configuration read again. If it makes no sense, the service keeps what it has.
pub fn reload(service: &ServiceName) -> Result<(), Failure> {
    service.ask::<Value>("reload")?;
    println!(
        "tidelane: service {:?} has read its configuration",
        service.name
    );
    Ok(())
}
