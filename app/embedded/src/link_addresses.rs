//! [`LinkAddresses`]: selects the link addresses of the frames that a stack sends.

use std::collections::HashMap;

use tidelane_engine::{FlowKey, IpAddress};
use tidelane_wire::{HeaderTemplate, MacAddress, protocol};

/// Link addresses of the local end, of the router, and of neighbours.
///
/// A stack neither sends nor answers ARP requests and neighbour solicitations. The kernel, which
/// receives the other traffic of the interface, answers the requests for the interface's addresses.
/// The stack learns the link address of a peer from a frame that the peer sends. Before the stack
/// opens a connection, the program has to set the link address of the peer or of the router.
///
/// The stack selects a link address for each new connection, and for each answer without a
/// connection. The stack selects the first known address of this list:
///
/// 1. the address that the program has set for the peer,
/// 2. the source of the frame that the stack is answering,
/// 3. the address of the router.
#[derive(Debug)]
pub struct LinkAddresses {
    own: MacAddress,
    /// Link address of the router. Zero on a link without link addresses. `None` if there is no
    /// router.
    gateway: Option<MacAddress>,
    /// Link addresses that the program has set, by IP address of the peer.
    neighbours: HashMap<IpAddress, MacAddress>,
    /// Source link address of the frame that is being processed. `None` at other times.
    arrival: Option<MacAddress>,
}

impl LinkAddresses {
    /// Returns the addresses of a stack without neighbours. A `gateway` of zeros means no router.
    /// If `own` is also zero, the link has no link addresses, and every peer is reachable.
    pub fn new(own: MacAddress, gateway: MacAddress) -> Self {
        let none = MacAddress::default();
        let is_known = own == none || gateway != none;
        Self {
            own,
            gateway: is_known.then_some(gateway),
            neighbours: HashMap::new(),
            arrival: None,
        }
    }

    /// Sets the link address `mac` of the next hop for the IP address `addr`. The next hop is a
    /// neighbour, or the router to `addr`. Existing connections keep their link addresses.
    pub fn set_neighbour(&mut self, addr: IpAddress, mac: MacAddress) {
        self.neighbours.insert(addr, mac);
    }

    /// Sets the link address of a neighbour. If `mac` is `None`, removes the link address. Returns
    /// the previous link address.
    pub fn replace_neighbour(
        &mut self,
        addr: IpAddress,
        mac: Option<MacAddress>,
    ) -> Option<MacAddress> {
        match mac {
            Some(mac) => self.neighbours.insert(addr, mac),
            None => self.neighbours.remove(&addr),
        }
    }

    /// Sets the source link address of the frame that is being processed. `None` means that no
    /// frame is being processed.
    pub fn set_arrival(&mut self, mac: Option<MacAddress>) {
        self.arrival = mac;
    }

    /// Returns the link address of the next hop to `peer`. Returns `None` if the link address is
    /// unknown.
    pub fn next_hop(&self, peer: IpAddress) -> Option<MacAddress> {
        let known = self.neighbours.get(&peer).copied();
        known.or(self.arrival).or(self.gateway)
    }

    /// Returns the Ethernet and IP headers for segments of a connection, or for an answer without a
    /// connection. Returns `None` if the next hop is unknown, or if the two addresses of `key` have
    /// different IP versions.
    pub fn template(&self, key: &FlowKey) -> Option<HeaderTemplate> {
        let (local, peer) = (key.local.addr, key.peer.addr);
        HeaderTemplate::new(self.own, self.next_hop(peer)?, local, peer)
    }

    /// Returns the Ethernet and IP headers for UDP datagrams from `local` to `peer`. `known` is the
    /// source link address of the peer's datagrams, if known. If the program has set a link address
    /// for the peer, this address has precedence over `known`. Returns `None` in the cases of
    /// [`template`](Self::template).
    pub fn udp_template(
        &self,
        local: IpAddress,
        peer: IpAddress,
        known: Option<MacAddress>,
    ) -> Option<HeaderTemplate> {
        let set = self.neighbours.get(&peer).copied();
        let next_hop = set.or(known).or_else(|| self.next_hop(peer))?;
        HeaderTemplate::with_protocol(protocol::UDP, self.own, next_hop, local, peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const ROUTER: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
    const SENDER: MacAddress = MacAddress([2, 0, 0, 0, 0, 3]);
    const NEIGHBOUR: MacAddress = MacAddress([2, 0, 0, 0, 0, 4]);

    #[test]
    fn the_most_specific_address_is_the_next_hop() {
        let (near, far) = (
            IpAddress::from_v4([10, 0, 0, 2]),
            IpAddress::from_v4([10, 0, 0, 3]),
        );
        let mut link = LinkAddresses::new(OWN, MacAddress::default());
        assert_eq!(link.next_hop(near), None);
        link.set_arrival(Some(SENDER));
        assert_eq!(link.next_hop(near), Some(SENDER));
        link.set_neighbour(near, NEIGHBOUR);
        assert_eq!(link.next_hop(near), Some(NEIGHBOUR));
        assert_eq!(link.next_hop(far), Some(SENDER));
        link.set_arrival(None);
        assert_eq!(link.next_hop(far), None);
        let link = LinkAddresses::new(OWN, ROUTER);
        assert_eq!(link.next_hop(far), Some(ROUTER));
    }

    #[test]
    fn on_a_link_without_link_addresses_every_address_is_a_next_hop() {
        let none = MacAddress::default();
        let link = LinkAddresses::new(none, none);
        assert_eq!(link.next_hop(IpAddress::from_v4([10, 0, 0, 2])), Some(none));
    }
}
