//! Tests of the model's sender: slow start, recovery, timeouts and undo.

use super::*;

/// Round-trip time in microseconds.
const RTT: u64 = 20_000;

fn settings() -> Settings {
    Settings {
        hz: 1000,
        mss: 1448,
        window: 10_000,
    }
}

/// Returns an ACK for the segments below number `ack`. The ACK echoes the timestamp of a segment
/// that was sent at time `at` in microseconds. `blocks` has the SACK blocks, in segments.
fn ack(ack: u64, at: u64, blocks: &[(u64, u64)]) -> Ack {
    let mut all = [(0, 0); 3];
    all[..blocks.len()].copy_from_slice(blocks);
    Ack {
        ack,
        tsecr: at / 1000,
        blocks: all,
    }
}

fn numbers(sent: Vec<Data>) -> Vec<u64> {
    sent.into_iter().map(|data| data.seq).collect()
}

/// Returns a sender that has sent ten segments at time 0.
fn ten() -> Sender {
    let mut sender = Sender::new(settings(), 0, RTT);
    assert_eq!(numbers(sender.take_segments()), (0..10).collect::<Vec<_>>());
    sender
}

#[test]
fn slow_start_sends_two_segments_for_each_acked_one() {
    let mut sender = ten();
    sender.on_ack(RTT, &ack(1, 0, &[]));
    assert_eq!(
        (numbers(sender.take_segments()), sender.cwnd()),
        (vec![10, 11], 11)
    );
    sender.on_ack(RTT, &ack(3, 0, &[]));
    assert_eq!(
        (numbers(sender.take_segments()), sender.cwnd()),
        (vec![12, 13, 14, 15], 13)
    );
}

#[test]
fn super_frames_are_half_a_window_and_wait_until_a_third_is_free() {
    let mut sender = Sender::new(settings(), 0, 400);
    let ends = |sent: Vec<Data>| sent.iter().map(|data| data.push).collect::<Vec<_>>();
    let five = [false, false, false, false, true];
    assert_eq!(ends(sender.take_segments()), [five, five].concat());
    sender.cubic.ssthresh = 10;
    for free in [1, 3] {
        sender.on_ack(400 + free, &ack(free, 0, &[]));
        assert_eq!(
            numbers(sender.take_segments()),
            [],
            "sent although less than a third is free"
        );
    }
    sender.on_ack(410, &ack(4, 0, &[]));
    assert_eq!(ends(sender.take_segments()), five[1..]);
    // At 430, the first segment in flight is only 20 us old. No ACK is expected soon, so the sender
    // does not wait for a longer super-frame.
    sender.on_ack(420, &ack(10, 0, &[]));
    sender.take_segments();
    sender.on_ack(430, &ack(11, 0, &[]));
    assert_eq!(ends(sender.take_segments()), [false]);
}

#[test]
fn three_dup_acks_begin_recovery_with_proportional_rate_reduction() {
    let mut sender = ten();
    for n in 2..=3 {
        sender.on_ack(RTT, &ack(0, 0, &[(1, n)]));
        assert_eq!(sender.ca_state, CaState::Disorder);
        assert_eq!(sender.counters().retrans_segs, 0);
    }
    // Limited transmit sends segment 10. Segment 11 is deferred, because segment 10 was sent just
    // before.
    assert_eq!(numbers(sender.take_segments()), [10]);
    sender.on_ack(RTT + 10, &ack(0, 0, &[(1, 4)]));
    assert_eq!(
        (sender.ca_state, sender.cubic.ssthresh),
        (CaState::Recovery, 7)
    );
    let mut sent = numbers(sender.take_segments());
    assert_eq!(sent, [0]);
    for n in 5..=10 {
        sender.on_ack(RTT + 20, &ack(0, 0, &[(1, n)]));
        sent.extend(numbers(sender.take_segments()));
    }
    // Seven segments are in flight: the retransmission of 0, segment 10, and five new segments.
    assert_eq!(sender.scoreboard.in_flight(), 7);
    assert_eq!(sent, [0, 11, 12, 13, 14, 15]);
    sender.on_ack(2 * RTT, &ack(12, RTT, &[]));
    sender.on_ack(2 * RTT, &ack(16, RTT, &[]));
    assert_eq!(
        (sender.ca_state, sender.counters().fast_retrans),
        (CaState::Open, 1)
    );
    assert!((7..=8).contains(&sender.cwnd()), "{}", sender.cwnd());
}

#[test]
fn a_silent_tail_is_probed_after_two_round_trips_and_then_times_out() {
    let mut sender = ten();
    let probe = sender.deadline().expect("armed");
    // The probe is due after two round trips, 2 ms, and a tick.
    assert_eq!(probe, 43_000);
    sender.on_timer(probe);
    assert_eq!(
        (
            numbers(sender.take_segments()),
            sender.counters().loss_probes
        ),
        (vec![10], 1)
    );
    let timeout = sender.deadline().expect("armed");
    // The timeout is due after SRTT, 200 ms, and a tick, counted from the probe.
    assert_eq!(timeout, probe + 221_000);
    sender.on_timer(timeout);
    assert_eq!(numbers(sender.take_segments()), [0]);
    assert_eq!(
        (sender.ca_state, sender.cwnd(), sender.cubic.ssthresh),
        (CaState::Loss, 1, 7)
    );
    let again = sender.deadline().expect("armed");
    assert_eq!(
        again,
        timeout + 441_000,
        "the sender did not double the timeout"
    );
    // F-RTO first sends new segments. The SACK of a new segment does not show that the timeout was
    // spurious, so the sender then retransmits segment 1.
    sender.on_ack(timeout + RTT, &ack(1, timeout, &[]));
    assert_eq!(
        numbers(sender.take_segments()),
        [11, 12],
        "F-RTO did not send two new segments"
    );
    sender.on_ack(timeout + 2 * RTT, &ack(1, timeout, &[(11, 12)]));
    assert_eq!((sender.frto, sender.ca_state), (false, CaState::Loss));
    assert_eq!(numbers(sender.take_segments())[0], 1);
}

#[test]
fn a_timeout_is_undone_when_the_original_transmission_arrives() {
    let mut sender = ten();
    sender.on_timer(43_000);
    let timeout = sender.deadline().expect("armed");
    sender.on_timer(timeout);
    sender.take_segments();
    // The ACK echoes the timestamp of the original transmission.
    sender.on_ack(timeout + 1_000, &ack(2, 0, &[]));
    assert_eq!(
        (sender.ca_state, sender.scoreboard.lost),
        (CaState::Open, 0)
    );
    assert!(sender.cwnd() >= 10, "{}", sender.cwnd());
    assert_eq!(sender.counters().undone, 1);
}

#[test]
fn a_reduction_is_undone_when_a_dsack_reports_its_retransmission() {
    let mut sender = ten();
    for n in 2..=4 {
        sender.on_ack(RTT, &ack(0, 0, &[(1, n)]));
    }
    assert_eq!(sender.ca_state, CaState::Recovery);
    // Segment 0 was only reordered. The DSACK reports that its retransmission has arrived, too.
    sender.on_ack(RTT + 2_000, &ack(4, RTT + 1_000, &[]));
    sender.on_ack(RTT + 3_000, &ack(4, RTT + 1_000, &[(0, 1)]));
    assert_eq!(
        (sender.ca_state, sender.cubic.ssthresh > 7),
        (CaState::Open, true)
    );
    assert_eq!(sender.counters().undone, 1);
}

#[test]
fn a_single_sack_waits_for_the_reordering_timer() {
    let mut sender = ten();
    sender.on_ack(RTT, &ack(8, 0, &[]));
    sender.take_segments();
    sender.on_ack(RTT + 1, &ack(8, 0, &[(9, 10)]));
    assert_eq!(sender.ca_state, CaState::Disorder);
    let due = sender.deadline().expect("armed");
    // The timer is due after a quarter of a round trip, 2 ms, and a tick.
    assert_eq!(due, 28_000);
    sender.on_timer(due);
    assert_eq!(
        (sender.ca_state, numbers(sender.take_segments())),
        (CaState::Recovery, vec![8])
    );
}
