//! Tests of the destinations of packets between mux ports, the NIC and the host, and of packets
//! that the mux refuses. A mux port is a pair of packet rings through which a program with a TCP/IP
//! stack of its own shares the NIC. The host is the stack that gets all packets that no mux port
//! has claimed.

use tidelane_mux::*;
use tidelane_packet_io::{Burst, MemConfig, MemPort, PacketIo};
use tidelane_wire::{
    DropReason, Ecn, Endpoint, HeaderTemplate, IcmpErrorKind, IpAddress, MacAddress, checksum,
    parse_frame, parse_icmp_error,
};

use crate::frames::{LOCAL, LOCAL_MAC, PEER, PEER_MAC, TestFrame, receive, send};

mod frames;

/// A mux, and the other ends of its NIC, its host and its mux ports.
struct Net {
    mux: Mux<MemPort, MemPort, MemPort>,
    nic: MemPort,
    host: MemPort,
    ports: Vec<(PortId, ProgramPort<MemPort>)>,
}

impl Net {
    /// Makes a mux with mux ports that have claimed TCP ports 1000, 1001, ...
    fn new(ports: u16) -> Self {
        Self::with_nic(ports, MemConfig::default().frames)
    }

    /// Makes a mux as [`new`](Self::new) does, with a NIC that has room for `nic_frames` frames.
    fn with_nic(ports: u16, nic_frames: u32) -> Self {
        let config = MemConfig {
            partial_checksums: false,
            ..MemConfig::default()
        };
        let (nic, mux_nic) = MemPort::pair(MemConfig {
            frames: nic_frames,
            ..config
        });
        let (host, mux_host) = MemPort::pair(config);
        let mux = Mux::new(mux_nic, mux_host, LOCAL_MAC, vec![LOCAL], ports.into());
        let mut net = Self {
            mux,
            nic,
            host,
            ports: Vec::new(),
        };
        for number in 0..ports {
            let frames = if ports > 100 { 8 } else { 256 };
            let (near, far) = MemPort::pair(MemConfig { frames, ..config });
            let (id, doorbell) = net.mux.open(near).unwrap();
            net.mux.ports_mut().claim(tuple(1000 + number), id).unwrap();
            net.ports.push((id, ProgramPort::new(far, doorbell)));
        }
        net
    }

    fn port(&mut self, at: usize) -> &mut ProgramPort<MemPort> {
        &mut self.ports[at].1
    }

    fn counters(&self, at: usize) -> PortCounters {
        self.mux
            .ports()
            .port_counters(self.ports[at].0)
            .unwrap()
            .clone()
    }
}

/// Receives at most one frame.
fn receive_one(port: &mut MemPort) -> Option<Vec<u8>> {
    let mut burst = port.new_burst();
    port.rx_burst(&mut burst, 1);
    let frame = burst.frame(0).map(<[u8]>::to_vec);
    port.rx_release(&mut burst);
    frame
}

fn tuple(port: u16) -> Tuple {
    Tuple {
        protocol: 6,
        local: Endpoint::new(LOCAL, port),
    }
}

#[test]
fn each_packet_goes_to_the_owner_of_its_destination() {
    let mut net = Net::new(2);
    for port in [1000, 1001, 1002] {
        send(&mut net.nic, &TestFrame::incoming(port).bytes());
    }
    net.mux.step();
    assert_eq!(receive(net.port(0)), [TestFrame::incoming(1000).bytes()]);
    assert_eq!(receive(net.port(1)), [TestFrame::incoming(1001).bytes()]);
    assert_eq!(
        receive(&mut net.host),
        [TestFrame::incoming(1002).bytes()],
        "no mux port has claimed TCP port 1002"
    );
    // Send packets between the two mux ports, between a mux port and the host, and from a mux port
    // and the host to the peer.
    let between = TestFrame {
        dst: Endpoint::new(LOCAL, 1001),
        ..TestFrame::outgoing(1000)
    };
    let to_host = TestFrame {
        dst: Endpoint::new(LOCAL, 22),
        ..TestFrame::outgoing(1000)
    };
    let from_host = TestFrame {
        dst: Endpoint::new(LOCAL, 1000),
        ..TestFrame::outgoing(22)
    };
    for sent in [between, to_host, TestFrame::outgoing(1000)] {
        send(net.port(0), &sent.bytes());
    }
    for sent in [from_host, TestFrame::outgoing(22)] {
        send(&mut net.host, &sent.bytes());
    }
    net.mux.step();
    assert_eq!(receive(net.port(0)), [from_host.bytes()]);
    assert_eq!(receive(net.port(1)), [between.bytes()]);
    assert_eq!(receive(&mut net.host), [to_host.bytes()]);
    assert_eq!(
        receive(&mut net.nic),
        [
            TestFrame::outgoing(22).bytes(),
            TestFrame::outgoing(1000).bytes()
        ]
    );
}

/// Returns frames that the mux port with TCP port 1000 may not send, each with the reason.
/// `genuine` is a frame that this mux port may send.
fn forged(genuine: &[u8]) -> Vec<(Vec<u8>, SendRefusal)> {
    let mut bad_checksum = genuine.to_vec();
    *bad_checksum.last_mut().unwrap() ^= 1;
    let mut bad_ip_header = genuine.to_vec();
    bad_ip_header[24] ^= 1;
    let sent = |sent: TestFrame| sent.bytes();
    vec![
        (sent(TestFrame::outgoing(1001)), SendRefusal::SourcePort),
        (sent(TestFrame::outgoing(22)), SendRefusal::SourcePort),
        (
            sent(TestFrame {
                mac: PEER_MAC,
                ..TestFrame::outgoing(1000)
            }),
            SendRefusal::SourceMac,
        ),
        (
            sent(TestFrame {
                src: Endpoint::new(PEER, 1000),
                ..TestFrame::outgoing(1000)
            }),
            SendRefusal::SourceAddress,
        ),
        (
            sent(TestFrame {
                dst: Endpoint::v4([127, 0, 0, 1], 9),
                ..TestFrame::outgoing(1000)
            }),
            SendRefusal::Destination,
        ),
        (
            sent(TestFrame {
                dst: Endpoint::v4([224, 0, 0, 1], 9),
                ..TestFrame::outgoing(1000)
            }),
            SendRefusal::Destination,
        ),
        (
            bad_checksum,
            SendRefusal::Malformed(DropReason::BadChecksum),
        ),
        (
            bad_ip_header,
            SendRefusal::Malformed(DropReason::BadIpChecksum),
        ),
        (
            genuine[..30].to_vec(),
            SendRefusal::Malformed(DropReason::Truncated),
        ),
        (
            vec![0; 60],
            SendRefusal::Malformed(DropReason::UnsupportedEthertype),
        ),
        (Vec::new(), SendRefusal::Malformed(DropReason::Truncated)),
    ]
}

#[test]
fn a_packet_that_the_port_may_not_send_is_refused_with_its_reason() {
    let mut net = Net::new(2);
    let genuine = TestFrame::outgoing(1000).bytes();
    for (frame, refusal) in forged(&genuine) {
        let before = net.counters(0).refused.get(&refusal).copied().unwrap_or(0);
        send(net.port(0), &frame);
        net.mux.step();
        let refused = net.counters(0).refused;
        assert_eq!(
            refused.get(&refusal),
            Some(&(before + 1)),
            "{refusal:?}: {refused:?}"
        );
        assert!(receive(&mut net.nic).is_empty() && receive(&mut net.host).is_empty());
        assert!(receive(net.port(1)).is_empty());
    }
    assert_eq!(net.counters(0).sent, 0);
    send(net.port(0), &genuine);
    net.mux.step();
    assert_eq!(receive(&mut net.nic), [genuine]);
}

#[test]
fn a_packet_of_the_wire_with_a_local_source_reaches_no_port() {
    let mut net = Net::new(2);
    let forged = TestFrame {
        src: Endpoint::new(LOCAL, 1001),
        ..TestFrame::incoming(1000)
    };
    send(&mut net.nic, &forged.bytes());
    net.mux.step();
    assert!(receive(net.port(0)).is_empty());
    assert_eq!(receive(&mut net.host), [forged.bytes()]);
    // The same packet from the host is genuine.
    send(&mut net.host, &forged.bytes());
    net.mux.step();
    assert_eq!(receive(net.port(0)), [forged.bytes()]);
}

/// One bit of the frame is wrong. The NIC gets the frame only if the bit is in the destination MAC
/// address.
#[test]
fn every_changed_byte_of_the_headers_is_refused_or_harmless() {
    let mut net = Net::new(2);
    let genuine = TestFrame::outgoing(1000).bytes();
    for at in 0..genuine.len() {
        for bit in 0..8 {
            let mut frame = genuine.clone();
            frame[at] ^= 1 << bit;
            send(net.port(0), &frame);
            net.mux.step();
            let out = receive(&mut net.nic);
            // The destination MAC address is the mux port's choice.
            assert_eq!(out.len(), usize::from(at < 6), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn a_port_that_floods_delays_no_other_port() {
    let mut net = Net::new(3);
    for round in 0..50 {
        while send(net.port(0), &TestFrame::outgoing(1000).bytes()) {}
        assert!(send(net.port(1), &TestFrame::outgoing(1001).bytes()));
        assert!(send(net.port(2), &TestFrame::outgoing(1002).bytes()));
        net.mux.step();
        let out = receive(&mut net.nic);
        let of = |port| {
            out.iter()
                .filter(|frame| **frame == TestFrame::outgoing(port).bytes())
                .count()
        };
        assert_eq!((of(1001), of(1002)), (1, 1), "round {round}");
        assert!(of(1000) <= 32, "{} packets in one turn", of(1000));
    }
    // More packets of the flooding mux port leave later.
    let mut late = 0;
    while net.mux.step() {
        late += receive(&mut net.nic).len();
    }
    assert!(late > 0);
    assert_eq!(net.mux.counters().nic_overruns, 0);
}

/// The NIC sends one frame between two steps. The first mux port floods, the second mux port rarely
/// sends, and the third mux port always has a packet. At the end, at most ten packets of the second
/// mux port have not left, and the third mux port has sent more than 40 % of the frames.
#[test]
fn a_port_that_floods_a_slow_nic_loses_no_packet_and_takes_none_from_others() {
    let mut net = Net::with_nic(3, 4);
    let (mut sent, mut out) = ([0, 0], Vec::new());
    for _ in 0..2000 {
        while send(net.port(0), &TestFrame::outgoing(1000).bytes()) {}
        // The second mux port (TCP port 1001) sends one packet for each ten frames of the NIC. The
        // third mux port (TCP port 1002) always has a packet.
        if sent[0] * 10 < out.len() {
            sent[0] += usize::from(send(net.port(1), &TestFrame::outgoing(1001).bytes()));
        }
        sent[1] += usize::from(send(net.port(2), &TestFrame::outgoing(1002).bytes()));
        net.mux.step();
        out.extend(receive_one(&mut net.nic));
    }
    let of = |port| {
        let frame = TestFrame::outgoing(port).bytes();
        out.iter().filter(|out| **out == frame).count()
    };
    assert!(
        of(1001) + 10 >= sent[0] && sent[0] > 100,
        "{} of {}",
        of(1001),
        sent[0]
    );
    assert!(
        of(1002) > out.len() * 4 / 10,
        "{} of {}",
        of(1002),
        out.len()
    );
    for at in 0..3 {
        assert_eq!(net.counters(at).lost, 0, "mux port {at}");
    }
    assert_eq!(net.mux.counters().nic_overruns, 0);
}

/// The mux port closes while one of its packets waits for the NIC.
#[test]
fn a_packet_that_waits_for_the_nic_ends_with_its_port() {
    let mut net = Net::with_nic(2, 4);
    for at in [0, 1] {
        for _ in 0..20 {
            assert!(send(
                net.port(at),
                &TestFrame::outgoing(1000 + at as u16).bytes()
            ));
        }
    }
    net.mux.step();
    let ports = net.mux.ports();
    let waits = |at: &usize| ports.waits_for_nic(net.ports[*at].0);
    let waiting = [0, 1].into_iter().find(waits).expect("a packet waits");
    assert!(ports.has_work());
    assert!(net.mux.ports_mut().close(net.ports[waiting].0).is_some());
    let mut out = Vec::new();
    while net.mux.ports().has_work() || out.is_empty() {
        net.mux.step();
        out.extend(receive(&mut net.nic));
    }
    out.extend(receive(&mut net.nic));
    let of = |at: usize| {
        let frame = TestFrame::outgoing(1000 + at as u16).bytes();
        out.iter().filter(|out| **out == frame).count()
    };
    assert_eq!((of(waiting), of(1 - waiting)), (4, 20));
}

/// The program loses the claim of its packets' source 3-tuple while a packet waits for the NIC.
#[test]
fn a_packet_that_waits_for_the_nic_is_checked_again() {
    let mut net = Net::with_nic(2, 4);
    for _ in 0..10 {
        assert!(send(net.port(0), &TestFrame::outgoing(1000).bytes()));
    }
    net.mux.step();
    let (from, to) = (net.ports[0].0, net.ports[1].0);
    assert!(net.mux.ports_mut().hand_over(from, to));
    for _ in 0..10 {
        receive(&mut net.nic);
        net.mux.step();
    }
    let counters = net.counters(0);
    assert_eq!((counters.sent, counters.lost), (4, 0));
    assert_eq!(counters.refused[&SendRefusal::SourcePort], 6);
}

/// If a mux port sends a packet longer than the MTU to the peer, the mux port gets an ICMP error.
/// The MTU of the NIC does not limit packets between two mux ports.
#[test]
fn a_packet_longer_than_the_mtu_is_answered() {
    let mut net = Net::new(2);
    let long = TestFrame::outgoing(1000).bytes();
    let mtu = (long.len() - 14) as u16;
    let between = TestFrame {
        dst: Endpoint::new(LOCAL, 1001),
        ..TestFrame::outgoing(1000)
    };
    net.mux.ports_mut().set_mtu(mtu - 1);
    for frame in [&long, &between.bytes()] {
        send(net.port(0), frame);
    }
    net.mux.step();
    assert!(receive(&mut net.nic).is_empty());
    assert_eq!(receive(net.port(1)), [between.bytes()]);
    let [answer] = &receive(net.port(0))[..] else {
        panic!("the port has one answer");
    };
    let packet = parse_frame(answer).expect("a packet");
    assert_eq!((packet.src, packet.dst), (PEER, LOCAL));
    let error = parse_icmp_error(packet.payload).expect("an error");
    assert_eq!(
        error.kind,
        IcmpErrorKind::FragmentationNeeded { mtu: mtu - 1 }
    );
    assert_eq!(error.key.local, Endpoint::new(LOCAL, 1000));
    let counters = net.counters(0);
    assert_eq!((counters.sent, counters.lost), (1, 0));
    assert_eq!(counters.refused[&SendRefusal::TooLong], 1);
    net.mux.ports_mut().set_mtu(mtu);
    send(net.port(0), &long);
    net.mux.step();
    assert_eq!(receive(&mut net.nic), [long]);
    assert!(receive(net.port(0)).is_empty());
}

#[test]
fn a_port_that_stops_reading_loses_its_own_packets_only() {
    let mut net = Net::new(2);
    for _ in 0..1000 {
        send(&mut net.nic, &TestFrame::incoming(1000).bytes());
        send(&mut net.nic, &TestFrame::incoming(1001).bytes());
        net.mux.step();
        assert_eq!(receive(net.port(1)).len(), 1);
    }
    assert_eq!(net.counters(0).received, 256);
    assert_eq!(net.counters(0).overruns, 744);
    assert_eq!(net.counters(1).overruns, 0);
    // The mux port reads again.
    assert_eq!(receive(net.port(0)).len(), 256);
    send(&mut net.nic, &TestFrame::incoming(1000).bytes());
    net.mux.step();
    assert_eq!(receive(net.port(0)).len(), 1);
}

#[test]
fn a_thousand_ports_have_their_own_packets() {
    let mut net = Net::new(1024);
    for at in 0..1024_u16 {
        send(net.port(at.into()), &TestFrame::outgoing(1000 + at).bytes());
        send(&mut net.nic, &TestFrame::incoming(1000 + at).bytes());
        if at % 64 == 63 {
            net.mux.step();
        }
    }
    while net.mux.step() {}
    assert_eq!(receive(&mut net.nic).len(), 1024);
    for at in 0..1024_u16 {
        assert_eq!(
            receive(net.port(at.into())),
            [TestFrame::incoming(1000 + at).bytes()],
            "{at}"
        );
    }
    let (near, _far) = MemPort::pair(MemConfig::default());
    assert!(matches!(net.mux.open(near), Err(PortsFull)));
}

#[test]
fn claims_move_and_end_under_traffic_and_no_packet_is_misdelivered() {
    let mut net = Net::new(3);
    let ids: Vec<PortId> = net.ports.iter().map(|(id, _)| *id).collect();
    let (mut owner, mut seen) = (0, 0);
    for round in 0..33_000 {
        send(&mut net.nic, &TestFrame::incoming(1000).bytes());
        net.mux.step();
        for at in 0..3 {
            let count = receive(net.port(at)).len();
            assert_eq!(
                count,
                usize::from(at == owner),
                "round {round}, mux port {at}"
            );
            seen += count;
        }
        let next = (owner + 1) % 3;
        match round % 2 {
            0 => assert!(net.mux.ports_mut().hand_over(ids[owner], ids[next])),
            _ => {
                assert!(net.mux.ports_mut().release(tuple(1000), ids[owner]));
                assert_eq!(net.mux.ports_mut().claim(tuple(1000), ids[next]), Ok(()));
            }
        }
        // The previous owner cannot send with the 3-tuple.
        let before = net.counters(owner).sent;
        send(net.port(owner), &TestFrame::outgoing(1000).bytes());
        net.mux.step();
        assert_eq!(net.counters(owner).sent, before);
        owner = next;
    }
    assert_eq!(seen, 33_000);
    assert!(
        receive(&mut net.host).is_empty(),
        "no packet went to the host"
    );
    for id in ids {
        assert!(net.mux.ports_mut().close(id).is_some());
    }
    assert!(net.mux.ports().claims().is_empty());
    // The doorbell of a closed mux port has no effect.
    send(net.port(0), &TestFrame::outgoing(1000).bytes());
    net.mux.step();
    assert!(receive(&mut net.nic).is_empty());
}

/// Returns a frame with an ICMP error (destination unreachable, port unreachable) of the peer. The
/// error quotes a packet of the IP protocol `protocol` from the local port `port`.
fn icmp_error(protocol: u8, port: u16) -> Vec<u8> {
    let ip = |protocol: u8, ends: (IpAddress, IpAddress), len: usize| {
        let mut header = vec![0x45, 0, 0, len as u8, 0, 0, 0x40, 0, 64, protocol, 0, 0];
        for address in [ends.0, ends.1] {
            header.extend(address.as_v4().expect("an IPv4 address"));
        }
        let sum = checksum::sum(&header).checksum();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    };
    let mut quote = ip(protocol, (LOCAL, PEER), 28);
    quote.extend(port.to_be_bytes());
    quote.extend([0, 9, 0, 8, 0, 0]);
    let mut icmp = vec![3, 3, 0, 0, 0, 0, 0, 0];
    icmp.extend(quote);
    let sum = checksum::sum(&icmp).checksum();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = [LOCAL_MAC.0, PEER_MAC.0].concat();
    frame.extend([8, 0]);
    frame.extend(ip(1, (PEER, LOCAL), 20 + icmp.len()));
    frame.extend(icmp);
    frame
}

#[test]
fn icmp_errors_go_to_the_owner_of_the_quoted_3_tuple() {
    let mut net = Net::new(2);
    let udp = Tuple {
        protocol: 17,
        local: Endpoint::new(LOCAL, 1000),
    };
    let second = net.ports[1].0;
    assert_eq!(net.mux.ports_mut().claim(udp, second), Ok(()));
    // The first mux port has claimed TCP port 1000, and the second mux port UDP port 1000.
    for (protocol, owner) in [(6, 0), (17, 1)] {
        let error = icmp_error(protocol, 1000);
        assert!(send(&mut net.nic, &error));
        net.mux.step();
        assert_eq!(receive(net.port(owner)), [error]);
        assert!(receive(net.port(1 - owner)).is_empty());
    }
    // The host gets ICMP errors about its own packets, ICMP errors about packets of other
    // protocols, and damaged ICMP errors.
    let mut damaged = icmp_error(17, 1000);
    damaged[36] ^= 1;
    for error in [icmp_error(17, 53), icmp_error(47, 1000), damaged] {
        assert!(send(&mut net.nic, &error));
        net.mux.step();
        assert_eq!(receive(&mut net.host), [error]);
        assert!(receive(net.port(0)).is_empty() && receive(net.port(1)).is_empty());
    }
}

/// Returns a frame with a UDP datagram over IPv4, with one byte of payload and without a UDP
/// checksum. `mac` is the source MAC address.
fn datagram(mac: MacAddress, src: Endpoint, dst: Endpoint) -> Vec<u8> {
    let protocol = 17;
    let template =
        HeaderTemplate::with_protocol(protocol, mac, PEER_MAC, src.addr, dst.addr).unwrap();
    let mut frame = vec![0; template.headers_len()];
    template.write(&mut frame, 9, Ecn::NotEct, 7);
    frame.extend([src.port.to_be_bytes(), dst.port.to_be_bytes()].concat());
    frame.extend([0, 9, 0, 0, b'x']);
    frame
}

/// A multicast or broadcast datagram goes to the mux port that has claimed the datagram's
/// destination port at the wildcard address. If a mux port sends the datagram, the datagram also
/// goes to the wire, but never back to the sender. The mux refuses a TCP segment that a mux port
/// sends to a multicast or broadcast address.
#[test]
fn groups_reach_the_owner_of_the_wildcard_address() {
    let mut net = Net::new(3);
    let any = IpAddress::from_v4([0; 4]);
    let network = IpAddress::from_v4([10, 0, 0, 255]);
    net.mux.ports_mut().set_broadcasts(vec![network]);
    let claims = [(any, 53, 0), (any, 54, 1), (LOCAL, 55, 2)];
    for (addr, port, at) in claims {
        let local = Endpoint::new(addr, port);
        let (protocol, id) = (17, net.ports[at].0);
        let tuple = Tuple { protocol, local };
        assert_eq!(net.mux.ports_mut().claim(tuple, id), Ok(()));
    }
    let all = IpAddress::from_v4([255; 4]);
    let mdns = IpAddress::from_v4([224, 0, 0, 251]);
    let other_network = IpAddress::from_v4([10, 0, 1, 255]);
    for group in [all, mdns, network, other_network] {
        let is_here = group != other_network;
        // Datagrams from the wire.
        let from = Endpoint::new(PEER, 9);
        for port in [53, 54, 55] {
            let frame = datagram(PEER_MAC, from, Endpoint::new(group, port));
            send(&mut net.nic, &frame);
            net.mux.step();
            let to_owner = is_here && port != 55;
            for (_, owned, at) in claims {
                let count = usize::from(to_owner && owned == port);
                assert_eq!(receive(net.port(at)).len(), count, "{group} {port} {at}");
            }
            // The host gets a datagram that no mux port gets.
            let host = receive(&mut net.host);
            assert_eq!(host.len(), usize::from(!to_owner), "{group} {port}");
        }
        // Datagrams from the first mux port.
        for port in [53, 54, 55] {
            let frame = datagram(
                LOCAL_MAC,
                Endpoint::new(LOCAL, 53),
                Endpoint::new(group, port),
            );
            send(net.port(0), &frame);
            net.mux.step();
            assert_eq!(receive(&mut net.nic), [frame]);
            let to_second = is_here && port == 54;
            let counts = [0, 1, 2].map(|at| receive(net.port(at)).len());
            assert_eq!(counts, [0, usize::from(to_second), 0], "{group} {port}");
            assert!(receive(&mut net.host).is_empty());
        }
        let segment = TestFrame {
            dst: Endpoint::new(group, 54),
            ..TestFrame::outgoing(1000)
        };
        send(net.port(0), &segment.bytes());
        send(
            &mut net.nic,
            &TestFrame {
                src: segment.dst,
                dst: segment.dst,
                ..TestFrame::incoming(1)
            }
            .bytes(),
        );
        net.mux.step();
        assert_eq!(receive(&mut net.nic).len(), usize::from(!is_here));
        assert_eq!(receive(&mut net.host).len(), 1);
        assert!((0..3).all(|at| receive(net.port(at)).is_empty()));
    }
    let refused = net.counters(0).refused.clone();
    assert_eq!(refused.get(&SendRefusal::Destination), Some(&3));
}

/// A broadcast datagram that waits for the NIC reaches the other mux port once.
#[test]
fn a_datagram_for_many_waits_for_the_nic_once() {
    let mut net = Net::with_nic(2, 1);
    let any = IpAddress::from_v4([0; 4]);
    for (port, at) in [(53, 0), (54, 1)] {
        let local = Endpoint::new(any, port);
        let (protocol, id) = (17, net.ports[at].0);
        let tuple = Tuple { protocol, local };
        assert_eq!(net.mux.ports_mut().claim(tuple, id), Ok(()));
    }
    let to = Endpoint::new(IpAddress::from_v4([255; 4]), 54);
    let frame = datagram(LOCAL_MAC, Endpoint::new(LOCAL, 53), to);
    for _ in 0..5 {
        send(net.port(0), &frame);
    }
    let (mut on_wire, mut on_port) = (0, 0);
    for _ in 0..20 {
        net.mux.step();
        net.mux.step();
        on_wire += receive(&mut net.nic).len();
        on_port += receive(net.port(1)).len();
        assert_eq!(on_wire, on_port);
    }
    assert_eq!(on_wire, 5);
}
