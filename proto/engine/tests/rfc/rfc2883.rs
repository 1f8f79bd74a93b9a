//! Duplicates and their reports (RFC 2883).

use tidelane_engine::CaState;

use crate::rig::{In, Rig, ack, data, spans};

#[test]
fn section_4_a_duplicate_is_reported_once() {
    let mut rig = Rig::established_sack();
    rig.push(data(1, 1, 1000));
    let blocks = |rig: &mut Rig, segment: In| {
        let sent = rig.push(segment);
        assert_eq!(sent.len(), 1);
        sent[0].options.sack.len()
    };
    assert_eq!(blocks(&mut rig, data(1, 1, 1000)), 1);
    assert_eq!(blocks(&mut rig, data(1001, 1, 1000)), 0);
    assert_eq!(rig.engine.counters().dsack_sent, 1);
}

/// The first segment was only late: three arrive before it, it is sent again, both arrive.
#[test]
fn section_5_a_repair_that_was_not_needed_is_taken_back() {
    let mut rig = Rig::established_sack();
    rig.write(10_000);
    rig.wait_ms(10);
    let mut again = Vec::new();
    for end in 2..=4 {
        let segment = ack(1, 1).sack(&rig, &[(1001, end * 1000 + 1)]);
        again.extend(rig.push(segment));
    }
    assert_eq!(spans(&again), [(1, 1000)]);
    let info = rig.info();
    assert_eq!((info.ca_state, info.ssthresh), (CaState::Recovery, 7000));
    rig.push(ack(1, 4001));
    // The repair arrives as a duplicate.
    let told = ack(1, 4001).sack(&rig, &[(1, 1001)]);
    rig.push(told);
    let info = rig.info();
    assert_eq!((info.cwnd, info.ssthresh), (10_000, u32::MAX));
    assert_eq!(rig.engine.counters().dsack_recv, 1);
    rig.push(ack(1, 5001));
    assert_eq!(rig.info().ca_state, CaState::Open);
    // A block within the second one is a duplicate's, too (§4.3), and marks nothing as arrived.
    let told = ack(1, 5001).sack(&rig, &[(6001, 7001), (6001, 8001)]);
    rig.push(told);
    assert_eq!(rig.engine.counters().dsack_recv, 2);
    assert_eq!(rig.info().sacked, 2000);
}
