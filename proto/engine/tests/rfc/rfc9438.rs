//! Tests of CUBIC in the TCP engine (RFC 9438). The tests of `proto/cc` cover the curve along which
//! cwnd grows. A rig is one engine, with the test as its peer.

use tidelane_engine::{EngineConfig, SocketOptions, TcpOptions};

use crate::rig::{Rig, ack};

/// Waits for one RTT, and then acknowledges the data that is in flight at the call, segment by
/// segment. `una` is SND.UNA of the engine.
fn round(rig: &mut Rig, una: &mut u32) {
    let flight = rig.info().flight_size;
    rig.wait_ms(10);
    let end = *una + flight;
    while *una < end {
        *una = (*una + 1000).min(end);
        rig.push(ack(1, *una));
    }
}

/// Loses a segment when cwnd is twenty segments. After the recovery, sends only small segments for
/// ten seconds, and then fills cwnd for one RTT. Returns cwnd before and after this RTT. If
/// `fast_path` is true, the fast path (the engine's code for in-order segments) is on.
fn window_after_pause(fast_path: bool) -> (u32, u32) {
    let config = EngineConfig {
        fast_path,
        ..EngineConfig::default()
    };
    let mut rig = Rig::established_with(config, SocketOptions::default(), TcpOptions::NONE);
    let mut una = 1;
    rig.write(30_000);
    round(&mut rig, &mut una);
    for _ in 0..3 {
        rig.push(ack(1, una));
    }
    while rig.info().flight_size > 0 {
        round(&mut rig, &mut una);
    }
    // The first data after the recovery starts the congestion avoidance epoch.
    rig.write(60_000);
    while rig.info().flight_size > 0 {
        round(&mut rig, &mut una);
    }
    for _ in 0..1000 {
        rig.write(100);
        round(&mut rig, &mut una);
    }
    assert_eq!(rig.engine.counters().fast_receives > 500, fast_path);
    let before = rig.info().cwnd;
    rig.write(100_000);
    round(&mut rig, &mut una);
    (before, rig.info().cwnd)
}

#[test]
fn section_5_8_time_in_which_the_window_was_not_in_use_does_not_count() {
    for fast_path in [true, false] {
        let (before, after) = window_after_pause(fast_path);
        assert!((10_000..20_000).contains(&before), "{before}");
        // cwnd grows by about a segment. If the ten seconds counted, the curve would allow a growth
        // by half of cwnd.
        assert!(after - before < 2_000, "{fast_path}: {before} {after}");
    }
}

/// The ACK acknowledges three segments, and its SACK block covers six segments. In slow start, the
/// delivery of nine segments would nearly double cwnd. This ACK also shows a loss, so cwnd does not
/// grow (as in Linux): ssthresh is 0.7 times the cwnd of ten segments from before the ACK.
#[test]
fn section_4_6_an_ack_that_shows_a_loss_does_not_grow_cwnd() {
    let mut rig = Rig::established_sack();
    assert_eq!(rig.write(30_000).len(), 10);
    rig.wait_ms(10);
    let segment = ack(1, 3001).sack(&rig, &[(4001, 10_001)]);
    rig.push(segment);
    assert_eq!(rig.engine.counters().fast_retrans, 1);
    assert_eq!(rig.info().ssthresh, 7000);
}
