//! The host's copy of the kernel's routes over the served interface, and the look-up of next hops.

use tidelane_engine::LinkId;
use tidelane_wire::{DropReason, IpAddress, MacAddress};

use super::{
    ingress::{IngressPolicy, KernelRoute, SourceChecks, Way},
    prefixes::Prefixes,
};

/// A route over the served interface, on which the service runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination prefix.
    pub prefix: IpAddress,
    /// Prefix length in bits, in the 128-bit form of addresses. For an IPv4 prefix, the length
    /// includes the 96 bits of the mapped form: the length of `10.0.0.0/8` is 104.
    pub prefix_len: u8,
    /// Address of the router; `None` for destinations on the link.
    pub gateway: Option<IpAddress>,
    /// Local address of an active open over the route, if the program has not chosen an address.
    pub source: IpAddress,
}

/// The state of the served interface.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Number of the link (NIC queue) that active opens over the interface use.
    pub link: LinkId,
    /// Link address of the interface.
    pub mac: MacAddress,
    /// MTU in bytes.
    pub mtu: u32,
    /// IP addresses of the interface.
    pub addresses: Vec<IpAddress>,
}

/// The routes of the served interface, and its source address checks.
pub struct Routes {
    interface: Interface,
    /// The routes, as the caller has set them.
    routes: Vec<Route>,
    /// The same routes, for look-ups.
    by_prefix: Prefixes<Route>,
    /// Source address checks of received packets.
    ingress: IngressPolicy,
    /// True if the caller has set `ingress` with [`set_ingress`](Self::set_ingress).
    has_policy: bool,
    /// Filter for look-ups of the interface's addresses. Bit `n` is set if the interface has an
    /// address whose last byte modulo 64 is `n`.
    last_bytes: u64,
}

impl Routes {
    /// Returns a table without routes.
    pub fn new(interface: Interface) -> Self {
        let last_bytes = last_bytes_of(&interface.addresses);
        Self {
            interface,
            routes: Vec::new(),
            by_prefix: Prefixes::default(),
            ingress: IngressPolicy::default(),
            has_policy: false,
            last_bytes,
        }
    }

    /// Returns the interface.
    #[inline]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Sets the interface's link address.
    pub fn set_link_address(&mut self, mac: MacAddress) {
        self.interface.mac = mac;
    }

    /// Sets the interface's MTU in bytes. Returns false if the interface already has this MTU.
    pub fn set_mtu(&mut self, mtu: u32) -> bool {
        std::mem::replace(&mut self.interface.mtu, mtu) != mtu
    }

    /// Replaces all addresses of the interface, and returns the old addresses.
    pub fn set_addresses(&mut self, addresses: Vec<IpAddress>) -> Vec<IpAddress> {
        self.last_bytes = last_bytes_of(&addresses);
        std::mem::replace(&mut self.interface.addresses, addresses)
    }

    /// Replaces all routes. Returns true if the routes have changed. Until the caller has called
    /// [`set_ingress`](Self::set_ingress), the source address checks use these routes, as if the
    /// host had no other interface.
    pub fn set_routes(&mut self, routes: Vec<Route>) -> bool {
        let differ = routes != self.routes;
        self.by_prefix = Prefixes::new(routes.iter().map(|r| (r.prefix, r.prefix_len, *r)));
        self.routes = routes;
        if !self.has_policy {
            self.ingress = self.policy_of_one_interface();
        }
        differ
    }

    /// Returns the broadcast addresses of the IPv4 networks on the interface's link (RFC 919).
    pub fn broadcasts(&self) -> Vec<IpAddress> {
        let on_link = self.routes.iter().filter(|route| route.gateway.is_none());
        let broadcasts = on_link.filter_map(|route| {
            let network = u32::from_be_bytes(route.prefix.as_v4()?);
            // A network of one or two addresses has no broadcast address (RFC 3021).
            let len = u32::from(route.prefix_len).checked_sub(96)?;
            let hosts = u32::MAX.checked_shr(len).filter(|hosts| *hosts > 1)?;
            Some(IpAddress::from_v4((network | hosts).to_be_bytes()))
        });
        broadcasts.collect()
    }

    /// Sets the source address checks of received packets.
    pub fn set_ingress(&mut self, ingress: IngressPolicy) {
        self.ingress = ingress;
        self.has_policy = true;
    }

    /// Returns the source address checks of a host whose only interface is the served interface.
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

    /// Checks the source address of a packet. The error is the reason to drop the packet.
    pub fn check_source(&self, src: IpAddress) -> Result<(), DropReason> {
        self.ingress.check_source(src)
    }

    /// Checks the peer of a new connection. The error is the reason to drop the SYN.
    pub fn check_peer(&self, peer: IpAddress) -> Result<(), DropReason> {
        self.ingress.check_peer(peer)
    }

    /// Returns true if packets to `addr` leave over the served interface.
    pub fn leads_out(&self, addr: IpAddress) -> bool {
        self.ingress.leads_out(addr)
    }

    /// Returns true if `addr` is an address of the interface. For most addresses that are not
    /// local, this function is faster than [`is_local`](Self::is_local).
    #[inline(always)]
    pub fn is_local_unlikely(&self, addr: IpAddress) -> bool {
        self.last_bytes >> (addr.0[15] % 64) & 1 != 0 && self.is_local(addr)
    }

    /// Returns true if `addr` is an address of the interface.
    #[inline]
    pub fn is_local(&self, addr: IpAddress) -> bool {
        self.interface.addresses.contains(&addr)
    }

    /// Returns the route to `addr` with the longest prefix. Returns `None` if there is no route.
    pub fn lookup(&self, addr: IpAddress) -> Option<Route> {
        self.by_prefix.lookup(addr)
    }

    /// Returns the next hop to `addr`: a router, or `addr` itself. Returns `None` if there is no
    /// route. A link-local IPv6 address needs no route.
    pub fn next_hop(&self, addr: IpAddress) -> Option<IpAddress> {
        if addr.is_link_local_v6() {
            return Some(addr);
        }
        Some(self.lookup(addr)?.gateway.unwrap_or(addr))
    }

    /// Returns true if the path to `addr` leads over a router. The number of routers is small,
    /// because only the kernel's routes name routers. Without a router, the next hop is `addr`
    /// itself, and forged packets can name every address of the link.
    pub fn is_routed(&self, addr: IpAddress) -> bool {
        let route = self.lookup(addr).filter(|_| !addr.is_link_local_v6());
        route.is_some_and(|route| route.gateway.is_some())
    }
}

/// Returns the value of `Routes::last_bytes` for `addresses`.
fn last_bytes_of(addresses: &[IpAddress]) -> u64 {
    let bit = |addr: &IpAddress| 1 << (addr.0[15] % 64);
    addresses.iter().map(bit).fold(0, |all, bit: u64| all | bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_on_the_link_have_broadcast_addresses() {
        let v4 = |a, b, c, d| IpAddress::from_v4([a, b, c, d]);
        let interface = Interface {
            link: LinkId(0),
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            addresses: vec![v4(10, 0, 0, 1)],
        };
        let mut routes = Routes::new(interface);
        let route = |prefix, len, gateway| Route {
            prefix,
            prefix_len: len,
            gateway,
            source: v4(10, 0, 0, 1),
        };
        routes.set_routes(vec![
            route(v4(10, 0, 0, 0), 96 + 24, None),
            route(v4(172, 16, 0, 0), 96 + 12, None),
            route(v4(192, 168, 0, 4), 96 + 31, None),
            route(v4(192, 168, 0, 9), 96 + 32, None),
            route(v4(0, 0, 0, 0), 96, Some(v4(10, 0, 0, 254))),
            route(IpAddress([0xfd; 16]), 64, None),
        ]);
        let expected = [v4(10, 0, 0, 255), v4(172, 31, 255, 255)];
        assert_eq!(routes.broadcasts(), expected);
    }
}
