//! The directory that finds the receiver of a packet from the interface's addresses and the
//! 3-tuples that mux ports have claimed. A mux port is a pair of packet rings through which a
//! program with a TCP/IP stack of its own shares the NIC. The *host* is the stack that gets all
//! packets that no mux port has claimed.

use tidelane_wire::{IpAddress, MacAddress, Packet, parse_frame, parse_quoted_packet, protocol};

use crate::{
    check::{Ends, SendCheck, ends, is_to_many},
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
    /// The 3-tuples that mux ports have claimed.
    pub claims: Claims,
}

impl Directory {
    /// Makes a directory without claims. `mac` and `addresses` belong to the interface.
    pub fn new(mac: MacAddress, addresses: Vec<IpAddress>) -> Self {
        Self {
            mac,
            addresses,
            broadcasts: Vec::new(),
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

    /// Returns true for a UDP packet to a multicast or broadcast address.
    #[cold]
    #[inline(never)]
    fn is_group_datagram(&self, number: u8, dst: IpAddress) -> bool {
        number == protocol::UDP && is_to_many(dst, &self.broadcasts)
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

    /// Returns the destination of a packet that mux port `from` sends. The packet goes to the NIC
    /// unless its destination is an address of the interface. The sender of a multicast or
    /// broadcast datagram gets no copy, as on an Ethernet link.
    #[inline]
    pub fn destination(&self, from: PortId, ends: &Ends) -> Destination {
        if !self.addresses.contains(&ends.dst.addr) {
            return match self.is_group_datagram(ends.protocol, ends.dst.addr) {
                true => self.destination_of_many(from, ends),
                false => Destination::Nic,
            };
        }
        match self.claims.owner(ends.protocol, ends.dst) {
            Some(port) => Destination::Port(port),
            None => Destination::Host,
        }
    }

    /// Returns the destination of a multicast or broadcast datagram that mux port `from` sends.
    #[cold]
    #[inline(never)]
    fn destination_of_many(&self, from: PortId, ends: &Ends) -> Destination {
        let receiver = self.claims.owner(ends.protocol, ends.dst);
        let other = receiver.filter(|receiver| *receiver != from);
        other.map_or(Destination::Nic, Destination::NicAndPort)
    }

    /// Returns the mux port for a received packet: the owner of the destination 3-tuple, or for an
    /// ICMP error the owner of the source 3-tuple of the quoted packet. The stack of the port
    /// checks the transport checksum, as a stack behind a NIC does.
    ///
    /// A multicast or broadcast datagram goes to the owner of the wildcard address, as in Linux: a
    /// socket that is bound to an address of the interface does not receive these datagrams.
    ///
    /// A packet from the wire is forged if its source is an address of this host. No mux port gets
    /// a forged packet. The host counts and drops the packet.
    #[inline]
    pub fn receiver(&self, frame: &[u8], from_wire: bool) -> Option<PortId> {
        let packet = parse_frame(frame).ok()?;
        let is_forged = from_wire && self.addresses.contains(&packet.src);
        if is_forged {
            return None;
        }
        if !self.addresses.contains(&packet.dst) {
            return self.receiver_of_many(&packet);
        }
        if matches!(packet.protocol, protocol::ICMP | protocol::ICMPV6) {
            let quoted = parse_quoted_packet(&packet).ok()?;
            return self.claims.owner(quoted.protocol, quoted.key.local);
        }
        let ends = ends(&packet).ok()?;
        self.claims.owner(ends.protocol, ends.dst)
    }
    /// Returns the mux port for a multicast or broadcast datagram. Returns `None` for another
    /// packet.
    #[cold]
    #[inline(never)]
    fn receiver_of_many(&self, packet: &Packet<'_>) -> Option<PortId> {
        if !self.is_group_datagram(packet.protocol, packet.dst) {
            return None;
        }
        let ends = ends(packet).ok()?;
        self.claims.owner(ends.protocol, ends.dst)
    }
}
