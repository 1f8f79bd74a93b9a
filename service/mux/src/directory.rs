//! The owners of packets: the interface's addresses, and the 3-tuples that ports have claimed.

use tidelane_wire::{IpAddress, MacAddress, QuotedPacket, parse_frame, protocol};

use crate::{
    check::{Ends, SendCheck, ends},
    claims::{Claims, PortId},
};

/// Destination of a checked packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// The port that has claimed the packet's destination.
    Port(PortId),
    /// The host.
    Host,
    /// The NIC.
    Nic,
}

/// The addresses of the interface, and the claims of the ports.
pub struct Directory {
    mac: MacAddress,
    addresses: Vec<IpAddress>,
    /// The 3-tuples that ports have claimed.
    pub claims: Claims,
}

impl Directory {
    /// Makes a directory without claims. `mac` and `addresses` are those of the interface.
    pub fn new(mac: MacAddress, addresses: Vec<IpAddress>) -> Self {
        Self {
            mac,
            addresses,
            claims: Claims::default(),
        }
    }

    /// Sets the link address and the addresses of the interface.
    pub fn set_link(&mut self, mac: MacAddress, addresses: Vec<IpAddress>) {
        self.mac = mac;
        self.addresses = addresses;
    }

    /// Returns the properties that a packet of `port` must have.
    pub fn send_check(&self, port: PortId) -> SendCheck<'_> {
        SendCheck {
            port,
            claims: &self.claims,
            mac: self.mac,
            addresses: &self.addresses,
        }
    }

    /// Returns the destination of a packet that a port sends.
    #[inline]
    pub fn destination(&self, ends: &Ends) -> Destination {
        if !self.addresses.contains(&ends.dst.addr) {
            return Destination::Nic;
        }
        match self.claims.owner(ends.protocol, ends.dst) {
            Some(port) => Destination::Port(port),
            None => Destination::Host,
        }
    }

    /// Returns the port for a received packet: the owner of the destination 3-tuple, or for an ICMP
    /// error the owner of the source 3-tuple of the quoted packet. The stack of the port checks the
    /// transport checksum, as it would behind a NIC.
    ///
    /// A packet of the wire with an address of this host as its source is forged. No port gets such
    /// a packet; the host counts and drops it.
    #[inline]
    pub fn receiver(&self, frame: &[u8], from_wire: bool) -> Option<PortId> {
        let packet = parse_frame(frame).ok()?;
        let is_forged = from_wire && self.addresses.contains(&packet.src);
        if is_forged || !self.addresses.contains(&packet.dst) {
            return None;
        }
        if matches!(packet.protocol, protocol::ICMP | protocol::ICMPV6) {
            let quoted = QuotedPacket::of_error(&packet).ok()?;
            return self.claims.owner(quoted.protocol, quoted.key.local);
        }
        let ends = ends(&packet).ok()?;
        self.claims.owner(ends.protocol, ends.dst)
    }
}
