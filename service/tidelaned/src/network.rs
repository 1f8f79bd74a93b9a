//! The kernel's network around the served interface, in the words of hosts and programs.

use std::io;

use tidelane_abi::{ROUTE_ACCELERATED, ROUTE_ASK, ROUTE_KERNEL, ROUTE_WITHIN_HOST};
use tidelane_host::{AddressesWithin, IngressPolicy, KernelRoute, Route, Way};
use tidelane_steering::mirror::{Change, Mirror, RouteInfo, RouteKind};
use tidelane_wire::{IpAddress, MacAddress};

use crate::{links, source_settings::SourceSettings};

/// The loopback network of IPv4.
const LOCALNET: (IpAddress, u8) = (IpAddress::from_v4([127, 0, 0, 0]), 96 + 8);
/// Destinations that no host has: what connecting to one gives is the kernel's to say.
const NOBODYS: [(IpAddress, u8); 6] = [
    (IpAddress::UNSPECIFIED_V4, 96 + 8),
    LOCALNET,
    (IpAddress::from_v4([224, 0, 0, 0]), 96 + 4),
    (IpAddress::from_v4([255; 4]), 128),
    (IpAddress::UNSPECIFIED_V6, 128),
    (
        IpAddress([0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        8,
    ),
];

/// Changes of the network. See [`Network::poll`].
#[derive(Debug, Default)]
pub struct Changes {
    /// Neighbours on the served interface.
    pub neighbours: Vec<IpAddress>,
    /// Links, addresses or routes.
    pub others: bool,
    /// Anything, as events were lost.
    pub all: bool,
}

/// The kernel's network, seen from one interface.
pub struct Network {
    mirror: Mirror,
    ifindex: u32,
    /// The interface's name when it was looked at last.
    name: String,
    settings: SourceSettings,
}

impl Network {
    /// The network that `mirror` shows, from the interface with this index.
    pub fn new(mirror: Mirror, ifindex: u32) -> Self {
        let name = mirror.link(ifindex).map(|link| link.name.clone());
        let name = name.unwrap_or_default();
        Self {
            settings: SourceSettings::open(&name),
            name,
            mirror,
            ifindex,
        }
    }

    /// The mirror, to wait for its changes.
    pub fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// Applies what happened since the last call.
    pub fn poll(&mut self) -> io::Result<Changes> {
        let mut changes = Changes::default();
        for change in self.mirror.poll()? {
            match change {
                Change::Neighbor { ifindex, addr } if ifindex == self.ifindex => {
                    changes.neighbours.push(IpAddress(addr));
                }
                Change::Neighbor { .. } => {}
                Change::Link(ifindex) if ifindex == self.ifindex => {
                    self.follow_name();
                    changes.others = true;
                }
                Change::Resync => (changes.others, changes.all) = (true, true),
                _ => changes.others = true,
            }
        }
        Ok(changes)
    }

    /// The settings of an interface have its name, which may have changed.
    fn follow_name(&mut self) {
        let Some(link) = self.mirror.link(self.ifindex) else {
            return;
        };
        if link.name != self.name {
            self.name.clone_from(&link.name);
            self.settings = SourceSettings::open(&link.name);
        }
    }

    /// Reads the settings again that decide about sources. Returns true if one is different.
    pub fn settings_changed(&mut self) -> bool {
        self.settings.read_again()
    }

    /// The interface's MTU, in bytes; `None` once there is no such interface in this network
    /// namespace.
    pub fn mtu(&self) -> Option<u32> {
        Some(self.mirror.link(self.ifindex)?.mtu)
    }

    /// Says why the interface cannot be served any more, if it cannot.
    pub fn still_serves(&self) -> Result<(), String> {
        let Some(link) = self.mirror.link(self.ifindex) else {
            return Err(format!("the interface {} is gone", self.name));
        };
        let Some(master) = link.master else {
            return Ok(());
        };
        Err(links::port_of(link, self.mirror.link(master)))
    }

    /// The interface's own link address.
    pub fn link_address(&self) -> Option<MacAddress> {
        let mac = self.mirror.link(self.ifindex)?.mac?;
        Some(MacAddress(mac.0))
    }

    /// The addresses that are served: see [`served_addresses`].
    pub fn addresses(&self) -> Vec<IpAddress> {
        served_addresses(&self.mirror, self.ifindex)
    }

    /// The link address of a neighbour, if the kernel has one.
    pub fn neighbour(&self, addr: IpAddress) -> Option<MacAddress> {
        let known = self.mirror.neighbor(self.ifindex, &addr.0)?;
        known.usable_mac().map(|mac| MacAddress(mac.0))
    }

    /// All neighbours whose link addresses the kernel has.
    pub fn neighbours(&self) -> Vec<(IpAddress, MacAddress)> {
        let all = self.mirror.neighbors(self.ifindex);
        let usable = all.filter_map(|(addr, neighbour)| {
            let mac = neighbour.usable_mac()?;
            Some((IpAddress(addr), MacAddress(mac.0)))
        });
        usable.collect()
    }

    /// Asks the kernel to resolve a neighbour, or to confirm it.
    pub fn resolve(&mut self, addr: IpAddress) -> io::Result<()> {
        self.mirror.resolve(self.ifindex, &addr.0)
    }

    /// The routes over the interface. `source_for` chooses the source for a prefix whose route
    /// names none.
    pub fn own_routes(
        &self,
        source_for: impl Fn(IpAddress, u8) -> Option<IpAddress>,
    ) -> Vec<Route> {
        self.mirror
            .routes()
            .filter(|(prefix, _, info)| self.is_own_route(*prefix, info))
            .filter_map(|(prefix, prefix_len, info)| {
                let prefix = IpAddress(prefix);
                let source = info.prefsrc.map(IpAddress);
                Some(Route {
                    prefix,
                    prefix_len,
                    gateway: info.gateway.map(IpAddress),
                    source: source.or_else(|| source_for(prefix, prefix_len))?,
                })
            })
            .collect()
    }

    /// Returns true if the route leads over the interface, to where its name does not matter.
    fn is_own_route(&self, prefix: [u8; 16], info: &RouteInfo) -> bool {
        let link_local = IpAddress(prefix).is_link_local_v6();
        info.kind == RouteKind::Unicast && info.ifindex == self.ifindex && !link_local
    }

    /// Which packets hosts take: from whom the kernel would take them.
    pub fn ingress(&self) -> IngressPolicy {
        // The kernel takes an address for its own even while the address' link is down and the
        // local table has no route.
        let own = self.mirror.links().flat_map(|link| {
            let records = self.mirror.addresses(link.ifindex);
            records.map(|record| KernelRoute {
                prefix: IpAddress(record.addr),
                prefix_len: 128,
                way: Way::Local,
            })
        });
        let tables = self.mirror.tables().map(|table| {
            let route =
                |(prefix, prefix_len, info): &_| self.kernel_route(*prefix, *prefix_len, info);
            table.iter().map(route).collect()
        });
        let tables = std::iter::once(own.collect()).chain(tables);
        IngressPolicy::new(tables.collect(), self.settings.checks())
    }

    fn kernel_route(&self, prefix: [u8; 16], prefix_len: u8, info: &RouteInfo) -> KernelRoute {
        let way = match info.kind {
            RouteKind::Unicast if info.ifindex == self.ifindex => Way::Out,
            RouteKind::Unicast => Way::Elsewhere,
            RouteKind::Local => Way::Local,
            RouteKind::Broadcast => Way::Broadcast,
            RouteKind::Unreachable => Way::Unreachable,
        };
        KernelRoute {
            prefix: IpAddress(prefix),
            prefix_len,
            way,
        }
    }

    /// The host's addresses beside those that are served. Prefixes of more than one address count
    /// for loopback alone.
    pub fn addresses_within(&self) -> AddressesWithin {
        let served = self.addresses();
        let mut within = AddressesWithin::default();
        for (addr, prefix_len, info) in self.mirror.routes() {
            let addr = IpAddress(addr);
            if info.kind != RouteKind::Local || addr.is_link_local_v6() || served.contains(&addr) {
                continue;
            }
            if (addr, prefix_len) == LOCALNET {
                within.localnet = true;
            } else if prefix_len == 128 && !within.single.contains(&addr) && self.has(addr) {
                within.single.push(addr);
            }
        }
        within
    }

    /// Returns true if an interface has the address.
    fn has(&self, addr: IpAddress) -> bool {
        let links = self.mirror.links();
        let mut records = links.flat_map(|link| self.mirror.addresses(link.ifindex));
        records.any(|record| record.addr == addr.0)
    }

    /// The route table of the service page: which destinations programs ask the service for.
    pub fn page_routes(
        &self,
        addresses: &[IpAddress],
        within: &AddressesWithin,
    ) -> Vec<tidelane_ring::Route> {
        let entry = |addr: IpAddress, prefix_len, accelerated| tidelane_ring::Route {
            addr: addr.0,
            prefix_len,
            accelerated,
        };
        let own = within.single.iter().map(|addr| (*addr, 128));
        let own = own.chain(within.localnet.then_some(LOCALNET));
        let mut page: Vec<tidelane_ring::Route> = own
            .map(|(prefix, len)| entry(prefix, len, ROUTE_WITHIN_HOST))
            .collect();
        let nobodys = NOBODYS
            .iter()
            .filter(|nobody| !within.localnet || **nobody != LOCALNET);
        page.extend(nobodys.map(|(prefix, len)| entry(*prefix, *len, ROUTE_KERNEL)));
        for (addr, prefix_len, info) in self.mirror.routes() {
            let known = page
                .iter()
                .any(|r| r.addr == addr && r.prefix_len == prefix_len);
            if known || addresses.iter().any(|own| own.0 == addr) {
                continue;
            }
            let accelerated = if self.is_own_route(addr, &info) {
                ROUTE_ACCELERATED
            } else {
                ROUTE_KERNEL
            };
            page.push(entry(IpAddress(addr), prefix_len, accelerated));
        }
        page.extend(addresses.iter().map(|addr| entry(*addr, 128, ROUTE_ASK)));
        page
    }
}

/// The interface's addresses. Those of the link alone (`fe80::/10`) are left to the kernel: the
/// name of a connection to one includes the interface. Loopback addresses are nobody's on a wire.
pub fn served_addresses(mirror: &Mirror, ifindex: u32) -> Vec<IpAddress> {
    let all = mirror
        .addresses(ifindex)
        .map(|record| IpAddress(record.addr));
    all.filter(|addr| !addr.is_link_local_v6() && !addr.is_loopback())
        .collect()
}
