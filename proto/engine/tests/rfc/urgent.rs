//! Tests of urgent data (RFC 9293 §3.8.5) with the semantics of Linux: only the last urgent byte
//! counts. A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{
    EngineConfig, Event, Misuse, SeqNumber, SocketOptions, State, TcpFlags, TcpOptions,
};

use crate::rig::{ACK, Out, Rig, ack, data};

const FIN: TcpFlags = TcpFlags::FIN;

/// Returns sequence number, length and urgent pointer of each segment.
fn marked(sent: &[Out]) -> Vec<(u32, u32, Option<u16>)> {
    let of = |out: &Out| {
        assert_eq!(out.urgent.is_some(), out.flags.contains(TcpFlags::URG));
        (out.seq, out.len, out.urgent)
    };
    sent.iter().map(of).collect()
}

/// Returns the urgent events since the last call.
fn urgent_events(rig: &mut Rig) -> Vec<Event> {
    let urgent = |event: &Event| matches!(event, Event::Urgent(_) | Event::UrgentByte(_));
    rig.events().into_iter().filter(urgent).collect()
}

fn nodelay() -> SocketOptions {
    SocketOptions {
        nodelay: true,
        ..SocketOptions::default()
    }
}

#[test]
fn must_30_and_62_the_pointer_is_that_of_the_next_byte() {
    let mut rig = Rig::established(nodelay());
    assert_eq!(marked(&rig.write(10)), [(1, 10, None)]);
    assert_eq!(marked(&rig.write_urgent(5)), [(11, 5, Some(5))]);
    // Later data is not urgent. Its segments carry no pointer, even while the urgent data is not
    // acknowledged.
    assert_eq!(marked(&rig.write(7)), [(16, 7, None)]);
    rig.push(ack(1, 11));
    assert_eq!(marked(&rig.write(1)), [(23, 1, None)]);
    rig.push(ack(1, 24));
    assert_eq!(marked(&rig.write(1)), [(24, 1, None)]);
}

#[test]
fn must_31_urgent_data_may_be_longer_than_the_pointer_reaches() {
    let config = EngineConfig {
        initial_window: 100,
        ..EngineConfig::default()
    };
    let wscale = TcpOptions {
        wscale: Some(7),
        ..TcpOptions::NONE
    };
    let mut rig = Rig::established_with(config, SocketOptions::default(), wscale);
    rig.push(ack(1, 1).wnd(2000));
    let sent = rig.write_urgent(70_000);
    assert_eq!(sent.len(), 70);
    for out in &sent {
        let ahead = 70_001 - out.seq;
        assert_eq!(out.urgent, Some(ahead.min(65_535) as u16), "{out:?}");
        assert_eq!(out.len, 1000, "not one full segment");
    }
}

#[test]
fn section_3_8_5_a_retransmission_has_its_own_pointer() {
    let mut rig = Rig::established(nodelay());
    assert_eq!(marked(&rig.write(1000)), [(1, 1000, None)]);
    // The pointer of each segment is relative to the sequence number of this segment.
    assert_eq!(
        marked(&rig.write_urgent(1500)),
        [(1001, 1000, Some(1500)), (2001, 500, Some(500))]
    );
    let again = rig.wait_ms(400);
    let repaired = marked(&again);
    let expected = |seq: u32| Some((2501 - seq) as u16);
    assert!(!repaired.is_empty());
    for (seq, _, urgent) in repaired {
        assert_eq!(urgent, expected(seq), "{seq}");
    }
    rig.push(ack(1, 2501));
    assert_eq!(marked(&rig.write(1)), [(2501, 1, None)]);
}

#[test]
fn section_3_8_5_neither_nagle_nor_a_cork_holds_urgent_data() {
    let mut rig = Rig::established(SocketOptions::default());
    assert_eq!(marked(&rig.write(10)), [(1, 10, None)]);
    assert_eq!(marked(&rig.write(10)), []);
    assert_eq!(marked(&rig.write_urgent(1)), [(11, 11, Some(11))]);
    let cork = SocketOptions {
        cork: true,
        ..SocketOptions::default()
    };
    let mut rig = Rig::established(cork);
    assert_eq!(marked(&rig.write(10)), []);
    assert_eq!(marked(&rig.write_urgent(1)), [(1, 11, Some(11))]);
    rig.push(ack(1, 12));
    assert_eq!(marked(&rig.write(10)), [], "the cork still holds");
}

#[test]
fn section_3_8_5_of_many_marks_the_last_counts() {
    let mut rig = Rig::established(nodelay());
    rig.push(ack(1, 1).wnd(0));
    for _ in 0..100 {
        assert_eq!(marked(&rig.write_urgent(1)), []);
    }
    // The data has waited for the window, and its segment carries the pointer of the last urgent
    // byte.
    let sent = rig.push(ack(1, 1).wnd(1000));
    assert_eq!(marked(&sent), [(1, 100, Some(100))]);
}

#[test]
fn section_3_8_5_a_closed_window_keeps_no_pointer_back() {
    let mut rig = Rig::established(nodelay());
    rig.push(ack(1, 1).wnd(0));
    assert_eq!(marked(&rig.write_urgent(3)), []);
    let probes = rig.wait_ms(400);
    // The first segment is acceptable, so that the peer reads its urgent pointer. The second
    // segment, the window probe, is not acceptable, so that the peer answers.
    assert_eq!(marked(&probes), [(1, 0, Some(3)), (0, 0, Some(4))]);
    // A pure ACK whose sequence number is before the end of the urgent data carries the pointer.
    let answer = rig.push(data(1, 1, 2000).wnd(0));
    assert_eq!(marked(&answer), [(1, 0, Some(3))]);
}

#[test]
fn section_3_8_5_an_urgent_position_beyond_the_limit_is_refused() {
    let mut rig = Rig::established(nodelay());
    rig.write(100);
    rig.push(ack(1, 51));
    let flow = rig.flow_id().unwrap();
    // A valid position is after the 50 acknowledged bytes, by at most `tx_limit` bytes.
    let limit = rig.engine.config().tx_limit;
    for wrong in [0, 49, 50, 51 + limit, u32::MAX, 1 << 31] {
        let named = rig.engine.tx_urgent(rig.now, flow, wrong, &mut rig.driver);
        assert_eq!(named, Err(Misuse::Urgent), "{wrong}");
    }
    assert_eq!(marked(&rig.write(1)), [(101, 1, None)]);
    for right in [51, 50 + limit] {
        let named = rig.engine.tx_urgent(rig.now, flow, right, &mut rig.driver);
        assert_eq!(named, Ok(()), "{right}");
    }
    // The application has not written the urgent data yet, but segments before this data carry the
    // pointer.
    assert_eq!(marked(&rig.write(1)), [(102, 1, Some(65_535))]);
    assert_eq!(rig.engine.counters().misuses, 6);
}

#[test]
fn section_3_8_5_the_mark_outlives_a_fin_and_no_reset() {
    let mut rig = Rig::established(nodelay());
    rig.push(ack(1, 1).wnd(0));
    rig.write_urgent(5);
    rig.close();
    let sent = rig.push(ack(1, 1).wnd(1000));
    assert_eq!(marked(&sent), [(1, 5, Some(5))]);
    assert!(sent[0].flags.contains(FIN));
}

#[test]
fn must_32_urgent_data_is_reported_when_it_arrives() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.push(data(1, 1, 100).urgent(60));
    assert_eq!(
        urgent_events(&mut rig),
        [Event::Urgent(59), Event::UrgentByte(0)]
    );
    // The engine reports the urgent byte once: neither a duplicate nor a pointer to received data
    // causes a second report.
    rig.push(data(1, 1, 100).urgent(60));
    rig.push(data(101, 1, 100));
    rig.push(data(51, 1, 100).urgent(60));
    assert_eq!(urgent_events(&mut rig), []);
    rig.push(data(201, 1, 1).urgent(1));
    assert_eq!(
        urgent_events(&mut rig),
        [Event::Urgent(200), Event::UrgentByte(0)]
    );
}

#[test]
fn must_32_a_pointer_beyond_the_segment_waits_for_its_byte() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.push(data(1, 1, 10).urgent(1000));
    assert_eq!(urgent_events(&mut rig), [Event::Urgent(999)]);
    // A sender repeats the pointer in each segment before the urgent byte, but the engine reports
    // the pointer once.
    rig.push(data(11, 1, 10).urgent(990));
    assert_eq!(urgent_events(&mut rig), []);
    // The pointer advances.
    rig.push(data(21, 1, 10).urgent(1080));
    assert_eq!(urgent_events(&mut rig), [Event::Urgent(1099)]);
    // A pointer that goes back is ignored.
    rig.push(data(31, 1, 10).urgent(5));
    assert_eq!(urgent_events(&mut rig), []);
    rig.push(data(41, 1, 1000));
    assert_eq!(urgent_events(&mut rig), []);
    // The urgent byte is reported once, even if this byte arrives out of order.
    rig.push(data(1091, 1, 20));
    assert_eq!(urgent_events(&mut rig), [Event::UrgentByte(0)]);
    rig.push(data(1041, 1, 70));
    rig.push(data(1111, 1, 10));
    assert_eq!(urgent_events(&mut rig), []);
    // After the urgent data, the fast path (the engine's code for in-order segments) handles the
    // flow (the connection) again.
    let before = rig.engine.counters().slow_receives;
    rig.push(data(1121, 1, 10));
    rig.push(data(1131, 1, 10));
    assert_eq!(rig.engine.counters().slow_receives, before);
}

#[test]
fn must_32_a_pointer_of_zero_names_the_first_byte() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.push(data(1, 1, 10).urgent(0));
    assert_eq!(
        urgent_events(&mut rig),
        [Event::Urgent(0), Event::UrgentByte(0)]
    );
    // The urgent pointer field has no meaning without URG.
    let mut without = data(11, 1, 10);
    without.urgent = 3;
    rig.push(without);
    assert_eq!(urgent_events(&mut rig), []);
}

#[test]
fn must_66_urgent_data_is_announced_while_our_window_is_closed() {
    let config = EngineConfig {
        rx_window_initial: 8192,
        rx_window_max: 8192,
        ..EngineConfig::default()
    };
    let mut rig = Rig::established_with(config, SocketOptions::default(), TcpOptions::NONE);
    for at in (1..=8192).step_by(1024) {
        rig.push(data(at, 1, 1024));
    }
    rig.wait_ms(100);
    assert_eq!(rig.info().rcv_wnd, 0);
    assert_eq!(urgent_events(&mut rig), []);
    rig.push(ack(8193, 1).urgent(3));
    assert_eq!(urgent_events(&mut rig), [Event::Urgent(8194)]);
}

#[test]
fn section_3_10_7_4_a_connection_that_had_its_fin_has_no_urgent_data() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.push(data(1, 1, 10).with(ACK | FIN));
    assert_eq!(rig.info().state, State::CloseWait);
    rig.push(ack(12, 1).urgent(10));
    assert_eq!(urgent_events(&mut rig), []);
}

#[test]
fn section_3_8_5_numbers_may_wrap_before_the_urgent_mark() {
    // The peer's sequence numbers begin 4096 before the wrap.
    let mut rig = Rig::established(SocketOptions::default());
    rig.push(data(1, 1, 1000));
    rig.push(data(1001, 1, 10).urgent(65_535));
    assert_eq!(urgent_events(&mut rig), [Event::Urgent(66_534)]);
    for at in (1011..67_000).step_by(1000) {
        rig.push(data(at, 1, 1000));
        let head = rig.engine.flow(rig.flow_id().unwrap()).unwrap().rx_head();
        rig.read(head);
    }
    assert_eq!(urgent_events(&mut rig), [Event::UrgentByte(0)]);
    assert_eq!(rig.relative(SeqNumber(0)), 4096);
}
