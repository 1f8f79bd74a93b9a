//! The path MTU that a flow (connection) has found. The engine keeps the value for later
//! connections (RFC 1191 §6.2, RFC 4821 §5.2).

use tidelane_time::Instant;
use tidelane_wire::IpAddress;

/// Path MTU to one destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathMtu {
    /// Path MTU as an MSS in bytes: without IP and TCP headers.
    pub mss: u16,
    /// Time at which this path MTU expires.
    pub until: Instant,
    /// True if probes (RFC 4821) found the path MTU. False if an ICMP error reported the path MTU.
    pub found_by_probe: bool,
}

/// The engine's store of path MTUs by destination. An entry outlives the flow that found the path
/// MTU.
pub trait PathMtuStore {
    /// Stores the path MTU to `peer`.
    fn learn(&mut self, peer: IpAddress, path: PathMtu);

    /// Removes the entry of `peer`. The caller has found that the path supports the largest
    /// segments that the link and the peer allow.
    fn forget(&mut self, peer: IpAddress);
}
