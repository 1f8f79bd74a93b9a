//! ICMP errors that quote segments of this host. [`crate::icmpv6`] parses the errors of ICMPv6.

use crate::{
    address::{Endpoint, IpAddress},
    checksum,
    drop_reason::DropReason,
    flow_key::FlowKey,
    ipv4::protocol,
    sequence::SeqNumber,
    template::IPV4_HEADER_LEN,
};

const TYPE_UNREACHABLE: u8 = 3;
pub(crate) const TYPE_TIME_EXCEEDED: u8 = 11;
const TYPE_PARAMETER_PROBLEM: u8 = 12;
pub(crate) const ICMP_HEADER_LEN: usize = 8;
/// Mask of the fragment offset, in the word at byte 6 of an IPv4 header.
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// Kind of an ICMP error (RFC 792, RFC 1122 §3.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IcmpErrorKind {
    /// Network unreachable or unknown (type 3 codes 0, 6, 11).
    NetUnreachable,
    /// Host unreachable or unknown (type 3 codes 1, 7, 12).
    HostUnreachable,
    /// Protocol unreachable (type 3 code 2).
    ProtocolUnreachable,
    /// Port unreachable (type 3 code 3).
    PortUnreachable,
    /// Fragmentation needed and DF set (type 3 code 4), or ICMPv6 packet too big (type 2).
    FragmentationNeeded {
        /// MTU of the next hop in bytes (RFC 1191, RFC 8201). Zero if the router does not report an
        /// MTU.
        mtu: u16,
    },
    /// Administratively prohibited (type 3 codes 9, 10, 13).
    Prohibited,
    /// Time exceeded (type 11).
    TimeExceeded,
    /// Parameter problem (type 12).
    ParameterProblem,
    /// An error of type 3 (ICMPv6: type 1) with any other code.
    Other {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
    },
}

/// A parsed ICMP error. The error quotes a segment that this host sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpError {
    /// Kind of the error.
    pub kind: IcmpErrorKind,
    /// 4-tuple from the view of this host: `local` is the source of the quoted segment.
    pub key: FlowKey,
    /// SEG.SEQ of the quoted segment. The error is valid only if this number is outstanding (RFC
    /// 5927 §4.1).
    pub seq: SeqNumber,
}

/// Parses the payload of an ICMP packet. The message must be an error that quotes a TCP segment.
///
/// Returns `BadIcmp` for other messages, and `UnsupportedProtocol` if the quote is of another
/// protocol. The quote must contain the first eight bytes of the TCP header.
pub fn parse_icmp_error(icmp: &[u8]) -> Result<IcmpError, DropReason> {
    let Some((header, quote)) = icmp.split_first_chunk::<ICMP_HEADER_LEN>() else {
        return Err(DropReason::Truncated);
    };
    let [kind, code, .., mtu_high, mtu_low] = *header;
    let mtu = u16::from_be_bytes([mtu_high, mtu_low]);
    let kind = error_kind(kind, code, mtu).ok_or(DropReason::BadIcmp)?;
    if !checksum::sum(icmp).is_valid() {
        return Err(DropReason::BadChecksum);
    }
    let (key, seq) = parse_quote(quote)?;
    Ok(IcmpError { kind, key, seq })
}

fn error_kind(kind: u8, code: u8, mtu: u16) -> Option<IcmpErrorKind> {
    Some(match (kind, code) {
        (TYPE_UNREACHABLE, 0 | 6 | 11) => IcmpErrorKind::NetUnreachable,
        (TYPE_UNREACHABLE, 1 | 7 | 12) => IcmpErrorKind::HostUnreachable,
        (TYPE_UNREACHABLE, 2) => IcmpErrorKind::ProtocolUnreachable,
        (TYPE_UNREACHABLE, 3) => IcmpErrorKind::PortUnreachable,
        (TYPE_UNREACHABLE, 4) => IcmpErrorKind::FragmentationNeeded { mtu },
        (TYPE_UNREACHABLE, 9 | 10 | 13) => IcmpErrorKind::Prohibited,
        (TYPE_TIME_EXCEEDED, _) => IcmpErrorKind::TimeExceeded,
        (TYPE_PARAMETER_PROBLEM, _) => IcmpErrorKind::ParameterProblem,
        (TYPE_UNREACHABLE, _) => IcmpErrorKind::Other { kind, code },
        _ => return None,
    })
}

/// Parses the quoted IPv4 header, and the ports and the sequence number after it. The quoted length
/// and checksum are not checked, because routers may have changed them.
fn parse_quote(quote: &[u8]) -> Result<(FlowKey, SeqNumber), DropReason> {
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
    if header[9] != protocol::TCP {
        return Err(DropReason::UnsupportedProtocol);
    }
    let transport = quote.get(header_len..).ok_or(DropReason::Truncated)?;
    let src = IpAddress::from_v4([header[12], header[13], header[14], header[15]]);
    let dst = IpAddress::from_v4([header[16], header[17], header[18], header[19]]);
    quoted_segment(src, dst, transport)
}

/// Parses the ports and the sequence number at the start of a quoted segment. This host, `src`,
/// sent the segment to `dst`.
pub(crate) fn quoted_segment(
    src: IpAddress,
    dst: IpAddress,
    transport: &[u8],
) -> Result<(FlowKey, SeqNumber), DropReason> {
    let header = transport.first_chunk::<8>().ok_or(DropReason::Truncated)?;
    let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let key = FlowKey {
        local: Endpoint::new(src, port(0)),
        peer: Endpoint::new(dst, port(2)),
    };
    let seq = SeqNumber(u32::from_be_bytes([
        header[4], header[5], header[6], header[7],
    ]));
    Ok((key, seq))
}
