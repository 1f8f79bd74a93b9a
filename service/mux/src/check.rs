//! Checks of the packets that a program sends through its mux port. A mux port is a pair of packet
//! rings through which a program with a TCP/IP stack of its own shares the NIC. A packet leaves the
//! mux port only if the mux port has claimed the 3-tuple of the packet's source (protocol, local
//! address, local port), and if the packet's headers and checksums are valid. The TCP checksum of a
//! GSO frame is not checked.

use tidelane_wire::{
    DropReason, Endpoint, IpAddress, MacAddress, Packet, RawSegment,
    checksum::{self, Sum},
    parse_frame,
};

use crate::{
    address::Address,
    claims::{Claims, PROTOCOLS, PortId},
    gso::GsoFrame,
};

const TCP: u8 = PROTOCOLS[0];
const UDP: u8 = PROTOCOLS[1];
/// Length of a UDP header in bytes (RFC 768).
const UDP_HEADER_LEN: usize = 8;

/// Reason why the mux does not send a packet of a mux port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SendRefusal {
    /// A header or a checksum is invalid, the packet is a fragment, or its protocol is neither TCP
    /// nor UDP.
    Malformed(DropReason),
    /// The source MAC address is not the MAC address of the interface.
    SourceMac,
    /// The source address is not an address of the interface.
    SourceAddress,
    /// The mux port has not claimed the source 3-tuple.
    SourcePort,
    /// The destination cannot be a peer: the address is unspecified, loopback or in "this network"
    /// (0.0.0.0/8). For TCP, a multicast or broadcast address cannot be a peer either.
    Destination,
    /// The mux cannot split the GSO frame: see [`GsoFrame::new`].
    Segmentation,
    /// The [`Filter`](crate::Filter) does not let the packet pass.
    Rule,
    /// The packet is for the NIC, and the packet or a segment of the GSO frame is longer than the
    /// MTU of the interface. If the destination is neither multicast nor broadcast, the mux port
    /// gets an ICMP error with the MTU.
    TooLong,
}

/// The 5-tuple of a TCP or UDP packet.
#[derive(Clone, Copy, Debug)]
pub struct Ends<A> {
    /// Protocol number.
    pub protocol: u8,
    /// Source address.
    pub src: A,
    /// Source port.
    pub src_port: u16,
    /// Destination address.
    pub dst: A,
    /// Destination port.
    pub dst_port: u16,
}

impl<A: Address> Ends<A> {
    /// Returns the source address and port.
    #[inline(always)]
    pub fn source(&self) -> Endpoint {
        Endpoint::new(self.src.into(), self.src_port)
    }

    /// Returns the destination address and port.
    #[inline(always)]
    pub fn destination(&self) -> Endpoint {
        Endpoint::new(self.dst.into(), self.dst_port)
    }
}

/// Returns true if packets to `addr` are for several hosts. `broadcasts` are the broadcast
/// addresses of the interface's networks.
#[inline(always)]
pub fn is_to_many(addr: impl Address, broadcasts: &[IpAddress]) -> bool {
    addr.is_multicast_or_broadcast() || addr.is_one_of(broadcasts)
}

/// Returns the 5-tuple of a TCP or UDP packet. Checks the lengths in the transport header, but not
/// the checksum.
#[inline(always)]
pub fn ends<A: Address>(packet: &Packet<'_, A>) -> Result<Ends<A>, DropReason> {
    let (src_port, dst_port) = match packet.protocol {
        TCP => RawSegment::new_checked(packet.payload)?.ports(),
        UDP => udp_ports(packet.payload)?,
        _ => return Err(DropReason::UnsupportedProtocol),
    };
    Ok(Ends {
        protocol: packet.protocol,
        src: packet.src,
        src_port,
        dst: packet.dst,
        dst_port,
    })
}

/// Returns the source and destination port of a UDP datagram. Returns [`DropReason::Truncated`] if
/// the datagram is shorter than a header, or if the length field differs from the length of the
/// datagram.
fn udp_ports(datagram: &[u8]) -> Result<(u16, u16), DropReason> {
    let header = datagram.first_chunk::<UDP_HEADER_LEN>();
    let header = header.ok_or(DropReason::Truncated)?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    match usize::from(word(4)) == datagram.len() {
        true => Ok((word(0), word(2))),
        false => Err(DropReason::Truncated),
    }
}

/// The check of the packets that one mux port sends, with the claims (the mux ports' rights to
/// 3-tuples) and the addresses that the packets must match.
pub struct SendCheck<'a> {
    /// The mux port.
    pub port: PortId,
    /// The claims of all mux ports.
    pub claims: &'a Claims,
    /// Link address of the interface.
    pub mac: MacAddress,
    /// Addresses of the interface.
    pub addresses: &'a [IpAddress],
    /// Broadcast addresses of the interface's networks.
    pub broadcasts: &'a [IpAddress],
}

impl SendCheck<'_> {
    /// Checks a packet that the mux port sends, including the transport checksum.
    #[inline(always)]
    pub fn check<A: Address>(&self, packet: &Packet<'_, A>) -> Result<Ends<A>, SendRefusal> {
        let ends = self.check_ends(packet)?;
        let (payload, protocol) = (packet.payload, ends.protocol);
        let pseudo = packet
            .src
            .pseudo_header(packet.dst, protocol, payload.len() as u32);
        let is_right = match protocol {
            // `ends` has checked that the payload has a whole TCP header.
            TCP => pseudo.plus(checksum::sum(payload)).is_valid(),
            _ => is_udp_checksum_right(payload, pseudo, packet.src.into().is_v4()),
        };
        match is_right {
            true => Ok(ends),
            false => Err(SendRefusal::Malformed(DropReason::BadChecksum)),
        }
    }

    /// Checks a GSO frame that the mux port sends. The TCP checksum may have any value, because the
    /// NIC or the mux computes the checksum of each segment. `segment_size` is the number of
    /// payload bytes of a segment. `frame_len_max` is the length in bytes of the longest frame that
    /// the link can carry.
    pub fn check_gso<'f>(
        &self,
        frame: &'f [u8],
        segment_size: u16,
        frame_len_max: usize,
    ) -> Result<(Ends<IpAddress>, GsoFrame<'f>), SendRefusal> {
        let packet = parse_frame(frame).map_err(SendRefusal::Malformed)?;
        let ends = self.check_ends(&packet)?;
        let gso = GsoFrame::new(frame, &packet, segment_size, frame_len_max);
        Ok((ends, gso.ok_or(SendRefusal::Segmentation)?))
    }

    /// Checks the link address, addresses and ports of a packet.
    #[inline(always)]
    fn check_ends<A: Address>(&self, packet: &Packet<'_, A>) -> Result<Ends<A>, SendRefusal> {
        if packet.src_mac != self.mac {
            return Err(SendRefusal::SourceMac);
        }
        let ends = ends(packet).map_err(SendRefusal::Malformed)?;
        if !ends.src.is_one_of(self.addresses) {
            return Err(SendRefusal::SourceAddress);
        }
        if self.claims.owner(ends.protocol, ends.source()) != Some(self.port) {
            return Err(SendRefusal::SourcePort);
        }
        let to_many = || ends.protocol == TCP && is_to_many(ends.dst, self.broadcasts);
        if ends.dst.is_no_peer() || to_many() {
            return Err(SendRefusal::Destination);
        }
        Ok(ends)
    }
}

/// Returns true if the checksum of a UDP datagram is right. `pseudo` is the sum of the
/// pseudo-header. A checksum field of zero means "no checksum" in IPv4 (RFC 768) and is invalid in
/// IPv6 (RFC 8200 §8.1).
fn is_udp_checksum_right(datagram: &[u8], pseudo: Sum, is_v4: bool) -> bool {
    match datagram.get(6..8) {
        Some(&[0, 0]) => is_v4,
        _ => pseudo.plus(checksum::sum(datagram)).is_valid(),
    }
}
