//! Tests of proportional rate reduction (RFC 6937). A rig is one TCP engine, with the test as its
//! peer.

use crate::rig::{Out, Rig, ack};

/// Returns a rig whose connection has twenty segments in flight, and unsent data. The first `holes`
/// segments of the flight are lost. The peer receives the other segments one by one, and answers
/// each by a SACK. Also returns the segments that each SACK elicits.
fn recovery(holes: u32) -> (Rig, Vec<Vec<Out>>) {
    let mut rig = Rig::established_sack();
    rig.write(10_000);
    for number in 1..=10 {
        rig.write(2_000);
        rig.push(ack(1, number * 1000 + 1));
    }
    rig.write(40_000);
    assert_eq!(rig.info().flight_size, 20_000);
    rig.wait_ms(10);
    let una = 10_001;
    let first = una + holes * 1000;
    let replies = (1..=20 - holes)
        .map(|number| {
            let block = (first, first + number * 1000);
            let segment = ack(1, una).sack(&rig, &[block]);
            rig.push(segment)
        })
        .collect();
    (rig, replies)
}

#[test]
fn section_3_1_cwnd_is_reduced_in_proportion_to_deliveries() {
    let (mut rig, replies) = recovery(1);
    // The first two SACKs elicit new segments (limited transmit), and the third SACK elicits the
    // fast retransmission.
    assert_eq!(replies[2][0].seq, 10_001);
    let in_recovery = &replies[2..];
    let sent: usize = in_recovery.iter().map(Vec::len).sum();
    // CUBIC's beta is 0.7 (RFC 9438): seven segments are sent per ten delivered segments. In
    // recovery, 17 segments are delivered.
    assert!((11..=13).contains(&sent), "{sent}");
    assert!(
        in_recovery.iter().all(|reply| reply.len() <= 1),
        "a SACK elicited a burst"
    );
    // At most two consecutive SACKs elicit no segment.
    let silent = in_recovery
        .windows(3)
        .filter(|w| w.iter().all(Vec::is_empty));
    assert_eq!(silent.count(), 0);
    let end = 30_001 + 2_000 + 1000 * sent as u32 - 1_000;
    let flight = rig.info().flight_size;
    rig.push(ack(1, 10_001 + flight));
    assert_eq!(rig.info().cwnd, rig.info().ssthresh, "{end}");
}

#[test]
fn section_3_1_with_heavy_losses_packets_are_conserved() {
    let (_, replies) = recovery(12);
    let after: Vec<usize> = replies[3..].iter().map(Vec::len).collect();
    // Without the lost segments, less than ssthresh is in flight. Each delivered segment therefore
    // elicits one segment, and the lost segments are not retransmitted in one burst.
    assert!(after.iter().all(|count| *count == 1), "{after:?}");
}
