//! Copies of the kernel's tables of links, addresses and neighbors. The kernel's rtnetlink messages
//! about new, changed and deleted entries update the copies.

use std::{collections::BTreeMap, net::IpAddr};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage},
    link::LinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage},
};

use super::{
    Address, Change, MacAddress, address_from_ip, address_from_ipv4,
    links::{LinkRecord, mac_address},
};

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRecord {
    /// Index of the link.
    pub ifindex: u32,
    /// The address, which belongs to this machine.
    pub addr: Address,
    /// An address in the network that the link reaches without a router. If an IPv4 address has a
    /// peer (point-to-point), the network is the peer's network, and this field has the peer's
    /// address. In all other cases, this field equals `addr`.
    pub network: Address,
    /// Length of the prefix of `network` in bits. The length of an IPv4 prefix includes the 96 bits
    /// of the IPv4-mapped form, so that a /24 has 120.
    pub prefix_len: u8,
}

impl AddressRecord {
    /// Returns true if `other` is in the network of this address.
    pub fn network_contains(&self, other: &Address) -> bool {
        let kept = u32::from(self.prefix_len.min(128));
        let different = u128::from_be_bytes(self.network) ^ u128::from_be_bytes(*other);
        different.leading_zeros() >= kept
    }
}

/// State of a neighbor entry (`NUD_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighborState {
    /// The kernel is resolving the IP address and has no answer yet (INCOMPLETE).
    Incomplete,
    /// The neighbor was confirmed recently (REACHABLE).
    Reachable,
    /// The neighbor was not confirmed recently (STALE). The link-layer address is usable, but the
    /// caller should request a confirmation.
    Stale,
    /// The kernel used the entry when it was stale (DELAY), and requests a confirmation soon.
    Delay,
    /// The kernel has requested a confirmation (PROBE).
    Probe,
    /// The neighbor did not answer (FAILED).
    Failed,
    /// The entry needs no resolution: an entry of an administrator (PERMANENT), or an entry of a
    /// link or address without ARP (NOARP).
    Permanent,
    /// The entry has no state (NONE), or a state that this module does not know.
    None,
}

/// An entry of the neighbor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// Link-layer address. `None` if the kernel does not know a link-layer address of six bytes.
    pub mac: Option<MacAddress>,
    /// State of the entry.
    pub state: NeighborState,
}

impl Neighbor {
    /// Returns the link-layer address to which frames for the neighbor are sent. Returns `None` if
    /// the kernel has no valid link-layer address.
    pub fn usable_mac(&self) -> Option<MacAddress> {
        use NeighborState::{Failed, Incomplete, None as Unknown};
        match self.state {
            Incomplete | Failed | Unknown => None,
            _ => self.mac,
        }
    }
}

/// The copies of the kernel's tables of links, addresses and neighbors.
#[derive(Default)]
pub(super) struct Tables {
    /// Links by interface index.
    pub(super) links: BTreeMap<u32, LinkRecord>,
    /// Addresses in the order of the kernel's dump. New addresses follow at the end.
    pub(super) addresses: Vec<AddressRecord>,
    /// Neighbors by interface index and IP address.
    pub(super) neighbors: BTreeMap<(u32, Address), Neighbor>,
}

impl Tables {
    /// Applies one rtnetlink message. Returns the change, or `None` if no table changed.
    pub(super) fn apply(&mut self, message: RouteNetlinkMessage) -> Option<Change> {
        match message {
            RouteNetlinkMessage::NewLink(link) => self.apply_link(&link),
            RouteNetlinkMessage::DelLink(link) => self.remove_link(&link),
            RouteNetlinkMessage::NewAddress(address) => self.apply_address(&address),
            RouteNetlinkMessage::DelAddress(address) => self.remove_address(&address),
            RouteNetlinkMessage::NewNeighbour(neighbor) => self.apply_neighbor(&neighbor),
            RouteNetlinkMessage::DelNeighbour(neighbor) => self.remove_neighbor(&neighbor),
            _ => None,
        }
    }

    fn apply_link(&mut self, message: &LinkMessage) -> Option<Change> {
        // A message of the family AF_BRIDGE describes a link as the port of a bridge, with other
        // attributes.
        if message.header.interface_family != AddressFamily::Unspec {
            return None;
        }
        let ifindex = message.header.index;
        let old = self.links.get(&ifindex);
        let mut link = old.cloned().unwrap_or(LinkRecord {
            ifindex,
            ..LinkRecord::default()
        });
        link.apply(message);
        if old == Some(&link) {
            return None;
        }
        self.links.insert(ifindex, link);
        Some(Change::Link(ifindex))
    }

    fn remove_link(&mut self, message: &LinkMessage) -> Option<Change> {
        if message.header.interface_family != AddressFamily::Unspec {
            return None;
        }
        let ifindex = message.header.index;
        self.links.remove(&ifindex)?;
        self.addresses.retain(|record| record.ifindex != ifindex);
        self.neighbors.retain(|(index, _), _| *index != ifindex);
        Some(Change::LinkGone(ifindex))
    }

    fn apply_address(&mut self, message: &AddressMessage) -> Option<Change> {
        if !is_usable(message) {
            return self.remove_address(message);
        }
        let record = address_record(message)?;
        let AddressRecord { ifindex, addr, .. } = record;
        if self.addresses.contains(&record) {
            return None;
        }
        self.addresses.push(record);
        Some(Change::Address { ifindex, addr })
    }

    fn remove_address(&mut self, message: &AddressMessage) -> Option<Change> {
        let gone = address_record(message)?;
        let place = self.addresses.iter().position(|record| *record == gone)?;
        self.addresses.remove(place);
        Some(Change::AddressGone {
            ifindex: gone.ifindex,
            addr: gone.addr,
        })
    }

    fn apply_neighbor(&mut self, message: &NeighbourMessage) -> Option<Change> {
        let addr = neighbor_address(message)?;
        let ifindex = message.header.ifindex;
        let mac = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                NeighbourAttribute::LinkLayerAddress(bytes) => mac_address(bytes),
                _ => None,
            });
        let neighbor = Neighbor {
            mac,
            state: neighbor_state(message),
        };
        let old = self.neighbors.insert((ifindex, addr), neighbor);
        (old != Some(neighbor)).then_some(Change::Neighbor { ifindex, addr })
    }

    fn remove_neighbor(&mut self, message: &NeighbourMessage) -> Option<Change> {
        let addr = neighbor_address(message)?;
        let ifindex = message.header.ifindex;
        self.neighbors.remove(&(ifindex, addr))?;
        Some(Change::Neighbor { ifindex, addr })
    }
}

/// Returns true if the address in a message may be used: the address is neither tentative nor a
/// duplicate (RFC 4862 §5.4). The kernel sends another message when the address becomes usable or
/// unusable.
fn is_usable(message: &AddressMessage) -> bool {
    let unusable = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    !message.header.flags.intersects(unusable)
}

/// Returns the address in a message, even if the address may not be used. Returns `None` for an
/// address that is neither IPv4 nor IPv6.
fn address_record(message: &AddressMessage) -> Option<AddressRecord> {
    let bits_before = match message.header.family {
        AddressFamily::Inet => 96,
        AddressFamily::Inet6 => 0,
        _ => return None,
    };
    // If the address has a peer (point-to-point), `Address` is the peer's address and `Local` is
    // this machine's address. If the address has no peer, `Address` is this machine's address, and
    // so is `Local`, if present. An IPv6 address without a peer has no `Local`.
    let local = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            AddressAttribute::Local(addr) => Some(*addr),
            _ => None,
        });
    let any = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            AddressAttribute::Address(addr) => Some(*addr),
            _ => None,
        });
    let own = local.or(any)?;
    // The prefix length of an IPv4 address belongs to `Address`. The kernel takes the prefix of an
    // IPv6 address from this machine's address, also if the address has a peer.
    let network = any.filter(IpAddr::is_ipv4).unwrap_or(own);
    Some(AddressRecord {
        ifindex: message.header.index,
        addr: address_from_ip(own),
        network: address_from_ip(network),
        prefix_len: message.header.prefix_len.saturating_add(bits_before),
    })
}

/// Returns the IP address of the neighbor in a message. Returns `None` if the message has no IP
/// address.
fn neighbor_address(message: &NeighbourMessage) -> Option<Address> {
    message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(addr)) => {
                Some(address_from_ipv4(*addr))
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(addr)) => Some(addr.octets()),
            _ => None,
        })
}

/// Returns the state of the neighbor entry in a message. Returns `None` if the message is not
/// RTM_NEWNEIGH.
pub(super) fn neighbor_state_in(message: &RouteNetlinkMessage) -> Option<NeighborState> {
    match message {
        RouteNetlinkMessage::NewNeighbour(neighbor) => Some(neighbor_state(neighbor)),
        _ => None,
    }
}

fn neighbor_state(message: &NeighbourMessage) -> NeighborState {
    use netlink_packet_route::neighbour::NeighbourState as Nud;
    match message.header.state {
        Nud::Incomplete => NeighborState::Incomplete,
        Nud::Reachable => NeighborState::Reachable,
        Nud::Stale => NeighborState::Stale,
        Nud::Delay => NeighborState::Delay,
        Nud::Probe => NeighborState::Probe,
        Nud::Failed => NeighborState::Failed,
        Nud::Noarp | Nud::Permanent => NeighborState::Permanent,
        _ => NeighborState::None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const IFINDEX: u32 = 3;

    fn address_message(addr: IpAddr, flags: AddressHeaderFlags) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.family = match addr {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        message.header.index = IFINDEX;
        message.header.prefix_len = 24;
        message.header.flags = flags;
        message.attributes.push(AddressAttribute::Address(addr));
        message
    }

    #[test]
    fn an_unusable_address_is_removed_by_new_and_del_messages() {
        use RouteNetlinkMessage::{DelAddress, NewAddress};
        let own = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
        let (ifindex, addr) = (IFINDEX, own.octets());
        let usable = address_message(own.into(), AddressHeaderFlags::Permanent);
        for flags in [AddressHeaderFlags::Tentative, AddressHeaderFlags::Dadfailed] {
            let unusable = address_message(own.into(), AddressHeaderFlags::Permanent | flags);
            for message in [NewAddress(unusable.clone()), DelAddress(unusable)] {
                let mut tables = Tables::default();
                assert_eq!(tables.apply(message.clone()), None);
                let added = tables.apply(NewAddress(usable.clone()));
                assert_eq!(added, Some(Change::Address { ifindex, addr }));
                let removed = tables.apply(message.clone());
                assert_eq!(removed, Some(Change::AddressGone { ifindex, addr }));
                assert_eq!(tables.addresses, []);
                assert_eq!(tables.apply(message), None);
            }
        }
    }

    #[test]
    fn an_address_knows_its_network() {
        let addr = address_from_ipv4(Ipv4Addr::new(10, 1, 2, 3));
        let record = AddressRecord {
            ifindex: 1,
            addr,
            network: addr,
            prefix_len: 96 + 22,
        };
        let contains =
            |d, e| record.network_contains(&address_from_ipv4(Ipv4Addr::new(10, 1, d, e)));
        assert!(contains(0, 1) && contains(3, 255));
        assert!(!contains(4, 0));
        assert!(
            !AddressRecord {
                prefix_len: 255,
                ..record
            }
            .network_contains(&[0; 16])
        );
        assert!(
            AddressRecord {
                prefix_len: 0,
                ..record
            }
            .network_contains(&[0xff; 16])
        );
    }

    #[test]
    fn the_network_of_an_ipv4_address_with_a_peer_is_the_peers() {
        let record = |own: IpAddr, peer: IpAddr| {
            let mut message = address_message(peer, AddressHeaderFlags::Permanent);
            message.attributes.push(AddressAttribute::Local(own));
            address_record(&message).expect("an address")
        };
        let v4 = |third| IpAddr::from(Ipv4Addr::new(10, 0, third, 1));
        let v6 = |first| IpAddr::from(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 1));
        let to_v4 = record(v4(1), v4(2));
        assert_eq!(to_v4.addr, address_from_ip(v4(1)));
        assert!(
            to_v4.network_contains(&address_from_ip(v4(2))) && !to_v4.network_contains(&to_v4.addr)
        );
        let to_v6 = record(v6(0xfd01), v6(0xfd02));
        assert_eq!(to_v6.addr, address_from_ip(v6(0xfd01)));
        assert!(
            to_v6.network_contains(&to_v6.addr)
                && !to_v6.network_contains(&address_from_ip(v6(0xfd02)))
        );
    }

    #[test]
    fn only_an_answering_neighbor_has_a_usable_address() {
        let mac = Some(MacAddress([2, 0, 0, 0, 0, 1]));
        let usable = |state| Neighbor { mac, state }.usable_mac();
        assert_eq!(usable(NeighborState::Reachable), mac);
        assert_eq!(usable(NeighborState::Stale), mac);
        assert_eq!(usable(NeighborState::Permanent), mac);
        assert_eq!(usable(NeighborState::Failed), None);
        assert_eq!(usable(NeighborState::Incomplete), None);
    }
}
