//! ICMP errors of either IP version.

use tidelane_wire::{
    DropReason, IcmpError, Packet, parse_icmp_error, parse_icmpv6_error, protocol,
};

/// Returns the error that an ICMP or ICMPv6 packet reports. The result for a packet without a valid
/// error is the reason to drop the packet.
pub(crate) fn icmp_error(packet: &Packet<'_>) -> Result<IcmpError, DropReason> {
    match (packet.protocol, packet.dst.is_v4()) {
        (protocol::ICMP, true) => parse_icmp_error(packet.payload),
        (protocol::ICMPV6, false) => parse_icmpv6_error(packet),
        _ => Err(DropReason::UnsupportedProtocol),
    }
}
