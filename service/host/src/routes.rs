//! Where packets go: the driver's copy of the kernel's routes.

use tidelane_engine::LinkId;
use tidelane_wire::{IpAddress, MacAddress};

use crate::hops::{HopId, Hops};

/// A route of the interface that the service runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination prefix.
    pub prefix: IpAddress,
    /// Its length on the 128-bit form.
    pub prefix_len: u8,
    /// Next hop, or `None` for a destination on the link.
    pub gateway: Option<IpAddress>,
    /// The local address to use.
    pub source: IpAddress,
}

/// The interface as the host sees it.
#[derive(Clone, Debug)]
pub struct Interface {
    /// The link that its queues are.
    pub link: LinkId,
    /// Its own link address.
    pub mac: MacAddress,
    /// MTU in bytes.
    pub mtu: u32,
    /// Its own addresses.
    pub addresses: Vec<IpAddress>,
}

/// Routes and hops of one interface.
pub struct Routes {
    /// The interface.
    pub interface: Interface,
    /// The neighbours on its link.
    pub hops: Hops,
    routes: Vec<Route>,
}

impl Routes {
    /// No routes yet. `secret` keys hashes of what peers choose.
    pub fn new(interface: Interface, secret: [u8; 16]) -> Self {
        Self {
            interface,
            hops: Hops::new(secret),
            routes: Vec::new(),
        }
    }

    /// Replaces all routes.
    pub fn set_routes(&mut self, mut routes: Vec<Route>) {
        routes.sort_by_key(|route| std::cmp::Reverse(route.prefix_len));
        self.routes = routes;
    }

    /// Whether `addr` is one of the interface's own.
    #[inline]
    pub fn is_local(&self, addr: IpAddress) -> bool {
        self.interface.addresses.contains(&addr)
    }

    /// The route to `addr`: longest prefix.
    pub fn lookup(&self, addr: IpAddress) -> Option<Route> {
        self.routes
            .iter()
            .find(|r| addr.shares_prefix(r.prefix, r.prefix_len))
            .copied()
    }

    fn next_hop(&self, addr: IpAddress) -> Option<IpAddress> {
        let route = self.lookup(addr)?;
        Some(route.gateway.unwrap_or(addr))
    }

    /// The next hop to `addr`, made if it is new. `None` without a route, or with too many
    /// neighbours in use.
    pub fn hop_to(&mut self, addr: IpAddress) -> Option<HopId> {
        let next = self.next_hop(addr)?;
        self.hops.find_or_make(next)
    }

    /// The link address of the next hop to `addr`, if it happens to be known.
    pub fn known_mac(&self, addr: IpAddress) -> Option<MacAddress> {
        let hop = self.hops.find(self.next_hop(addr)?)?;
        self.hops.get(hop).mac
    }
}
