//! Source address checks of received packets, as in Linux' `ip_route_input_slow`,
//! `__fib_validate_source` and `ip6_rcv_core`.
//!
//! The daemon reads the kernel's routing tables and settings, and passes both to the host (the
//! TCP/IP stack of one core) as an [`IngressPolicy`]. The host checks a flow's peer when the flow
//! begins. As in the kernel, the host does not check the segments of an existing flow. A change of
//! routes or settings can therefore refuse new flows, but does not end existing flows.

use tidelane_wire::{DropReason, IpAddress};

use super::prefixes::Prefixes;

/// The target of a kernel route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Out over the served interface (the network interface on which the service runs).
    Out,
    /// Out over another interface.
    Elsewhere,
    /// To this host itself.
    Local,
    /// To a broadcast or multicast address.
    Broadcast,
    /// To no target: the kernel refuses packets (a route of type unreachable, prohibit or
    /// blackhole).
    Unreachable,
}

/// A route of the kernel over any interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Destination prefix.
    pub prefix: IpAddress,
    /// Prefix length in bits, in the 128-bit form of addresses. For an IPv4 prefix, the length
    /// includes the 96 bits of the mapped form: the length of `10.0.0.0/8` is 104.
    pub prefix_len: u8,
    /// Target of the route.
    pub way: Way,
}

/// Reverse path filtering (RFC 3704), in the order of the values of the sysctl `rp_filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReversePathFilter {
    /// The filter accepts every source.
    #[default]
    Off,
    /// The filter accepts a source if its route leads over the interface on which the packet
    /// arrived.
    Strict,
    /// The filter accepts a source if any interface has a route to the source.
    Loose,
}

/// The kernel's settings of the served interface for the source addresses of packets. Linux applies
/// these settings to IPv4 packets only. The host applies `accept_local` to IPv6 packets, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceChecks {
    /// `rp_filter`: the larger of the interface's value and the value of `all`.
    pub reverse_path: ReversePathFilter,
    /// `accept_local`: true if the source of a packet may be an address of this host.
    pub accept_local: bool,
    /// `route_localnet`: true if the kernel routes `127.0.0.0/8` like any other network.
    pub route_localnet: bool,
}

/// The source address checks of received packets, with the kernel's routes and settings.
#[derive(Clone, Debug, Default)]
pub struct IngressPolicy {
    /// The kernel's routing tables, in look-up order.
    tables: Vec<Prefixes<Way>>,
    checks: SourceChecks,
}

impl IngressPolicy {
    /// Returns the policy for the routing tables `tables`, which are in look-up order.
    pub fn new(tables: Vec<Vec<KernelRoute>>, checks: SourceChecks) -> Self {
        let table = |routes: Vec<KernelRoute>| {
            let known = |route: KernelRoute| (route.prefix, route.prefix_len, route.way);
            Prefixes::new(routes.into_iter().map(known))
        };
        let tables = tables.into_iter().map(table).collect();
        Self { tables, checks }
    }

    /// Returns the target of the route to `addr`. Returns `None` if there is no route.
    fn way_to(&self, addr: IpAddress) -> Option<Way> {
        let way = self.tables.iter().find_map(|table| table.lookup(addr))?;
        // Every interface has a route to `fe80::/64`, but the table keeps only one route per
        // prefix. This route may lead over another interface.
        if addr.is_link_local_v6() && way != Way::Local {
            return Some(Way::Out);
        }
        Some(way)
    }

    /// Returns true if packets to `addr` leave over the served interface.
    pub fn leads_out(&self, addr: IpAddress) -> bool {
        self.way_to(addr) == Some(Way::Out)
    }

    /// Checks the source address of a packet. The error is the reason to drop the packet.
    ///
    /// The check always refuses the broadcast addresses of the host's networks, because an answer
    /// would go to every host of the network. Linux without `rp_filter` accepts these sources.
    pub fn check_source(&self, src: IpAddress) -> Result<(), DropReason> {
        if !can_be_a_host(src) {
            return Err(DropReason::BadAddress);
        }
        let localnet = src.is_v4() && self.checks.route_localnet;
        if src.is_loopback() && !localnet {
            return Err(DropReason::MartianSource);
        }
        let strictness = match src.is_v4() {
            true => self.checks.reverse_path,
            // Linux has no `rp_filter` for IPv6. Only netfilter can filter the reverse path of IPv6
            // packets.
            false => ReversePathFilter::Off,
        };
        match self.way_to(src) {
            Some(Way::Out) => Ok(()),
            Some(Way::Local) if self.checks.accept_local => Ok(()),
            Some(Way::Local | Way::Broadcast) => Err(DropReason::MartianSource),
            Some(Way::Elsewhere) if strictness == ReversePathFilter::Strict => {
                Err(DropReason::ReversePath)
            }
            Some(Way::Elsewhere) => Ok(()),
            Some(Way::Unreachable) | None if strictness != ReversePathFilter::Off => {
                Err(DropReason::ReversePath)
            }
            Some(Way::Unreachable) | None => Ok(()),
        }
    }

    /// Checks the peer of a new connection. The error is the reason to drop the SYN.
    ///
    /// Segments to the peer must leave over the served interface. The service does not answer a
    /// peer to which the kernel would send packets over another interface, or inside the host.
    pub fn check_peer(&self, peer: IpAddress) -> Result<(), DropReason> {
        self.check_source(peer)?;
        if !self.leads_out(peer) {
            return Err(DropReason::NoRoute);
        }
        Ok(())
    }
}

/// Returns true if `addr` can be the address of one host. Returns false for multicast addresses,
/// the limited broadcast address, unspecified addresses and "this network" (`0.0.0.0/8`).
pub fn can_be_a_host(addr: IpAddress) -> bool {
    let nobody = addr.is_unspecified() || addr.is_this_network_v4();
    !nobody && !addr.is_multicast_or_broadcast()
}

#[cfg(test)]
mod tests;
