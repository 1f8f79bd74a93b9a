//! Tests of TCP itself (RFC 9293), for the requirements that no script of `tests/conformance`
//! covers. A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{
    CloseCause, Duration, Endpoint, EngineConfig, Event, FlowRoute, ListenError, OpenError,
    SocketOptions, State, TcpOptions,
};

use crate::rig::{ACK, In, LINK, RST, Rig, SYN, ack, data, spans, syn};

/// Size in bytes of a receive window that needs no window scaling and does not grow.
const QUOTA: u32 = 8192;

fn small_window() -> EngineConfig {
    EngineConfig {
        rx_window_initial: QUOTA,
        rx_window_max: QUOTA,
        ..EngineConfig::default()
    }
}

/// Returns a connection whose peer sent the options `peer` in its SYN.
fn established_with_peer_options(peer: TcpOptions) -> Rig {
    Rig::established_with(EngineConfig::default(), SocketOptions::default(), peer)
}

/// Returns a connection whose receive window is full: the application has read none of the QUOTA
/// bytes that have arrived.
fn full(options: SocketOptions) -> Rig {
    let mut rig = Rig::established_with(small_window(), options, TcpOptions::NONE);
    for at in (1..=QUOTA).step_by(1024) {
        rig.push(data(at, 1, 1024));
    }
    rig.wait_ms(100);
    assert_eq!(rig.info().rcv_wnd, 0);
    rig
}

#[test]
fn rec_1_a_window_may_need_thirty_bits() {
    let mut rig = established_with_peer_options(TcpOptions {
        wscale: Some(14),
        ..TcpOptions::NONE
    });
    rig.push(ack(1, 1).wnd(60_000));
    assert_eq!(rig.info().snd_wnd, 60_000 << 14);
}

#[test]
fn must_11_a_reset_in_syn_received_refuses_an_active_open() {
    let (mut rig, _) = Rig::opening(EngineConfig::default(), SocketOptions::default());
    let answer = rig.push(syn(TcpOptions::NONE));
    assert_eq!(answer[0].flags, SYN | ACK);
    rig.events();
    rig.push(ack(1, 1).with(RST));
    assert_eq!(rig.events(), [Event::Closed(CloseCause::Refused)]);
}

#[test]
fn must_35_a_window_that_closes_over_the_flight_is_probed() {
    let mut rig = Rig::established(SocketOptions::default());
    assert_eq!(rig.write(2000).len(), 2);
    assert_eq!(rig.push(ack(1, 1).wnd(0)), []);
    assert_eq!(rig.info().snd_wnd, 0);
    let mut probes = 0;
    for _ in 0..100 {
        for probe in rig.wait_ms(100) {
            probes += 1;
            assert!(probe.seq <= 1, "{probe:?}");
            rig.push(ack(1, 1).wnd(0));
        }
    }
    assert!((3..10).contains(&probes), "{probes}");
    // After the window has opened, the rest of the data is sent immediately or at the next timeout.
    let mut sent = rig.push(ack(1, 1001).wnd(5000));
    sent.extend(rig.wait_ms(20_000));
    assert_eq!(sent[0].seq, 1001, "{:?}", spans(&sent));
    rig.push(ack(1, 2001));
    assert_eq!(rig.info().flight_size, 0);
}

/// The application reads 100 bytes at a time, and the engine's segments show the window.
#[test]
fn must_39_and_shld_14_the_right_edge_moves_by_whole_segments_and_never_left() {
    let mut rig = full(SocketOptions {
        nodelay: true,
        ..SocketOptions::default()
    });
    let flow = rig.flow_id().unwrap();
    let mut edge = QUOTA + 1;
    let mut moves = 0;
    for turn in 1..=QUOTA / 100 {
        rig.engine.rx_advance(flow, turn * 100).unwrap();
        let mut sent = rig.batch_end();
        sent.extend(rig.write(1));
        assert!(!sent.is_empty());
        for out in sent {
            let seen = out.ack + u32::from(out.wnd);
            assert!(seen >= edge, "back from {edge} to {seen}");
            assert!(
                seen == edge || seen - edge >= 1000,
                "only {} further",
                seen - edge
            );
            moves += u32::from(seen > edge);
            edge = seen;
        }
        rig.push(ack(QUOTA + 1, 1 + turn));
    }
    assert!((4..=8).contains(&moves), "{moves}");
}

#[test]
fn must_40_no_acknowledgment_waits_half_a_second() {
    let config = EngineConfig {
        delayed_ack: Duration::from_secs(5),
        ..EngineConfig::default()
    };
    let mut rig = Rig::established_with(config, SocketOptions::default(), TcpOptions::NONE);
    assert_eq!(rig.push(data(1, 1, 100)), []);
    let sent = rig.wait_ms(499);
    assert_eq!((sent.len(), sent[0].ack), (1, 101));
}

#[test]
fn must_41_and_42_listeners_on_one_port_and_a_connection_do_not_disturb_each_other() {
    let mut rig = Rig::established(SocketOptions::default());
    let first = rig.key.local;
    let second = Endpoint::v4([10, 0, 0, 3], first.port);
    let options = SocketOptions::default();
    let other = rig.engine.listen(second, 4, options).unwrap();
    let again = rig.engine.listen(second, 4, options);
    assert_eq!(again, Err(ListenError::InUse));
    // The connection continues, and each listener still gets its own SYNs.
    rig.push(data(1, 1, 10));
    assert_eq!(rig.info().bytes_received, 10);
    let mut accepted = Vec::new();
    for (local, port) in [(first, 1), (second, 2)] {
        rig.key.local = local;
        rig.key.peer.port = port;
        rig.iss = tidelane_engine::SeqNumber(0);
        rig.push(syn(TcpOptions::NONE));
        rig.events();
        rig.push(ack(1, 1));
        accepted.extend(rig.events());
    }
    assert!(matches!(accepted[0], Event::Accepted(id) if id != other));
    assert_eq!(accepted[1], Event::Accepted(other));
}

#[test]
fn must_45_every_segment_has_the_4_tuple_of_the_connection() {
    let mut rig = Rig::listening(EngineConfig::default(), SocketOptions::default());
    // The connection has the destination address of the SYN as its local address.
    rig.arrive(syn(TcpOptions::NONE));
    let (now, key) = (rig.now, rig.key);
    let mut sent = 0;
    let mut check = |rig: &mut Rig| {
        rig.engine.batch_end(now, &mut rig.driver);
        sent += rig.driver.out.len();
        assert!(rig.driver.out.iter().all(|out| out.key == key));
        if let Some(first) = rig.driver.out.first().filter(|out| out.flags.contains(SYN)) {
            rig.iss = first.seq;
        }
        rig.driver.out.clear();
    };
    check(&mut rig);
    rig.arrive(ack(1, 1));
    rig.arrive(data(1001, 1, 1000));
    check(&mut rig);
    rig.arrive(data(1, 1, 1000).with(ACK | tidelane_engine::TcpFlags::FIN));
    check(&mut rig);
    let flow = rig.flow_id().unwrap();
    rig.engine.abort(now, flow, &mut rig.driver);
    check(&mut rig);
    assert!(sent >= 4, "{sent}");
}

#[test]
fn shld_3_data_precedes_the_reset() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.push(data(1, 1, 100));
    let flow = rig.flow_id().unwrap();
    rig.engine.tx_advance(flow, 10).unwrap();
    // The application has not read the 100 bytes, so close sends a RST.
    let sent = rig.close();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!((sent[0].seq, sent[0].len), (1, 10));
    assert!(sent[1].flags.contains(RST), "{sent:?}");
    assert_eq!(sent[1].seq, 11);
}

#[test]
fn must_46_invalid_endpoints_are_refused() {
    let mut rig = Rig::established(SocketOptions::default());
    let route = FlowRoute {
        link: LINK,
        mtu: 1500,
    };
    let good = Endpoint::v4([10, 0, 0, 1], 999);
    let options = SocketOptions::default();
    for bad in [
        Endpoint::v4([255; 4], 80),
        Endpoint::v4([224, 0, 0, 1], 80),
        Endpoint::v4([239, 255, 255, 255], 80),
        Endpoint::v4([0; 4], 80),
        Endpoint::v4([10, 0, 0, 2], 0),
    ] {
        for (local, peer) in [(good, bad), (bad, good)] {
            let (now, driver) = (rig.now, &mut rig.driver);
            let refused = rig.engine.open(now, local, peer, route, options, driver);
            assert_eq!(refused, Err(OpenError::BadEndpoint), "{local} {peer}");
        }
    }
    let group = rig
        .engine
        .listen(Endpoint::v4([224, 0, 0, 1], 81), 1, options);
    assert_eq!(group, Err(ListenError::BadEndpoint));
    assert_eq!(rig.batch_end(), []);
}

/// A batch consists of the segments that the engine receives before the rig calls `batch_end`.
#[test]
fn must_58_and_59_a_batch_is_acknowledged_once() {
    let mut rig = Rig::established(SocketOptions::default());
    for at in [1, 1001, 2001, 3001] {
        rig.arrive(data(at, 1, 1000));
    }
    let sent = rig.batch_end();
    assert_eq!((sent.len(), sent[0].ack), (1, 4001));
    for at in [4001, 5001, 6001] {
        rig.arrive(data(at, 1, 1000));
    }
    let sent = rig.batch_end();
    assert_eq!((sent.len(), sent[0].ack), (1, 7001));
}

#[test]
fn must_60_a_cork_gives_way_in_time() {
    let mut rig = Rig::established(SocketOptions {
        cork: true,
        ..SocketOptions::default()
    });
    assert_eq!(rig.write(300), []);
    let start = rig.ms();
    let sent = rig.wait_ms(400);
    assert_eq!(spans(&sent)[0], (1, 300));
    assert!((195..=260).contains(&(sent[0].at_ms - start)), "{sent:?}");
}

/// While a cork (TCP_CORK) holds data back, the persist timer runs. When the application removes
/// the cork, the data is sent, and the retransmission timer must replace the persist timer.
#[test]
fn must_19_data_held_by_a_cork_is_retransmitted_too() {
    let mut rig = Rig::established(SocketOptions {
        cork: true,
        ..SocketOptions::default()
    });
    rig.write(300);
    rig.wait_ms(50);
    let flow = rig.flow_id().unwrap();
    let (now, driver) = (rig.now, &mut rig.driver);
    rig.engine
        .set_options(now, flow, SocketOptions::default(), driver);
    assert_eq!(spans(&rig.batch_end()), [(1, 300)]);
    let again = rig.wait_ms(3_000);
    assert!(again.len() >= 2, "{again:?}");
    assert_eq!(spans(&again[..1]), [(1, 300)]);
}

/// The peer opens its window by a segment with in-order data. Usually, the fast path (the engine's
/// code for in-order segments) handles such a segment.
#[test]
fn must_36_data_sent_into_an_opened_window_is_retransmitted_too() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.push(data(1, 1, 1).wnd(0));
    rig.wait_ms(50);
    assert_eq!(rig.write(1000), []);
    let sent = rig.push(data(2, 1, 100).wnd(5000));
    assert!(spans(&sent).contains(&(1, 1000)), "{:?}", spans(&sent));
    let again = rig.wait_ms(3_000);
    let again: Vec<_> = again.iter().filter(|out| out.len == 1000).collect();
    assert!(again.len() >= 2, "{again:?}");
}

#[test]
fn must_66_a_reset_and_an_acknowledgment_count_while_our_window_is_closed() {
    let mut rig = full(SocketOptions::default());
    rig.write(500);
    rig.push(ack(QUOTA + 1, 501));
    assert_eq!(rig.info().flight_size, 0);
    // A data segment is answered, but its data is not accepted.
    let placed = rig.driver.placed.len();
    let sent = rig.push(data(QUOTA + 1, 501, 10));
    assert_eq!((sent[0].ack, sent[0].wnd), (QUOTA + 1, 0));
    assert_eq!(rig.driver.placed.len(), placed);
    // The connection survives an hour with a closed window (MAY-8).
    rig.wait_ms(3_600_000);
    rig.events();
    rig.push(ack(QUOTA + 1, 501).with(RST));
    assert_eq!(rig.events(), [Event::Closed(CloseCause::Reset)]);
}

#[test]
fn must_67_and_shld_6_the_announced_mss_is_that_of_the_link() {
    for (mtu, mss) in [(1500, 1460), (1400, 1360), (9000, 8960), (576, 536)] {
        let mut rig = Rig::listening(EngineConfig::default(), SocketOptions::default());
        rig.driver.mtu = mtu;
        let answer = rig.push(syn(TcpOptions::NONE));
        assert_eq!(answer[0].options.mss, Some(mss));
    }
}

#[test]
fn shld_2_a_reset_with_data_is_a_reset() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.events();
    let reset = In {
        len: 20,
        ..ack(1, 1).with(RST)
    };
    assert_eq!(rig.push(reset), []);
    assert_eq!(rig.events(), [Event::Closed(CloseCause::Reset)]);
    assert_eq!(rig.driver.placed, []);
}

#[test]
fn shld_15_no_new_data_beyond_a_shrunk_window() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.push(data(1, 1, 1).wnd(4000));
    assert_eq!(rig.write(6000).len(), 4);
    rig.push(ack(2, 1).wnd(2000));
    let again = rig.wait_ms(2_000);
    assert!(
        again.iter().all(|out| out.seq < 4001),
        "{:?}",
        spans(&again)
    );
    // The right edge of the window is at 3001, although data up to 4001 has been sent.
    let sent = rig.push(ack(2, 1001).wnd(2000));
    assert!(sent.iter().all(|out| out.seq < 4001), "{:?}", spans(&sent));
    let sent = rig.push(ack(2, 4001).wnd(4000));
    assert_eq!(spans(&sent)[0], (4001, 1000));
}

#[test]
fn shld_19_every_second_full_segment_is_acknowledged() {
    let mut rig = Rig::established(SocketOptions::default());
    let mut at = 1;
    // The first ACKs are not delayed, because the flow starts in quick-ack mode.
    for _ in 0..20 {
        rig.push(data(at, 1, 1000));
        at += 1000;
    }
    rig.wait_ms(50);
    for _ in 0..10 {
        assert_eq!(rig.push(data(at, 1, 1000)), []);
        let sent = rig.push(data(at + 1000, 1, 1000));
        assert_eq!((sent.len(), sent[0].ack), (1, at + 2000));
        at += 2000;
    }
}

#[test]
fn section_3_10_7_4_an_older_segment_does_not_change_the_window() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.push(data(1, 1, 10).wnd(7000));
    rig.push(data(11, 1, 10).wnd(5000));
    assert_eq!(rig.info().snd_wnd, 5000);
    // The engine ignores the window of an earlier segment that arrives late.
    rig.push(ack(11, 1).wnd(7000));
    assert_eq!(rig.info().snd_wnd, 5000);
    rig.write(1000);
    rig.push(ack(21, 1001).wnd(9000));
    assert_eq!(rig.info().snd_wnd, 9000);
    // The engine ignores the window of a segment with an older ACK, even if the segment has new
    // data.
    rig.push(data(21, 1, 10).wnd(100));
    assert_eq!(rig.info().snd_wnd, 9000);
}

/// The peer moves the right edge of its window back into the oldest segment in flight, and
/// continues to answer.
#[test]
fn shld_17_a_shrunk_window_does_not_end_the_connection() {
    let config = EngineConfig {
        retries: 3,
        ..EngineConfig::default()
    };
    let options = SocketOptions::default();
    let mut rig = Rig::established_with(config, options, TcpOptions::NONE);
    rig.write(3000);
    rig.push(data(1, 1, 10).wnd(500));
    assert_eq!(rig.info().snd_wnd, 500);
    for timeout in 1..=10 {
        while rig.engine.counters().timeouts < timeout {
            rig.wait_ms(10);
        }
        rig.push(ack(11, 1).wnd(500));
    }
    assert_eq!(rig.info().state, State::Established);
    // A peer that does not answer is given up as usual.
    rig.wait_ms(1_000_000);
    assert!(rig.events().contains(&Event::Closed(CloseCause::TimedOut)));
}

/// The count of received bytes is exact beyond 4 GiB, where sequence numbers and stream positions
/// (the offsets of bytes in the stream) wrap.
#[test]
fn section_3_4_byte_counts_continue_where_sequence_numbers_wrap() {
    const LEN: usize = 60_000;
    let config = EngineConfig {
        rx_window_initial: 1 << 20,
        rx_window_max: 1 << 20,
        ..EngineConfig::default()
    };
    let peer = TcpOptions {
        wscale: Some(7),
        ..TcpOptions::NONE
    };
    let mut rig = Rig::established_with(config, SocketOptions::default(), peer);
    let mut received = 0_u64;
    while received < 9 << 30 {
        rig.push(data(received as u32 + 1, 1, LEN));
        received += LEN as u64;
        // The application reads only after every seventh segment.
        if received.is_multiple_of(7 * LEN as u64) {
            rig.read(received as u32);
        }
    }
    assert_eq!(rig.info().bytes_received, received);
    rig.read(received as u32);
    assert_eq!(rig.info().bytes_received, received);
}
