//! ICMP errors of IPv4. An error quotes the TCP segment or UDP datagram of this host that caused
//! the error. [`crate::icmpv6`] parses ICMPv6 errors.

use crate::{
    address::IpAddress,
    checksum,
    drop_reason::DropReason,
    icmp_error::{ICMP_HEADER_LEN, IcmpError, IcmpErrorKind, QuotedPacket},
    icmpv6,
    packet::{Packet, protocol},
    template::IPV4_HEADER_LEN,
};

pub(crate) const TYPE_UNREACHABLE: u8 = 3;
pub(crate) const TYPE_TIME_EXCEEDED: u8 = 11;
const TYPE_PARAMETER_PROBLEM: u8 = 12;
/// Code of "fragmentation needed and DF set".
pub(crate) const CODE_FRAGMENTATION_NEEDED: u8 = 4;
/// Mask of the fragment offset in the 16-bit word at byte 6 of an IPv4 header.
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// Parses an ICMP message: the payload of an IPv4 packet with protocol 1. The message must be an
/// error that quotes a TCP segment.
///
/// Returns `BadIcmp` if the message is not an error, or if the quote is not the start of an IPv4
/// packet. Returns `BadChecksum` if the checksum of the message is wrong. Returns
/// `UnsupportedProtocol` if the quoted packet is not a TCP segment. Returns `Truncated` if the
/// quote ends before the first eight bytes of the TCP header.
pub fn parse_icmp_error(icmp: &[u8]) -> Result<IcmpError, DropReason> {
    let (kind, quoted) = parse(icmp)?;
    Ok(IcmpError {
        kind,
        key: quoted.key,
        seq: quoted.seq()?,
    })
}

/// Parses the quote of an ICMP or ICMPv6 error. Returns `BadIcmp` if the message is not an error.
/// Returns `UnsupportedProtocol` if `packet` is neither ICMP nor ICMPv6, or if the quoted packet is
/// neither TCP nor UDP.
pub fn parse_quoted_packet(packet: &Packet<'_>) -> Result<QuotedPacket, DropReason> {
    match (packet.protocol, packet.dst.is_v4()) {
        (protocol::ICMP, true) => Ok(parse(packet.payload)?.1),
        (protocol::ICMPV6, false) => Ok(icmpv6::parse(packet)?.1),
        _ => Err(DropReason::UnsupportedProtocol),
    }
}

/// Parses an ICMP error that quotes a TCP segment or a UDP datagram.
fn parse(icmp: &[u8]) -> Result<(IcmpErrorKind, QuotedPacket), DropReason> {
    let Some((header, quote)) = icmp.split_first_chunk::<ICMP_HEADER_LEN>() else {
        return Err(DropReason::Truncated);
    };
    let [kind, code, .., mtu_high, mtu_low] = *header;
    let mtu = u16::from_be_bytes([mtu_high, mtu_low]);
    let kind = error_kind(kind, code, mtu).ok_or(DropReason::BadIcmp)?;
    if !checksum::sum(icmp).is_valid() {
        return Err(DropReason::BadChecksum);
    }
    Ok((kind, parse_quote(quote)?))
}

fn error_kind(kind: u8, code: u8, mtu: u16) -> Option<IcmpErrorKind> {
    Some(match (kind, code) {
        (TYPE_UNREACHABLE, 0 | 6 | 11) => IcmpErrorKind::NetUnreachable,
        (TYPE_UNREACHABLE, 1 | 7 | 12) => IcmpErrorKind::HostUnreachable,
        (TYPE_UNREACHABLE, 2) => IcmpErrorKind::ProtocolUnreachable,
        (TYPE_UNREACHABLE, 3) => IcmpErrorKind::PortUnreachable,
        (TYPE_UNREACHABLE, CODE_FRAGMENTATION_NEEDED) => IcmpErrorKind::FragmentationNeeded { mtu },
        (TYPE_UNREACHABLE, 9 | 10 | 13) => IcmpErrorKind::Prohibited,
        (TYPE_TIME_EXCEEDED, _) => IcmpErrorKind::TimeExceeded,
        (TYPE_PARAMETER_PROBLEM, _) => IcmpErrorKind::ParameterProblem,
        (TYPE_UNREACHABLE, _) => IcmpErrorKind::Other { kind, code },
        _ => return None,
    })
}

/// Parses the quoted IPv4 header, and the start of the transport header that follows. Routers may
/// have changed the quoted length and checksum, so neither is checked.
fn parse_quote(quote: &[u8]) -> Result<QuotedPacket, DropReason> {
    let header = quote
        .first_chunk::<IPV4_HEADER_LEN>()
        .ok_or(DropReason::Truncated)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || header_len < IPV4_HEADER_LEN {
        return Err(DropReason::BadIcmp);
    }
    if u16::from_be_bytes([header[6], header[7]]) & FRAGMENT_OFFSET != 0 {
        return Err(DropReason::BadIcmp);
    }
    let transport = quote.get(header_len..).ok_or(DropReason::Truncated)?;
    let src = IpAddress::from_v4([header[12], header[13], header[14], header[15]]);
    let dst = IpAddress::from_v4([header[16], header[17], header[18], header[19]]);
    QuotedPacket::new(header[9], (src, dst), transport)
}
