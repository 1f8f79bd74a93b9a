//! Tests of ICMP errors (RFC 9293 §3.9.2.2, RFC 5927), and of classic path MTU discovery (RFC
//! 1191). A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{
    CloseCause, EngineConfig, Event, IcmpErrorKind, IpAddress, SocketOptions, TcpOptions,
};

use crate::rig::{Rig, ack, spans, syn};

/// ICMP errors, each with the cause that the engine's events `Closed` and `SoftError` then report.
const UNREACHABLE: [(IcmpErrorKind, CloseCause); 4] = [
    (IcmpErrorKind::NetUnreachable, CloseCause::NetUnreachable),
    (IcmpErrorKind::HostUnreachable, CloseCause::HostUnreachable),
    (IcmpErrorKind::PortUnreachable, CloseCause::Refused),
    (IcmpErrorKind::TimeExceeded, CloseCause::HostUnreachable),
];

fn opening() -> Rig {
    Rig::opening(EngineConfig::default(), SocketOptions::default()).0
}

#[test]
fn an_error_about_our_syn_ends_the_open() {
    for (kind, cause) in UNREACHABLE {
        let mut rig = opening();
        rig.icmp(0, kind);
        assert_eq!(rig.events(), [Event::Closed(cause)]);
    }
}

#[test]
fn rfc5927_section_4_1_an_error_without_an_outstanding_quote_is_ignored() {
    let mut rig = opening();
    rig.icmp(1, IcmpErrorKind::HostUnreachable);
    rig.icmp(u32::MAX, IcmpErrorKind::HostUnreachable);
    assert_eq!(rig.events(), []);
    assert_eq!(rig.engine.counters().icmp_errors, 0);
}

#[test]
fn must_56_soft_errors_do_not_end_a_connection_but_name_its_cause() {
    // Type 3, code 5: the source route failed.
    let others = [
        IcmpErrorKind::ParameterProblem,
        IcmpErrorKind::Other { kind: 3, code: 5 },
    ];
    let others = others.map(|kind| (kind, CloseCause::HostUnreachable));
    for (kind, cause) in UNREACHABLE.into_iter().chain(others) {
        let mut rig = Rig::established(SocketOptions::default());
        rig.events();
        rig.write(1000);
        rig.icmp(1, kind);
        assert_eq!(rig.events(), [Event::SoftError(cause)]);
        rig.wait_ms(2_000_000);
        assert_eq!(rig.events(), [Event::Closed(cause)]);
    }
}

#[test]
fn a_half_open_flow_ends_on_host_unreachable_but_not_on_port_unreachable() {
    let mut rig = Rig::listening(EngineConfig::default(), SocketOptions::default());
    rig.push(syn(TcpOptions::NONE));
    rig.icmp(0, IcmpErrorKind::PortUnreachable);
    assert!(rig.flow_id().is_some());
    rig.icmp(0, IcmpErrorKind::HostUnreachable);
    assert!(rig.flow_id().is_none());
}

/// Returns a connection with two segments of 1460 bytes in flight.
fn in_flight() -> Rig {
    let peer = TcpOptions {
        mss: Some(1460),
        ..TcpOptions::NONE
    };
    let mut rig = Rig::established_with(EngineConfig::default(), SocketOptions::default(), peer);
    let sent = rig.write(2920);
    assert_eq!(spans(&sent), [(1, 1460), (1461, 1460)]);
    rig
}

#[test]
fn rfc1191_section_6_4_segments_get_smaller_at_once_without_a_congestion_signal() {
    let mut rig = in_flight();
    let sent = rig.icmp(1, IcmpErrorKind::FragmentationNeeded { mtu: 1040 });
    assert_eq!(spans(&sent), [(1, 1000), (1001, 1000), (2001, 920)]);
    assert!(rig.info().ssthresh == u32::MAX);
    assert_eq!(rig.info().cwnd, 10_000);
    rig.push(ack(1, 2921));
    assert_eq!(spans(&rig.write(1500)), [(2921, 1000), (3921, 500)]);
    // The path MTU does not change the MSS that later SYN,ACKs announce.
    rig.key.peer.port += 1;
    rig.iss = tidelane_engine::SeqNumber(0);
    assert_eq!(rig.push(syn(TcpOptions::NONE))[0].options.mss, Some(1460));
}

/// The MSS of a connection falls and rises with the MTU of its link, as in Linux.
#[test]
fn segments_follow_the_link_mtu_up_to_the_path_mtu() {
    let mut rig = in_flight();
    let set = |rig: &mut Rig, mtu| {
        let flow = rig.flow_id().expect("a flow");
        rig.engine.set_link_mtu(rig.now, flow, mtu, &mut rig.driver);
        rig.batch_end()
    };
    assert_eq!(
        spans(&set(&mut rig, 1040)),
        [(1, 1000), (1001, 1000), (2001, 920)]
    );
    assert_eq!(set(&mut rig, 1240), []);
    assert_eq!(rig.info().mss, 1200);
    // A larger link MTU does not raise the MSS above the peer's MSS of 1,460 bytes.
    assert_eq!(set(&mut rig, 9000), []);
    assert_eq!(rig.info().mss, 1460);
    // After a router has reported a lower path MTU, only a link MTU below the path MTU changes the
    // MSS.
    rig.icmp(1, IcmpErrorKind::FragmentationNeeded { mtu: 1100 });
    set(&mut rig, 1500);
    assert_eq!(rig.info().mss, 1060);
    set(&mut rig, 1000);
    assert_eq!(rig.info().mss, 960);
}

/// Aborts the connection, and opens a new connection from the peer's next port. Returns the lengths
/// of the new connection's first data segments.
fn next_connection(rig: &mut Rig) -> Vec<u32> {
    let flow = rig.flow_id().expect("a flow");
    rig.engine.abort(rig.now, flow, &mut rig.driver);
    rig.batch_end();
    rig.key.peer.port += 1;
    (rig.iss, rig.written) = (tidelane_engine::SeqNumber(0), 0);
    let mss = Some(1460);
    let reply = rig.push(syn(TcpOptions {
        mss,
        ..TcpOptions::NONE
    }));
    assert_eq!(reply[0].options.mss, Some(1460));
    rig.push(ack(1, 1));
    rig.write(2000).iter().map(|out| out.len).collect()
}

#[test]
fn rfc1191_section_6_2_later_connections_know_the_path_mtu() {
    let mut rig = in_flight();
    assert_eq!(next_connection(&mut rig)[0], 1460);
    rig.icmp(1, IcmpErrorKind::FragmentationNeeded { mtu: 1040 });
    assert_eq!(next_connection(&mut rig)[0], 1000);
    // Connections to other hosts start with the MTU of the link.
    let here = std::mem::replace(&mut rig.key.peer.addr, IpAddress::from_v4([10, 0, 0, 9]));
    assert_eq!(next_connection(&mut rig)[0], 1460);
    rig.key.peer.addr = here;
    assert_eq!(next_connection(&mut rig)[0], 1000);
    // The path MTU expires after ten minutes.
    rig.wait_ms(601_000);
    assert_eq!(next_connection(&mut rig)[0], 1460);
}

#[test]
fn rfc1191_only_smaller_mtus_with_an_outstanding_quote_count() {
    let mut rig = in_flight();
    let kind = |mtu| IcmpErrorKind::FragmentationNeeded { mtu };
    assert_eq!(rig.icmp(1, kind(1500)), []);
    assert_eq!(rig.icmp(1, kind(9000)), []);
    assert_eq!(rig.icmp(2921, kind(1000)), []);
    assert_eq!(rig.icmp(900_000_000, kind(1000)), []);
    assert_eq!(
        (rig.info().mss, rig.engine.counters().pmtu_lowered),
        (1460, 0)
    );
    // A reported MTU below 552 lowers the path MTU only to 552 (Linux: `min_pmtu`).
    rig.icmp(1, kind(68));
    assert_eq!(rig.info().mss, 512);
}

#[test]
fn rfc1191_section_3_routers_may_fragment_below_the_least_size() {
    let mut rig = in_flight();
    let kind = |mtu| IcmpErrorKind::FragmentationNeeded { mtu };
    rig.icmp(1, kind(552));
    assert_eq!(rig.driver.fragments, []);
    let sent = rig.icmp(1, kind(551));
    assert_eq!(rig.driver.fragments, [true]);
    // The MSS is 512 already, so the engine retransmits nothing.
    assert_eq!(sent, []);
    rig.push(ack(1, 2921));
    // After the path MTU has expired, the MSS is 1460 again, and segments have the DF bit again.
    rig.wait_ms(601_000);
    assert_eq!(
        (rig.info().mss, rig.driver.fragments),
        (1460, vec![true, false])
    );
}

#[test]
fn rfc1191_section_7_1_an_error_without_mtu_means_the_next_plateau() {
    let mut rig = in_flight();
    rig.icmp(1, IcmpErrorKind::FragmentationNeeded { mtu: 0 });
    assert_eq!(rig.info().mss, 1492 - 40);
    rig.icmp(1, IcmpErrorKind::FragmentationNeeded { mtu: 0 });
    assert_eq!(rig.info().mss, 1006 - 40);
}

#[test]
fn rfc1191_section_6_3_a_lowered_path_mtu_expires_after_ten_minutes() {
    let mut rig = in_flight();
    rig.icmp(1, IcmpErrorKind::FragmentationNeeded { mtu: 1040 });
    rig.push(ack(1, 2921));
    rig.wait_ms(590_000);
    assert_eq!(rig.info().mss, 1000);
    rig.wait_ms(20_000);
    assert_eq!(rig.info().mss, 1460);
}
