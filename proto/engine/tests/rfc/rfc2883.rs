//! Tests of duplicates and DSACK (RFC 2883). A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{CaState, SocketOptions};

use crate::rig::{In, Out, Rig, ack, data, spans};

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

/// A batch consists of the segments that the engine gets before a call of `batch_end`. A duplicate
/// arrives in the same batch as the ACKs that start a recovery. The retransmission is shorter than
/// the MSS and has room for SACK blocks.
#[test]
fn section_4_a_retransmission_and_an_ack_report_a_duplicate_once() {
    let mut rig = Rig::established_sack();
    rig.set_options(SocketOptions {
        nodelay: true,
        ..SocketOptions::default()
    });
    rig.push(data(3001, 1, 1000));
    for _ in 0..8 {
        rig.write(500);
    }
    rig.wait_ms(10);
    rig.arrive(data(3001, 1, 1000));
    for end in 2..=8 {
        let segment = ack(1, 1).sack(&rig, &[(501, end * 500 + 1)]);
        rig.arrive(segment);
    }
    let sent = rig.batch_end();
    let reports = |out: &&Out| out.options.sack.len() == 2;
    assert!(
        sent.iter().any(|out| (out.seq, out.len) == (1, 500)),
        "{sent:?}"
    );
    assert_eq!(sent.iter().filter(reports).count(), 1, "{sent:?}");
    assert_eq!(rig.engine.counters().dsack_sent, 1);
}

/// Three later segments overtake the first segment. The engine then retransmits the first segment,
/// and both copies arrive.
#[test]
fn section_5_a_spurious_retransmission_is_undone() {
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
    // The retransmission arrives as a duplicate.
    let dsack = ack(1, 4001).sack(&rig, &[(1, 1001)]);
    rig.push(dsack);
    let info = rig.info();
    assert_eq!((info.cwnd, info.ssthresh), (10_000, u32::MAX));
    assert_eq!(rig.engine.counters().dsack_recv, 1);
    rig.push(ack(1, 5001));
    assert_eq!(rig.info().ca_state, CaState::Open);
    // A first block within the second block is a DSACK, too (§4.3). Only the second block SACKs
    // data.
    let dsack = ack(1, 5001).sack(&rig, &[(6001, 7001), (6001, 8001)]);
    rig.push(dsack);
    assert_eq!(rig.engine.counters().dsack_recv, 2);
    assert_eq!(rig.info().sacked, 2000);
}

/// When the DSACK arrives, cwnd is already larger than the ten segments that cwnd had before the
/// recovery.
#[test]
fn section_5_an_undo_keeps_later_growth() {
    let mut rig = Rig::established_sack();
    rig.write(10_000);
    rig.wait_ms(10);
    for end in 2..=4 {
        let segment = ack(1, 1).sack(&rig, &[(1001, end * 1000 + 1)]);
        rig.push(segment);
    }
    rig.push(ack(1, 10_001));
    assert_eq!(rig.info().ca_state, CaState::Open);
    let mut una = 10_001;
    while rig.info().cwnd <= 11_000 {
        let cwnd = rig.info().cwnd;
        let sent = rig.write(cwnd);
        rig.wait_ms(10);
        for out in &sent {
            una = out.seq + out.len;
            rig.push(ack(1, una));
        }
        assert!(una < 4_000_000, "{:?}", rig.info());
    }
    let before = rig.info();
    let dsack = ack(1, una).sack(&rig, &[(1, 1001)]);
    rig.push(dsack);
    let info = rig.info();
    assert_eq!((info.cwnd, info.ssthresh), (before.cwnd, u32::MAX));
}

#[test]
fn section_4_2_the_part_that_came_before_is_reported_in_and_out_of_order() {
    let mut rig = Rig::established_sack();
    rig.push(data(1, 1, 1000));
    let blocks = |rig: &mut Rig, segment: In| {
        let sent = rig.push(segment);
        assert_eq!(sent.len(), 1, "{sent:?}");
        let blocks = sent[0].options.sack;
        let relative = |(left, right): &(_, _)| (rig.relative(*left), rig.relative(*right));
        blocks.as_slice().iter().map(relative).collect::<Vec<_>>()
    };
    assert_eq!(blocks(&mut rig, data(501, 1, 1000)), [(501, 1001)]);
    // The first segment out of order is no duplicate. The second segment is a partial duplicate:
    // its ACK carries the DSACK block, and the range that contains the DSACK block (§4.2.2).
    assert_eq!(blocks(&mut rig, data(3001, 1, 1000)), [(3001, 4001)]);
    let both = [(3501, 4001), (3001, 4501)];
    assert_eq!(blocks(&mut rig, data(3501, 1, 1000)), both);
    // The next segment is in order, and its end overlaps the out-of-order range.
    assert_eq!(blocks(&mut rig, data(1501, 1, 2000)), [(3001, 3501)]);
    assert_eq!(rig.engine.counters().dsack_sent, 3);
}

#[test]
fn section_4_in_one_batch_each_of_several_duplicates_is_reported() {
    let mut rig = Rig::established_sack();
    for seq in [1, 1001, 2001] {
        rig.push(data(seq, 1, 1000));
    }
    // Two adjacent duplicates make one range, which one ACK reports.
    for seq in [1, 1001] {
        rig.arrive(data(seq, 1, 1000));
    }
    assert_eq!(rig.batch_end().len(), 1);
    for seq in [1, 2001] {
        rig.arrive(data(seq, 1, 1000));
    }
    assert_eq!(rig.batch_end().len(), 2);
    assert_eq!(rig.engine.counters().dsack_sent, 3);
}
