//! Tests of SYN floods: the limits of half-open connections, and SYN cookies that preserve the
//! options of the SYN (RFC 4987 §3.6). A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{EngineConfig, Event, SocketOptions, TcpFlags, TcpOptions};

use crate::rig::{ACK, In, RST, Rig, SYN, ack, data, spans, syn};

fn opening() -> In {
    let options = TcpOptions {
        mss: Some(1300),
        wscale: Some(7),
        sack_permitted: true,
        ..TcpOptions::timestamps(1000, 0)
    };
    syn(options).with(SYN | TcpFlags(TcpFlags::ECE.0 | TcpFlags::CWR.0))
}

/// Returns a rig after a SYN flood, which has reached the lower of two limits: the capacity of
/// the listener's SYN queue (128 half-open connections), and the engine's limit `half_open_max`.
fn flooded(config: EngineConfig) -> Rig {
    let most = config.half_open_max;
    let mut rig = Rig::listening(config, SocketOptions::default());
    for port in 0..300u16 {
        rig.key.peer.port = 10_000 + port;
        rig.push(syn(TcpOptions::NONE));
    }
    let half_open = rig.engine.flows().count() as u32;
    assert_eq!(half_open, most.min(128), "half-open flows");
    rig.key.peer.port = 4242;
    rig.events();
    rig
}

#[test]
fn section_3_6_a_full_syn_queue_keeps_nobody_out_and_no_option_is_lost() {
    let mut rig = flooded(EngineConfig::default());
    let half_open = rig.engine.flows().count();
    let answer = rig.push(opening())[0];
    assert_eq!(rig.engine.flows().count(), half_open, "a new flow");
    assert_eq!(answer.flags, SYN | ACK | TcpFlags::ECE);
    assert_eq!(answer.options.mss, Some(1460));
    assert!(answer.options.sack_permitted && answer.options.wscale.is_some());
    let tsval = answer.options.timestamps.unwrap().tsval;
    rig.wait_ms(20);
    let end = data(1, 1, 100).wnd(1000).ts(1020, tsval);
    rig.push(end);
    let events = rig.events();
    assert!(
        events.iter().any(|e| matches!(e, Event::Accepted(_))),
        "{events:?}"
    );
    assert!(events.contains(&Event::READABLE));
    let flow = rig.engine.flows().last().unwrap();
    let info = rig.engine.info(flow).unwrap();
    assert_eq!(
        (info.mss, info.snd_wscale, info.snd_wnd),
        (1288, 7, 1000 << 7)
    );
    assert!(info.sack && info.timestamps && info.ecn);
    assert!(
        (15..=30).contains(&info.srtt.as_millis()),
        "{:?}",
        info.srtt
    );
    assert_eq!(rig.engine.counters().syncookies_recv, 1);
}

#[test]
fn the_cookie_is_only_good_for_its_flow_and_time() {
    let mut rig = flooded(EngineConfig::default());
    rig.push(opening());
    let refused = |rig: &mut Rig, segment| {
        let sent = rig.push(segment);
        assert_eq!((sent.len(), sent[0].flags), (1, RST));
        let opened = |e: &Event| matches!(e, Event::Accepted(_));
        assert!(!rig.events().iter().any(opened));
    };
    refused(&mut rig, ack(1, 2));
    refused(&mut rig, ack(2, 1));
    rig.key.peer.port += 1;
    refused(&mut rig, ack(1, 1));
    rig.key.peer.port -= 1;
    assert_eq!(rig.engine.counters().syncookies_failed, 3);
    rig.wait_ms(200_000);
    refused(&mut rig, ack(1, 1));
}

#[test]
fn without_a_flood_a_guessed_ack_is_not_checked() {
    let mut rig = Rig::listening(EngineConfig::default(), SocketOptions::default());
    assert_eq!(rig.push(ack(1, 1))[0].flags, RST);
    assert_eq!(rig.engine.counters().syncookies_failed, 0);
}

#[test]
fn without_syn_cookies_the_syn_is_dropped() {
    let mut rig = flooded(EngineConfig {
        syn_cookies: false,
        ..EngineConfig::default()
    });
    assert_eq!(rig.push(opening()), []);
}

/// `flooded` checks that the engine's limit `half_open_max` holds, here with a single listener.
#[test]
fn all_listeners_share_a_bound() {
    flooded(EngineConfig {
        half_open_max: 50,
        ..EngineConfig::default()
    });
}

#[test]
fn room_comes_back_when_half_open_connections_end() {
    let config = EngineConfig {
        half_open_max: 50,
        ..EngineConfig::default()
    };
    let mut rig = flooded(config);
    rig.wait_ms(200_000);
    assert_eq!(rig.engine.flows().count(), 0);
    rig.push(opening());
    assert_eq!(rig.engine.flows().count(), 1);
}

/// As in Linux: while the accept queue is full, the engine drops new SYNs and the last ACK of a
/// handshake. The engine retransmits the SYN,ACK of this handshake. Once the queue has room, the
/// next ACK establishes the connection.
#[test]
fn a_full_accept_queue_delays_as_in_linux() {
    let mut rig = Rig::with_backlog(EngineConfig::default(), SocketOptions::default(), 1);
    for port in 1..=2 {
        rig.key.peer.port = port;
        rig.push(syn(TcpOptions::NONE));
        rig.push(ack(1, 1));
    }
    rig.key.peer.port = 3;
    assert_eq!(rig.push(syn(TcpOptions::NONE)), []);
    assert_eq!(rig.engine.counters().listen_overflows, 1);
    let listener = rig
        .events()
        .iter()
        .find_map(|e| match e {
            Event::Accepted(listener) => Some(*listener),
            _ => None,
        })
        .unwrap();
    rig.engine.accept_queue_removed(listener, 1);
    rig.push(syn(TcpOptions::NONE));
    rig.key.peer.port = 4;
    rig.iss = tidelane_engine::SeqNumber(0);
    rig.push(syn(TcpOptions::NONE));
    rig.push(ack(1, 1));
    // The queue is full again. The SYN,ACK for port 3 is retransmitted, and the ACK from port 3 is
    // dropped.
    rig.key.peer.port = 3;
    let again = rig.wait_ms(1_500);
    assert!(
        again.iter().any(|out| out.flags == SYN | ACK),
        "{:?}",
        spans(&again)
    );
    rig.events();
    rig.push(ack(1, 1));
    assert!(rig.events().is_empty());
    rig.engine.accept_queue_removed(listener, 1);
    rig.push(ack(1, 1));
    assert_eq!(rig.events(), [Event::Accepted(listener)]);
}

/// As in Linux: while the accept queue is full, the last ACK of a handshake is dropped, with or
/// without data. A retransmitted SYN is still answered, and a wrong ACK gets a RST.
#[test]
fn a_full_accept_queue_only_keeps_the_last_acknowledgment_out() {
    let mut rig = Rig::with_backlog(EngineConfig::default(), SocketOptions::default(), 0);
    let [first, second] = [1, 2].map(|port| {
        rig.key.peer.port = port;
        rig.push(syn(TcpOptions::NONE));
        rig.iss
    });
    (rig.key.peer.port, rig.iss) = (1, first);
    rig.push(ack(1, 1));
    let accepted = rig.events();
    let [Event::Accepted(listener)] = accepted[..] else {
        panic!("one connection: {accepted:?}");
    };
    (rig.key.peer.port, rig.iss) = (2, second);
    assert_eq!(rig.push(ack(1, 1)), []);
    assert_eq!(rig.push(data(1, 1, 100)), []);
    assert_eq!(rig.engine.counters().listen_overflows, 2);
    assert_eq!(rig.engine.counters().listen_drops, 2);
    assert_eq!(rig.push(syn(TcpOptions::NONE))[0].flags, SYN | ACK);
    assert_eq!(rig.push(ack(1, 7))[0].flags, RST);
    assert_eq!(rig.engine.counters().listen_overflows, 2);
    rig.engine.accept_queue_removed(listener, 1);
    rig.push(data(1, 1, 100));
    assert_eq!(
        rig.events(),
        [Event::Accepted(listener), Event::READABLE],
        "the retransmitted data did not complete the handshake"
    );
    rig.key.peer.port = 3;
    rig.iss = tidelane_engine::SeqNumber(0);
    rig.push(syn(TcpOptions::NONE));
    assert_eq!(rig.engine.flows().count(), 2, "a full queue took a SYN");
}
