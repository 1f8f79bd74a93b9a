//! An error of ICMP or ICMPv6, and the packet that the error quotes.

use crate::{
    address::{Endpoint, IpAddress},
    drop_reason::DropReason,
    flow_key::FlowKey,
    packet::protocol,
    sequence::SeqNumber,
};

/// Length in bytes of the header before the quote, in both versions of ICMP.
pub(crate) const ICMP_HEADER_LEN: usize = 8;

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
        /// MTU of the next hop in bytes (RFC 1191, RFC 8201). Zero if the router does not report an
        /// MTU. A higher MTU than 65535, which ICMPv6 can report, counts as 65535.
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
        /// Type of the ICMP or ICMPv6 message.
        kind: u8,
        /// Code of the message.
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

    /// Returns SEG.SEQ of a TCP segment, or `UnsupportedProtocol` for a UDP datagram.
    pub(crate) fn seq(&self) -> Result<SeqNumber, DropReason> {
        match self.protocol {
            protocol::TCP => Ok(SeqNumber(self.after_ports)),
            _ => Err(DropReason::UnsupportedProtocol),
        }
    }
}
