//! What TCP's sizes owe to the IP version.

use tidelane_wire::IpAddress;

/// The sizes of one version, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sizes {
    /// IP and TCP headers without options.
    pub headers: u16,
    /// MSS if the peer says nothing (RFC 9293 §3.7.1, MUST-15).
    pub mss_default: u16,
    /// Least path MTU that an ICMP error may ask for. IPv4: below it is an attack (Linux:
    /// `min_pmtu`). IPv6: every link has it (RFC 8201 §4).
    pub path_mtu_min: u16,
    /// Whether one that asks for less is followed so far. RFC 8201 §4: it is discarded.
    pub less_is_least: bool,
}

const V4: Sizes = Sizes {
    headers: 20 + 20,
    mss_default: 536,
    path_mtu_min: 552,
    less_is_least: true,
};

const V6: Sizes = Sizes {
    headers: 40 + 20,
    mss_default: 1220,
    path_mtu_min: 1280,
    less_is_least: false,
};

/// The sizes of the version that `address` is of.
pub(crate) fn sizes(address: IpAddress) -> Sizes {
    if address.is_v4() { V4 } else { V6 }
}
