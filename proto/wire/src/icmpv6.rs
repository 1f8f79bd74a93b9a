//! ICMPv6 errors (RFC 4443). An error quotes the TCP segment or UDP datagram that caused the error.

use crate::{
    checksum,
    drop_reason::DropReason,
    icmp_error::{ICMP_HEADER_LEN, IcmpError, IcmpErrorKind, QuotedPacket},
    ipv6,
    packet::{Packet, protocol},
    template::IPV6_HEADER_LEN,
};

const TYPE_UNREACHABLE: u8 = 1;
pub(crate) const TYPE_TOO_BIG: u8 = 2;
pub(crate) const TYPE_TIME_EXCEEDED: u8 = 3;
const TYPE_PARAMETER_PROBLEM: u8 = 4;

/// Parses an ICMPv6 packet, which must be an error that quotes a TCP segment. The drop reasons are
/// those of [`parse_icmp_error`](crate::parse_icmp_error) and two more: `Fragment` if the quoted
/// packet is a fragment, and `BadIpHeader` if the extension headers of the quoted packet are
/// invalid.
pub fn parse_icmpv6_error(packet: &Packet<'_>) -> Result<IcmpError, DropReason> {
    let (kind, quoted) = parse(packet)?;
    Ok(IcmpError {
        kind,
        key: quoted.key,
        seq: quoted.seq()?,
    })
}

/// Parses an ICMPv6 error that quotes a TCP segment or a UDP datagram.
pub(crate) fn parse(packet: &Packet<'_>) -> Result<(IcmpErrorKind, QuotedPacket), DropReason> {
    let icmp = packet.payload;
    let Some((header, quote)) = icmp.split_first_chunk::<ICMP_HEADER_LEN>() else {
        return Err(DropReason::Truncated);
    };
    let [icmp_type, code, _, _, mtu @ ..] = *header;
    let kind = error_kind(icmp_type, code, u32::from_be_bytes(mtu)).ok_or(DropReason::BadIcmp)?;
    let (src, dst) = (packet.src, packet.dst);
    let pseudo = checksum::pseudo_header(src, dst, protocol::ICMPV6, icmp.len() as u32);
    if !pseudo.plus(checksum::sum(icmp)).is_valid() {
        return Err(DropReason::BadChecksum);
    }
    let (header, rest) = quote
        .split_first_chunk::<IPV6_HEADER_LEN>()
        .ok_or(DropReason::Truncated)?;
    if header[0] >> 4 != 6 {
        return Err(DropReason::BadIcmp);
    }
    let (transport, segment) = ipv6::transport(header[6], rest)?;
    let quoted = QuotedPacket::new(transport, ipv6::addresses(header), segment)?;
    Ok((kind, quoted))
}

/// Maps type and code to the kind (RFC 4443 §3). "Destination unreachable" with code 5 (a policy
/// forbids the source address) or 6 (a route rejects the destination) counts as prohibited. Returns
/// `None` if the message is not an error.
fn error_kind(icmp_type: u8, code: u8, mtu: u32) -> Option<IcmpErrorKind> {
    Some(match (icmp_type, code) {
        (TYPE_UNREACHABLE, 0) => IcmpErrorKind::NetUnreachable,
        (TYPE_UNREACHABLE, 1 | 5 | 6) => IcmpErrorKind::Prohibited,
        (TYPE_UNREACHABLE, 2 | 3) => IcmpErrorKind::HostUnreachable,
        (TYPE_UNREACHABLE, 4) => IcmpErrorKind::PortUnreachable,
        (TYPE_TOO_BIG, _) => IcmpErrorKind::FragmentationNeeded {
            mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
        },
        (TYPE_TIME_EXCEEDED, _) => IcmpErrorKind::TimeExceeded,
        (TYPE_PARAMETER_PROBLEM, 1) => IcmpErrorKind::ProtocolUnreachable,
        (TYPE_PARAMETER_PROBLEM, _) => IcmpErrorKind::ParameterProblem,
        (TYPE_UNREACHABLE, _) => IcmpErrorKind::Other {
            kind: icmp_type,
            code,
        },
        _ => return None,
    })
}
