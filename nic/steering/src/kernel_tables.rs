//! A copy of the kernel's links, addresses, routes and neighbors, kept up to date over netlink.
//!
//! The service (the process `tidelaned`) has no addresses, routes or ARP of its own. This module
//! copies the kernel's tables for the service, and asks the kernel to resolve a neighbor or to keep
//! a neighbor's entry fresh. [`KernelTables::open`] subscribes to events first and then dumps
//! (reads) all tables, so that no change is missed. [`KernelTables::poll`] applies the events since
//! the last poll. If the kernel discarded events because the socket's buffer was full, `poll` dumps
//! all tables again.
//!
//! `poll` dumps the routes again after any event that can affect them, because the kernel does not
//! announce all changes of routes. For example, the kernel silently removes the routes of a link
//! that goes down, and the routes of an address that is removed. The dumps cost little, because a
//! host has few routes and changes them rarely.
//!
//! Policy routing is not copied: the lookup uses the local, main and default tables, in the order
//! of the kernel's default rules. An address has 16 bytes. An IPv4 address has the IPv4-mapped form
//! `::ffff:a.b.c.d`.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, BorrowedFd},
};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::AddressMessage,
    link::LinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage},
    route::RouteMessage,
};

use self::{
    channel::{Channel, Received},
    routes::RouteTable,
    tables::Tables,
};

mod channel;
mod links;
mod routes;
mod tables;

pub use links::{AttachedXdpMode, LinkKind, LinkRecord};
pub use routes::{RouteInfo, RouteKind};
pub use tables::{AddressRecord, Neighbor, NeighborState};

/// The two IP versions. The kernel dumps addresses, neighbors and routes by IP version.
const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];

/// An IPv6 address, or an IPv4 address in the IPv4-mapped form `::ffff:a.b.c.d`.
pub type Address = [u8; 16];

/// Returns two values: true for an IPv4 address, and true for an IPv6 link-local address.
fn scope_of(addr: &Address) -> (bool, bool) {
    let addr = Ipv6Addr::from(*addr);
    (
        addr.to_ipv4_mapped().is_some(),
        addr.is_unicast_link_local(),
    )
}

/// Returns the 16-byte form of an IPv4 address.
pub const fn address_from_ipv4(addr: Ipv4Addr) -> Address {
    addr.to_ipv6_mapped().octets()
}

/// Returns the 16-byte form of an IP address.
pub const fn address_from_ip(addr: IpAddr) -> Address {
    match addr {
        IpAddr::V4(addr) => address_from_ipv4(addr),
        IpAddr::V6(addr) => addr.octets(),
    }
}

/// Returns the IPv4 address of a 16-byte form. Returns `None` for an IPv6 address.
pub fn address_to_ipv4(addr: &Address) -> Option<Ipv4Addr> {
    Ipv6Addr::from(*addr).to_ipv4_mapped()
}

/// A link-layer address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A change in the kernel's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The link with this index was added or changed. [`KernelTables::link`] returns the link.
    Link(u32),
    /// The link with this index was removed, with its addresses, routes and neighbors.
    LinkGone(u32),
    /// An address was added or changed.
    Address {
        /// Index of the link of the address.
        ifindex: u32,
        /// The address.
        addr: Address,
    },
    /// An address was removed, or became unusable (tentative, or a duplicate).
    AddressGone {
        /// Index of the link of the address.
        ifindex: u32,
        /// The address.
        addr: Address,
    },
    /// The routes changed.
    Routes,
    /// A neighbor was added, changed or removed. [`KernelTables::neighbor`] returns the new entry,
    /// or `None` after a removal.
    Neighbor {
        /// Index of the link to the neighbor.
        ifindex: u32,
        /// Address of the neighbor.
        addr: Address,
    },
    /// The kernel dropped events. [`KernelTables::poll`] has read all tables again, and any entry
    /// may have changed.
    Resync,
}

/// A copy of the kernel's links, addresses, routes and neighbors.
pub struct KernelTables {
    /// The socket that receives the kernel's events.
    events: Channel,
    /// The socket for dumps and other requests.
    requests: Channel,
    /// Links, addresses and neighbors.
    tables: Tables,
    routes: RouteTable,
}

impl KernelTables {
    /// Subscribes to events and reads all tables, in the network namespace of this thread.
    pub fn open() -> io::Result<Self> {
        let mut kernel_tables = Self {
            events: Channel::subscribed()?,
            requests: Channel::new()?,
            tables: Tables::default(),
            routes: RouteTable::default(),
        };
        kernel_tables.read_all()?;
        Ok(kernel_tables)
    }

    /// Returns the socket, which is readable when [`poll`](Self::poll) has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Applies the events since the last call. Returns the changes. Does not wait for events. If a
    /// dump is necessary, waits for the kernel's answer, and fails if a part of the answer takes
    /// longer than 2 s.
    pub fn poll(&mut self) -> io::Result<Vec<Change>> {
        let mut changes = Vec::new();
        let mut routes_touched = false;
        loop {
            let tables = &mut self.tables;
            let received = self.events.receive(|message| {
                routes_touched |= touches_routes(&message);
                changes.extend(tables.apply(message));
            })?;
            match received {
                Received::Some => {}
                Received::Nothing => break,
                Received::Overrun => {
                    self.read_all()?;
                    return Ok(vec![Change::Resync]);
                }
            }
        }
        if routes_touched {
            let routes = self.read_routes()?;
            if routes != self.routes {
                self.routes = routes;
                changes.push(Change::Routes);
            }
        }
        Ok(changes)
    }

    /// Returns the link with this index.
    pub fn link(&self, ifindex: u32) -> Option<&LinkRecord> {
        self.tables.links.get(&ifindex)
    }

    /// Returns the link with this name.
    pub fn link_by_name(&self, name: &str) -> Option<&LinkRecord> {
        self.links().find(|link| link.name == name)
    }

    /// Returns all links.
    pub fn links(&self) -> impl Iterator<Item = &LinkRecord> {
        self.tables.links.values()
    }

    /// Returns the addresses of a link in the order of the kernel's dump. Addresses that were added
    /// after the dump follow at the end.
    pub fn addresses(&self, ifindex: u32) -> impl Iterator<Item = &AddressRecord> {
        self.tables
            .addresses
            .iter()
            .filter(move |record| record.ifindex == ifindex)
    }

    /// Returns the route to `dst`: the longest matching prefix in the first table with a match, in
    /// the order local, main, default. The MTU is at most the MTU of the link.
    ///
    /// If the route has no preferred source address, the function chooses an address of the link.
    /// Only addresses that have the IP version and the scope (link-local or not) of `dst` are
    /// candidates. The function chooses the first candidate whose network contains the next hop. If
    /// there is no such candidate, the function chooses the first candidate.
    pub fn route_lookup(&self, dst: &Address) -> Option<RouteInfo> {
        let mut info = self.routes.lookup(dst)?;
        if let Some(link) = self.link(info.ifindex) {
            info.mtu = info.mtu.min(link.mtu);
        }
        if info.prefsrc.is_none() {
            let target = info.gateway.unwrap_or(*dst);
            let scope = scope_of(dst);
            let fitting = || {
                let addresses = self.addresses(info.ifindex);
                addresses.filter(|record| scope_of(&record.addr) == scope)
            };
            let chosen = fitting().find(|record| record.network_contains(&target));
            let chosen = chosen.or_else(|| fitting().next());
            info.prefsrc = chosen.map(|record| record.addr);
        }
        Some(info)
    }

    /// Returns all copied routes: prefix, length of the prefix in the 16-byte form, and route.
    pub fn routes(&self) -> impl Iterator<Item = (Address, u8, RouteInfo)> {
        self.routes.all()
    }

    /// Returns the copied routes of each table. The tables are in the order of the kernel's lookup.
    pub fn route_tables(&self) -> impl Iterator<Item = Vec<(Address, u8, RouteInfo)>> {
        self.routes.by_table()
    }

    /// Returns the kernel's entries for the neighbors on a link.
    pub fn neighbors(&self, ifindex: u32) -> impl Iterator<Item = (Address, Neighbor)> {
        let behind = (ifindex, [0; 16])..=(ifindex, [0xff; 16]);
        let known = self.tables.neighbors.range(behind);
        known.map(|((_, addr), neighbor)| (*addr, *neighbor))
    }

    /// Returns the kernel's entry for a neighbor.
    pub fn neighbor(&self, ifindex: u32, addr: &Address) -> Option<Neighbor> {
        self.tables.neighbors.get(&(ifindex, *addr)).copied()
    }

    /// Asks the kernel to resolve a neighbor or to confirm its entry (`ip neighbor add .. use`). A
    /// later [`poll`](Self::poll) returns the result. The kernel does not see the traffic of the
    /// service, and lets the entry of a used neighbor become [`NeighborState::Stale`]. The caller
    /// therefore repeats the call from time to time while it uses the neighbor.
    ///
    /// A request to confirm a permanent or NOARP entry would turn the entry into an ordinary entry.
    /// The function therefore reads the entry first:
    ///
    /// * If the kernel has no entry, the function requests a new entry. If an entry has appeared
    ///   meanwhile, this request does not change the entry.
    /// * If the entry is stale, failed or without a state, the function requests a change of the
    ///   entry. If the entry has become permanent meanwhile, this request still changes the entry.
    /// * In all other states, the function sends no request.
    pub fn resolve(&mut self, ifindex: u32, addr: &Address) -> io::Result<()> {
        use NeighborState::{Failed, None as Unknown, Stale};
        let mut message = neighbor_message(ifindex, addr);
        let asked = RouteNetlinkMessage::GetNeighbour(message.clone());
        let known = self.requests.get(asked)?;
        message.header.flags = NeighbourFlags::Use;
        let request = RouteNetlinkMessage::NewNeighbour(message);
        match known.iter().find_map(tables::neighbor_state_in) {
            None => self.requests.create_new(request),
            Some(Stale | Failed | Unknown) => self.requests.change(request),
            Some(_) => Ok(()),
        }
    }

    fn read_all(&mut self) -> io::Result<()> {
        self.tables = Tables::default();
        let mut requests = vec![RouteNetlinkMessage::GetLink(LinkMessage::default())];
        for family in FAMILIES {
            let mut address = AddressMessage::default();
            address.header.family = family;
            requests.push(RouteNetlinkMessage::GetAddress(address));
            let mut neighbor = NeighbourMessage::default();
            neighbor.header.family = family;
            requests.push(RouteNetlinkMessage::GetNeighbour(neighbor));
        }
        for request in requests {
            for message in self.requests.dump(request)? {
                self.tables.apply(message);
            }
        }
        self.routes = self.read_routes()?;
        Ok(())
    }

    fn read_routes(&mut self) -> io::Result<RouteTable> {
        let mut messages = Vec::new();
        for family in FAMILIES {
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            messages.extend(self.requests.dump(RouteNetlinkMessage::GetRoute(request))?);
        }
        Ok(RouteTable::from_messages(messages))
    }
}

/// Returns the link-layer address of an interface in the network namespace of this thread. Returns
/// `None` if there is no such interface, or if the interface has no address of six bytes.
pub fn link_address(ifindex: u32) -> io::Result<Option<MacAddress>> {
    let mut tables = Tables::default();
    let links = RouteNetlinkMessage::GetLink(LinkMessage::default());
    for message in Channel::new()?.dump(links)? {
        tables.apply(message);
    }
    Ok(tables.links.get(&ifindex).and_then(|link| link.mac))
}

fn neighbor_message(ifindex: u32, addr: &Address) -> NeighbourMessage {
    let (family, destination) = match address_to_ipv4(addr) {
        Some(v4) => (AddressFamily::Inet, NeighbourAddress::Inet(v4)),
        None => {
            let v6 = Ipv6Addr::from(*addr);
            (AddressFamily::Inet6, NeighbourAddress::Inet6(v6))
        }
    };
    let mut message = NeighbourMessage::default();
    message.header.family = family;
    message.header.ifindex = ifindex;
    let destination = NeighbourAttribute::Destination(destination);
    message.attributes.push(destination);
    message
}

/// Returns true if an event can affect the routes.
fn touches_routes(message: &RouteNetlinkMessage) -> bool {
    use RouteNetlinkMessage::{DelAddress, DelLink, DelRoute, NewAddress, NewLink, NewRoute};
    matches!(
        message,
        NewLink(_) | DelLink(_) | NewAddress(_) | DelAddress(_) | NewRoute(_) | DelRoute(_)
    )
}
