//! Tests of a new connection with the 4-tuple of a connection in TIME-WAIT (RFC 6191 §2), and of
//! answers in TIME-WAIT. A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{EngineConfig, SocketOptions, TcpFlags, TcpOptions};

use crate::rig::{ACK, In, RST, Rig, SYN, ack, syn};

const FIN: TcpFlags = TcpFlags::FIN;

/// Returns a rig with a connection in TIME-WAIT. The engine has closed the connection first. If
/// `timestamps` is true, both ends have used timestamps, and the peer's last timestamp is 500.
fn in_time_wait(timestamps: bool) -> Rig {
    let peer = if timestamps {
        TcpOptions::timestamps(1, 0)
    } else {
        TcpOptions::NONE
    };
    let (config, options) = (EngineConfig::default(), SocketOptions::default());
    let mut rig = Rig::established_with(config, options, peer);
    let flow = rig.flow_id().unwrap();
    rig.engine.close(rig.now, flow, &mut rig.driver);
    let fin = rig.batch_end()[0];
    assert!(fin.flags.contains(FIN));
    let mut last = ack(1, 2).with(ACK | FIN);
    if timestamps {
        last = last.ts(500, fin.options.timestamps.unwrap().tsval);
    }
    rig.push(last);
    assert_eq!((rig.engine.time_wait_len(), rig.flow_id()), (1, None));
    rig
}

/// Returns true if a SYN with this sequence number and TSval opens a connection. The SYN has no
/// timestamps if `tsval` is `None`. The connection in TIME-WAIT has used timestamps if `timestamps`
/// is true.
fn opens(timestamps: bool, seq: u32, tsval: Option<u32>) -> bool {
    let mut rig = in_time_wait(timestamps);
    let mut again = In {
        seq,
        ..syn(TcpOptions::NONE)
    };
    if let Some(tsval) = tsval {
        again = again.ts(tsval, 0);
    }
    rig.push(again);
    assert_eq!(rig.flow_id().is_some(), rig.engine.time_wait_len() == 0);
    rig.flow_id().is_some()
}

#[test]
fn section_2_a_newer_timestamp_reopens_with_any_sequence_number() {
    assert!(opens(true, 100, Some(501)));
    assert!(opens(true, 0u32.wrapping_sub(100), Some(501)));
    // With an equal timestamp, the sequence number decides.
    assert!(opens(true, 100, Some(500)));
    assert!(!opens(true, 0u32.wrapping_sub(100), Some(500)));
    // A SYN with an older timestamp is a duplicate.
    assert!(!opens(true, 100, Some(499)));
}

#[test]
fn section_2_without_timestamps_only_a_higher_sequence_number_reopens() {
    assert!(opens(false, 100, None));
    assert!(opens(false, 100, Some(1)));
    assert!(!opens(false, 0u32.wrapping_sub(100), None));
    assert!(opens(true, 100, None));
    assert!(!opens(true, 1, None));
}

#[test]
fn rfc9293_section_3_6_1_the_new_numbers_are_beyond_all_old_ones() {
    let mut rig = in_time_wait(true);
    let old = rig.iss;
    let again = syn(TcpOptions::timestamps(501, 0));
    let answer = rig.push(In { seq: 100, ..again });
    assert_eq!(answer[0].flags, SYN | ACK);
    assert!(rig.iss.distance_from(old) > 1 << 16);
}

#[test]
fn time_wait_answers_old_segments_within_limits_but_not_the_last_ack() {
    let mut rig = in_time_wait(false);
    assert_eq!(rig.push(ack(2, 2)), []);
    let answers: usize = (0..100).map(|_| rig.push(ack(9, 2)).len()).sum();
    assert_eq!(answers, 1);
    // Every retransmitted FIN is answered.
    for _ in 0..3 {
        let sent = rig.push(ack(1, 2).with(ACK | FIN));
        assert_eq!((sent.len(), sent[0].seq, sent[0].ack), (1, 2, 2));
    }
}

#[test]
fn a_syn_with_fin_neither_prolongs_time_wait_nor_escapes_the_rate_limit() {
    let mut rig = in_time_wait(false);
    rig.wait_ms(59_000);
    let syn_fin = || ack(1, 2).with(SYN | ACK | FIN);
    let answers: usize = (0..100).map(|_| rig.push(syn_fin()).len()).sum();
    assert_eq!(answers, 1);
    rig.wait_ms(1_100);
    assert_eq!(rig.engine.time_wait_len(), 0);
}

#[test]
fn rfc1337_only_a_reset_at_rcv_nxt_ends_time_wait() {
    let mut rig = in_time_wait(false);
    rig.push(ack(3, 2).with(RST));
    assert_eq!(rig.engine.time_wait_len(), 1);
    rig.push(ack(2, 2).with(RST));
    assert_eq!(rig.engine.time_wait_len(), 0);
}

#[test]
fn must_13_time_wait_lasts_two_msl() {
    let mut rig = in_time_wait(false);
    rig.wait_ms(59_900);
    assert_eq!(rig.engine.time_wait_len(), 1);
    rig.wait_ms(200);
    assert_eq!(rig.engine.time_wait_len(), 0);
}
