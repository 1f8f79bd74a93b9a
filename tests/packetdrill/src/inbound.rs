//! The content of a received packet of either IP version.

use tidelane_engine::{Arrival, IcmpError, LinkId, Segment};

/// The id of the only link: packetdrill's tun device.
pub const LINK: LinkId = LinkId(0);

/// Content of a received packet.
#[derive(Debug)]
pub enum Inbound<'a> {
    /// A TCP segment, with its 4-tuple and ECN field.
    Segment(Arrival, Segment<'a>),
    /// An ICMP error about a segment that this stack sent.
    Error(IcmpError),
}
