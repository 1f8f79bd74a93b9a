//! Wires over two NICs of this machine instead of a veth pair.
//!
//! TIDELANE_WIRE_NICS names two NICs on one link by their link addresses, separated by a comma:
//! `52:54:00:00:00:01,52:54:00:00:00:02`. A wire moves them into its namespaces and back at its
//! end. The next wire finds them by their addresses.

use std::{env, fs, path::Path, time::Duration};

use crate::{
    Outcome, Stop, command,
    tools::{require_tools, wait_until},
    wire::INTERFACE,
};

/// Time limit for the return of the NICs from an earlier wire.
const BACK_MAX: Duration = Duration::from_secs(20);

/// Time limit for a NIC to report its carrier.
const CARRIER_MAX: Duration = Duration::from_secs(10);
/// Environment variable that names the NICs.
const VARIABLE: &str = "TIDELANE_WIRE_NICS";

/// Returns true if wires use NICs.
pub fn are_named() -> bool {
    env::var_os(VARIABLE).is_some()
}

/// Returns the present names of the two NICs. `None` if wires are veth pairs.
pub fn names() -> Result<Option<[String; 2]>, Stop> {
    let Ok(addresses) = env::var(VARIABLE) else {
        return Ok(None);
    };
    let two = addresses.split_once(',');
    let (one, other) =
        two.ok_or_else(|| Stop::Fail("TIDELANE_WIRE_NICS names no two NICs".to_owned()))?;
    Ok(Some([present(one)?, present(other)?]))
}

/// Waits for the NIC with this link address to return from an earlier wire. Returns its name.
pub fn present(address: &str) -> Result<String, Stop> {
    let mut name = None;
    wait_until(BACK_MAX, "the NIC", || {
        name = name_of(address)?;
        Ok(name.is_some())
    })?;
    name.ok_or_else(|| Stop::Fail(format!("no NIC {address}")))
}

/// Returns the name of the NIC with this link address. A VLAN on top of it has the same address,
/// but no device.
fn name_of(address: &str) -> Result<Option<String>, Stop> {
    for entry in fs::read_dir(Path::new("/sys/class/net"))? {
        let entry = entry?;
        // An interface may disappear between the two calls.
        let found = fs::read_to_string(entry.path().join("address")).unwrap_or_default();
        if found.trim() == address && entry.path().join("device").exists() {
            return Ok(Some(entry.file_name().to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// Waits for the carrier of an end, which takes seconds on some NICs.
pub fn wait_for_carrier(space: &str) -> Outcome {
    wait_until(CARRIER_MAX, "the carrier", || {
        let link = command(&["ip", "-n", space, "link", "show", "dev", INTERFACE])?;
        Ok(link.contains("LOWER_UP"))
    })
}

/// Sets the number of queues at both ends, each a namespace and its NIC. Skips if a driver cannot.
pub fn set_queues(ends: [(&str, &str); 2], count: u64) -> Outcome {
    require_tools(&["ethtool"])?;
    let mut ends = ends.into_iter();
    ends.try_for_each(|(space, interface)| set_queues_of(space, interface, count))
}

fn set_queues_of(space: &str, interface: &str, count: u64) -> Outcome {
    let ethtool = |arguments: &[&str]| {
        let enter = ["ip", "netns", "exec", space, "ethtool"];
        command(&[&enter[..], arguments].concat())
    };
    // A driver without this ioctl has one queue.
    let told = ethtool(&["-l", interface]).ok();
    let present = told.and_then(|text| present_queues(&text)).unwrap_or(1);
    if present == count {
        return Ok(());
    }
    match ethtool(&["-L", interface, "combined", &count.to_string()]) {
        Err(Stop::Fail(text)) => Err(Stop::Skip(format!("no NIC with {count} queues: {text}"))),
        outcome => outcome.map(drop),
    }
}

/// Returns the current number of queues in the output of `ethtool -l`, behind the maximum.
fn present_queues(text: &str) -> Option<u64> {
    let mut numbers = text
        .lines()
        .filter_map(|line| line.strip_prefix("Combined:"));
    numbers.next_back()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::present_queues;

    #[test]
    fn the_present_queues_come_last() {
        let text = "Channel parameters for eth1:\nPre-set maximums:\nRX:\t\tn/a\nCombined:\t2\n\
                    Current hardware settings:\nRX:\t\tn/a\nCombined:\t1\n";
        assert_eq!(present_queues(text), Some(1));
        assert_eq!(present_queues("netlink error"), None);
    }
}
