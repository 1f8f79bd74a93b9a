//! IP fragments (RFC 791 §3.2, RFC 8200 §4.5), and the headers of reassembled packets.
//!
//! This module checks each fragment on its own. The crate `tidelane-fragments` checks the fragments
//! of a packet together.

use crate::{
    address::{IpAddress, MacAddress},
    checksum,
    drop_reason::DropReason,
    ipv4::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, FLAG_MF, FRAGMENT_OFFSET, VERSION_AND_IHL, ipv4_parts},
    ipv6,
    packet::{Ecn, protocol},
    tcp::TCP_HEADER_LEN,
    template::{
        ETHERNET_HEADER_LEN, FRAME_HEADERS_LEN_MAX, FRAME_HEADERS_LEN_V4, FRAME_HEADERS_LEN_V6,
        IPV4_HEADER_LEN, IPV6_HEADER_LEN,
    },
};

/// Unit of fragment offsets, in bytes. The payload length of every fragment but the last is a
/// multiple of this unit.
const UNIT: usize = 8;
/// Largest value of the length field of IPv4 and IPv6, in bytes.
const PACKET_LEN_MAX: usize = 65_535;

/// Identifies the packet that a fragment belongs to (RFC 791 §3.2, RFC 8200 §4.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PacketId {
    /// Identification: 16 bits for IPv4, 32 bits for IPv6.
    pub id: u32,
    /// Transport protocol. Zero for IPv6, because the Next Header fields of an IPv6 packet's
    /// fragments may differ, and only that of the first fragment counts.
    pub protocol: u8,
    /// Source of the packet.
    pub src: IpAddress,
    /// Destination of the packet.
    pub dst: IpAddress,
}

/// A fragment of an IP packet. The slices borrow from the received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment<'a> {
    /// Source MAC address.
    pub src_mac: MacAddress,
    /// Destination MAC address.
    pub dst_mac: MacAddress,
    /// Packet that the fragment belongs to.
    pub packet_id: PacketId,
    /// Offset of the fragment's payload in the packet's payload, in bytes.
    pub offset: u16,
    /// The more-fragments flag: true if other fragments follow this fragment in the packet.
    pub more: bool,
    /// ECN field.
    pub ecn: Ecn,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Protocol of the packet's payload: a transport protocol or an extension header.
    pub next: u8,
    /// Bytes of the packet before the payload: the IPv4 header with its options, or the IPv6 header
    /// and the extension headers up to and including the fragment header.
    pub header: &'a [u8],
    /// Payload of the fragment. Never empty.
    pub payload: &'a [u8],
}

impl Fragment<'_> {
    /// Returns the end of the fragment's payload in the packet's payload, in bytes.
    pub fn end(&self) -> usize {
        usize::from(self.offset) + self.payload.len()
    }

    /// Checks length and offset (RFC 791 §3.2, RFC 8200 §4.5). `before` is the number of header
    /// bytes that count towards the length field of the packet.
    fn check(&self, before: usize) -> Result<(), DropReason> {
        let len = self.payload.len();
        let whole_units = len.is_multiple_of(UNIT) || !self.more;
        if len == 0 || !whole_units || before + self.end() > PACKET_LEN_MAX {
            return Err(DropReason::BadFragment);
        }
        Ok(())
    }

    /// Returns the header fields of the reassembled frame. The caller calls this method for the
    /// first fragment only, because the fields of later fragments may differ.
    pub fn reassembled_headers(&self) -> FrameHeaders {
        FrameHeaders {
            src_mac: self.src_mac,
            dst_mac: self.dst_mac,
            src: self.packet_id.src,
            dst: self.packet_id.dst,
            ttl: self.ttl,
            next: self.next,
        }
    }
}

/// Parses a frame that [`parse_frame`](crate::parse_frame) rejected as a fragment.
///
/// Returns `BadFragment` if the packet is not a fragment, or if the fragment
///
/// * is empty,
/// * ends beyond the largest packet length,
/// * is not the last fragment, and its length is not a multiple of eight bytes, or
/// * is the first fragment of a TCP segment over IPv6 and has less than 20 bytes of the TCP header.
pub fn parse_fragment(frame: &[u8]) -> Result<Fragment<'_>, DropReason> {
    let Some((link, packet)) = frame.split_first_chunk::<ETHERNET_HEADER_LEN>() else {
        return Err(DropReason::Truncated);
    };
    match [link[12], link[13]] {
        ETHERTYPE_IPV4 => parse_v4(link, packet),
        ETHERTYPE_IPV6 => parse_v6(link, packet),
        _ => Err(DropReason::UnsupportedEthertype),
    }
}

fn macs(link: &[u8; ETHERNET_HEADER_LEN]) -> (MacAddress, MacAddress) {
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *link;
    let (src, dst) = ([s0, s1, s2, s3, s4, s5], [d0, d1, d2, d3, d4, d5]);
    (MacAddress(src), MacAddress(dst))
}

fn parse_v4<'a>(
    link: &[u8; ETHERNET_HEADER_LEN],
    bytes: &'a [u8],
) -> Result<Fragment<'a>, DropReason> {
    let (header, payload) = ipv4_parts(bytes)?;
    let fixed = header
        .first_chunk::<IPV4_HEADER_LEN>()
        .ok_or(DropReason::Truncated)?;
    let word = u16::from_be_bytes([fixed[6], fixed[7]]);
    if word & (FLAG_MF | FRAGMENT_OFFSET) == 0 {
        return Err(DropReason::BadFragment);
    }
    let address =
        |at: usize| IpAddress::from_v4([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
    let (src_mac, dst_mac) = macs(link);
    let fragment = Fragment {
        src_mac,
        dst_mac,
        packet_id: PacketId {
            id: u32::from(u16::from_be_bytes([fixed[4], fixed[5]])),
            protocol: fixed[9],
            src: address(12),
            dst: address(16),
        },
        // The shift drops the flags and turns the 13-bit offset into bytes.
        offset: word << 3,
        more: word & FLAG_MF != 0,
        ecn: Ecn::from_tos(fixed[1]),
        ttl: fixed[8],
        next: fixed[9],
        header,
        payload,
    };
    fragment.check(header.len())?;
    Ok(fragment)
}

fn parse_v6<'a>(
    link: &[u8; ETHERNET_HEADER_LEN],
    bytes: &'a [u8],
) -> Result<Fragment<'a>, DropReason> {
    let (header, rest) = ipv6::header_and_rest(bytes)?;
    let fragment_header = ipv6::fragment_header(header[6], rest)?;
    let before = rest.len() - fragment_header.payload.len();
    let header_len = IPV6_HEADER_LEN + before;
    let (src, dst) = ipv6::addresses(header);
    let (src_mac, dst_mac) = macs(link);
    let fragment = Fragment {
        src_mac,
        dst_mac,
        packet_id: PacketId {
            id: fragment_header.id,
            protocol: 0,
            src,
            dst,
        },
        offset: fragment_header.word & !7,
        more: fragment_header.word & 1 != 0,
        ecn: Ecn::from_tos(header[1] >> 4),
        ttl: header[7],
        next: fragment_header.next,
        header: bytes.get(..header_len).unwrap_or(bytes),
        payload: fragment_header.payload,
    };
    if fragment.offset == 0 && !fragment.more {
        return Err(DropReason::BadFragment);
    }
    // The first fragment must contain all headers, including the transport header (RFC 7112 §5).
    // This code checks only TCP, and not the length of TCP options.
    let first_of_tcp = fragment.offset == 0 && fragment.next == protocol::TCP;
    if first_of_tcp && fragment.payload.len() < TCP_HEADER_LEN {
        return Err(DropReason::BadFragment);
    }
    fragment.check(before - ipv6::FRAGMENT_HEADER_LEN)?;
    Ok(fragment)
}

/// Header fields of a frame. The fields of a reassembled frame come from its first fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeaders {
    /// Source MAC address.
    pub src_mac: MacAddress,
    /// Destination MAC address.
    pub dst_mac: MacAddress,
    /// Source address.
    pub src: IpAddress,
    /// Destination address.
    pub dst: IpAddress,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Protocol of the payload.
    pub next: u8,
}

impl FrameHeaders {
    /// Returns the Ethernet and IP header of a packet with `payload_len` bytes of payload, and the
    /// total length of both headers in bytes. The IP header has neither options nor extension
    /// headers: some of them are meant only for routers, and a receiver may ignore the others.
    pub fn emit(&self, ecn: Ecn, payload_len: u16) -> ([u8; FRAME_HEADERS_LEN_MAX], usize) {
        let mut bytes = [0; FRAME_HEADERS_LEN_MAX];
        bytes[..6].copy_from_slice(&self.dst_mac.0);
        bytes[6..12].copy_from_slice(&self.src_mac.0);
        let ip = &mut bytes[ETHERNET_HEADER_LEN..];
        let (Some(src), Some(dst)) = (self.src.as_v4(), self.dst.as_v4()) else {
            ip[0] = 6 << 4;
            ip[1] = (ecn as u8) << 4;
            ip[4..6].copy_from_slice(&payload_len.to_be_bytes());
            ip[6..8].copy_from_slice(&[self.next, self.ttl]);
            ip[8..24].copy_from_slice(&self.src.0);
            ip[24..].copy_from_slice(&self.dst.0);
            bytes[12..14].copy_from_slice(&ETHERTYPE_IPV6);
            return (bytes, FRAME_HEADERS_LEN_V6);
        };
        let total_len = payload_len.saturating_add(IPV4_HEADER_LEN as u16);
        ip[..2].copy_from_slice(&[VERSION_AND_IHL, ecn as u8]);
        ip[2..4].copy_from_slice(&total_len.to_be_bytes());
        ip[8..10].copy_from_slice(&[self.ttl, self.next]);
        ip[12..16].copy_from_slice(&src);
        ip[16..20].copy_from_slice(&dst);
        let sum = checksum::sum(&ip[..IPV4_HEADER_LEN]).checksum();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes[12..14].copy_from_slice(&ETHERTYPE_IPV4);
        (bytes, FRAME_HEADERS_LEN_V4)
    }
}

#[cfg(test)]
mod tests;
