//! Changes that links and routers make to packets (CE marks, TTL), and the ICMP errors of routers.

use tidelane_wire::{
    ETHERNET_HEADER_LEN, Ecn, IPV4_HEADER_LEN, IPV6_HEADER_LEN, IpAddress, MacAddress, checksum,
    protocol,
};

use crate::node::Node;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// The DF bit in byte 6 of an IPv4 header.
const FLAG_DF: u8 = 0x40;
/// TTL and hop limit of the ICMP errors that a router sends.
const TTL: u8 = 64;
/// Largest length of an IPv4 packet with an ICMP error, in bytes (RFC 1812 §4.3.2.3). The length
/// includes the quote: the start of the packet that the error is about.
const ERROR_LEN_MAX_V4: usize = 576;
/// Largest length of an IPv6 packet with an ICMPv6 error, in bytes, including the quote. The length
/// is the minimum MTU of IPv6 (RFC 4443 §3.2).
const ERROR_LEN_MAX_V6: usize = 1280;
const ICMP_HEADER_LEN: usize = 8;

/// Splits a frame into its Ethertype and its packet.
fn split_frame(frame: &mut [u8]) -> Option<([u8; 2], &mut [u8])> {
    let (link, packet) = frame.split_at_mut_checked(ETHERNET_HEADER_LEN)?;
    Some(([link[12], link[13]], packet))
}

/// Sets CE in the packet of a frame if the packet is IP and ECN-capable. Returns true in this case.
pub fn mark_congestion_experienced(frame: &mut [u8]) -> bool {
    match split_frame(frame) {
        Some((ETHERTYPE_IPV4, packet)) => mark_v4(packet),
        Some((ETHERTYPE_IPV6, packet)) => mark_v6(packet),
        _ => false,
    }
}

fn mark_v4(packet: &mut [u8]) -> bool {
    let Some(header) = packet.first_chunk_mut::<IPV4_HEADER_LEN>() else {
        return false;
    };
    if header[0] >> 4 != 4 || Ecn::from_tos(header[1]) == Ecn::NotEct {
        return false;
    }
    let before = u16::from_be_bytes([header[0], header[1]]);
    header[1] |= Ecn::Ce as u8;
    let after = u16::from_be_bytes([header[0], header[1]]);
    // RFC 1624 §3: HC' = ~(~HC + ~m + m').
    let old = u16::from_be_bytes([header[10], header[11]]);
    let sum = [!old, !before, after].map(checksum::Sum::of_u16);
    let sum = sum
        .into_iter()
        .fold(checksum::Sum::ZERO, checksum::Sum::plus);
    header[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
    true
}

/// Sets CE in an IPv6 packet. The traffic class spans the first two bytes of the header.
fn mark_v6(packet: &mut [u8]) -> bool {
    let Some(header) = packet.first_chunk_mut::<IPV6_HEADER_LEN>() else {
        return false;
    };
    if header[0] >> 4 != 6 || Ecn::from_tos(header[1] >> 4) == Ecn::NotEct {
        return false;
    }
    header[1] |= (Ecn::Ce as u8) << 4;
    true
}

/// Decrements the TTL of an IPv4 packet and updates the header checksum, or decrements the hop
/// limit of an IPv6 packet. Returns `None` if the frame is too short. The TTL or hop limit must not
/// be zero.
pub fn decrement_ttl(frame: &mut [u8]) -> Option<()> {
    match split_frame(frame)? {
        (ETHERTYPE_IPV4, packet) => {
            let header = packet.get_mut(..IPV4_HEADER_LEN)?;
            header[8] -= 1;
            set_checksum_v4(header);
        }
        (_, packet) => packet.get_mut(..IPV6_HEADER_LEN)?[7] -= 1,
    }
    Some(())
}

fn set_checksum_v4(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = checksum::sum(header).checksum();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Builds the ICMP error of `router` for the packet in `frame`, because the packet is longer than
/// `mtu`. Returns the error as a frame to `hop`. Returns `None` for an IPv4 packet without DF,
/// because a real router would fragment this packet.
pub fn too_big(frame: &[u8], router: &Node, hop: MacAddress, mtu: u32) -> Option<Vec<u8>> {
    let (link, packet) = frame.split_at_checked(ETHERNET_HEADER_LEN)?;
    let is_v4 = link[12..] == ETHERTYPE_IPV4;
    let mut error = hop.0.to_vec();
    error.extend(router.mac.0);
    error.extend(&link[12..]);
    error.extend(match is_v4 {
        true => too_big_v4(packet, router.addrs[0], mtu)?,
        false => too_big_v6(packet, router.addrs[1], mtu)?,
    });
    Some(error)
}

/// Builds "destination unreachable, fragmentation needed" (type 3, code 4), with the MTU of the
/// next hop (RFC 1191 §4).
fn too_big_v4(packet: &[u8], own: IpAddress, mtu: u32) -> Option<Vec<u8>> {
    if packet.get(6)? & FLAG_DF == 0 {
        return None;
    }
    let quote = &packet[..packet
        .len()
        .min(ERROR_LEN_MAX_V4 - IPV4_HEADER_LEN - ICMP_HEADER_LEN)];
    let mut icmp = vec![3, 4, 0, 0, 0, 0];
    icmp.extend(u16::try_from(mtu).ok()?.to_be_bytes());
    icmp.extend(quote);
    let sum = checksum::sum(&icmp).checksum();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let len = (IPV4_HEADER_LEN + icmp.len()) as u16;
    let mut header = vec![0x45, 0];
    header.extend(len.to_be_bytes());
    header.extend([0, 0, 0, 0, TTL, protocol::ICMP, 0, 0]);
    header.extend(own.as_v4()?);
    header.extend(packet.get(12..16)?);
    set_checksum_v4(&mut header);
    header.extend(icmp);
    Some(header)
}

/// Builds "packet too big" (type 2), with the MTU of the next hop (RFC 4443 §3.2).
fn too_big_v6(packet: &[u8], own: IpAddress, mtu: u32) -> Option<Vec<u8>> {
    let to = IpAddress(*packet.get(8..24)?.first_chunk()?);
    let quote = &packet[..packet
        .len()
        .min(ERROR_LEN_MAX_V6 - IPV6_HEADER_LEN - ICMP_HEADER_LEN)];
    let mut icmp = vec![2, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(quote);
    let pseudo = checksum::pseudo_header(own, to, protocol::ICMPV6, icmp.len() as u32);
    let sum = pseudo.plus(checksum::sum(&icmp)).checksum();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut header = vec![0x60, 0, 0, 0];
    header.extend((icmp.len() as u16).to_be_bytes());
    header.extend([protocol::ICMPV6, TTL]);
    header.extend(own.0);
    header.extend(to.0);
    header.extend(icmp);
    Some(header)
}
