//! Checks of packets that a port sends: only packets of its own 3-tuples, with valid headers and
//! checksums, leave a port.

use tidelane_wire::{
    DropReason, Endpoint, IpAddress, MacAddress, Packet, RawSegment, checksum, parse_frame,
    tcp_checksum_ok,
};

use crate::claims::{Claims, PROTOCOLS, PortId};

const TCP: u8 = PROTOCOLS[0];
const UDP: u8 = PROTOCOLS[1];
/// Length of a UDP header.
const UDP_HEADER_LEN: usize = 8;

/// Reason why a packet of a port is not sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SendRefusal {
    /// A header or a checksum is invalid, or the packet is a fragment or has another protocol.
    Malformed(DropReason),
    /// The source MAC address is not that of the interface.
    SourceMac,
    /// The source address is no address of this host.
    SourceAddress,
    /// The port has not claimed the source 3-tuple.
    SourcePort,
    /// The destination is no possible peer: loopback, "this network", or multicast and broadcast
    /// for TCP.
    Destination,
}

/// A packet whose 3-tuples are known.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Protocol number.
    pub protocol: u8,
    /// Source address and port.
    pub src: Endpoint,
    /// Destination address and port.
    pub dst: Endpoint,
}

/// Returns the ends of a TCP or UDP packet. The length of the transport header is checked, and its
/// checksum is not.
#[inline]
pub fn ends(packet: &Packet<'_>) -> Result<Ends, DropReason> {
    let (src_port, dst_port) = match packet.protocol {
        TCP => RawSegment::new_checked(packet.payload)?.ports(),
        UDP => udp_ports(packet.payload)?,
        _ => return Err(DropReason::UnsupportedProtocol),
    };
    Ok(Ends {
        protocol: packet.protocol,
        src: Endpoint::new(packet.src, src_port),
        dst: Endpoint::new(packet.dst, dst_port),
    })
}

/// Returns the source and destination port of a UDP datagram, whose length field must be right.
fn udp_ports(datagram: &[u8]) -> Result<(u16, u16), DropReason> {
    let header = datagram.first_chunk::<UDP_HEADER_LEN>();
    let header = header.ok_or(DropReason::Truncated)?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    match usize::from(word(4)) == datagram.len() {
        true => Ok((word(0), word(2))),
        false => Err(DropReason::Truncated),
    }
}

/// Checks a frame that `port` sends. `mac` and `addresses` are those of the interface.
pub fn check_sent(
    frame: &[u8],
    port: PortId,
    claims: &Claims,
    mac: MacAddress,
    addresses: &[IpAddress],
) -> Result<Ends, SendRefusal> {
    let packet = parse_frame(frame).map_err(SendRefusal::Malformed)?;
    if packet.src_mac != mac {
        return Err(SendRefusal::SourceMac);
    }
    let ends = ends(&packet).map_err(SendRefusal::Malformed)?;
    if !addresses.contains(&ends.src.addr) {
        return Err(SendRefusal::SourceAddress);
    }
    if claims.owner(ends.protocol, ends.src) != Some(port) {
        return Err(SendRefusal::SourcePort);
    }
    let dst = ends.dst.addr;
    let to_many = dst.is_multicast_or_broadcast();
    if dst.is_unspecified()
        || dst.is_loopback()
        || dst.is_this_network_v4()
        || (to_many && ends.protocol == TCP)
    {
        return Err(SendRefusal::Destination);
    }
    let is_right = match ends.protocol {
        TCP => tcp_checksum_ok(packet.src, packet.dst, packet.payload, false),
        _ => is_udp_checksum_right(&packet),
    };
    match is_right {
        true => Ok(ends),
        false => Err(SendRefusal::Malformed(DropReason::BadChecksum)),
    }
}

/// Returns true if the checksum of a UDP datagram is right. IPv4 has no checksum if the field is
/// zero (RFC 768); IPv6 requires a checksum (RFC 8200 §8.1).
fn is_udp_checksum_right(packet: &Packet<'_>) -> bool {
    let datagram = packet.payload;
    if packet.src.is_v4() && datagram.get(6..8) == Some(&[0, 0]) {
        return true;
    }
    let pseudo = checksum::pseudo_header(packet.src, packet.dst, UDP, datagram.len() as u32);
    datagram.get(6..8) != Some(&[0, 0]) && pseudo.plus(checksum::sum(datagram)).is_valid()
}
