//! Tests of F-RTO, which detects spurious timeouts (RFC 5682 §2 and §3), and of Eifel detection
//! (RFC 3522). A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{CaState, EngineConfig, SocketOptions, TcpOptions};

use crate::rig::{Rig, ack, spans};

/// Returns a connection without SACK, with ten segments in flight, unsent data and an expired RTO.
fn timed_out_without_sack() -> Rig {
    let mut rig = Rig::established(SocketOptions::default());
    assert_eq!(rig.write(20_000).len(), 10);
    let mut again = Vec::new();
    while rig.engine.counters().timeouts == 0 {
        again.extend(rig.wait_ms(10));
    }
    assert_eq!(spans(&again), [(1, 1000)]);
    rig
}

#[test]
fn section_2_1_step_2b_and_3b_without_sack_two_acks_undo_the_timeout() {
    let mut rig = timed_out_without_sack();
    let sent = rig.push(ack(1, 1001));
    assert_eq!(spans(&sent), [(10_001, 1000), (11_001, 1000)]);
    rig.push(ack(1, 2001));
    assert_eq!(rig.engine.counters().spurious_timeouts, 1);
    let info = rig.info();
    assert_eq!((info.ca_state, info.ssthresh), (CaState::Open, u32::MAX));
    assert_eq!(rig.engine.counters().retrans_segs, 1);
}

/// The retransmission fills a hole, and its ACK also covers the data before the next hole.
#[test]
fn section_2_1_without_sack_an_ack_beyond_the_retransmission_is_ambiguous() {
    let mut rig = timed_out_without_sack();
    let sent = rig.push(ack(1, 4001));
    assert_eq!(rig.engine.counters().spurious_timeouts, 0);
    assert_eq!(spans(&sent)[0], (10_001, 1000));
    // A duplicate ACK follows (step 3.a), and the next hole is retransmitted.
    let sent = rig.push(ack(1, 4001));
    assert_eq!(spans(&sent)[0], (4001, 1000), "{:?}", spans(&sent));
    assert_eq!(rig.info().ca_state, CaState::Loss);
}

#[test]
fn section_2_1_step_2a_without_sack_a_duplicate_ack_ends_f_rto() {
    let mut rig = timed_out_without_sack();
    let mut sent = rig.push(ack(1, 1));
    sent.extend(rig.push(ack(1, 1001)));
    assert_eq!(spans(&sent)[0], (1001, 1000), "{:?}", spans(&sent));
    rig.push(ack(1, 3001));
    assert_eq!(rig.engine.counters().spurious_timeouts, 0);
}

/// Returns a connection with SACK, with ten segments in flight, `more` unsent bytes and an expired
/// RTO. The first segment was retransmitted.
fn timed_out(more: u32) -> Rig {
    let mut rig = Rig::established_sack();
    assert_eq!(rig.write(10_000 + more).len(), 10);
    let mut again = Vec::new();
    while rig.engine.counters().timeouts == 0 {
        again.extend(rig.wait_ms(10));
    }
    assert_eq!(again.last().map(|out| (out.seq, out.len)), Some((1, 1000)));
    assert_eq!(rig.info().ca_state, CaState::Loss);
    rig
}

#[test]
fn section_3_1_step_2b_and_3b_two_acks_of_original_data_undo_the_timeout() {
    let mut rig = timed_out(5_000);
    let sent = rig.push(ack(1, 1001));
    let new = spans(&sent);
    assert!(
        !new.is_empty() && new.iter().all(|(seq, _)| *seq > 10_000),
        "{new:?}"
    );
    rig.push(ack(1, 2001));
    assert_eq!(rig.engine.counters().spurious_timeouts, 1);
    let info = rig.info();
    assert_eq!((info.ca_state, info.ssthresh), (CaState::Open, u32::MAX));
    assert!(info.cwnd >= 10_000);
    let retrans = rig.engine.counters().retrans_segs;
    rig.push(ack(1, 10_001));
    assert_eq!(rig.engine.counters().retrans_segs, retrans);
}

#[test]
fn section_3_1_step_3b_at_once_when_the_first_acknowledgment_covers_more() {
    let mut rig = timed_out(5_000);
    rig.push(ack(1, 3001));
    assert_eq!(rig.engine.counters().spurious_timeouts, 1);
    assert_eq!(rig.info().ca_state, CaState::Open);
}

#[test]
fn section_3_1_step_3a_sack_of_new_data_alone_means_a_real_loss() {
    let mut rig = timed_out(5_000);
    let sent = rig.push(ack(1, 1001));
    let new = sent[0].seq;
    let dup = ack(1, 1001).sack(&rig, &[(new, new + 1000)]);
    let sent = rig.push(dup);
    assert_eq!(rig.engine.counters().spurious_timeouts, 0);
    assert_eq!(sent[0].seq, 1001, "{:?}", spans(&sent));
    assert_eq!(rig.info().ca_state, CaState::Loss);
}

#[test]
fn section_3_1_step_2b_without_new_data_recovery_is_conventional() {
    let mut rig = timed_out(0);
    let sent = rig.push(ack(1, 1001));
    assert_eq!(sent[0].seq, 1001, "{:?}", spans(&sent));
    assert_eq!(rig.engine.counters().spurious_timeouts, 0);
}

#[test]
fn rfc3522_an_echo_of_the_first_transmission_undoes_the_timeout_at_once() {
    let peer = TcpOptions {
        sack_permitted: true,
        ..TcpOptions::timestamps(1, 0)
    };
    for spurious in [true, false] {
        let (config, options) = (EngineConfig::default(), SocketOptions::default());
        let mut rig = Rig::established_with(config, options, peer);
        let first = rig.write(15_000)[0];
        let mut again = Vec::new();
        while rig.engine.counters().timeouts == 0 {
            again.extend(rig.wait_ms(10));
        }
        let again = again.last().unwrap();
        assert_eq!(again.seq, first.seq);
        let stamp = if spurious { first } else { *again };
        let tsecr = stamp.options.timestamps.unwrap().tsval;
        rig.push(ack(1, first.seq + first.len).ts(5, tsecr));
        assert_eq!(rig.engine.counters().spurious_timeouts, u64::from(spurious));
    }
}
