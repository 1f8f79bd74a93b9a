//! Reads the counters of the kernel's TCP in a network namespace of a test wire. A wire is a veth
//! pair between two namespaces.

use tidelane_tests::{Side, Stop, Wire, command_in};

/// Returns a counter of the kernel's TCP, such as `ActiveOpens`, in the namespace of one side.
pub fn kernel_count(wire: &Wire, side: Side, name: &str) -> Result<u64, Stop> {
    let space = wire.namespace(side);
    let text = command_in(&space, &["cat", "/proc/net/snmp"])?;
    counter(&text, name).ok_or_else(|| Stop::Fail(format!("no {name}")))
}

/// Returns a TCP counter from the text of `/proc/net/snmp`, which has a line of names and then a
/// line of values for each protocol.
fn counter(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let mut names = lines.next()?.split_whitespace();
    let values: Vec<&str> = lines.next()?.split_whitespace().collect();
    let index = names.position(|known| known == name)?;
    values.get(index)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found() {
        let text = "Ip: a b\nIp: 1 2\nTcp: RtoMax ActiveOpens PassiveOpens\nTcp: 3 44 5\n";
        assert_eq!(counter(text, "ActiveOpens"), Some(44));
        assert_eq!(counter("Tcp: RtoMax\nTcp: 3\n", "ActiveOpens"), None);
    }
}
