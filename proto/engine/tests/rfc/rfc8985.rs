//! Tests of RACK-TLP (RFC 8985), for the requirements that neither a script of `tests/conformance`
//! nor a test in `proto/slowpath/src/scoreboard.rs` covers. A rig is one TCP engine, with the test
//! as its peer.

use tidelane_engine::{CaState, Duration, EngineConfig, SocketOptions, TcpOptions};

use crate::rig::{Out, Rig, ack, spans, times};

/// Sends ten segments, of which the first arrives late. After the engine has retransmitted the
/// first segment, acknowledges all segments, and reports the retransmission as spurious by a DSACK.
/// Returns the time in ms from the third SACK to the retransmission. `una` is the sequence number
/// of the first segment.
fn reordering_wait(rig: &mut Rig, una: u32) -> u64 {
    rig.write(10_000);
    rig.wait_ms(40);
    let start = rig.ms();
    let mut sent = Vec::new();
    for end in 2..=4 {
        let segment = ack(1, una).sack(rig, &[(una + 1000, una + end * 1000)]);
        sent.extend(rig.push(segment));
    }
    sent.extend(rig.wait_ms(39));
    let again = sent.iter().find(|out| out.seq == una).expect("a repair");
    let waited = again.at_ms - start;
    rig.push(ack(1, una + 10_000));
    // The retransmission was spurious.
    let dsack = ack(1, una + 10_000).sack(rig, &[(una, una + 1000)]);
    rig.push(dsack);
    rig.wait_ms(10);
    waited
}

/// Returns a connection with an RTT of 40 ms, and the sequence number of the next byte to send.
fn of_40_ms() -> (Rig, u32) {
    let mut rig = Rig::established_sack();
    // RTT samples of 40 ms, after the 10 ms of the handshake.
    for round in 0..30 {
        rig.write(1000);
        rig.wait_ms(40);
        rig.push(ack(1, round * 1000 + 1001));
    }
    (rig, 30_001)
}

/// Sends ten segments, and acknowledges two of them out of order by SACK, which shows the engine
/// that the path reorders. Returns the sequence number of the next byte to send.
fn reorder(rig: &mut Rig, una: u32) -> u32 {
    rig.write(10_000);
    rig.wait_ms(40);
    let late = ack(1, una).sack(rig, &[(una + 3000, una + 4000)]);
    rig.push(late);
    let late = ack(1, una).sack(rig, &[(una + 1000, una + 2000), (una + 3000, una + 4000)]);
    rig.push(late);
    rig.push(ack(1, una + 10_000));
    rig.wait_ms(10);
    una + 10_000
}

#[test]
fn section_6_2_step_4_a_spurious_retransmission_widens_the_reordering_window() {
    let (mut rig, una) = of_40_ms();
    // While the path is not known to reorder, three SACKed segments cause an immediate
    // retransmission.
    assert_eq!(reordering_wait(&mut rig, una), 0);
    // Once the path is known to reorder, the reordering window is a number of quarters of the
    // minimum RTT. The number is one at first. Each round with a spurious retransmission, like the
    // round above, increments the number.
    let una = reorder(&mut rig, una + 10_000);
    let waits: Vec<u64> = (0..3)
        .map(|round| reordering_wait(&mut rig, una + round * 10_000))
        .collect();
    assert!(waits[0] > 0, "{waits:?}");
    assert!(waits[0] < waits[1] && waits[1] < waits[2], "{waits:?}");
    // The reordering window is at most SRTT.
    assert!(waits[2] <= 41, "{waits:?}");
}

/// If an ACK arrives less than the minimum RTT after a retransmission, the ACK is for the original
/// segment, which was only late.
#[test]
fn section_6_2_step_3_a_late_original_shows_reordering() {
    for (after_ms, seen) in [(4, 1), (12, 0)] {
        let mut rig = Rig::established_sack();
        rig.write(10_000);
        rig.wait_ms(20);
        let segment = ack(1, 1).sack(&rig, &[(1001, 4001)]);
        assert_eq!(spans(&rig.push(segment))[0], (1, 1000));
        rig.wait_ms(after_ms);
        rig.push(ack(1, 4001));
        assert_eq!(rig.info().reorder_seen, seen, "{after_ms} ms");
    }
}

/// An ACK that echoes the timestamp of the original segment also shows that this segment was only
/// late (RFC 3522 §3.2), even if a queue delays the ACK by more than the minimum RTT.
#[test]
fn section_6_2_step_3_an_echo_of_the_original_shows_reordering() {
    for late in [true, false] {
        let peer = TcpOptions {
            sack_permitted: true,
            ..TcpOptions::timestamps(1, 0)
        };
        let (config, options) = (EngineConfig::default(), SocketOptions::default());
        let mut rig = Rig::established_with(config, options, peer);
        let first = rig.write(10_000)[0];
        rig.wait_ms(20);
        let tsecr = |out: &Out| out.options.timestamps.map_or(0, |t| t.tsval);
        // The timestamp option makes segments shorter than 1000 bytes.
        let len = rig.info().mss;
        let end = 1 + 4 * len;
        let segment = ack(1, 1).sack(&rig, &[(1 + len, end)]).ts(2, tsecr(&first));
        let again = rig.push(segment)[0];
        assert_eq!(again.seq, 1);
        rig.wait_ms(12);
        let echoed = if late { first } else { again };
        rig.push(ack(1, end).ts(3, tsecr(&echoed)));
        assert_eq!(rig.info().reorder_seen, u32::from(late));
    }
}

#[test]
fn section_7_2_a_probe_is_never_later_than_the_timeout() {
    let config = EngineConfig {
        rto_min: Duration::from_millis(5),
        ..EngineConfig::default()
    };
    let sack = TcpOptions {
        sack_permitted: true,
        ..TcpOptions::NONE
    };
    let mut rig = Rig::established_with(config, SocketOptions::default(), sack);
    // With equal RTT samples, the RTO approaches SRTT plus 5 ms. A PTO of 2 SRTT would be longer.
    for round in 0..60 {
        rig.write(1000);
        rig.wait_ms(10);
        rig.push(ack(1, round * 1000 + 1001));
    }
    let rto = rig.info().rto.as_millis();
    assert!(rto < 2 * rig.info().srtt.as_millis(), "{rto}");
    rig.write(2000);
    let start = rig.ms();
    let sent = rig.wait_ms(100);
    let first = times(&sent, start)[0];
    assert!(first <= rto + 2, "{first} {rto} {:?}", spans(&sent));
}

#[test]
fn section_7_2_after_a_timeout_there_are_no_probes() {
    let mut rig = Rig::established_sack();
    rig.write(10_000);
    while rig.engine.counters().timeouts == 0 {
        rig.wait_ms(10);
    }
    let probes = rig.engine.counters().loss_probes;
    assert_eq!(probes, 1);
    // After an ACK of one segment, the peer is silent again. The RTO timer then runs, not the probe
    // timer.
    rig.push(ack(1, 1001));
    rig.wait_ms(60_000);
    assert!(rig.engine.counters().timeouts > 3);
    assert_eq!(rig.engine.counters().loss_probes, probes);
}

/// If a probe repairs a loss, this loss reduces cwnd. Another loss in the same flight does not
/// reduce cwnd again, because the lost data was sent before the reduction.
#[test]
fn section_7_4_a_loss_behind_a_probe_does_not_reduce_again() {
    let mut rig = Rig::established_sack();
    rig.write(2_000);
    let mut sent = Vec::new();
    while sent.is_empty() {
        sent = rig.wait_ms(5);
    }
    assert_eq!(
        (spans(&sent)[0], rig.engine.counters().loss_probes),
        ((1001, 1000), 1)
    );
    rig.write(8_000);
    // The ACK covers data after the probe and carries no DSACK, so the probe has repaired a loss.
    rig.push(ack(1, 3001));
    let ssthresh = rig.info().ssthresh;
    assert!(ssthresh < 10_000, "{ssthresh}");
    for end in 5..=7 {
        let segment = ack(1, 3001).sack(&rig, &[(4001, end * 1000 + 1)]);
        rig.push(segment);
    }
    let info = rig.info();
    assert_eq!(
        (info.ca_state, info.ssthresh),
        (CaState::Recovery, ssthresh)
    );
    // A loss in the next window of data reduces cwnd again.
    rig.wait_ms(11);
    rig.push(ack(1, 10_001));
    rig.write(8_000);
    rig.wait_ms(10);
    for end in 12..=14 {
        let segment = ack(1, 10_001).sack(&rig, &[(11_001, end * 1000 + 1)]);
        rig.push(segment);
    }
    assert!(rig.info().ssthresh < ssthresh);
}

/// On a path that reorders, spurious retransmissions have widened the reordering window. After
/// sixteen recoveries without a spurious retransmission, the reordering window is smaller again.
#[test]
fn section_6_2_step_4_sixteen_recoveries_reset_the_reordering_window() {
    let (mut rig, una) = of_40_ms();
    let una = reorder(&mut rig, una);
    let waits: Vec<u64> = (0..3)
        .map(|round| reordering_wait(&mut rig, una + round * 10_000))
        .collect();
    assert!(waits[2] > waits[0], "{waits:?}");
    let mut una = una + 30_000;
    for round in 0..16 {
        // The first of two segments is lost and retransmitted.
        rig.write(2_000);
        rig.wait_ms(40);
        let hole = ack(1, una).sack(&rig, &[(una + 1000, una + 2000)]);
        rig.push(hole);
        rig.wait_ms(60);
        assert_eq!(rig.info().ca_state, CaState::Recovery, "{round}");
        una += 2_000;
        rig.push(ack(1, una));
        rig.wait_ms(10);
    }
    // cwnd must grow again for a flight of ten segments.
    while rig.info().cwnd < 12_000 {
        let cwnd = rig.info().cwnd;
        let sent = rig.write(cwnd / 1000 * 1000);
        rig.wait_ms(40);
        una += sent.iter().map(|out| out.len).sum::<u32>();
        rig.push(ack(1, una));
        assert!(una < 10_000_000, "{:?}", rig.info());
    }
    let again = reordering_wait(&mut rig, una);
    assert!(again < waits[2], "{again} {waits:?}");
}

#[test]
fn section_6_3_after_a_timeout_recent_data_stays_in_flight() {
    let start = || {
        let mut rig = Rig::established_sack();
        rig.write(3000);
        rig
    };
    // Measure the time in ms from the transmission to the timeout.
    let (mut rig, mut wait) = (start(), 0);
    while rig.engine.counters().timeouts == 0 {
        rig.wait_ms(1);
        wait += 1;
    }
    // The RTT is 10 ms. A second rig sends two new segments 5 ms before its timeout.
    let mut rig = start();
    rig.wait_ms(wait - 5);
    assert_eq!(rig.write(2000).len(), 2);
    let sent = rig.wait_ms(5);
    assert_eq!(
        (rig.engine.counters().timeouts, &spans(&sent)[..]),
        (1, &[(1, 1000)][..])
    );
    let info = rig.info();
    assert_eq!((info.flight_size, info.lost), (5000, 2000));
}
