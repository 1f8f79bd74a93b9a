//! Wires over two NICs of this machine. A wire is a test network of two network namespaces, which
//! by default are joined by a veth pair.
//!
//! The environment variable TIDELANE_WIRE_NICS names two connected NICs by their MAC addresses:
//! `52:54:00:00:00:01,52:54:00:00:00:02`. A wire moves the NICs into its namespaces. At the end of
//! the wire the NICs return to the namespace of the tests, under new names. The next wire finds the
//! NICs by their MAC addresses.

use std::{env, fs, path::Path, time::Duration};

use crate::{
    Outcome, Stop, command, command_in,
    tools::{require_tools, wait_until},
};

/// Time limit for a NIC to return from the namespace of an earlier wire.
const BACK_MAX: Duration = Duration::from_secs(20);

/// Time limit for a NIC to report its carrier.
const CARRIER_MAX: Duration = Duration::from_secs(10);
/// Environment variable with the MAC addresses of the NICs.
const VARIABLE: &str = "TIDELANE_WIRE_NICS";

/// Returns true if the environment names NICs for wires.
pub fn are_named() -> bool {
    env::var_os(VARIABLE).is_some()
}

/// Waits until both NICs are in the namespace of the tests, and returns their interface names.
/// Returns `None` if the environment names no NICs.
pub fn names() -> Result<Option<[String; 2]>, Stop> {
    let Ok(addresses) = env::var(VARIABLE) else {
        return Ok(None);
    };
    let two = addresses.split_once(',');
    let (one, other) =
        two.ok_or_else(|| Stop::Fail("TIDELANE_WIRE_NICS names no two NICs".to_owned()))?;
    Ok(Some([present(one)?, present(other)?]))
}

/// Waits until the NIC with this MAC address is in the namespace of the tests. Returns its
/// interface name.
pub fn present(address: &str) -> Result<String, Stop> {
    let mut name = None;
    wait_until(BACK_MAX, "the NIC", || {
        name = name_of(address)?;
        Ok(name.is_some())
    })?;
    name.ok_or_else(|| Stop::Fail(format!("no NIC {address}")))
}

/// Returns the interface name of the NIC with this MAC address, or `None` if the NIC is not in this
/// namespace. A VLAN interface has the MAC address of its NIC, but no `device` link, so only a NIC
/// matches.
fn name_of(address: &str) -> Result<Option<String>, Stop> {
    for entry in fs::read_dir(Path::new("/sys/class/net"))? {
        let entry = entry?;
        // The interface may have disappeared since `read_dir` listed it.
        let found = fs::read_to_string(entry.path().join("address")).unwrap_or_default();
        if found.trim() == address && entry.path().join("device").exists() {
            return Ok(Some(entry.file_name().to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// Waits for the carrier of the wire's interface in the namespace `space`. Some NICs have no
/// carrier in the first seconds.
pub fn wait_for_carrier(space: &str, interface: &str) -> Outcome {
    wait_until(CARRIER_MAX, "the carrier", || {
        let link = command(&["ip", "-n", space, "link", "show", "dev", interface])?;
        Ok(link.contains("LOWER_UP"))
    })
}

/// Sets the number of queues of both NICs. Each of `ends` consists of the name of a namespace and
/// the name of an interface in this namespace. Skips the test if ethtool cannot set `count` queues,
/// for example because a driver does not support the number.
pub fn set_queues(ends: [(&str, &str); 2], count: u64) -> Outcome {
    require_tools(&["ethtool"])?;
    let mut ends = ends.into_iter();
    ends.try_for_each(|(space, interface)| set_queues_of(space, interface, count))
}

/// Sets the number of queues of one NIC. If the NIC already has `count` queues, does nothing.
fn set_queues_of(space: &str, interface: &str, count: u64) -> Outcome {
    let ethtool = |arguments: &[&str]| command_in(space, &[&["ethtool"], arguments].concat());
    // If the driver does not support `ethtool -l`, assume one queue.
    let output = ethtool(&["-l", interface]).ok();
    let present = output.and_then(|text| present_queues(&text)).unwrap_or(1);
    if present == count {
        return Ok(());
    }
    match ethtool(&["-L", interface, "combined", &count.to_string()]) {
        Err(Stop::Fail(text)) => Err(Stop::Skip(format!("no NIC with {count} queues: {text}"))),
        outcome => outcome.map(drop),
    }
}

/// Returns the current number of queues from the output of `ethtool -l`, which prints the maximum
/// first.
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
    fn present_queues_are_read_from_the_last_section() {
        let text = "Channel parameters for eth1:\nPre-set maximums:\nRX:\t\tn/a\nCombined:\t2\n\
                    Current hardware settings:\nRX:\t\tn/a\nCombined:\t1\n";
        assert_eq!(present_queues(text), Some(1));
        assert_eq!(present_queues("netlink error"), None);
    }
}
