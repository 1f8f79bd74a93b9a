//! Tests of the processing of received SACK blocks (RFC 2018 §5, RFC 6675 §5.1). A rig is one TCP
//! engine, with the test as its peer.

use crate::rig::{Rig, ack, spans};

#[test]
fn section_5_blocks_outside_of_the_outstanding_data_are_ignored() {
    let mut rig = Rig::established_sack();
    rig.write(10_000);
    rig.push(ack(1, 3001));
    let (cwnd, unsent) = (rig.info().cwnd, rig.info().unsent);
    for (left, right) in [
        // In this order, the blocks are below SND.UNA, across SND.UNA, beyond SND.NXT, across
        // SND.NXT, empty, inverted, and far beyond SND.NXT.
        (1, 2001),
        (2001, 4001),
        (20_001, 21_001),
        (9001, 12_001),
        (5001, 5001),
        (7001, 6001),
        (900_000_000, 900_001_000),
    ] {
        for _ in 0..4 {
            // Test the second block, because the first block could be a DSACK (RFC 2883 §4).
            let segment = ack(1, 3001).sack(&rig, &[(1, 1), (left, right)]);
            assert_eq!(rig.push(segment), [], "{left}:{right}");
        }
    }
    let info = rig.info();
    assert_eq!((info.sacked, info.lost), (0, 0));
    assert_eq!((info.cwnd, info.unsent), (cwnd, unsent));
    assert_eq!(rig.engine.counters().fast_retrans, 0);
}

#[test]
fn rfc6675_section_5_1_after_a_timeout_sacked_data_is_not_retransmitted() {
    let mut rig = Rig::established_sack();
    rig.write(10_000);
    let block = ack(1, 1).sack(&rig, &[(2001, 4001)]);
    rig.push(block);
    while rig.engine.counters().timeouts == 0 {
        rig.wait_ms(10);
    }
    // The application has no unsent data, so the engine ends F-RTO (the detection of a spurious
    // timeout) and uses conventional recovery (RFC 5682 §3.1).
    let mut again = Vec::new();
    let mut una = 1001;
    while una < 10_001 {
        let sent = rig.push(ack(1, una));
        again.extend(sent.iter().filter(|out| out.seq < 10_001).copied());
        una = if una == 2001 { 4001 } else { una + 1000 };
    }
    let sacked = again.iter().filter(|out| (2001..4001).contains(&out.seq));
    assert_eq!(sacked.count(), 0, "{:?}", spans(&again));
    assert!(
        again.iter().any(|out| out.seq == 1001),
        "{:?}",
        spans(&again)
    );
}
