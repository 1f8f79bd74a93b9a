//! A copy of the kernel's local, main and default routing tables, with longest-prefix match.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType},
};

use super::{Address, address_from_ip, address_to_ipv4};

const TABLE_DEFAULT: u32 = 253;
const TABLE_MAIN: u32 = 254;
const TABLE_LOCAL: u32 = 255;
/// Tables in the order of the kernel's default policy rules (`ip rule`).
const TABLES: [u32; 3] = [TABLE_LOCAL, TABLE_MAIN, TABLE_DEFAULT];

/// Type of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteKind {
    /// Packets are sent on the link.
    Unicast,
    /// Packets are delivered to this machine.
    Local,
    /// The destination is a broadcast, multicast or anycast address.
    Broadcast,
    /// Packets are rejected or dropped.
    Unreachable,
}

/// Result of a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// Type of the route.
    pub kind: RouteKind,
    /// Index of the output link. For [`RouteKind::Local`], index of the link with the address. Zero
    /// if the route has no link.
    pub ifindex: u32,
    /// Next-hop router (RTA_GATEWAY). `None` if the destination is on the link. Also `None` for an
    /// IPv4 route through an IPv6 router (RTA_VIA), because this module does not copy RTA_VIA.
    pub gateway: Option<Address>,
    /// Preferred source address; `None` if the route has none.
    /// [`KernelTables::route_lookup`](super::KernelTables::route_lookup) then chooses an address of
    /// the link.
    pub prefsrc: Option<Address>,
    /// MTU of the route in bytes, or `u32::MAX` if the route has no MTU.
    /// [`KernelTables::route_lookup`](super::KernelTables::route_lookup) limits the value to the
    /// link's MTU.
    pub mtu: u32,
}

/// A route of a table, without its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RouteAttributes {
    /// Metric of the route. The kernel prefers the lowest metric.
    metric: u32,
    kind: RouteKind,
    ifindex: u32,
    gateway: Option<Address>,
    prefsrc: Option<Address>,
    /// MTU of the route in bytes, if the route has one.
    mtu: Option<u32>,
}

impl RouteAttributes {
    fn info(&self) -> RouteInfo {
        RouteInfo {
            kind: self.kind,
            ifindex: self.ifindex,
            gateway: self.gateway,
            prefsrc: self.prefsrc,
            mtu: self.mtu.unwrap_or(u32::MAX),
        }
    }
}

/// Key of a route: index of the table in [`TABLES`], length of the prefix in bits, and the prefix.
/// The length of an IPv4 prefix includes the 96 bits of the IPv4-mapped form.
type RouteKey = (u8, u8, Address);

/// Routes by table and prefix. For each prefix, a table has only the route with the lowest metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RouteTable {
    routes: BTreeMap<RouteKey, RouteAttributes>,
    /// Bitmap of the prefix lengths (0 to 127) that occur in each table. A lookup tries only these
    /// lengths.
    prefix_lengths: [u128; TABLES.len()],
    /// For each table: true if the table has a host route, which is a route with prefix length 128.
    has_host_routes: [bool; TABLES.len()],
}

impl RouteTable {
    pub(super) fn from_messages(messages: Vec<RouteNetlinkMessage>) -> Self {
        let mut table = Self::default();
        for message in messages {
            if let RouteNetlinkMessage::NewRoute(message) = message
                && let Some((key, route)) = parse_route(&message)
            {
                table.insert(key, route);
            }
        }
        table
    }

    fn insert(&mut self, key: RouteKey, route: RouteAttributes) {
        let (table_index, length, _) = key;
        match length {
            128 => self.has_host_routes[usize::from(table_index)] = true,
            _ => self.prefix_lengths[usize::from(table_index)] |= 1 << length,
        }
        let best = self.routes.entry(key).or_insert(route);
        // Among routes with equal metrics, the first route of the dump wins, as in the kernel.
        if route.metric < best.metric {
            *best = route;
        }
    }

    /// Returns each route with its prefix and the prefix length. The tables come in lookup order.
    pub(super) fn all(&self) -> impl Iterator<Item = (Address, u8, RouteInfo)> {
        let routes = self.routes.iter();
        routes.map(|((_, length, prefix), route)| (*prefix, *length, route.info()))
    }

    /// Returns the routes of each table. The tables come in lookup order.
    pub(super) fn by_table(&self) -> impl Iterator<Item = Vec<(Address, u8, RouteInfo)>> {
        (0..TABLES.len()).map(|table_index| {
            let of_table = self.routes.iter();
            let of_table = of_table.filter(move |((of, ..), _)| usize::from(*of) == table_index);
            let entry = |((_, length, prefix), route): (&RouteKey, &RouteAttributes)| {
                (*prefix, *length, route.info())
            };
            of_table.map(entry).collect()
        })
    }

    /// Returns the route to `dst` with the longest prefix in the first table that has a match.
    pub(super) fn lookup(&self, dst: &Address) -> Option<RouteInfo> {
        (0..TABLES.len())
            .find_map(|table_index| self.lookup_in(table_index, dst))
            .map(RouteAttributes::info)
    }

    fn lookup_in(&self, table_index: usize, dst: &Address) -> Option<&RouteAttributes> {
        let find = |length: u8| {
            self.routes
                .get(&(table_index as u8, length, masked(dst, length)))
        };
        if self.has_host_routes[table_index]
            && let Some(route) = find(128)
        {
            return Some(route);
        }
        let mut left = self.prefix_lengths[table_index];
        if address_to_ipv4(dst).is_some() {
            // An IPv4 prefix is stored as an IPv4-mapped prefix of 96 bits or more.
            left &= u128::MAX << 96;
        }
        while left != 0 {
            let length = 127 - left.leading_zeros() as u8;
            left &= !(1 << length);
            if let Some(route) = find(length) {
                return Some(route);
            }
        }
        None
    }
}

/// Returns the address with all bits after the first `length` bits cleared.
fn masked(addr: &Address, length: u8) -> Address {
    let mask = u128::MAX
        .checked_shl(128 - u32::from(length.min(128)))
        .unwrap_or(0);
    (u128::from_be_bytes(*addr) & mask).to_be_bytes()
}

fn parse_address(addr: &RouteAddress) -> Option<Address> {
    match addr {
        RouteAddress::Inet(addr) => Some(address_from_ip(IpAddr::V4(*addr))),
        RouteAddress::Inet6(addr) => Some(address_from_ip(IpAddr::V6(*addr))),
        _ => None,
    }
}

/// Parses a route. Returns `None` for a malformed route, for a route with a TOS, and for a route of
/// a table, type or address family that this module does not copy.
fn parse_route(message: &RouteMessage) -> Option<(RouteKey, RouteAttributes)> {
    let header = &message.header;
    let kind = match header.kind {
        RouteType::Unicast => RouteKind::Unicast,
        RouteType::Local => RouteKind::Local,
        RouteType::Broadcast | RouteType::Anycast | RouteType::Multicast => RouteKind::Broadcast,
        RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit => {
            RouteKind::Unreachable
        }
        _ => return None,
    };
    // A route with a TOS matches only packets with this TOS. The lookup serves packets with TOS 0.
    if header.tos != 0 {
        return None;
    }
    let mut table = u32::from(header.table);
    let (any, bits_before) = match header.address_family {
        AddressFamily::Inet => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 96),
        AddressFamily::Inet6 => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
        _ => return None,
    };
    let mut dst = address_from_ip(any);
    let (gateway, prefsrc, mtu) = (None, None, None);
    let mut route = RouteAttributes {
        metric: 0,
        kind,
        ifindex: 0,
        gateway,
        prefsrc,
        mtu,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(addr) => dst = parse_address(addr)?,
            _ => apply_route_attribute(&mut route, attribute),
        }
    }
    let table_index = TABLES.iter().position(|number| *number == table)? as u8;
    let length = header
        .destination_prefix_length
        .checked_add(bits_before)
        .filter(|bits| *bits <= 128)?;
    Some(((table_index, length, masked(&dst, length)), route))
}

fn apply_route_attribute(route: &mut RouteAttributes, attribute: &RouteAttribute) {
    match attribute {
        RouteAttribute::Oif(ifindex) => route.ifindex = *ifindex,
        RouteAttribute::Priority(metric) => route.metric = *metric,
        RouteAttribute::Gateway(addr) => route.gateway = parse_address(addr),
        RouteAttribute::PrefSource(addr) => route.prefsrc = parse_address(addr),
        RouteAttribute::Metrics(metrics) => {
            route.mtu = metrics.iter().find_map(|metric| match metric {
                RouteMetric::Mtu(mtu) => Some(*mtu),
                _ => None,
            });
        }
        // All flows use the first next hop of a multipath route. The kernel would spread the flows
        // over the next hops.
        RouteAttribute::MultiPath(hops) => {
            if let Some(hop) = hops.first() {
                route.ifindex = hop.interface_index;
                for attribute in &hop.attributes {
                    apply_route_attribute(route, attribute);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(a: u8, b: u8, c: u8, d: u8) -> Address {
        address_from_ip(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
    }

    fn message(table: u8, kind: RouteType, dst: Ipv4Addr, bits: u8, oif: u32) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.table = table;
        message.header.kind = kind;
        message.header.destination_prefix_length = bits;
        if bits > 0 {
            let dst = RouteAttribute::Destination(RouteAddress::Inet(dst));
            message.attributes.push(dst);
        }
        message.attributes.push(RouteAttribute::Oif(oif));
        message
    }

    #[test]
    fn each_ip_version_has_its_own_default_route() {
        let mut v6 = message(254, RouteType::Unicast, Ipv4Addr::UNSPECIFIED, 0, 6);
        v6.header.address_family = AddressFamily::Inet6;
        let mut within = v6.clone();
        within.header.destination_prefix_length = 16;
        let prefix = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0);
        let dst = RouteAttribute::Destination(RouteAddress::Inet6(prefix));
        within.attributes = vec![dst, RouteAttribute::Oif(7)];
        let only_v6 = table(vec![v6.clone(), within.clone()]);
        assert_eq!(only_v6.lookup(&addr(10, 0, 0, 1)), None);
        let v4 = message(254, RouteType::Unicast, Ipv4Addr::UNSPECIFIED, 0, 4);
        let both = table(vec![v6, within, v4]);
        let oif = |dst: Address| both.lookup(&dst).map(|info| info.ifindex);
        assert_eq!(oif(addr(10, 0, 0, 1)), Some(4));
        assert_eq!(oif([0x20; 16]), Some(6));
        assert_eq!(
            oif(Ipv6Addr::new(0xfd77, 1, 2, 3, 4, 5, 6, 7).octets()),
            Some(7)
        );
    }

    fn table(messages: Vec<RouteMessage>) -> RouteTable {
        RouteTable::from_messages(
            messages
                .into_iter()
                .map(RouteNetlinkMessage::NewRoute)
                .collect(),
        )
    }

    #[test]
    fn the_longest_prefix_wins_and_the_local_table_comes_first() {
        let unicast = RouteType::Unicast;
        let table = table(vec![
            message(254, unicast, Ipv4Addr::UNSPECIFIED, 0, 1),
            message(254, unicast, Ipv4Addr::new(10, 0, 0, 0), 8, 2),
            message(254, unicast, Ipv4Addr::new(10, 1, 0, 0), 16, 3),
            message(254, unicast, Ipv4Addr::new(10, 1, 2, 3), 32, 4),
            message(255, RouteType::Local, Ipv4Addr::new(10, 1, 9, 9), 32, 5),
            message(7, unicast, Ipv4Addr::new(10, 1, 2, 4), 32, 6),
        ]);
        let oif = |dst: Address| table.lookup(&dst).map(|info| info.ifindex);
        assert_eq!(oif(addr(192, 0, 2, 1)), Some(1));
        assert_eq!(oif(addr(10, 9, 9, 9)), Some(2));
        assert_eq!(oif(addr(10, 1, 2, 4)), Some(3));
        assert_eq!(oif(addr(10, 1, 2, 3)), Some(4));
        assert_eq!(oif(addr(10, 1, 9, 9)), Some(5));
        assert_eq!(
            table.lookup(&addr(10, 1, 9, 9)).unwrap().kind,
            RouteKind::Local
        );
        assert_eq!(
            oif([0; 16]),
            None,
            "an IPv6 address takes no IPv4 default route"
        );
    }

    #[test]
    fn the_route_with_the_lowest_metric_wins() {
        let dst = Ipv4Addr::new(10, 0, 0, 0);
        let mut high_metric = message(254, RouteType::Unicast, dst, 8, 1);
        high_metric.attributes.push(RouteAttribute::Priority(200));
        let mut low_metric = message(254, RouteType::Unicast, dst, 8, 2);
        low_metric.attributes.push(RouteAttribute::Priority(100));
        low_metric
            .attributes
            .push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(1400)]));
        let gateway = RouteAddress::Inet(Ipv4Addr::new(10, 0, 0, 9));
        low_metric.attributes.push(RouteAttribute::Gateway(gateway));
        for order in [
            vec![high_metric.clone(), low_metric.clone()],
            vec![low_metric, high_metric],
        ] {
            let info = table(order).lookup(&addr(10, 0, 0, 1)).unwrap();
            assert_eq!((info.ifindex, info.mtu), (2, 1400));
            assert_eq!(info.gateway, Some(addr(10, 0, 0, 9)));
        }
    }

    #[test]
    fn masks_of_all_lengths() {
        assert_eq!(masked(&[0xff; 16], 0), [0; 16]);
        assert_eq!(masked(&[0xff; 16], 128), [0xff; 16]);
        assert_eq!(masked(&addr(10, 1, 255, 255), 96 + 17), addr(10, 1, 128, 0));
    }
}
