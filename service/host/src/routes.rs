//! Where packets go: the driver's copy of the kernel's routes and neighbours.
//!
//! A *hop* is a neighbour on a link. Flows keep a [`HopId`], so that a changed link address is seen
//! by all of them at once.

use tidelane_engine::LinkId;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{IpAddress, MacAddress};

/// Hops that are kept; more destinations than this on one link get no route.
const HOPS_MAX: usize = 65_536;
/// A hop in use is confirmed with the kernel this often.
const REFRESH_INTERVAL: Duration = Duration::from_secs(15);

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

/// Number of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopId(pub u32);

/// A neighbour.
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    /// Its address.
    pub addr: IpAddress,
    /// Its link address, once the kernel has resolved it.
    pub mac: Option<MacAddress>,
    /// When the kernel was last asked about it.
    pub asked: Option<Instant>,
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
    routes: Vec<Route>,
    hops: Vec<Hop>,
}

impl Routes {
    /// No routes yet.
    pub fn new(interface: Interface) -> Self {
        Self {
            interface,
            routes: Vec::new(),
            hops: Vec::new(),
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

    /// The next hop to `addr`, made if it is new.
    pub fn hop_to(&mut self, addr: IpAddress) -> Option<HopId> {
        let route = self.lookup(addr)?;
        let next = route.gateway.unwrap_or(addr);
        if let Some(index) = self.hops.iter().position(|hop| hop.addr == next) {
            return Some(HopId(index as u32));
        }
        if self.hops.len() >= HOPS_MAX {
            return None;
        }
        self.hops.push(Hop {
            addr: next,
            mac: None,
            asked: None,
        });
        Some(HopId(self.hops.len() as u32 - 1))
    }

    /// A hop's present state.
    pub fn hop(&self, id: HopId) -> &Hop {
        &self.hops[id.0 as usize]
    }

    /// What the kernel knows of a neighbour. True if that is news about a hop in use.
    pub fn set_neighbour(&mut self, addr: IpAddress, mac: Option<MacAddress>) -> bool {
        match self.hops.iter_mut().find(|hop| hop.addr == addr) {
            Some(hop) if hop.mac != mac => {
                hop.mac = mac;
                true
            }
            _ => false,
        }
    }

    /// Notes that the kernel is asked about hop `id` now; its address.
    pub fn doubt_hop(&mut self, id: HopId, now: Instant) -> IpAddress {
        let hop = &mut self.hops[id.0 as usize];
        hop.asked = Some(now);
        hop.addr
    }

    /// Notes that hop `id` is needed at `now`; true if the kernel should be asked about it.
    pub fn use_hop(&mut self, id: HopId, now: Instant) -> bool {
        let hop = &mut self.hops[id.0 as usize];
        let due = match (hop.asked, hop.mac) {
            (None, _) => true,
            (Some(at), None) => now - at >= Duration::from_millis(200),
            (Some(at), Some(_)) => now - at >= REFRESH_INTERVAL,
        };
        if due {
            hop.asked = Some(now);
        }
        due
    }
}
