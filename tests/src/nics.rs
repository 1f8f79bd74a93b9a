//! Wires over NICs that this machine has, instead of a veth pair.
//!
//! TIDELANE_WIRE_NICS names two NICs that hang on one link, by their link addresses with a comma
//! between: `52:54:00:00:00:01,52:54:00:00:00:02`. A wire takes them into its namespaces. When the
//! namespaces go, the kernel puts the NICs back; the next wire finds them by their addresses.

use std::{env, fs, path::Path, time::Duration};

use crate::{Stop, tools::wait_until};

/// How long the NICs of an earlier wire may take to come back.
const BACK_MAX: Duration = Duration::from_secs(20);

/// The present names of the two NICs; none if a wire is to be a veth pair.
pub fn names() -> Result<Option<[String; 2]>, Stop> {
    let Ok(addresses) = env::var("TIDELANE_WIRE_NICS") else {
        return Ok(None);
    };
    let two = addresses.split_once(',');
    let (one, other) =
        two.ok_or_else(|| Stop::Fail("TIDELANE_WIRE_NICS names no two NICs".to_owned()))?;
    Ok(Some([present(one)?, present(other)?]))
}

/// The present name of the NIC with this link address, once it is back from an earlier wire.
pub fn present(address: &str) -> Result<String, Stop> {
    let mut name = None;
    wait_until(BACK_MAX, "the NIC", || {
        name = name_of(address)?;
        Ok(name.is_some())
    })?;
    name.ok_or_else(|| Stop::Fail(format!("no NIC {address}")))
}

/// The interface with this link address.
fn name_of(address: &str) -> Result<Option<String>, Stop> {
    for entry in fs::read_dir(Path::new("/sys/class/net"))? {
        let entry = entry?;
        // An interface may go between the two calls.
        let found = fs::read_to_string(entry.path().join("address")).unwrap_or_default();
        if found.trim() == address {
            return Ok(Some(entry.file_name().to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}
