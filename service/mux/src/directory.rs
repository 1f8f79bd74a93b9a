//! The directory finds the receiver of a packet by the interface's addresses and by the 3-tuples
//! (protocol, local address, local port) that mux ports have claimed. A mux port is a pair of
//! packet rings through which a program with a TCP/IP stack of its own shares the NIC. The *host*
//! is the stack that gets all packets that no mux port has claimed.

use tidelane_wire::{
    DropReason, ETHERNET_HEADER_LEN, Endpoint, FrameHeaders, ICMP_ERROR_LEN_MAX, IpAddress,
    IpFields, MacAddress, Packet, emit_packet_too_big, parse_frame, parse_frame_v4,
    parse_quoted_packet, protocol,
};

use crate::{
    address::Address,
    check::{Ends, SendCheck, SendRefusal, ends, is_to_many},
    claims::{Claims, PortId},
};

/// Destination of a checked packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// The mux port that has claimed the packet's destination.
    Port(PortId),
    /// The host, because no mux port has claimed this local destination.
    Host,
    /// The NIC, because the destination is not an address of the interface.
    Nic,
    /// The NIC, and a mux port that also receives the multicast or broadcast datagram.
    NicAndPort(PortId),
}

impl Destination {
    /// Returns true if the NIC gets the packet.
    #[inline]
    pub fn is_nic(self) -> bool {
        matches!(self, Self::Nic | Self::NicAndPort(_))
    }
}

/// The addresses of the interface, and the claims of the mux ports.
pub struct Directory {
    mac: MacAddress,
    addresses: Vec<IpAddress>,
    /// Broadcast addresses of the interface's IPv4 networks.
    broadcasts: Vec<IpAddress>,
    /// MTU of the interface in bytes.
    mtu: u16,
    /// The 3-tuples that mux ports have claimed.
    pub claims: Claims,
}

impl Directory {
    /// Makes a directory without claims. `mac` and `addresses` belong to the interface. Before the
    /// first call of [`set_mtu`](Self::set_mtu), the MTU is 65,535 bytes, the largest length of an
    /// IPv4 packet.
    pub fn new(mac: MacAddress, addresses: Vec<IpAddress>) -> Self {
        Self {
            mac,
            addresses,
            broadcasts: Vec::new(),
            mtu: u16::MAX,
            claims: Claims::default(),
        }
    }

    /// Sets the link address and the addresses of the interface.
    pub fn set_link(&mut self, mac: MacAddress, addresses: Vec<IpAddress>) {
        self.mac = mac;
        self.addresses = addresses;
    }

    /// Sets the broadcast addresses of the interface's IPv4 networks.
    pub fn set_broadcasts(&mut self, broadcasts: Vec<IpAddress>) {
        self.broadcasts = broadcasts;
    }

    /// Sets the MTU of the interface in bytes.
    pub fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu;
    }

    /// Returns the length of the longest frame that the NIC may send, in bytes.
    #[inline(always)]
    pub fn nic_frame_len_max(&self) -> usize {
        ETHERNET_HEADER_LEN + usize::from(self.mtu)
    }

    /// Returns the frame of an ICMP error, which tells a mux port that its packet in `frame` is
    /// longer than the MTU. The source of the error is the destination of the packet. Returns
    /// `None` if `frame` is malformed, or if the destination is a multicast or broadcast address.
    /// No ICMP error answers a multicast or broadcast packet of IPv4 (RFC 1122 §3.2.2), and a
    /// multicast address cannot be the source of an error (RFC 4291 §2.7).
    #[cold]
    pub fn too_big(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let packet = parse_frame(frame).ok()?;
        if self.is_group(packet.dst) {
            return None;
        }
        let headers = FrameHeaders {
            src_mac: packet.src_mac,
            dst_mac: packet.dst_mac,
            src: packet.src,
            dst: packet.dst,
            ttl: packet.ttl,
            next: packet.protocol,
        };
        let mut error = vec![0; ICMP_ERROR_LEN_MAX];
        let quoted = &frame[ETHERNET_HEADER_LEN..];
        let ttl = IpFields::default().hop_limit;
        let len = emit_packet_too_big(&mut error, &headers, quoted, self.mtu, (ttl, 0))?;
        error.truncate(len);
        Some(error)
    }

    /// Returns true if a packet to `dst` is UDP and `dst` is a multicast or broadcast address.
    /// `number` is the protocol number of the packet.
    #[inline(always)]
    fn is_group_datagram(&self, number: u8, dst: impl Address) -> bool {
        number == protocol::UDP && self.is_group(dst.into())
    }

    /// Returns true if `dst` is a multicast or broadcast address.
    #[cold]
    #[inline(never)]
    fn is_group(&self, dst: IpAddress) -> bool {
        is_to_many(dst, &self.broadcasts)
    }

    /// Returns the check for the packets that `port` sends.
    pub fn send_check(&self, port: PortId) -> SendCheck<'_> {
        SendCheck {
            port,
            claims: &self.claims,
            mac: self.mac,
            addresses: &self.addresses,
            broadcasts: &self.broadcasts,
        }
    }

    /// Checks a frame that mux port `from` sends, and returns its destination.
    #[inline(always)]
    pub fn check_sent(&self, from: PortId, frame: &[u8]) -> Result<Destination, SendRefusal> {
        match parse_frame_v4(frame) {
            Some(packet) => self.check_packet(from, packet),
            None => self.check_other(from, frame),
        }
    }

    /// Checks a frame that [`parse_frame_v4`] does not handle. For a frame that [`parse_frame_v4`]
    /// handles, the result also equals the result of [`check_sent`](Self::check_sent).
    #[inline(never)]
    fn check_other(&self, from: PortId, frame: &[u8]) -> Result<Destination, SendRefusal> {
        self.check_packet(from, parse_frame(frame))
    }

    #[inline(always)]
    fn check_packet<A: Address>(
        &self,
        from: PortId,
        packet: Result<Packet<'_, A>, DropReason>,
    ) -> Result<Destination, SendRefusal> {
        let packet = packet.map_err(SendRefusal::Malformed)?;
        let ends = self.send_check(from).check(&packet)?;
        Ok(self.destination(from, &ends))
    }

    /// Returns the destination of a packet that mux port `from` sends. If the destination is an
    /// address of the interface, the packet stays on this machine; otherwise, the packet goes to
    /// the NIC. The sender of a multicast or broadcast datagram gets no copy, as on an Ethernet
    /// link.
    #[inline(always)]
    pub fn destination<A: Address>(&self, from: PortId, ends: &Ends<A>) -> Destination {
        if !ends.dst.is_one_of(&self.addresses) {
            return match self.is_group_datagram(ends.protocol, ends.dst) {
                true => self.destination_of_many(from, ends.destination()),
                false => Destination::Nic,
            };
        }
        match self.claims.owner(ends.protocol, ends.destination()) {
            Some(port) => Destination::Port(port),
            None => Destination::Host,
        }
    }

    /// Returns the destination of a datagram that mux port `from` sends to `group`, a multicast or
    /// broadcast address.
    #[cold]
    #[inline(never)]
    fn destination_of_many(&self, from: PortId, group: Endpoint) -> Destination {
        let receiver = self.claims.owner(protocol::UDP, group);
        let other = receiver.filter(|receiver| *receiver != from);
        other.map_or(Destination::Nic, Destination::NicAndPort)
    }

    /// Returns the mux port that receives a packet from the NIC or the host: the owner of the
    /// destination 3-tuple. An ICMP error goes to the owner of the source 3-tuple of the packet
    /// that the error quotes. Returns `None` if no mux port receives the packet. The stack of the
    /// mux port checks the transport checksum, as a stack behind a NIC does.
    ///
    /// A claim to all addresses (the wildcard address) covers multicast and broadcast datagrams. A
    /// claim to an address of the interface does not cover these datagrams. Sockets of Linux that
    /// are bound to the wildcard address or to an address of the interface behave in the same way.
    ///
    /// A packet from the wire (`from_wire`) is forged if its source is an address of the interface.
    /// No mux port gets a forged packet. The host counts and drops the packet.
    #[inline]
    pub fn receiver(&self, frame: &[u8], from_wire: bool) -> Option<PortId> {
        match parse_frame_v4(frame) {
            Some(packet) => self.receiver_of_packet(&packet.ok()?, from_wire),
            None => self.receiver_of_other(frame, from_wire),
        }
    }

    /// Returns the mux port that receives a frame that [`parse_frame_v4`] does not handle.
    #[inline(never)]
    fn receiver_of_other(&self, frame: &[u8], from_wire: bool) -> Option<PortId> {
        self.receiver_of_packet(&parse_frame(frame).ok()?, from_wire)
    }

    #[inline(always)]
    fn receiver_of_packet<A: Address>(
        &self,
        packet: &Packet<'_, A>,
        from_wire: bool,
    ) -> Option<PortId> {
        let is_forged = from_wire && packet.src.is_one_of(&self.addresses);
        if is_forged {
            return None;
        }
        if !packet.dst.is_one_of(&self.addresses) {
            return self.receiver_of_many(&packet.widen());
        }
        if matches!(packet.protocol, protocol::ICMP | protocol::ICMPV6) {
            return self.receiver_of_error(&packet.widen());
        }
        let ends = ends(packet).ok()?;
        self.claims.owner(ends.protocol, ends.destination())
    }

    /// Returns the mux port that receives an ICMP error. Returns `None` if the packet is another
    /// ICMP message, or if no mux port has claimed the 3-tuple.
    #[cold]
    #[inline(never)]
    fn receiver_of_error(&self, packet: &Packet<'_>) -> Option<PortId> {
        let quoted = parse_quoted_packet(packet).ok()?;
        self.claims.owner(quoted.protocol, quoted.key.local)
    }

    /// Returns the mux port that receives a multicast or broadcast datagram. Returns `None` if the
    /// packet is another packet, or if no mux port has claimed the 3-tuple.
    #[cold]
    #[inline(never)]
    fn receiver_of_many(&self, packet: &Packet<'_>) -> Option<PortId> {
        if !self.is_group_datagram(packet.protocol, packet.dst) {
            return None;
        }
        let ends = ends(packet).ok()?;
        self.claims.owner(ends.protocol, ends.destination())
    }
}

#[cfg(test)]
mod tests;
