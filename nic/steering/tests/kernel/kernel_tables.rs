//! Tests of [`KernelTables`], the copy of the kernel's links, addresses, routes and neighbors. The
//! tests change the kernel's tables with `ip`, and check that the copy shows the changes.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidelane_steering::kernel_tables::{
    self, Address, Change, KernelTables, LinkKind, NeighborState, RouteKind, address_from_ip,
    address_from_ipv4,
};

use crate::net::{Pair, privileged};

fn addr(a: u8, b: u8, c: u8, d: u8) -> Address {
    address_from_ipv4(Ipv4Addr::new(a, b, c, d))
}

/// Polls until `wanted` returns true, or fails after five seconds. Returns the changes of all
/// polls. The first call of `wanted` is before the first poll.
fn poll_until(
    kernel_tables: &mut KernelTables,
    mut wanted: impl FnMut(&KernelTables) -> bool,
) -> Vec<Change> {
    let start = Instant::now();
    let mut changes = Vec::new();
    while !wanted(kernel_tables) {
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "no expected change, only {changes:?}"
        );
        let tick = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        poll(
            &mut [PollFd::new(&kernel_tables.fd(), PollFlags::IN)],
            Some(&tick),
        )
        .unwrap();
        changes.extend(kernel_tables.poll().unwrap());
    }
    changes
}

#[test]
fn the_first_dump_has_all() {
    if !privileged("the_first_dump_has_all") {
        return;
    }
    let pair = Pair::new();
    pair.host.ip("route add default via 10.77.0.2");
    pair.host
        .ip("route add 192.0.2.0/24 via 10.77.0.3 src 10.77.0.1 mtu 1300");
    pair.host.ip("route add unreachable 198.51.100.0/24");
    pair.host
        .ip("neigh add 10.77.0.3 lladdr 02:00:00:00:00:03 dev veth0");
    let ifindex = pair.host.index("veth0");
    let kernel_tables = pair.host.run(KernelTables::open).unwrap();

    let link = kernel_tables.link(ifindex).unwrap();
    assert_eq!(
        (link.name.as_str(), link.mtu, &link.kind),
        ("veth0", 1500, &LinkKind::Veth)
    );
    assert!(link.up && link.xdp_programs.is_empty() && link.mac.is_some());
    let mac = link.mac.unwrap().to_string();
    assert!(pair.host.ip("link show dev veth0").contains(&mac));
    assert_eq!(
        kernel_tables.link_by_name("lo").unwrap().kind,
        LinkKind::Loopback
    );
    let addresses: Vec<_> = kernel_tables.addresses(ifindex).collect();
    assert_eq!(
        (addresses.len(), addresses[0].addr),
        (1, addr(10, 77, 0, 1))
    );
    // In the IPv4-mapped form, the prefix of a /24 is 96 bits longer.
    assert_eq!(addresses[0].prefix_len, 120);

    let lookup = |dst| kernel_tables.route_lookup(&dst);
    let on_link = lookup(addr(10, 77, 0, 9)).unwrap();
    assert_eq!(
        (on_link.kind, on_link.ifindex, on_link.mtu),
        (RouteKind::Unicast, ifindex, 1500)
    );
    assert_eq!(
        (on_link.gateway, on_link.prefsrc),
        (None, Some(addr(10, 77, 0, 1)))
    );
    let default = lookup(addr(8, 8, 8, 8)).unwrap();
    assert_eq!(default.gateway, Some(addr(10, 77, 0, 2)));
    assert_eq!(default.prefsrc, Some(addr(10, 77, 0, 1)));
    let narrow = lookup(addr(192, 0, 2, 7)).unwrap();
    assert_eq!(
        (narrow.gateway, narrow.mtu),
        (Some(addr(10, 77, 0, 3)), 1300)
    );
    assert_eq!(lookup(addr(10, 77, 0, 1)).unwrap().kind, RouteKind::Local);
    assert_eq!(lookup(addr(127, 3, 2, 1)).unwrap().kind, RouteKind::Local);
    assert_eq!(
        lookup(addr(10, 77, 0, 255)).unwrap().kind,
        RouteKind::Broadcast
    );
    assert_eq!(
        lookup(addr(198, 51, 100, 1)).unwrap().kind,
        RouteKind::Unreachable
    );

    let neighbor = kernel_tables
        .neighbor(ifindex, &addr(10, 77, 0, 3))
        .unwrap();
    assert_eq!(neighbor.state, NeighborState::Permanent);
    assert_eq!(neighbor.usable_mac().unwrap().0, [2, 0, 0, 0, 0, 3]);
}

#[test]
fn changes_are_followed() {
    if !privileged("changes_are_followed") {
        return;
    }
    let pair = Pair::new();
    let ifindex = pair.host.index("veth0");
    let mut kernel_tables = pair.host.run(KernelTables::open).unwrap();
    assert_eq!(kernel_tables.poll().unwrap(), []);

    pair.host.ip("addr add 10.88.0.1/24 dev veth0");
    let added = addr(10, 88, 0, 1);
    let far = addr(10, 88, 0, 5);
    let changes = poll_until(&mut kernel_tables, |kernel_tables| {
        kernel_tables.route_lookup(&far).is_some()
    });
    assert!(changes.contains(&Change::Address {
        ifindex,
        addr: added
    }));
    assert!(changes.contains(&Change::Routes));
    assert_eq!(
        kernel_tables.route_lookup(&far).unwrap().prefsrc,
        Some(added)
    );

    pair.host.ip("addr del 10.88.0.1/24 dev veth0");
    let changes = poll_until(&mut kernel_tables, |kernel_tables| {
        kernel_tables.route_lookup(&far).is_none()
    });
    assert!(changes.contains(&Change::AddressGone {
        ifindex,
        addr: added
    }));

    pair.host.ip("link set veth0 mtu 1400");
    poll_until(&mut kernel_tables, |kernel_tables| {
        kernel_tables.link(ifindex).unwrap().mtu == 1400
    });
    assert_eq!(
        kernel_tables.route_lookup(&addr(10, 77, 0, 2)).unwrap().mtu,
        1400
    );

    // When a link goes down, the kernel removes the link's routes without an announcement.
    pair.host.ip("route add 203.0.113.0/24 via 10.77.0.2");
    let routed = addr(203, 0, 113, 1);
    poll_until(&mut kernel_tables, |kernel_tables| {
        kernel_tables.route_lookup(&routed).is_some()
    });
    pair.host.ip("link set veth0 down");
    poll_until(&mut kernel_tables, |kernel_tables| {
        kernel_tables.route_lookup(&routed).is_none()
    });
    assert!(!kernel_tables.link(ifindex).unwrap().up);

    pair.host.ip("link del veth0");
    let changes = poll_until(&mut kernel_tables, |kernel_tables| {
        kernel_tables.link(ifindex).is_none()
    });
    assert!(changes.contains(&Change::LinkGone(ifindex)));
    assert_eq!(kernel_tables.addresses(ifindex).count(), 0);
}

#[test]
fn the_source_of_a_route_is_the_address_with_the_peer_in_its_network() {
    const TEST: &str = "the_source_of_a_route_is_the_address_with_the_peer_in_its_network";
    if !privileged(TEST) {
        return;
    }
    let pair = Pair::new();
    // In this command, the prefix length belongs to 10.1.0.7, the address of the point-to-point
    // peer.
    pair.host
        .ip("addr add 10.66.0.1 peer 10.1.0.7/24 dev veth0");
    pair.host.ip("route add 192.0.2.0/24 via 10.1.0.9");
    pair.host.ip("route add 10.66.0.0/24 dev veth0 scope link");
    let kernel_tables = pair.host.run(KernelTables::open).unwrap();
    for (to, source) in [
        ("192.0.2.1", addr(10, 66, 0, 1)),
        ("10.66.0.9", addr(10, 77, 0, 1)),
    ] {
        let dst: Ipv4Addr = to.parse().unwrap();
        let route = kernel_tables.route_lookup(&address_from_ipv4(dst));
        assert_eq!(route.unwrap().prefsrc, Some(source), "{to}");
        let kernel = pair.host.ip(&format!("route get {to}"));
        let source = kernel_tables::address_to_ipv4(&source).unwrap();
        assert!(kernel.contains(&format!("src {source} ")), "{kernel}");
    }
}

/// Routers of IPv6 announce themselves by link-local addresses. Packets through such a router to a
/// global address still have a global source.
#[test]
fn packets_by_a_link_local_router_have_a_global_source() {
    if !privileged("packets_by_a_link_local_router_have_a_global_source") {
        return;
    }
    let pair = Pair::new();
    pair.host.ip("-6 addr add fd66::1/64 dev veth0 nodad");
    pair.host
        .ip("-6 route add 2001:db8::/32 via fe80::9 dev veth0");
    let kernel_tables = pair.host.run(KernelTables::open).unwrap();
    let dst: Ipv6Addr = "2001:db8::1".parse().unwrap();
    let route = kernel_tables.route_lookup(&dst.octets()).unwrap();
    let source = route.prefsrc.map(Ipv6Addr::from);
    assert_eq!(source, "fd66::1".parse().ok());
    let kernel = pair.host.ip("-6 route get 2001:db8::1");
    assert!(kernel.contains("src fd66::1 "), "{kernel}");
}

#[test]
fn a_duplicate_address_is_left_out() {
    if !privileged("a_duplicate_address_is_left_out") {
        return;
    }
    let pair = Pair::new();
    for name in ["disable_ipv6=0", "keep_addr_on_down=1"] {
        pair.host
            .command(&format!("sysctl -q net.ipv6.conf.veth0.{name}"));
        pair.peer
            .command(&format!("sysctl -q net.ipv6.conf.veth0.{name}"));
    }
    let ifindex = pair.host.index("veth0");
    let mut kernel_tables = pair.host.run(KernelTables::open).unwrap();
    let duplicate: Ipv6Addr = "fd77::1".parse().unwrap();
    let has = |kernel_tables: &KernelTables| {
        let mut records = kernel_tables.addresses(ifindex);
        records.any(|record| record.addr == duplicate.octets())
    };
    pair.host.ip("addr add fd77::1/64 dev veth0 nodad");
    poll_until(&mut kernel_tables, has);

    // When the link comes up, the kernel probes for duplicates, and finds the peer's address.
    pair.host.ip("addr change fd77::1/64 dev veth0");
    pair.host.ip("link set veth0 down");
    pair.peer.ip("addr add fd77::1/64 dev veth0 nodad");
    pair.host.ip("link set veth0 up");
    let changes = poll_until(&mut kernel_tables, |kernel_tables| !has(kernel_tables));
    assert!(changes.contains(&Change::AddressGone {
        ifindex,
        addr: duplicate.octets()
    }));
    assert!(pair.host.ip("addr show dev veth0").contains("dadfailed"));
}

#[test]
fn the_kernel_resolves_and_refreshes_for_us() {
    if !privileged("the_kernel_resolves_and_refreshes_for_us") {
        return;
    }
    let pair = Pair::new();
    pair.host
        .command("sysctl -q net.ipv4.neigh.veth0.delay_first_probe_time=1");
    let ifindex = pair.host.index("veth0");
    let mut kernel_tables = pair.host.run(KernelTables::open).unwrap();
    let peer = addr(10, 77, 0, 2);
    assert_eq!(kernel_tables.neighbor(ifindex, &peer), None);

    kernel_tables.resolve(ifindex, &peer).unwrap();
    let usable = |kernel_tables: &KernelTables| {
        kernel_tables
            .neighbor(ifindex, &peer)
            .is_some_and(|found| found.usable_mac().is_some())
    };
    let changes = poll_until(&mut kernel_tables, usable);
    assert!(changes.contains(&Change::Neighbor {
        ifindex,
        addr: peer
    }));
    let mac = kernel_tables
        .neighbor(ifindex, &peer)
        .unwrap()
        .usable_mac()
        .unwrap()
        .to_string();
    assert!(pair.peer.ip("link show dev veth0").contains(&mac));

    let state = |kernel_tables: &KernelTables| {
        kernel_tables
            .neighbor(ifindex, &peer)
            .map(|found| found.state)
    };
    pair.host.ip(&format!(
        "neigh replace 10.77.0.2 lladdr {mac} nud stale dev veth0"
    ));
    poll_until(&mut kernel_tables, |kernel_tables| {
        state(kernel_tables) == Some(NeighborState::Stale)
    });
    kernel_tables.resolve(ifindex, &peer).unwrap();
    poll_until(&mut kernel_tables, |kernel_tables| {
        state(kernel_tables) == Some(NeighborState::Reachable)
    });

    let absent = addr(10, 77, 0, 99);
    kernel_tables.resolve(ifindex, &absent).unwrap();
    poll_until(&mut kernel_tables, |kernel_tables| {
        let found = kernel_tables.neighbor(ifindex, &absent);
        found.is_some_and(|found| found.state == NeighborState::Failed)
    });
    assert!(kernel_tables.resolve(9999, &absent).is_err());
}

#[test]
fn after_lost_events_the_tables_are_complete() {
    if !privileged("after_lost_events_the_tables_are_complete") {
        return;
    }
    const ADDRESSES: u32 = 4000;
    let pair = Pair::new();
    let ifindex = pair.host.index("veth0");
    let mut kernel_tables = pair.host.run(KernelTables::open).unwrap();
    // Cause more events than the socket's buffer of 1 MiB holds, without a poll in between.
    let mut batch = String::new();
    for number in 0..ADDRESSES {
        let (high, low) = (number >> 8, number & 0xff);
        batch += &format!("addr add 10.99.{high}.{low}/32 dev veth0\n");
    }
    let file = std::env::temp_dir().join(format!("{}.batch", pair.host.name));
    std::fs::write(&file, batch).unwrap();
    pair.host.ip(&format!("-batch {}", file.display()));
    std::fs::remove_file(&file).unwrap();

    let all = 1 + ADDRESSES as usize;
    let changes = poll_until(&mut kernel_tables, |kernel_tables| {
        kernel_tables.addresses(ifindex).count() == all
    });
    assert!(
        changes.contains(&Change::Resync),
        "the events did not overrun the socket's buffer"
    );
    assert_eq!(
        kernel_tables
            .route_lookup(&addr(10, 99, 15, 159))
            .unwrap()
            .kind,
        RouteKind::Local
    );
}

/// Returns the line of `ip neigh` for a neighbour on veth0.
fn neighbor_line(pair: &Pair, addr: &str) -> String {
    pair.host
        .ip(&format!("neigh show {addr} dev veth0 nud all"))
}

/// The kernel's neighbor request would turn a permanent or NOARP entry into an ordinary entry, so
/// `resolve` must not send the request for such an entry.
#[test]
fn neighbours_set_by_an_administrator_are_left_unchanged() {
    if !privileged("neighbours_set_by_an_administrator_are_left_unchanged") {
        return;
    }
    let pair = Pair::new();
    let ifindex = pair.host.index("veth0");
    pair.host.ip("addr add fd99::1/64 dev veth0 nodad");
    let mut kernel_tables = pair.host.run(KernelTables::open).unwrap();
    for (addr, state) in [
        ("10.77.0.31", "PERMANENT"),
        ("10.77.0.32", "NOARP"),
        ("fd99::31", "PERMANENT"),
        ("fd99::32", "NOARP"),
    ] {
        let nud = state.to_lowercase();
        pair.host.ip(&format!(
            "neigh add {addr} lladdr 02:00:00:00:00:31 nud {nud} dev veth0"
        ));
        let address = address_from_ip(addr.parse().unwrap());
        for _ in 0..3 {
            kernel_tables.resolve(ifindex, &address).unwrap();
        }
        let line = neighbor_line(&pair, addr);
        assert!(line.contains(state), "{addr}: {line}");
        assert!(line.contains("02:00:00:00:00:31"), "{addr}: {line}");
    }
}

#[test]
fn unknown_and_stale_neighbours_are_resolved() {
    if !privileged("unknown_and_stale_neighbours_are_resolved") {
        return;
    }
    let pair = Pair::new();
    let ifindex = pair.host.index("veth0");
    let mut kernel_tables = pair.host.run(KernelTables::open).unwrap();
    let peer = addr(10, 77, 0, 2);
    let found = |kernel_tables: &KernelTables, state| {
        let known = kernel_tables.neighbor(ifindex, &peer);
        known.is_some_and(|neighbor| neighbor.state == state)
    };
    kernel_tables.resolve(ifindex, &peer).unwrap();
    poll_until(&mut kernel_tables, |kernel_tables| {
        found(kernel_tables, NeighborState::Reachable)
    });
    for state in ["stale", "failed"] {
        pair.host
            .ip(&format!("neigh change 10.77.0.2 nud {state} dev veth0"));
        kernel_tables.resolve(ifindex, &peer).unwrap();
        // After a request for a stale entry, the kernel keeps the entry in DELAY before it probes
        // the neighbour. If the copy shows REACHABLE, the neighbour has answered, or the copy does
        // not have the change to `state` yet.
        poll_until(&mut kernel_tables, |kernel_tables| {
            found(kernel_tables, NeighborState::Delay)
                || found(kernel_tables, NeighborState::Reachable)
        });
    }
    // A second request does not change an entry that the kernel is resolving.
    let nobody = addr(10, 77, 0, 99);
    kernel_tables.resolve(ifindex, &nobody).unwrap();
    kernel_tables.resolve(ifindex, &nobody).unwrap();
    let line = neighbor_line(&pair, "10.77.0.99");
    assert!(line.contains("INCOMPLETE"), "{line}");
}

#[test]
fn the_link_address_is_read_and_followed() {
    if !privileged("the_link_address_is_read_and_followed") {
        return;
    }
    let pair = Pair::new();
    let ifindex = pair.host.index("veth0");
    pair.host.ip("link set veth0 address 02:00:00:00:00:41");
    let read = pair
        .host
        .run(|| kernel_tables::link_address(ifindex))
        .unwrap();
    assert_eq!(read.unwrap().0, [2, 0, 0, 0, 0, 0x41]);
    let none = pair.host.run(|| kernel_tables::link_address(9999)).unwrap();
    assert_eq!(none, None);
    let mut kernel_tables = pair.host.run(KernelTables::open).unwrap();
    pair.host.ip("link set veth0 address 02:00:00:00:00:42");
    poll_until(&mut kernel_tables, |kernel_tables| {
        let mac = kernel_tables.link(ifindex).and_then(|link| link.mac);
        mac.is_some_and(|mac| mac.0 == [2, 0, 0, 0, 0, 0x42])
    });
}
