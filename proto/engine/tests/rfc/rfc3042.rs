//! Tests of limited transmit (RFC 3042). A rig is one TCP engine, with the test as its peer.

use tidelane_engine::SocketOptions;

use crate::rig::{Rig, ack, spans};

#[test]
fn section_2_two_duplicates_send_new_segments_and_the_third_retransmits() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.write(20_000);
    rig.wait_ms(10);
    assert_eq!(spans(&rig.push(ack(1, 1))), [(10_001, 1000)]);
    assert_eq!(spans(&rig.push(ack(1, 1))), [(11_001, 1000)]);
    let third = rig.push(ack(1, 1));
    assert_eq!(third[0].seq, 1);
    // ssthresh is 0.7 times a cwnd of ten segments: limited transmit has not enlarged cwnd.
    assert_eq!(rig.info().ssthresh, 7000);
}

#[test]
fn section_2_with_sack_each_new_block_sends_a_new_segment() {
    let mut rig = Rig::established_sack();
    rig.write(20_000);
    rig.wait_ms(10);
    let one = ack(1, 1).sack(&rig, &[(1001, 2001)]);
    assert_eq!(spans(&rig.push(one)), [(10_001, 1000)]);
    // A repeated SACK block carries no new information.
    assert_eq!(rig.push(one), []);
    let two = ack(1, 1).sack(&rig, &[(1001, 3001)]);
    assert_eq!(spans(&rig.push(two)), [(11_001, 1000)]);
}

#[test]
fn section_2_not_beyond_the_peers_window() {
    let mut rig = Rig::established_sack();
    rig.write(20_000);
    let full = ack(1, 1001).wnd(9_000);
    rig.push(full);
    let dup = ack(1, 1001).wnd(9_000).sack(&rig, &[(2001, 3001)]);
    assert_eq!(rig.push(dup), []);
}
