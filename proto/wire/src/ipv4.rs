//! Ethernet frames, and IPv4 packets in them. IPv6 is in [`crate::ipv6`].

use crate::{
    address::{IpAddress, MacAddress},
    checksum,
    drop_reason::DropReason,
    ipv6,
    template::{ETHERNET_HEADER_LEN, IPV4_HEADER_LEN},
};

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const VERSION_4: u8 = 4;
/// Version 4 and five words of header: no options.
const VERSION_AND_LEN: u8 = 0x45;
/// "Don't fragment", "more fragments" and the offset, in the word at byte 6.
const FLAG_DF: u16 = 0x4000;
const MORE_OR_OFFSET: u16 = 0x3fff;

/// IP protocol numbers.
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
}

/// The ECN field of an IP header (RFC 3168 §5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotEct = 0,
    /// ECN-capable, codepoint 1.
    Ect1 = 1,
    /// ECN-capable, codepoint 0: what a sender of RFC 3168 uses.
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// The field in the low two bits of `tos`.
    #[inline]
    pub const fn from_tos(tos: u8) -> Self {
        match tos & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// An IP packet: header values and the transport's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// Source of the frame; zero for a packet without one.
    pub src_mac: MacAddress,
    /// Destination of the frame; zero for a packet without one.
    pub dst_mac: MacAddress,
    /// Source of the packet.
    pub src: IpAddress,
    /// Destination of the packet.
    pub dst: IpAddress,
    /// Congestion field.
    pub ecn: Ecn,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Transport protocol: see [`protocol`].
    pub protocol: u8,
    /// "Don't fragment" was set, or it is IPv6, where routers never do.
    pub df: bool,
    /// The transport's header and payload, without link padding.
    pub payload: &'a [u8],
}

/// Parses an Ethernet frame that carries an unfragmented IPv4 or IPv6 packet.
///
/// The destination address of the frame is not compared with anything: promiscuous or not is the
/// driver's matter. Inlined always: the receive loop calls it in one place, and then the fields
/// that it does not look at cost nothing.
#[inline(always)]
pub fn parse_frame(frame: &[u8]) -> Result<Packet<'_>, DropReason> {
    let Some((link, packet)) = frame.split_first_chunk::<ETHERNET_HEADER_LEN>() else {
        return Err(DropReason::Truncated);
    };
    if link[12..] != ETHERTYPE_IPV4 {
        return parse_other(link, packet);
    }
    parse_packet(link, packet)
}

/// Parses an IPv4 packet (RFC 791): version, lengths, checksum, no fragment. Options are skipped.
#[inline]
pub fn parse_ipv4(bytes: &[u8]) -> Result<Packet<'_>, DropReason> {
    parse_packet(&[0; ETHERNET_HEADER_LEN], bytes)
}

/// Not inlined, so that IPv4 does not pay for it.
#[inline(never)]
fn parse_other<'a>(
    link: &[u8; ETHERNET_HEADER_LEN],
    packet: &'a [u8],
) -> Result<Packet<'a>, DropReason> {
    if link[12..] == ETHERTYPE_IPV6 {
        ipv6::parse_packet_v6(link, packet)
    } else {
        Err(DropReason::UnsupportedEthertype)
    }
}

#[inline(always)]
fn parse_packet<'a>(
    link: &[u8; ETHERNET_HEADER_LEN],
    bytes: &'a [u8],
) -> Result<Packet<'a>, DropReason> {
    let header = bytes
        .first_chunk::<IPV4_HEADER_LEN>()
        .ok_or(DropReason::Truncated)?;
    let header_len = if header[0] == VERSION_AND_LEN {
        IPV4_HEADER_LEN
    } else {
        len_with_options(header)?
    };
    let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if total_len < header_len {
        return Err(DropReason::BadIpHeader);
    }
    let payload = bytes
        .get(header_len..total_len)
        .ok_or(DropReason::Truncated)?;
    let sum = if header_len == IPV4_HEADER_LEN {
        checksum::sum_ipv4_header(header)
    } else {
        sum_with_options(bytes, header_len)
    };
    if !sum.is_valid() {
        return Err(DropReason::BadIpChecksum);
    }
    packet(link, header, payload)
}

/// The length of a header that is not the usual one.
#[cold]
fn len_with_options(header: &[u8; IPV4_HEADER_LEN]) -> Result<usize, DropReason> {
    let header_len = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != VERSION_4 || header_len < IPV4_HEADER_LEN {
        return Err(DropReason::BadIpHeader);
    }
    Ok(header_len)
}

#[cold]
fn sum_with_options(bytes: &[u8], header_len: usize) -> checksum::Sum {
    checksum::sum(bytes.get(..header_len).unwrap_or(bytes))
}

#[inline(always)]
fn packet<'a>(
    link: &[u8; ETHERNET_HEADER_LEN],
    header: &[u8; IPV4_HEADER_LEN],
    payload: &'a [u8],
) -> Result<Packet<'a>, DropReason> {
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    if fragment & MORE_OR_OFFSET != 0 {
        return Err(DropReason::Fragment);
    }
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *link;
    Ok(Packet {
        src_mac: MacAddress([s0, s1, s2, s3, s4, s5]),
        dst_mac: MacAddress([d0, d1, d2, d3, d4, d5]),
        src: IpAddress::from_v4([header[12], header[13], header[14], header[15]]),
        dst: IpAddress::from_v4([header[16], header[17], header[18], header[19]]),
        ecn: Ecn::from_tos(header[1]),
        ttl: header[8],
        protocol: header[9],
        df: fragment & FLAG_DF != 0,
        payload,
    })
}
