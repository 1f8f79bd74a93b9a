//! Tests of the differences between TCP over IPv6 and TCP over IPv4: segment sizes, path MTU
//! discovery, and the lookup of listeners. A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{
    Endpoint, EngineConfig, FlowKey, IcmpErrorKind, IpAddress, ListenError, SocketOptions,
    TcpOptions,
};

use crate::rig::{ACK, RST, Rig, SYN, ack, spans, syn};

const ANY_V4: Endpoint = Endpoint::new(IpAddress::UNSPECIFIED_V4, 80);
const ANY_V6: Endpoint = Endpoint::new(IpAddress::UNSPECIFIED_V6, 80);
const V6_ONLY: bool = true;

fn options(v6_only: bool) -> SocketOptions {
    SocketOptions {
        v6_only,
        ..SocketOptions::default()
    }
}

fn v6(last: u8) -> IpAddress {
    IpAddress([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
}

/// Returns a rig with an IPv6 peer and an IPv4 listener. The engine has no IPv6 listener.
fn rig() -> Rig {
    let mut rig = Rig::listening(EngineConfig::default(), SocketOptions::default());
    let (local, peer) = (Endpoint::new(v6(1), 80), Endpoint::new(v6(2), 4242));
    rig.key = FlowKey { local, peer };
    rig
}

/// Returns a connection that the peer has opened with these options.
fn established(peer: TcpOptions) -> Rig {
    let mut rig = rig();
    rig.engine.listen(ANY_V6, 16, options(V6_ONLY)).unwrap();
    let reply = rig.push(syn(peer));
    assert_eq!(reply[0].options.mss, Some(1440), "1500 bytes less 60");
    assert_eq!(rig.push(ack(1, 1)), []);
    rig
}

fn in_flight() -> Rig {
    let mut rig = established(TcpOptions {
        mss: Some(1440),
        ..TcpOptions::NONE
    });
    assert_eq!(spans(&rig.write(2880)), [(1, 1440), (1441, 1440)]);
    rig
}

#[test]
fn rfc9293_must_15_without_an_option_the_mss_is_1220() {
    let mut rig = established(TcpOptions::NONE);
    assert_eq!(spans(&rig.write(2440)), [(1, 1220), (1221, 1220)]);
}

#[test]
fn rfc8201_section_4_packet_too_big_makes_segments_smaller() {
    let mut rig = in_flight();
    let sent = rig.icmp(1, IcmpErrorKind::FragmentationNeeded { mtu: 1400 });
    assert_eq!(spans(&sent), [(1, 1340), (1341, 1340), (2681, 200)]);
    assert_eq!(rig.info().ssthresh, u32::MAX);
}

#[test]
fn rfc8201_section_4_errors_that_quote_no_segment_in_flight_are_ignored() {
    let mut rig = in_flight();
    let kind = IcmpErrorKind::FragmentationNeeded { mtu: 1400 };
    assert_eq!(rig.icmp(2881, kind), []);
    assert_eq!(rig.icmp(900_000_000, kind), []);
    // An error that reports an MTU above the path MTU is ignored, too.
    assert_eq!(
        rig.icmp(1, IcmpErrorKind::FragmentationNeeded { mtu: 9000 }),
        []
    );
    assert_eq!(rig.info().mss, 1440);
}

#[test]
fn rfc8201_section_4_a_larger_size_is_tried_after_ten_minutes() {
    let mut rig = in_flight();
    rig.icmp(1, IcmpErrorKind::FragmentationNeeded { mtu: 1400 });
    rig.push(ack(1, 2881));
    rig.wait_ms(590_000);
    assert_eq!(rig.info().mss, 1340);
    rig.wait_ms(20_000);
    assert_eq!(rig.info().mss, 1440);
}

#[test]
fn rfc9293_shld_5_the_mss_is_announced_both_ways() {
    // `established` checks the MSS of the SYN,ACK.
    established(TcpOptions::NONE);
    let sent = rig().open(SocketOptions::default());
    assert_eq!((sent.flags, sent.options.mss), (SYN, Some(1440)));
}

#[test]
fn rfc8201_section_4_the_path_mtu_is_never_below_1280() {
    // The engine ignores a Packet Too Big message whose MTU is below 1280, or zero.
    for mtu in [0, 68, 1279] {
        let mut rig = in_flight();
        let sent = rig.icmp(1, IcmpErrorKind::FragmentationNeeded { mtu });
        assert_eq!((sent, rig.info().mss), (vec![], 1440), "{mtu}");
    }
    let mut rig = in_flight();
    rig.icmp(1, IcmpErrorKind::FragmentationNeeded { mtu: 1280 });
    assert_eq!(rig.info().mss, 1220);
}

#[test]
fn a_listener_at_any_address_has_its_own_version() {
    let mut rig = rig();
    rig.engine.listen(ANY_V4, 16, options(false)).unwrap();
    assert_eq!(rig.push(syn(TcpOptions::NONE))[0].flags, RST | ACK);

    rig.engine.listen(ANY_V6, 16, options(V6_ONLY)).unwrap();
    assert_eq!(rig.push(syn(TcpOptions::NONE))[0].flags, SYN | ACK);
}

#[test]
fn a_listener_for_ipv6_only_has_no_ipv4() {
    let mut rig = rig();
    let at_8080 = |end: Endpoint| Endpoint { port: 8080, ..end };
    let only = at_8080(ANY_V6);
    let listener = rig.engine.listen(only, 16, options(V6_ONLY)).unwrap();
    // A listener keeps the value of IPV6_V6ONLY with which the engine created the listener.
    rig.engine.set_listener_options(listener, options(false));
    rig.key.local = Endpoint::v4([10, 0, 0, 1], 8080);
    rig.key.peer = Endpoint::v4([10, 0, 0, 2], 4242);
    assert_eq!(rig.push(syn(TcpOptions::NONE))[0].flags, RST | ACK);

    let v4 = at_8080(ANY_V4);
    rig.engine.listen(v4, 16, options(false)).unwrap();
    assert_eq!(rig.push(syn(TcpOptions::NONE))[0].flags, SYN | ACK);
}

#[test]
fn a_listener_for_both_versions_has_both_and_the_port() {
    for v4 in [false, true] {
        let mut rig = rig();
        rig.engine.listen(ANY_V6, 16, options(false)).unwrap();
        for other in [ANY_V4, ANY_V6] {
            let again = rig.engine.listen(other, 16, options(V6_ONLY));
            assert_eq!(again, Err(ListenError::InUse));
        }
        if v4 {
            // This address is not 10.0.0.1, where the rig has an IPv4 listener.
            rig.key.local = Endpoint::v4([10, 0, 0, 9], 80);
            rig.key.peer = Endpoint::v4([10, 0, 0, 2], 4242);
        }
        assert_eq!(rig.push(syn(TcpOptions::NONE))[0].flags, SYN | ACK);
    }
}
