//! The kernel's network state around the interface that the Tidelane service serves, converted for
//! programs and for the service's TCP/IP hosts. Each core (a polling thread of the service) drives
//! one host.

use std::io;

use tidelane_abi::{ROUTE_ACCELERATED, ROUTE_ASK_SERVICE, ROUTE_KERNEL, ROUTE_WITHIN_HOST};
use tidelane_host::{AddressesWithin, IngressPolicy, KernelRoute, Route, Way};
use tidelane_steering::{
    kernel_tables::{Change, KernelTables, RouteInfo, RouteKind},
    links,
};
use tidelane_wire::{IpAddress, MacAddress};

use crate::source_settings::SourceSettings;

/// The loopback network of IPv4. An IPv4 prefix is represented as a prefix of IPv4-mapped addresses
/// (`::ffff:a.b.c.d`), so its length is 96 bits more than in IPv4.
const LOCALNET: (IpAddress, u8) = (IpAddress::from_v4([127, 0, 0, 0]), 96 + 8);
/// Destinations that belong to no other host: unspecified addresses, multicast addresses, the IPv4
/// loopback network and the IPv4 broadcast address. A connect to these destinations stays with the
/// kernel. 127.0.0.0/8 is an exception: if the kernel has a local route for this network, the route
/// table for programs marks the network for connections within the host.
const NEVER_CARRIED: [(IpAddress, u8); 6] = [
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

/// Changes of the network, returned by [`Network::poll`].
#[derive(Debug, Default)]
pub struct Changes {
    /// Neighbours on the served interface whose entries changed.
    pub neighbours: Vec<IpAddress>,
    /// True if links, addresses or routes changed.
    pub others: bool,
    /// True if events were lost, so that any entry may have changed.
    pub all: bool,
}

/// The kernel's network state, seen from one interface.
pub struct Network {
    kernel_tables: KernelTables,
    /// Index of the served interface.
    ifindex: u32,
    /// The interface's most recent name, even if the interface is gone.
    name: String,
    /// The interface's settings for checks of source addresses, such as `rp_filter`.
    settings: SourceSettings,
}

impl Network {
    /// Makes the view of `kernel_tables` from the interface with this index.
    pub fn new(kernel_tables: KernelTables, ifindex: u32) -> Self {
        let name = kernel_tables.link(ifindex).map(|link| link.name.clone());
        let name = name.unwrap_or_default();
        Self {
            settings: SourceSettings::open(&name),
            name,
            kernel_tables,
            ifindex,
        }
    }

    /// Returns the copy of the kernel's tables. The caller can wait for changes on its descriptor.
    pub fn kernel_tables(&self) -> &KernelTables {
        &self.kernel_tables
    }

    /// Applies the kernel's events since the last call. Returns the changes.
    pub fn poll(&mut self) -> io::Result<Changes> {
        let mut changes = Changes::default();
        for change in self.kernel_tables.poll()? {
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

    /// If the interface has a new name, opens the interface's settings under this name.
    fn follow_name(&mut self) {
        let Some(link) = self.kernel_tables.link(self.ifindex) else {
            return;
        };
        if link.name != self.name {
            self.name.clone_from(&link.name);
            self.settings = SourceSettings::open(&link.name);
        }
    }

    /// Reads the settings for checks of source addresses again. Returns true if a setting has
    /// changed.
    pub fn settings_changed(&mut self) -> bool {
        self.settings.read_again()
    }

    /// Returns the interface's MTU in bytes; `None` if the interface does not exist in this network
    /// namespace.
    pub fn mtu(&self) -> Option<u32> {
        Some(self.kernel_tables.link(self.ifindex)?.mtu)
    }

    /// Returns an error with the reason if the interface cannot be served any more.
    pub fn still_serves(&self) -> Result<(), String> {
        let Some(link) = self.kernel_tables.link(self.ifindex) else {
            return Err(format!("the interface {} is gone", self.name));
        };
        let Some(master) = link.master else {
            return Ok(());
        };
        Err(links::port_of(link, self.kernel_tables.link(master)))
    }

    /// Returns the interface's link address.
    pub fn link_address(&self) -> Option<MacAddress> {
        let mac = self.kernel_tables.link(self.ifindex)?.mac?;
        Some(MacAddress(mac.0))
    }

    /// Returns the served addresses: see [`served_addresses`].
    pub fn addresses(&self) -> Vec<IpAddress> {
        served_addresses(&self.kernel_tables, self.ifindex)
    }

    /// Returns the link address of a neighbour, if the kernel has one.
    pub fn neighbour(&self, addr: IpAddress) -> Option<MacAddress> {
        let known = self.kernel_tables.neighbor(self.ifindex, &addr.0)?;
        known.usable_mac().map(|mac| MacAddress(mac.0))
    }

    /// Returns all neighbours for which the kernel has a usable link address.
    pub fn neighbours(&self) -> Vec<(IpAddress, MacAddress)> {
        let all = self.kernel_tables.neighbors(self.ifindex);
        let usable = all.filter_map(|(addr, neighbour)| {
            let mac = neighbour.usable_mac()?;
            Some((IpAddress(addr), MacAddress(mac.0)))
        });
        usable.collect()
    }

    /// Makes the kernel resolve or confirm a neighbour.
    pub fn resolve(&mut self, addr: IpAddress) -> io::Result<()> {
        self.kernel_tables.resolve(self.ifindex, &addr.0)
    }

    /// Returns the routes over the interface to other hosts, except for routes to IPv6 link-local
    /// addresses. If a route has no preferred source address, `source_for` selects the source
    /// address by the route's prefix and prefix length. The result lacks routes for which there is
    /// no source address.
    pub fn own_routes(
        &self,
        source_for: impl Fn(IpAddress, u8) -> Option<IpAddress>,
    ) -> Vec<Route> {
        self.kernel_tables
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

    /// Returns true if the route leads over the interface to other hosts. Returns false for a route
    /// to IPv6 link-local addresses.
    fn is_own_route(&self, prefix: [u8; 16], info: &RouteInfo) -> bool {
        let link_local = IpAddress(prefix).is_link_local_v6();
        info.kind == RouteKind::Unicast && info.ifindex == self.ifindex && !link_local
    }

    /// Returns the kernel's routes and settings for checks of source addresses. The service's hosts
    /// make the same checks as the kernel on the packets that they receive.
    pub fn ingress(&self) -> IngressPolicy {
        // The kernel treats an address as its own even while the link of the address is down and
        // the local table has no route to the address.
        let own = self.kernel_tables.links().flat_map(|link| {
            let records = self.kernel_tables.addresses(link.ifindex);
            records.map(|record| KernelRoute {
                prefix: IpAddress(record.addr),
                prefix_len: 128,
                way: Way::Local,
            })
        });
        let tables = self.kernel_tables.route_tables().map(|table| {
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

    /// Returns the host's addresses that are not served, for connections between programs of this
    /// host. The result contains single addresses and 127.0.0.0/8, but no other network and no IPv6
    /// link-local address.
    pub fn addresses_within(&self) -> AddressesWithin {
        let served = self.addresses();
        let mut within = AddressesWithin::default();
        for (addr, prefix_len, info) in self.kernel_tables.routes() {
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

    /// Returns true if an interface of this network namespace has the address.
    fn has(&self, addr: IpAddress) -> bool {
        let links = self.kernel_tables.links();
        let mut records = links.flat_map(|link| self.kernel_tables.addresses(link.ifindex));
        records.any(|record| record.addr == addr.0)
    }

    /// Returns the route table of the service page, a page of memory that all programs map. A
    /// program looks up the destination of a connection in this table, to decide whether the kernel
    /// or the service opens the connection. `addresses` are the served addresses, and `within` are
    /// the host's other addresses.
    pub fn page_routes(
        &self,
        addresses: &[IpAddress],
        within: &AddressesWithin,
    ) -> Vec<tidelane_ring::PublishedRoute> {
        let entry = |addr: IpAddress, prefix_len, handling| tidelane_ring::PublishedRoute {
            addr: addr.0,
            prefix_len,
            handling,
        };
        let own = within.single.iter().map(|addr| (*addr, 128));
        let own = own.chain(within.localnet.then_some(LOCALNET));
        let mut page: Vec<tidelane_ring::PublishedRoute> = own
            .map(|(prefix, len)| entry(prefix, len, ROUTE_WITHIN_HOST))
            .collect();
        let never_carried = NEVER_CARRIED
            .iter()
            .filter(|prefix| !within.localnet || **prefix != LOCALNET);
        page.extend(never_carried.map(|(prefix, len)| entry(*prefix, *len, ROUTE_KERNEL)));
        for (addr, prefix_len, info) in self.kernel_tables.routes() {
            let known = page
                .iter()
                .any(|r| r.addr == addr && r.prefix_len == prefix_len);
            if known || addresses.iter().any(|own| own.0 == addr) {
                continue;
            }
            let handling = if self.is_own_route(addr, &info) {
                ROUTE_ACCELERATED
            } else {
                ROUTE_KERNEL
            };
            page.push(entry(IpAddress(addr), prefix_len, handling));
        }
        page.extend(
            addresses
                .iter()
                .map(|addr| entry(*addr, 128, ROUTE_ASK_SERVICE)),
        );
        page
    }
}

/// Returns the served addresses of the interface. Link-local addresses (`fe80::/10`) stay with the
/// kernel, because a connection between such addresses also depends on the interface. Loopback
/// addresses are not served on the interface either, because the interface never receives packets
/// for them.
pub fn served_addresses(kernel_tables: &KernelTables, ifindex: u32) -> Vec<IpAddress> {
    let all = kernel_tables
        .addresses(ifindex)
        .map(|record| IpAddress(record.addr));
    all.filter(|addr| !addr.is_link_local_v6() && !addr.is_loopback())
        .collect()
}
