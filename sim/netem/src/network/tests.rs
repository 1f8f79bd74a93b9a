//! Tests of switches and routers: forwarding, TTL, ICMP errors and cuts.

use tidelane_time::Duration;
use tidelane_wire::checksum;

use super::*;

const DELAY: Duration = Duration::from_micros(10);

fn node(kind: NodeKind, index: u8) -> Node {
    Node {
        kind,
        mac: MacAddress([2, 0, 0, 0, 0, index]),
        addrs: [IpAddress::from_v4([10, 0, 0, index]), v6(index)],
    }
}

fn v6(index: u8) -> IpAddress {
    let mut address = [0; 16];
    (address[0], address[15]) = (0xfd, index);
    IpAddress(address)
}

fn cable(a: usize, b: usize) -> Cable {
    Cable {
        ends: [a, b],
        links: [LinkConfig::with_delay(DELAY); 2],
    }
}

/// Returns a frame with a small IPv4 packet (DF set) from node `from` to node `to`. The destination
/// link address of the frame is the address of node `hop`.
fn frame(from: u8, hop: u8, to: u8, ttl: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, hop, 2, 0, 0, 0, 0, from, 8, 0];
    let mut header = [
        0x45, 0, 0, 24, 0, 0, 0x40, 0, ttl, 6, 0, 0, 10, 0, 0, from, 10, 0, 0, to,
    ];
    let sum = checksum::sum(&header).checksum();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(header);
    frame.extend([1, 2, 3, 4]);
    frame
}

/// Returns a frame like [`frame`], but with an IPv6 packet that has `len` bytes of payload.
fn frame_v6(from: u8, hop: u8, to: u8, len: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, hop, 2, 0, 0, 0, 0, from, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, (len >> 8) as u8, len as u8, 6, 64]);
    frame.extend(v6(from).0);
    frame.extend(v6(to).0);
    frame.extend(vec![1; usize::from(len)]);
    frame
}

/// Handles all arrivals. Returns the frames that have reached hosts, as (time, host, frame).
fn drive(network: &mut Network) -> Vec<(Instant, usize, Vec<u8>)> {
    let mut arrived = Vec::new();
    while let Some((at, link)) = network.next_arrival() {
        arrived.extend(network.arrive(at, link).map(|(host, f)| (at, host, f)));
    }
    arrived
}

#[test]
fn a_switch_forwards_by_link_address_and_changes_nothing() {
    let nodes = vec![
        node(NodeKind::Host, 0),
        node(NodeKind::Host, 1),
        node(NodeKind::Switch, 9),
    ];
    let mut network = Network::new(nodes, &[cable(0, 2), cable(1, 2)], 1);
    let sent = frame(0, 1, 1, 64);
    network.send(Instant::ZERO, 0, &sent);
    network.send(Instant::ZERO, 0, &frame(0, 7, 1, 64));
    let arrived = drive(&mut network);
    assert_eq!(arrived, [(Instant::ZERO + DELAY + DELAY, 1, sent)]);
    assert_eq!(network.unroutable(), 1);
}

fn routed() -> Network {
    routed_with(0)
}

/// Returns a network in which the link between the routers has an MTU of `mtu` bytes, or no
/// limit if `mtu` is zero.
fn routed_with(mtu: u32) -> Network {
    // Hosts 0 and 1 are on switch 2. Routers 3 and 4 connect the switch to host 5.
    let nodes = vec![
        node(NodeKind::Host, 0),
        node(NodeKind::Host, 1),
        node(NodeKind::Switch, 2),
        node(NodeKind::Router, 3),
        node(NodeKind::Router, 4),
        node(NodeKind::Host, 5),
    ];
    let mut cables = [
        cable(0, 2),
        cable(1, 2),
        cable(2, 3),
        cable(3, 4),
        cable(4, 5),
    ];
    cables[3].links = cables[3].links.map(|link| LinkConfig { mtu, ..link });
    Network::new(nodes, &cables, 1)
}

#[test]
fn routers_decrement_ttl_and_write_link_addresses() {
    let mut network = routed();
    network.send(Instant::ZERO, 0, &frame(0, 3, 5, 64));
    network.send(Instant::ZERO, 5, &frame(5, 4, 1, 64));
    let mut arrived = drive(&mut network);
    arrived.sort_by_key(|(_, host, _)| std::cmp::Reverse(*host));
    let hosts: Vec<_> = arrived.iter().map(|(_, host, _)| *host).collect();
    assert_eq!(hosts, [5, 1]);
    let there = parse_frame(&arrived[0].2).expect("a packet");
    assert_eq!(
        (there.ttl, there.dst_mac.0[5], there.src_mac.0[5]),
        (62, 5, 4)
    );
    let back = parse_frame(&arrived[1].2).expect("a packet");
    assert_eq!((back.ttl, back.dst_mac.0[5], back.src_mac.0[5]), (62, 1, 3));
}

#[test]
fn routers_forward_ipv6_by_its_own_header() {
    let mut network = routed();
    network.send(Instant::ZERO, 0, &frame_v6(0, 3, 5, 100));
    let arrived = drive(&mut network);
    assert_eq!(arrived.len(), 1);
    let packet = parse_frame(&arrived[0].2).expect("a packet");
    assert_eq!(
        (packet.ttl, packet.dst, packet.payload.len()),
        (62, v6(5), 100)
    );
}

#[test]
fn a_packet_above_the_mtu_is_answered_with_an_icmp_error() {
    let mut network = routed_with(1280);
    for len in [1240, 1241] {
        network.send(Instant::ZERO, 0, &frame_v6(0, 3, 5, len));
    }
    let mut v4 = frame(0, 3, 5, 64);
    v4.resize(ETHERNET_HEADER_LEN + 1281, 1);
    network.send(Instant::ZERO, 0, &v4);
    let mut arrived = drive(&mut network);
    arrived.sort_by_key(|(_, host, frame)| (*host, frame[12]));
    let hosts: Vec<_> = arrived.iter().map(|(_, host, _)| *host).collect();
    assert_eq!(hosts, [0, 0, 5]);
    assert_eq!((network.too_big(), network.unroutable()), (2, 0));
    let errors = [&arrived[0].2, &arrived[1].2].map(|frame| parse_frame(frame).expect("a packet"));
    // Each ICMP error has the right type, code and MTU. The error quotes as much of the packet as
    // fits.
    assert_eq!(errors[0].src, IpAddress::from_v4([10, 0, 0, 3]));
    assert_eq!((errors[0].protocol, errors[0].payload.len()), (1, 556));
    assert_eq!(errors[0].payload[..2], [3, 4]);
    assert_eq!(errors[0].payload[4..8], 1280u32.to_be_bytes());
    assert_eq!(errors[0].payload[8..12], v4[14..18]);
    assert!(checksum::sum(errors[0].payload).is_valid());
    assert_eq!(errors[1].src, v6(3));
    assert_eq!((errors[1].protocol, errors[1].payload.len()), (58, 1240));
    assert_eq!(errors[1].payload[..2], [2, 0]);
    assert_eq!(errors[1].payload[4..8], 1280u32.to_be_bytes());
    let pseudo = checksum::pseudo_header(v6(3), v6(0), 58, 1240);
    assert!(pseudo.plus(checksum::sum(errors[1].payload)).is_valid());
}

#[test]
fn a_packet_with_expired_ttl_is_dropped() {
    let mut network = routed();
    network.send(Instant::ZERO, 0, &frame(0, 3, 5, 2));
    assert_eq!(drive(&mut network), []);
    assert_eq!(network.unroutable(), 1);
}

#[test]
fn frames_to_a_blocked_host_wait() {
    let mut network = routed();
    network.send(Instant::ZERO, 0, &frame(0, 1, 1, 64));
    network.block(1, true);
    assert_eq!(drive(&mut network), []);
    network.block(1, false);
    assert_eq!(drive(&mut network).len(), 1);
}

#[test]
fn a_cut_network_loses_everything_and_a_restored_one_nothing() {
    let mut network = routed();
    network.set_cut(true);
    network.send(Instant::ZERO, 0, &frame(0, 1, 1, 64));
    assert_eq!(drive(&mut network), []);
    network.set_cut(false);
    network.send(Instant::ZERO, 0, &frame(0, 1, 1, 64));
    assert_eq!(drive(&mut network).len(), 1);
    assert_eq!(network.counters().lost, 1);
}

#[test]
fn a_path_mtu_changes_during_a_run() {
    let mut network = routed();
    let mut now = Instant::ZERO;
    // If the packet of 1,340 bytes exceeds the MTU, an ICMP error reaches host 0. Otherwise, the
    // packet reaches host 5.
    for (mtu, host) in [(0, 5), (1280, 0), (1400, 5), (1280, 0)] {
        network.set_path_mtu(mtu);
        network.send(now, 0, &frame_v6(0, 3, 5, 1300));
        let arrived = drive(&mut network);
        let hosts: Vec<usize> = arrived.iter().map(|(_, host, _)| *host).collect();
        assert_eq!(hosts, [host], "MTU {mtu}");
        now = arrived[0].0;
    }
    assert_eq!(network.too_big(), 2);
}
