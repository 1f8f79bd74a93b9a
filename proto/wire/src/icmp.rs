//! ICMP errors, which quote a segment that this host has sent. [`crate::icmpv6`] parses ICMPv6
//! errors.

use crate::{
    address::{Endpoint, IpAddress},
    checksum,
    drop_reason::DropReason,
    flow_key::FlowKey,
    icmpv6,
    packet::{Packet, protocol},
    sequence::SeqNumber,
    template::IPV4_HEADER_LEN,
};

const TYPE_UNREACHABLE: u8 = 3;
pub(crate) const TYPE_TIME_EXCEEDED: u8 = 11;
const TYPE_PARAMETER_PROBLEM: u8 = 12;
pub(crate) const ICMP_HEADER_LEN: usize = 8;
/// Mask of the fragment offset in the 16-bit word at byte 6 of an IPv4 header.
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// Kind of an ICMP error (RFC 792, RFC 1122 §3.2.2). The types and codes in the comments are those
/// of ICMPv4. [`parse_icmpv6_error`](crate::parse_icmpv6_error) maps each ICMPv6 error (RFC 4443
/// §3) to the nearest kind.
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
        /// MTU of the next hop in bytes, at most 65535 (RFC 1191, RFC 8201). Zero if the router
        /// does not report an MTU.
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

/// A parsed ICMP or ICMPv6 error about a TCP segment that this host has sent.
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

/// Parses an ICMP message: the payload of an IPv4 packet with protocol 1. The message must be an
/// error that quotes a TCP segment.
///
/// Returns `BadIcmp` for other messages, and `UnsupportedProtocol` if the quote is of another
/// protocol. The quote must contain the first eight bytes of the TCP header.
pub fn parse_icmp_error(icmp: &[u8]) -> Result<IcmpError, DropReason> {
    let (kind, quoted) = parse(icmp)?;
    Ok(IcmpError {
        kind,
        key: quoted.key,
        seq: quoted.seq()?,
    })
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
        (TYPE_UNREACHABLE, 4) => IcmpErrorKind::FragmentationNeeded { mtu },
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

/// The start of the packet that an ICMP error quotes: a TCP segment or UDP datagram that this host
/// has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotedPacket {
    /// Protocol number: TCP or UDP.
    pub protocol: u8,
    /// Addresses and ports from the view of this host: `local` is the source of the packet.
    pub key: FlowKey,
    /// The four bytes after the ports: SEG.SEQ, or length and checksum of a UDP datagram.
    after_ports: u32,
}

impl QuotedPacket {
    /// Parses the quote of an ICMP or ICMPv6 error. Returns `BadIcmp` for other messages, and
    /// `UnsupportedProtocol` if the quoted packet is neither TCP nor UDP.
    pub fn of_error(packet: &Packet<'_>) -> Result<Self, DropReason> {
        match (packet.protocol, packet.dst.is_v4()) {
            (protocol::ICMP, true) => Ok(parse(packet.payload)?.1),
            (protocol::ICMPV6, false) => Ok(icmpv6::parse(packet)?.1),
            _ => Err(DropReason::UnsupportedProtocol),
        }
    }

    /// Parses the first eight bytes of a quoted `transport` header. `ends` are the source and
    /// destination address of the quoted packet.
    pub(crate) fn new(
        protocol: u8,
        ends: (IpAddress, IpAddress),
        transport: &[u8],
    ) -> Result<Self, DropReason> {
        if protocol != protocol::TCP && protocol != protocol::UDP {
            return Err(DropReason::UnsupportedProtocol);
        }
        let header = transport.first_chunk::<8>().ok_or(DropReason::Truncated)?;
        let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        Ok(Self {
            protocol,
            key: FlowKey {
                local: Endpoint::new(ends.0, port(0)),
                peer: Endpoint::new(ends.1, port(2)),
            },
            after_ports: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
        })
    }

    /// Returns SEG.SEQ of a TCP segment, or `UnsupportedProtocol`.
    pub(crate) fn seq(&self) -> Result<SeqNumber, DropReason> {
        match self.protocol {
            protocol::TCP => Ok(SeqNumber(self.after_ports)),
            _ => Err(DropReason::UnsupportedProtocol),
        }
    }
}
