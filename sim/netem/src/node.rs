//! A node of a network.

use tidelane_wire::{IpAddress, MacAddress};

/// Kind of a node of a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeKind {
    /// Sends and receives frames.
    Host,
    /// Forwards by link address.
    Switch,
    /// Forwards by the IP destination address.
    Router,
}

/// A node of a network: a host, switch or router.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Kind of the node.
    pub kind: NodeKind,
    /// Link address. Unused for a switch.
    pub mac: MacAddress,
    /// IPv4 address and IPv6 address. Unused for a switch.
    pub addrs: [IpAddress; 2],
}
