//! Tests of packets with impossible source addresses (martians), and of the destination link
//! addresses of the host's answers to forged packets. The host is the stack of one core of the
//! service.

use std::net::IpAddr;

use tidelane_host::{IngressPolicy, KernelRoute, Route, SourceChecks, Way};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{
    Ecn, HeaderTemplate, IpAddress, MacAddress, SegmentHeader, TcpFlags, checksum, emit_tcp,
    parse_frame, parse_tcp, write_tcp_checksum,
};

use crate::{
    rig::{Core, OUR_MAC},
    stage::{Stage, listen, segment, stranger},
};

const NOW: Instant = Instant::from_secs(1);
const ATTACKER: MacAddress = MacAddress([2, 0, 0, 0, 0, 66]);
const ROUTER: MacAddress = MacAddress([2, 0, 0, 0, 0, 77]);

fn address(text: &str) -> IpAddress {
    IpAddress::from(text.parse::<IpAddr>().expect("an address"))
}

fn route(prefix: &str, len: u8, way: Way) -> KernelRoute {
    let prefix = address(prefix);
    KernelRoute {
        prefix,
        prefix_len: if prefix.is_v4() { 96 + len } else { len },
        way,
    }
}

/// Makes a host with 10.0.0.1/8 and fd00::1/64 on the served interface. Another interface of the
/// host has 192.168.7.1/24.
fn core() -> Core {
    let mut core = Core::new();
    let own = [address("10.0.0.1"), address("fd00::1")];
    let routes = [("10.0.0.0", 96 + 8, own[0]), ("fd00::", 64, own[1])];
    let routes = routes.map(|(prefix, prefix_len, source)| Route {
        prefix: address(prefix),
        prefix_len,
        gateway: None,
        source,
    });
    core.host.set_routes(NOW, own.to_vec(), routes.to_vec());
    let local = vec![
        route("127.0.0.0", 8, Way::Local),
        route("10.0.0.1", 32, Way::Local),
        route("10.255.255.255", 32, Way::Broadcast),
        route("192.168.7.1", 32, Way::Local),
        route("::1", 128, Way::Local),
        route("fd00::1", 128, Way::Local),
        route("fe80::1", 128, Way::Local),
    ];
    let main = vec![
        route("10.0.0.0", 8, Way::Out),
        route("192.168.7.0", 24, Way::Elsewhere),
        route("fd00::", 64, Way::Out),
        route("fe80::", 64, Way::Out),
    ];
    let policy = IngressPolicy::new(vec![local, main], SourceChecks::default());
    core.host.set_ingress(policy);
    core
}

fn frame(from: IpAddress, to: IpAddress, header: &SegmentHeader) -> Vec<u8> {
    let template = HeaderTemplate::new(ATTACKER, OUR_MAC, from, to)
        .expect("both addresses have one IP version");
    let (start, len) = (template.headers_len(), header.len());
    let mut frame = vec![0; start + len];
    template.write(&mut frame, len as u16, Ecn::NotEct, 0);
    let tcp = &mut frame[start..];
    emit_tcp(tcp, header);
    write_tcp_checksum(tcp, template.pseudo_header(len as u16), checksum::Sum::ZERO);
    frame
}

/// Returns the host's address of the same IP version as `from`.
fn own_of(from: IpAddress) -> IpAddress {
    address(if from.is_v4() { "10.0.0.1" } else { "fd00::1" })
}

/// Sends a segment with source address `from` to a new host. If `listening` is true, a program of
/// the host listens. Returns the number of answers, and the names of the drop counters that are not
/// zero.
fn answers(from: &str, header: SegmentHeader, listening: bool) -> (usize, Vec<String>) {
    let mut core = core();
    if listening {
        listen(&mut core.host, 1 << 20);
    }
    let from = address(from);
    core.receives(&frame(from, own_of(from), &header));
    let sent = core.answers(NOW).len();
    assert_eq!(core.host.usage().1, 0, "the host has a flow for {from}");
    let drops = core.host.counters().into_iter();
    let drops = drops.filter(|(name, count)| name.starts_with("drop_") && *count > 0);
    (sent, drops.map(|(name, _)| name).collect())
}

/// Source addresses from which the host accepts no segment, each with the name of the counter of
/// the dropped segments. 192.168.7.9 is no martian, but the route to this address does not lead
/// over the served interface.
const REFUSED_SOURCES: [(&str, &str); 15] = [
    ("127.0.0.1", "drop_martian_source"),
    ("127.7.7.7", "drop_martian_source"),
    ("10.0.0.1", "drop_martian_source"),
    ("192.168.7.1", "drop_martian_source"),
    ("10.255.255.255", "drop_martian_source"),
    ("255.255.255.255", "drop_bad_address"),
    ("224.0.0.1", "drop_bad_address"),
    ("0.0.0.0", "drop_bad_address"),
    ("0.0.0.5", "drop_bad_address"),
    ("192.168.7.9", "drop_no_route"),
    ("::", "drop_bad_address"),
    ("ff02::1", "drop_bad_address"),
    ("::1", "drop_martian_source"),
    ("fd00::1", "drop_martian_source"),
    ("fe80::1", "drop_martian_source"),
];

#[test]
fn a_refused_source_opens_no_connection_and_draws_no_answer() {
    for (from, drop) in REFUSED_SOURCES {
        for flags in [TcpFlags::SYN, TcpFlags::ACK, TcpFlags::SYN | TcpFlags::ACK] {
            for listening in [false, true] {
                let found = answers(from, segment(flags, 7, 1), listening);
                assert_eq!(found, (0, vec![drop.to_owned()]), "{from} {flags:?}");
            }
        }
    }
}

#[test]
fn neighbours_of_both_versions_are_answered() {
    for from in ["10.0.0.2", "10.9.9.9", "fd00::2", "fe80::2"] {
        let (sent, drops) = answers(from, segment(TcpFlags::SYN, 7, 0), false);
        assert_eq!((sent, drops), (1, vec!["drop_no_listener".to_owned()]));
    }
}

#[test]
fn an_ipv4_mapped_source_gets_no_answer() {
    // The host treats an IPv4-mapped address in an IPv6 header as `::`. The checksum of the segment
    // is correct for `::`.
    let mut frame = frame(
        address("::"),
        address("fd00::1"),
        &segment(TcpFlags::SYN, 7, 0),
    );
    frame[22..38].copy_from_slice(&IpAddress::from_v4([10, 0, 0, 2]).0);
    let mut core = core();
    core.receives(&frame);
    assert_eq!(core.answers(NOW).len(), 0);
    assert_eq!(core.counter("drop_bad_address"), 1);
}

/// Returns an ICMP error of router `from` that quotes a SYN from `local` to `quoted`.
fn icmp_error(from: IpAddress, local: [u8; 4], quoted: [u8; 4]) -> Vec<u8> {
    let quote = frame(
        IpAddress::from_v4(local),
        IpAddress::from_v4(quoted),
        &segment(TcpFlags::SYN, 7, 0),
    );
    let mut icmp = vec![3, 1, 0, 0, 0, 0, 0, 0];
    icmp.extend(&quote[14..14 + 20 + 8]);
    let sum = checksum::sum(&icmp).checksum();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let to = IpAddress::from_v4(local);
    let template = HeaderTemplate::new(ATTACKER, OUR_MAC, from, to)
        .expect("both addresses have one IP version");
    let mut frame = vec![0; template.headers_len()];
    template.write(&mut frame, icmp.len() as u16, Ecn::NotEct, 0);
    let ip = &mut frame[14..];
    ip[9] = 1;
    ip[10..12].fill(0);
    let sum = checksum::sum(ip).checksum();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(icmp);
    frame
}

#[test]
fn icmp_errors_from_martians_or_about_local_connections_are_dropped() {
    let own = [10, 0, 0, 1];
    for (from, quoted, dropped) in [
        ("10.0.0.9", [10, 0, 0, 2], None),
        // Like the kernel, the host accepts an ICMP error from a router behind another interface.
        ("192.168.7.9", [10, 0, 0, 2], None),
        ("127.0.0.1", [10, 0, 0, 2], Some("drop_martian_source")),
        ("10.0.0.1", [10, 0, 0, 2], Some("drop_martian_source")),
        ("0.0.0.5", [10, 0, 0, 2], Some("drop_bad_address")),
        ("10.0.0.9", own, Some("drop_martian_source")),
    ] {
        let mut core = core();
        core.receives(&icmp_error(address(from), own, quoted));
        assert_eq!(core.answers(NOW).len(), 0);
        let drops = core.host.counters().into_iter();
        let drops = drops.filter(|(name, count)| name.starts_with("drop_") && *count > 0);
        let drops: Vec<String> = drops.map(|(name, _)| name).collect();
        let expected: Vec<String> = dropped.into_iter().map(str::to_owned).collect();
        assert_eq!(drops, expected, "{from} {quoted:?}");
    }
}

/// The host checks the source address of each fragment, so that fragments of martians take no
/// memory. The host keeps a fragment whose source is behind another interface. Only the check of
/// the reassembled segment, which is not part of this test, refuses this source.
#[test]
fn fragments_of_refused_sources_open_no_connection() {
    for (from, drop) in REFUSED_SOURCES
        .into_iter()
        .filter(|(from, _)| from.contains('.'))
    {
        let mut core = core();
        let mut first = frame(
            address(from),
            address("10.0.0.1"),
            &segment(TcpFlags::SYN, 7, 0),
        );
        first.truncate(14 + 20 + 16);
        let ip = &mut first[14..34];
        ip[2..4].copy_from_slice(&36u16.to_be_bytes());
        ip[6..8].copy_from_slice(&0x2000u16.to_be_bytes());
        ip[10..12].fill(0);
        let sum = checksum::sum(ip).checksum();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        core.receives(&first);
        core.answers(NOW);
        let kept = u64::from(drop == "drop_no_route");
        assert_eq!(core.counter("reasm_reqds"), kept, "{from}");
        assert_eq!(core.counter(drop), 1 - kept, "{from}");
    }
}

/// Returns the destination link addresses and the segment headers of frames that the host sends to
/// `peer`.
fn sent(stage: &mut Stage, peer: IpAddress) -> Vec<(MacAddress, SegmentHeader)> {
    let frames = stage.core.sent();
    let to_peer = frames.iter().filter_map(|frame| {
        let packet = parse_frame(frame).expect("a packet");
        let segment = parse_tcp(packet.payload).expect("a segment");
        (packet.dst == peer).then(|| (packet.dst_mac, segment.header()))
    });
    to_peer.collect()
}

/// Runs the host for 100 ms, which is longer than the delay of a delayed ACK.
fn wait(stage: &mut Stage) {
    for _ in 0..100 {
        stage.now += Duration::from_millis(1);
        stage.run();
    }
}

/// Opens a connection with source IP address `peer` and the link address of the attacker. The last
/// segment of the handshake carries data. Returns the answers to the SYN, and the answers to the
/// last segment.
fn open_in_the_name_of(
    stage: &mut Stage,
    peer: IpAddress,
) -> [Vec<(MacAddress, SegmentHeader)>; 2] {
    stage.router = ATTACKER;
    stage.send(peer, segment(TcpFlags::SYN, 7, 0), &[]);
    stage.run();
    let to_syn = sent(stage, peer);
    let theirs = to_syn.first().map_or(0, |(_, answer)| answer.seq.to_u32());
    let ack = segment(TcpFlags::ACK, 8, theirs.wrapping_add(1));
    stage.send(peer, ack, b"text");
    stage.run();
    wait(stage);
    [to_syn, sent(stage, peer)]
}

/// Returns a stage that has a listener and whose kernel does not resolve neighbours.
fn unresolved_stage() -> Stage {
    let mut stage = Stage::new();
    listen(&mut stage.core.host, 1 << 20);
    stage.is_resolved = false;
    stage
}

#[test]
fn after_the_handshake_packets_go_only_to_the_neighbour_that_the_kernel_resolved() {
    let mut stage = unresolved_stage();
    let peer = stranger(1);
    let [to_syn, to_text] = open_in_the_name_of(&mut stage, peer);
    assert_eq!(to_syn[0].0, ATTACKER, "not the sender of the SYN");
    assert_eq!(to_text, [], "sent to an unresolved peer");
    assert_eq!(stage.asked_about(), [peer]);
    // The kernel resolves the peer to the link address of the router.
    stage.core.host.set_neighbour(stage.now, peer, Some(ROUTER));
    stage.run();
    let later = sent(&mut stage, peer);
    assert_eq!(later.len(), 1);
    assert_eq!((later[0].0, later[0].1.ack.to_u32()), (ROUTER, 12));
    // Later frames of the attacker do not change the link address.
    stage.router = ATTACKER;
    let next = segment(TcpFlags::ACK, 12, later[0].1.seq.to_u32());
    stage.send(peer, next, b"more");
    wait(&mut stage);
    let next = sent(&mut stage, peer);
    assert!(!next.is_empty() && next.iter().all(|(to, _)| *to == ROUTER));
}

#[test]
fn answers_to_a_known_neighbour_s_syn_go_to_the_neighbour() {
    let mut stage = unresolved_stage();
    let peer = stranger(1);
    stage.core.host.set_neighbour(stage.now, peer, Some(ROUTER));
    let [to_syn, _] = open_in_the_name_of(&mut stage, peer);
    assert_eq!(to_syn[0].0, ROUTER);
    // A reset goes to the known neighbour, too.
    let mut syn = segment(TcpFlags::SYN, 7, 0);
    syn.dst_port = 81;
    stage.send(peer, syn, &[]);
    stage.run();
    let reset = sent(&mut stage, peer);
    assert!(reset.iter().all(|(to, _)| *to == ROUTER));
    assert!(reset.iter().any(|(_, it)| it.flags.contains(TcpFlags::RST)));
}

/// The route to the peer has a gateway whose link address is unknown. The host does not trust the
/// source link address of the SYN, and resolves the gateway before it answers.
#[test]
fn answers_to_peers_behind_a_router_wait_for_the_router() {
    let mut stage = unresolved_stage();
    let (own, router) = (address("10.0.0.1"), address("10.0.0.254"));
    let by_router = Route {
        prefix: address("0.0.0.0"),
        prefix_len: 96,
        gateway: Some(router),
        source: own,
    };
    let host = &mut stage.core.host;
    host.set_routes(stage.now, vec![own], vec![by_router]);
    let peer = address("203.0.113.5");
    let [to_syn, to_text] = open_in_the_name_of(&mut stage, peer);
    assert_eq!((to_syn, to_text), (vec![], vec![]));
    assert_eq!(stage.asked_about(), [router]);
    stage
        .core
        .host
        .set_neighbour(stage.now, router, Some(ROUTER));
    stage.run();
    let late = sent(&mut stage, peer);
    assert!(late.iter().all(|(to, _)| *to == ROUTER));
    assert!(late[0].1.flags.contains(TcpFlags::SYN));
}

/// An open connection follows later changes of the kernel's routes and of the interface's link
/// address.
#[test]
fn a_flow_goes_by_the_current_router() {
    let mut stage = Stage::new();
    listen(&mut stage.core.host, 1 << 20);
    let peer = stranger(1);
    stage.connect(4242, b"text");
    let (own, router) = (address("10.0.0.1"), address("10.0.0.254"));
    let by_router = Route {
        prefix: address("10.0.0.0"),
        prefix_len: 96 + 8,
        gateway: Some(router),
        source: own,
    };
    let now = stage.now;
    stage.core.host.set_neighbour(now, router, Some(ROUTER));
    stage.core.host.set_routes(now, vec![own], vec![by_router]);
    let ours = MacAddress([2, 0, 0, 0, 0, 11]);
    stage.core.host.set_link_address(ours);
    // A SYN draws a challenge ACK.
    stage.send(peer, segment(TcpFlags::SYN, 12, 0), &[]);
    stage.now += Duration::from_millis(600);
    stage.core.host.step(stage.now);
    let frames = stage.core.sent();
    assert!(!frames.is_empty());
    for frame in frames {
        assert_eq!((&frame[..6], &frame[6..12]), (&ROUTER.0[..], &ours.0[..]));
    }
}
