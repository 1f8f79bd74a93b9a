//! The host's copy of the kernel's routes over the served interface, and the look-up of next hops.

use tidelane_engine::LinkId;
use tidelane_wire::{DropReason, IpAddress, MacAddress};

use crate::{
    hops::{HopId, Hops},
    ingress::{IngressPolicy, KernelRoute, SourceChecks, Way},
    prefixes::Prefixes,
};

/// A route of the served interface, on which the service runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination prefix.
    pub prefix: IpAddress,
    /// Prefix length in bits of the 128-bit form: an IPv4 prefix has 96 bits more.
    pub prefix_len: u8,
    /// Next hop, or `None` for a destination on the link.
    pub gateway: Option<IpAddress>,
    /// The source address of packets that take the route.
    pub source: IpAddress,
}

/// The served interface as the host sees it.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Link number of the interface's queues.
    pub link: LinkId,
    /// Link address of the interface.
    pub mac: MacAddress,
    /// MTU in bytes.
    pub mtu: u32,
    /// IP addresses of the interface.
    pub addresses: Vec<IpAddress>,
}

/// The routes and neighbours of one interface, and its source checks.
pub struct Routes {
    /// The interface.
    pub interface: Interface,
    /// The neighbours on the interface's link.
    pub hops: Hops,
    routes: Vec<Route>,
    by_prefix: Prefixes<Route>,
    /// Source checks of received packets.
    ingress: IngressPolicy,
    /// True if the driver has set `ingress`.
    has_policy: bool,
    /// Filter for own addresses: bit `n` is set if some own address has a last byte that is `n`
    /// modulo 64.
    last_bytes: u64,
}

impl Routes {
    /// Returns a table without routes. `secret` keys hashes of addresses that peers choose.
    pub fn new(interface: Interface, secret: [u8; 16]) -> Self {
        let last_bytes = last_bytes_of(&interface.addresses);
        Self {
            interface,
            hops: Hops::new(secret),
            routes: Vec::new(),
            by_prefix: Prefixes::default(),
            ingress: IngressPolicy::default(),
            has_policy: false,
            last_bytes,
        }
    }

    /// Replaces all addresses of the interface, and returns the old addresses.
    pub fn set_addresses(&mut self, addresses: Vec<IpAddress>) -> Vec<IpAddress> {
        self.last_bytes = last_bytes_of(&addresses);
        std::mem::replace(&mut self.interface.addresses, addresses)
    }

    /// Replaces all routes. Returns true if the routes have changed. Until the driver sets the
    /// source checks, they are made from these routes, as if the host had no other interface.
    pub fn set_routes(&mut self, routes: Vec<Route>) -> bool {
        let differ = routes != self.routes;
        self.by_prefix = Prefixes::new(routes.iter().map(|r| (r.prefix, r.prefix_len, *r)));
        self.routes = routes;
        if !self.has_policy {
            self.ingress = self.policy_of_one_interface();
        }
        differ
    }

    /// Sets the source checks of received packets.
    pub fn set_ingress(&mut self, ingress: IngressPolicy) {
        self.ingress = ingress;
        self.has_policy = true;
    }

    /// Returns the source checks of a host whose only interface is the served interface.
    fn policy_of_one_interface(&self) -> IngressPolicy {
        let own = self.interface.addresses.iter();
        let local = own.map(|addr| KernelRoute {
            prefix: *addr,
            prefix_len: 128,
            way: Way::Local,
        });
        let main = self.routes.iter().map(|route| KernelRoute {
            prefix: route.prefix,
            prefix_len: route.prefix_len,
            way: Way::Out,
        });
        let tables = vec![local.collect(), main.collect()];
        IngressPolicy::new(tables, SourceChecks::default())
    }

    /// Checks the source address of a packet; the error is the reason to drop the packet.
    pub fn check_source(&self, src: IpAddress) -> Result<(), DropReason> {
        self.ingress.check_source(src)
    }

    /// Checks the peer of a new connection; the error is the reason to drop its SYN.
    pub fn check_peer(&self, peer: IpAddress) -> Result<(), DropReason> {
        self.ingress.check_peer(peer)
    }

    /// Returns true if packets to `addr` leave over the interface.
    pub fn leads_out(&self, addr: IpAddress) -> bool {
        self.ingress.leads_out(addr)
    }

    /// Returns the same as [`is_local`](Self::is_local), faster for an address that is not local.
    #[inline(always)]
    pub fn is_local_unlikely(&self, addr: IpAddress) -> bool {
        self.last_bytes >> (addr.0[15] % 64) & 1 != 0 && self.is_local(addr)
    }

    /// Returns true if `addr` is one of the interface's own addresses.
    #[inline]
    pub fn is_local(&self, addr: IpAddress) -> bool {
        self.interface.addresses.contains(&addr)
    }

    /// Returns the route to `addr` by the longest prefix.
    pub fn lookup(&self, addr: IpAddress) -> Option<Route> {
        self.by_prefix.lookup(addr)
    }

    /// Returns the next hop to `addr`, and true if the next hop is a router.
    fn next_hop(&self, addr: IpAddress) -> Option<(IpAddress, bool)> {
        if addr.is_link_local_v6() {
            return Some((addr, false));
        }
        let gateway = self.lookup(addr)?.gateway;
        Some((gateway.unwrap_or(addr), gateway.is_some()))
    }

    /// Returns true if `addr` is reached through a router. Only the kernel's routes name routers,
    /// so there are few. In contrast, any packet can name a neighbour.
    pub fn is_routed(&self, addr: IpAddress) -> bool {
        matches!(self.next_hop(addr), Some((_, true)))
    }

    /// Returns the next hop to `addr`, and adds a new next hop to the table. `None` without a
    /// route, or with too many neighbours in use.
    pub fn hop_to(&mut self, addr: IpAddress) -> Option<HopId> {
        let (next, _) = self.next_hop(addr)?;
        self.hops.find_or_make(next)
    }

    /// Returns the link address of the next hop to `addr`; `None` until the kernel has resolved it.
    pub fn known_mac(&self, addr: IpAddress) -> Option<MacAddress> {
        let (next, _) = self.next_hop(addr)?;
        self.hops.get(self.hops.find(next)?).mac
    }
}

/// Returns the filter for `addresses`, as in `Routes::last_bytes`.
fn last_bytes_of(addresses: &[IpAddress]) -> u64 {
    let bit = |addr: &IpAddress| 1 << (addr.0[15] % 64);
    addresses.iter().map(bit).fold(0, |all, bit: u64| all | bit)
}
