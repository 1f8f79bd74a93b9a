//! Tests of USER TIMEOUT (RFC 9293 §3.10.8; RFC 5482 §3; TCP_USER_TIMEOUT) and of R2, the limit of
//! retransmissions (RFC 9293 §3.8.3). A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{CloseCause, Duration, EngineConfig, Event, SocketOptions};

use crate::rig::{Rig, ack, data, times};

fn options(seconds: u64) -> SocketOptions {
    SocketOptions {
        user_timeout: Duration::from_secs(seconds),
        ..SocketOptions::default()
    }
}

/// Lets the peer close its window, by a segment with one byte of data.
fn close_window(rig: &mut Rig) {
    rig.push(data(1, 1, 1).wnd(0));
    rig.wait_ms(100);
}

#[test]
fn unacknowledged_data_ends_the_connection_after_user_timeout() {
    let mut rig = Rig::established(options(3));
    let start = rig.ms();
    rig.events();
    assert_eq!(rig.write(1000).len(), 1);
    let sent = rig.wait_ms(60_000);
    // The RTO is 210 ms and doubles. USER TIMEOUT starts at the first retransmission, and expires
    // before the fifth retransmission.
    let first = times(&sent, start)[0];
    let expected: Vec<u64> = (0..4).map(|n| first * ((2 << n) - 1)).collect();
    let seen = times(&sent, start);
    assert_eq!(seen.len(), 4, "{seen:?}");
    for (seen, expected) in seen.iter().zip(expected) {
        assert!(seen.abs_diff(expected) < 20, "{seen} {expected}");
    }
    assert_eq!(rig.events(), [Event::Closed(CloseCause::TimedOut)]);
    let flow = rig.flow_id().unwrap();
    rig.engine.abort(rig.now, flow, &mut rig.driver);
    assert_eq!(rig.wait_ms(1), []);
}

#[test]
fn user_timeout_expires_between_retransmissions() {
    let mut rig = Rig::established(options(3));
    rig.events();
    rig.write(1000);
    rig.wait_ms(3_150);
    assert_eq!(rig.events(), []);
    rig.wait_ms(100);
    assert_eq!(rig.events(), [Event::Closed(CloseCause::TimedOut)]);
}

#[test]
fn an_ack_restarts_user_timeout() {
    let mut rig = Rig::established(options(3));
    rig.events();
    rig.write(2000);
    rig.wait_ms(2_000);
    rig.push(ack(1, 1001));
    rig.wait_ms(2_900);
    assert!(!rig.events().iter().any(|e| matches!(e, Event::Closed(_))));
    rig.wait_ms(3_000);
    assert_eq!(rig.events(), [Event::Closed(CloseCause::TimedOut)]);
}

#[test]
fn user_timeout_beyond_the_retries_counts() {
    let config = EngineConfig {
        retries: 2,
        ..EngineConfig::default()
    };
    let peer = tidelane_engine::TcpOptions::NONE;
    let mut rig = Rig::established_with(config, options(30), peer);
    rig.events();
    rig.write(1000);
    rig.wait_ms(29_000);
    assert_eq!(rig.events(), []);
    rig.wait_ms(3_000);
    assert_eq!(rig.events(), [Event::Closed(CloseCause::TimedOut)]);
}

#[test]
fn user_timeout_ends_a_connection_whose_window_stays_closed_as_in_linux() {
    let mut rig = Rig::established(options(5));
    close_window(&mut rig);
    rig.events();
    rig.write(1000);
    for _ in 0..60 {
        if !rig.wait_ms(100).is_empty() {
            rig.push(ack(2, 1).wnd(0));
        }
    }
    assert!(rig.events().contains(&Event::Closed(CloseCause::TimedOut)));
}

#[test]
fn must_37_without_user_timeout_a_peer_that_answers_probes_is_kept_forever() {
    let mut rig = Rig::established(SocketOptions::default());
    close_window(&mut rig);
    rig.events();
    rig.write(1000);
    // MUST-36: the engine probes the closed window.
    let mut probes = 0;
    for _ in 0..36_000 {
        for probe in rig.wait_ms(100) {
            probes += 1;
            assert_eq!((probe.seq, probe.len), (0, 0));
            assert_eq!(rig.push(ack(2, 1).wnd(0)), []);
        }
    }
    assert!(probes > 30, "{probes}");
    assert!(!rig.events().iter().any(|e| matches!(e, Event::Closed(_))));
    // Data is sent as soon as the window opens.
    let sent = rig.push(ack(2, 1).wnd(5000));
    assert_eq!((sent.len(), sent[0].len), (1, 1000));
}

#[test]
fn must_20_r2_of_data_is_at_least_100_s() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.events();
    rig.write(1000);
    rig.wait_ms(900_000);
    assert_eq!(rig.events(), []);
    let sent = rig.wait_ms(900_000);
    assert!(sent.len() < 3);
    assert_eq!(rig.events(), [Event::Closed(CloseCause::TimedOut)]);
}
