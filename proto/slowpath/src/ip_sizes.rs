//! Sizes that depend on the IP version: header lengths, the default MSS and the least path MTU.

use tidelane_wire::IpAddress;

/// Sizes for one IP version, in bytes. The segment sizes of a flow (connection) depend on them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpSizes {
    /// IP and TCP headers without options.
    pub headers: u16,
    /// MSS if the peer's SYN has no MSS option (RFC 9293 §3.7.1, MUST-15).
    pub mss_default: u16,
    /// Least path MTU that an ICMP error may set. For IPv4, a lower reported value may be an attack
    /// (Linux: `min_pmtu`). For IPv6, every link supports this MTU (RFC 8201 §4).
    pub path_mtu_min: u16,
    /// True if a report below `path_mtu_min` counts as `path_mtu_min`. False for IPv6, which
    /// discards such a report (RFC 8201 §4).
    pub clamps_to_min: bool,
}

const V4: IpSizes = IpSizes {
    headers: 20 + 20,
    mss_default: 536,
    path_mtu_min: 552,
    clamps_to_min: true,
};

const V6: IpSizes = IpSizes {
    headers: 40 + 20,
    mss_default: 1220,
    path_mtu_min: 1280,
    clamps_to_min: false,
};

/// Returns the sizes for the IP version of `address`.
pub fn ip_sizes(address: IpAddress) -> IpSizes {
    if address.is_v4() { V4 } else { V6 }
}
