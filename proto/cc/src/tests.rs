//! Tests of three things: the windows of NewReno, CUBIC and DCTCP; HyStart, which ends slow start
//! early; and the change between algorithms. The expected curves of CUBIC follow from the formulas
//! of RFC 9438, in floating point. `bbr/tests.rs` tests the windows of BBR.

extern crate std;

use std::{string::ToString, vec::Vec};

use proptest::prelude::*;

use crate::*;

const SMSS: u32 = 1_448;
/// Algorithms that compute cwnd without delivery rates.
const WINDOWED: [Algorithm; 3] = [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp];
const MS_100: Duration = Duration::from_millis(100);

fn controller(algorithm: Algorithm) -> Controller {
    Controller::new(algorithm, SMSS, 10)
}

/// Acknowledges a whole cwnd in one RTT, by one ACK per two segments.
fn round_trip(controller: &mut Controller, now: &mut Instant, rtt: Duration) {
    let mut left = controller.cwnd();
    let acks = left.div_ceil(2 * SMSS);
    for _ in 0..acks {
        let acked = left.min(2 * SMSS);
        left -= acked;
        *now += rtt / acks;
        controller.on_ack(*now, acked, rtt, true);
    }
}

fn segments(bytes: u32) -> f64 {
    f64::from(bytes) / f64::from(SMSS)
}

#[test]
fn initial_window_is_that_of_rfc_6928() {
    for (smss, segments, expected) in [
        (1448, 10, 14_480),
        (1460, 10, 14_600),
        (536, 10, 5_360),
        (8960, 10, 17_920),
        (9000, 1, 9_000),
        (1448, 3, 4_344),
    ] {
        let controller = Controller::new(Algorithm::Cubic, smss, segments);
        assert_eq!(controller.cwnd(), expected, "{smss} {segments}");
        assert_eq!(
            (controller.ssthresh(), controller.in_slow_start()),
            (u32::MAX, true)
        );
    }
}

#[test]
fn slow_start_doubles_per_round_trip() {
    for algorithm in WINDOWED {
        let mut controller = controller(algorithm);
        let mut now = Instant::ZERO;
        for round in 1..8 {
            round_trip(&mut controller, &mut now, MS_100);
            assert_eq!(controller.cwnd(), (10 * SMSS) << round);
        }
        // One ACK for a whole window has the same effect as one ACK per two segments.
        let before = controller.cwnd();
        controller.on_ack(now, before, MS_100, true);
        assert_eq!(controller.cwnd(), 2 * before);
    }
}

#[test]
fn cwnd_does_not_grow_unless_it_limits_the_sender() {
    for algorithm in WINDOWED {
        let mut controller = controller(algorithm);
        for n in 0..100 {
            controller.on_ack(Instant::from_secs(n), SMSS, MS_100, false);
        }
        assert_eq!(controller.cwnd(), 10 * SMSS);
        let ssthresh = controller.on_congestion_signal(Instant::from_secs(100), 10 * SMSS);
        for n in 101..200 {
            controller.on_ack(Instant::from_secs(n), SMSS, MS_100, false);
        }
        assert_eq!(controller.cwnd(), ssthresh);
    }
}

#[test]
fn newreno_halves_and_then_adds_a_segment_per_round_trip() {
    let mut controller = controller(Algorithm::NewReno);
    let mut now = Instant::ZERO;
    round_trip(&mut controller, &mut now, MS_100);
    assert_eq!(controller.on_congestion_signal(now, 20 * SMSS), 10 * SMSS);
    assert_eq!(
        (controller.cwnd(), controller.in_slow_start()),
        (10 * SMSS, false)
    );
    controller.on_recovery_exit(now);
    for round in 1..50u32 {
        round_trip(&mut controller, &mut now, MS_100);
        assert!((segments(controller.cwnd()) - f64::from(10 + round)).abs() <= 1.0);
    }
    // ssthresh is at least two segments (RFC 5681 §3.1 equation 4).
    assert_eq!(controller.on_congestion_signal(now, SMSS), 2 * SMSS);
}

#[test]
fn a_timeout_restarts_slow_start_and_a_second_timeout_keeps_ssthresh() {
    for (algorithm, factor) in [(Algorithm::NewReno, 5), (Algorithm::Cubic, 7)] {
        let mut controller = controller(algorithm);
        let mut now = Instant::ZERO;
        round_trip(&mut controller, &mut now, MS_100);
        let ssthresh = 20 * SMSS * factor / 10;
        assert_eq!(controller.on_rto(now, 20 * SMSS), ssthresh);
        assert_eq!(controller.cwnd(), SMSS);
        assert_eq!(controller.on_rto(now, 20 * SMSS), ssthresh);
        assert_eq!(controller.on_rto(now, SMSS), ssthresh);
        // After an RTO, each ACK in slow start grows cwnd by at most one segment (RFC 3465 §2.3).
        controller.on_ack(now, 4 * SMSS, MS_100, true);
        assert_eq!(controller.cwnd(), 2 * SMSS);
        while controller.in_slow_start() {
            controller.on_ack(now, SMSS, MS_100, true);
        }
        assert_eq!(controller.cwnd(), ssthresh);
        // In congestion avoidance, an ACK grows cwnd by less than a segment.
        let before = controller.cwnd();
        controller.on_ack(now, 2 * SMSS, MS_100, true);
        assert!(controller.cwnd() - before < SMSS);
        // An RTO after an ACK of new data is a new congestion event. NewReno computes ssthresh from
        // FlightSize. CUBIC computes ssthresh from cwnd, which is larger than FlightSize here.
        let full = match algorithm {
            Algorithm::Cubic => controller.cwnd(),
            _ => 6 * SMSS,
        };
        assert_eq!(controller.on_rto(now, 6 * SMSS), full * factor / 10);
    }
}

/// After an RTO, CUBIC computes ssthresh from the larger of cwnd and FlightSize.
#[test]
fn cubic_after_a_timeout_reduces_cwnd_and_not_flight_size() {
    let mut small = controller(Algorithm::Cubic);
    let mut repairing = small.clone();
    assert_eq!(small.on_rto(Instant::ZERO, SMSS), 7 * SMSS);
    // Fast recovery has already reduced cwnd to seven segments, so ssthresh after the RTO is
    // computed from FlightSize, which is ten segments.
    repairing.on_congestion_signal(Instant::ZERO, 10 * SMSS);
    assert_eq!(repairing.on_rto(Instant::ZERO, 10 * SMSS), 7 * SMSS);
}

#[test]
fn idle_restart_falls_back_to_the_initial_window() {
    for algorithm in WINDOWED {
        let mut controller = controller(algorithm);
        let mut now = Instant::ZERO;
        round_trip(&mut controller, &mut now, MS_100);
        round_trip(&mut controller, &mut now, MS_100);
        controller.on_idle_restart(now + Duration::from_secs(10), 40);
        assert_eq!(controller.cwnd(), 10 * SMSS);
        controller.on_rto(now, 10 * SMSS);
        controller.on_idle_restart(now + Duration::from_secs(20), 40);
        assert_eq!(controller.cwnd(), SMSS);
    }
}

#[test]
fn segment_size_may_become_known_late_or_shrink() {
    let mut controller = controller(Algorithm::Cubic);
    controller.set_smss(536);
    assert_eq!(controller.cwnd(), 5_360);
    controller.on_handshake_retransmit();
    assert_eq!(controller.cwnd(), 536);
    controller.set_smss(1_000);
    assert_eq!(controller.cwnd(), 1_000);
}

/// Returns `W_cubic` of RFC 9438 §4.2 at `t` seconds after the start of the epoch. The result,
/// `w_max` and `cwnd_epoch` are in segments.
fn w_cubic(t: f64, w_max: f64, cwnd_epoch: f64) -> f64 {
    let k = ((w_max - cwnd_epoch) / 0.4).cbrt();
    0.4 * (t - k).powi(3) + w_max
}

/// Returns a CUBIC controller that has grown cwnd to `w_max` segments in slow start, has reduced
/// cwnd after a loss, and has left the recovery.
fn cubic_after_loss(w_max: u32, now: &mut Instant, rtt: Duration) -> Controller {
    let mut controller = controller(Algorithm::Cubic);
    while controller.cwnd() < w_max * SMSS {
        controller.on_ack(*now, SMSS, rtt, true);
    }
    assert_eq!(controller.cwnd(), w_max * SMSS);
    assert_eq!(
        controller.on_congestion_signal(*now, w_max * SMSS),
        w_max * SMSS * 7 / 10
    );
    controller.on_recovery_exit(*now);
    controller
}

#[test]
fn cubic_follows_the_curve_of_the_rfc() {
    for w_max in [100, 1_000, 10_000] {
        let mut now = Instant::from_secs(1);
        let mut controller = cubic_after_loss(w_max, &mut now, MS_100);
        // The congestion avoidance epoch starts with the first ACK.
        controller.on_ack(now, SMSS, MS_100, true);
        let start = now;
        let (w_max, epoch) = (f64::from(w_max), f64::from(w_max) * 0.7);
        let k = ((w_max - epoch) / 0.4).cbrt();
        let mut rounds = 0;
        let mut w_est = epoch;
        while (now - start).as_millis() as f64 / 1e3 < 1.7 * k {
            round_trip(&mut controller, &mut now, MS_100);
            let t = (now - start).as_nanos() as f64 / 1e9;
            w_est += if w_est < w_max { 9.0 / 17.0 } else { 1.0 };
            let expected = w_cubic(t, w_max, epoch).max(w_est);
            let got = segments(controller.cwnd());
            let error = (got - expected).abs();
            assert!(
                error <= 1.0 + expected * 0.01,
                "W_max {w_max}, t {t}: {got} not {expected}"
            );
            rounds += 1;
        }
        assert!(rounds > 60);
    }
}

/// Checks cwnd at 0, 1, ... 8 s after a loss at a cwnd of 100 segments, with an RTT of 100 ms. cwnd
/// reaches W_max at K = 4.2 s. From 7 s on, cwnd follows W_est, which is larger than W_cubic.
#[test]
fn cubic_snapshot() {
    let mut now = Instant::ZERO;
    let mut controller = cubic_after_loss(100, &mut now, MS_100);
    let mut curve = Vec::new();
    for _ in 0..9 {
        curve.push((segments(controller.cwnd()) * 10.0) as u32);
        for _ in 0..10 {
            round_trip(&mut controller, &mut now, MS_100);
        }
    }
    assert_eq!(curve, CUBIC_SNAPSHOT);
}

/// Expected cwnd at each second, in tenths of a segment.
const CUBIC_SNAPSHOT: [u32; 9] = [700, 866, 956, 992, 999, 1001, 1022, 1120, 1220];

/// With a short RTT, cwnd follows W_est, the window of Reno with beta = 0.7 (RFC 9438 §4.3). W_est
/// grows by 9/17 of a segment per RTT until W_est reaches the cwnd before the loss, and then by one
/// segment per RTT.
#[test]
fn cubic_is_at_least_reno() {
    let rtt = Duration::from_millis(5);
    let mut now = Instant::ZERO;
    let mut controller = cubic_after_loss(40, &mut now, rtt);
    let mut w_est = 28.0;
    for _ in 0..60 {
        round_trip(&mut controller, &mut now, rtt);
        w_est += if w_est < 40.0 { 9.0 / 17.0 } else { 1.0 };
        let got = segments(controller.cwnd());
        assert!((got - w_est).abs() <= 1.5, "{got} not {w_est}");
    }
    assert!(w_est > 70.0);
}

#[test]
fn cubic_lowers_w_max_after_a_second_loss() {
    let mut now = Instant::ZERO;
    let mut controller = cubic_after_loss(100, &mut now, MS_100);
    // The second loss is at 70 segments, below W_max = 100. Fast convergence sets the next W_max to
    // 0.85 * 70 (RFC 9438 §4.7).
    controller.on_congestion_signal(now, controller.cwnd());
    controller.on_recovery_exit(now);
    assert!(segments(controller.cwnd()).round() == 49.0);
    let Controller::Cubic(cubic) = controller else {
        unreachable!()
    };
    assert!((segments(cubic.w_max()) - 59.5).abs() < 0.01);
}

#[test]
fn cubic_does_not_count_pauses() {
    let mut now = Instant::ZERO;
    let mut busy = cubic_after_loss(100, &mut now, MS_100);
    for _ in 0..10 {
        round_trip(&mut busy, &mut now, MS_100);
    }
    let mut paused = busy.clone();
    let mut later = now;
    for n in 0..50 {
        later += MS_100;
        // The flow is idle in odd rounds, and sends less than cwnd in even rounds.
        if n % 2 == 0 {
            paused.on_ack(later, SMSS, MS_100, false);
        }
    }
    paused.on_ack(later, SMSS, MS_100, false);
    assert_eq!(paused.cwnd(), busy.cwnd());
    for _ in 0..20 {
        round_trip(&mut busy, &mut now, MS_100);
        round_trip(&mut paused, &mut later, MS_100);
        let difference = segments(paused.cwnd()) - segments(busy.cwnd());
        assert!(difference.abs() < 1.0, "{difference}");
    }
}

/// In the first epoch after an RTO, W_max is cwnd at the start of the epoch (RFC 9438 §4.8). K is
/// therefore zero, and cwnd grows in the convex region.
#[test]
fn cubic_after_a_timeout_is_convex_at_once() {
    let mut now = Instant::ZERO;
    let mut controller = cubic_after_loss(1_000, &mut now, MS_100);
    controller.on_rto(now, 700 * SMSS);
    while controller.in_slow_start() {
        controller.on_ack(now, SMSS, MS_100, true);
    }
    controller.on_ack(now, SMSS, MS_100, true);
    let start = now;
    while now - start < Duration::from_secs(8) {
        round_trip(&mut controller, &mut now, MS_100);
        let t = (now - start).as_nanos() as f64 / 1e9;
        let expected = 490.0 + 0.4 * t.powi(3);
        let got = segments(controller.cwnd());
        // In the first seconds, W_est is larger than W_cubic.
        assert!(
            got >= expected - 5.0 && got <= expected.max(490.0 + t * 10.0) + 5.0,
            "{t}: {got}"
        );
    }
}

#[test]
fn algorithms_have_the_names_of_tcp_congestion() {
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
        assert_eq!(controller(algorithm).algorithm(), algorithm);
    }
    assert_eq!(Algorithm::from_name("vegas"), None);
    assert_eq!(Algorithm::default().to_string(), "cubic");
}

/// A call of one method of the controller. Sizes are in bytes.
#[derive(Clone, Debug)]
enum Hook {
    /// `on_ack` with the acknowledged bytes and `cwnd_limited`.
    Ack(u32, bool),
    /// `on_congestion_signal` with FlightSize.
    Signal(u32),
    /// `on_recovery_exit`.
    Exit,
    /// `on_rto` with FlightSize.
    Rto(u32),
    /// `on_idle_restart`.
    Idle,
    /// `set_smss` with the segment size.
    Smss(u32),
}

/// Generates a call of one hook of the controller.
fn hook() -> impl Strategy<Value = Hook> {
    prop_oneof![
        8 => (1u32..1 << 30, 0u32..30, any::<bool>()).prop_map(|(n, s, l)| Hook::Ack(n >> s, l)),
        1 => any::<u32>().prop_map(Hook::Signal),
        1 => Just(Hook::Exit),
        1 => any::<u32>().prop_map(Hook::Rto),
        1 => Just(Hook::Idle),
        1 => any::<u32>().prop_map(Hook::Smss),
    ]
}

proptest! {
    /// A random sequence of calls of [`Hook`] at random times keeps cwnd between one segment and
    /// 2^30 bytes. The algorithm is CUBIC or NewReno.
    #[test]
    fn any_sequence_keeps_the_bounds(
        cubic: bool,
        smss: u32,
        hooks in prop::collection::vec((hook(), 0u32..50, any::<u64>(), any::<u64>()), 0..200),
    ) {
        let algorithm = if cubic { Algorithm::Cubic } else { Algorithm::NewReno };
        let mut controller = Controller::new(algorithm, smss, 10);
        let mut now = Instant::ZERO;
        for (hook, shift, step, srtt) in hooks {
            now += Duration(step >> (14 + shift));
            match hook {
                Hook::Ack(acked, limited) => {
                    let before = controller.cwnd();
                    controller.on_ack(now, acked, Duration(srtt >> shift), limited);
                    prop_assert!(controller.cwnd() >= before);
                    prop_assert!(limited || controller.cwnd() == before);
                }
                Hook::Signal(flight) => {
                    let before = controller.cwnd().max(2 * controller.window().smss());
                    prop_assert_eq!(
                        controller.on_congestion_signal(now, flight),
                        controller.ssthresh()
                    );
                    prop_assert!(controller.cwnd() <= before);
                }
                Hook::Exit => controller.on_recovery_exit(now),
                Hook::Rto(flight) => {
                    controller.on_rto(now, flight);
                    prop_assert_eq!(controller.cwnd(), controller.window().smss());
                }
                Hook::Idle => controller.on_idle_restart(now, 3),
                Hook::Smss(smss) => controller.set_smss(smss),
            }
            prop_assert!(controller.cwnd() >= controller.window().smss());
            prop_assert!(controller.cwnd() <= 1 << 30);
        }
    }
}

/// Acknowledges one window of 20 segments by ten ACKs. The ACKs have the indexes 0 to 9. The ACK
/// with index `n` carries ECE if `marked(n)` is true.
fn dctcp_window(dctcp: &mut Controller, una: &mut u32, marked: impl Fn(u32) -> bool) {
    let snd_nxt = una.wrapping_add(20 * SMSS);
    for number in 0..10 {
        let prior_una = *una;
        *una = una.wrapping_add(2 * SMSS);
        dctcp.on_ecn_feedback(&EcnFeedback {
            prior_una,
            una: *una,
            snd_nxt: snd_nxt.wrapping_add(2 * SMSS * (number + 1)),
            marked: marked(number),
        });
    }
}

/// A program may change the algorithm after an RTO that later proves to be spurious. The undo of
/// the reduction then restores the window, but not the first algorithm.
#[test]
fn an_undo_restores_the_window_and_keeps_the_new_algorithm() {
    let now = Instant::from_secs(1);
    for (first, second) in [
        (Algorithm::Cubic, Algorithm::NewReno),
        (Algorithm::NewReno, Algorithm::Cubic),
        (Algorithm::Bbr, Algorithm::Cubic),
        (Algorithm::Cubic, Algorithm::Bbr),
    ] {
        let mut controller = controller(first);
        let before = controller.clone();
        controller.on_rto(now, 10 * SMSS);
        controller.switch_to(second);
        controller.undo(&before);
        assert_eq!(controller.algorithm(), second);
        assert_eq!(controller.cwnd(), before.cwnd(), "{first:?} {second:?}");
        // BBR has no slow start threshold.
        if second != Algorithm::Bbr {
            assert_eq!(controller.ssthresh(), before.ssthresh(), "{first:?}");
        }
    }
}

/// Returns alpha of DCTCP, the estimated fraction of marked bytes, between 0 and 1.
fn alpha(controller: &Controller) -> f64 {
    match controller {
        Controller::Dctcp(dctcp) => f64::from(dctcp.alpha()) / 1024.0,
        _ => panic!("not DCTCP"),
    }
}

#[test]
fn dctcp_alpha_follows_the_marked_fraction() {
    let mut dctcp = controller(Algorithm::Dctcp);
    let mut una = 0xffff_0000;
    assert!((alpha(&dctcp) - 1.0).abs() < 1e-9, "RFC 8257 §4.2");
    for _ in 0..100 {
        dctcp_window(&mut dctcp, &mut una, |number| number < 3);
    }
    assert!((alpha(&dctcp) - 0.3).abs() < 0.05, "{}", alpha(&dctcp));
    for _ in 0..200 {
        dctcp_window(&mut dctcp, &mut una, |_| false);
    }
    assert!(alpha(&dctcp) < 0.02, "{}", alpha(&dctcp));
}

#[test]
fn dctcp_shrinks_by_half_of_alpha_and_halves_on_loss() {
    let mut dctcp = controller(Algorithm::Dctcp);
    let mut una = 0;
    for _ in 0..100 {
        dctcp_window(&mut dctcp, &mut una, |number| number < 2);
    }
    let before = f64::from(dctcp.cwnd());
    let expected = before * (1.0 - alpha(&dctcp) / 2.0);
    dctcp.on_ecn_echo(Instant::ZERO, dctcp.cwnd());
    assert!((f64::from(dctcp.cwnd()) - expected).abs() < 2.0);
    let before = dctcp.cwnd();
    dctcp.on_congestion_signal(Instant::ZERO, before);
    assert_eq!(dctcp.cwnd(), before / 2);
}

#[test]
fn a_pause_halves_the_window_per_rto() {
    for algorithm in WINDOWED {
        let mut controller = controller(algorithm);
        let mut now = Instant::ZERO;
        for _ in 0..3 {
            round_trip(&mut controller, &mut now, MS_100);
        }
        assert_eq!(controller.cwnd(), 80 * SMSS);
        controller.on_idle_restart(now, 2);
        assert_eq!(controller.cwnd(), 20 * SMSS);
        controller.on_idle_restart(now, 2);
        assert_eq!(controller.cwnd(), 10 * SMSS);
        controller.on_idle_restart(now, 100);
        assert_eq!(controller.cwnd(), 10 * SMSS);
    }
}

#[test]
fn another_algorithm_goes_on_with_the_window() {
    let mut controller = controller(Algorithm::Cubic);
    controller.on_congestion_signal(Instant::ZERO, controller.cwnd());
    let (cwnd, ssthresh) = (controller.cwnd(), controller.ssthresh());
    for algorithm in Algorithm::ALL {
        controller.switch_to(algorithm);
        assert_eq!(controller.algorithm(), algorithm);
        assert_eq!((controller.cwnd(), controller.ssthresh()), (cwnd, ssthresh));
    }
}

/// Returns the RTT sample of an ACK up to `una`. If the sample begins a round, the round ends at
/// `snd_nxt`.
fn sample(rtt: Duration, una: u32, snd_nxt: u32) -> RttSample {
    RttSample {
        rtt,
        srtt: rtt,
        una,
        snd_nxt,
        paced: false,
    }
}

/// Returns CUBIC in slow start with a cwnd of forty segments, after two rounds of 100 ms. The third
/// round has begun, and ends with the first ACK beyond sequence number `100 * SMSS`.
fn cubic_at_forty(now: &mut Instant) -> Controller {
    let mut controller = controller(Algorithm::Cubic);
    for round in 0..2 {
        let una = (10 << round) * SMSS;
        *now += MS_100;
        controller.on_rtt_sample(*now, &sample(MS_100, una, una + 1));
        controller.on_ack(*now, controller.cwnd(), MS_100, true);
    }
    *now += MS_100;
    let first = sample(MS_100, 30 * SMSS, 100 * SMSS);
    controller.on_rtt_sample(*now, &first);
    assert_eq!(controller.cwnd(), 40 * SMSS);
    controller
}

#[test]
fn hystart_ends_slow_start_after_an_ack_train_of_half_a_round_trip() {
    let mut now = Instant::ZERO;
    let mut train = cubic_at_forty(&mut now);
    let start = now;
    while train.in_slow_start() {
        now += Duration::from_millis(1);
        train.on_rtt_sample(now, &sample(MS_100, 31 * SMSS, 200 * SMSS));
        assert!(now - start < MS_100, "the ACK train is not detected");
    }
    // An ACK train ends slow start when the train lasts longer than a limit. The limit is half of
    // the sum of the minimum RTT (100 ms) and the time for which batch processing may hold back
    // segments (1 ms).
    assert_eq!((now - start).as_millis(), 51);
    assert_eq!(train.ssthresh(), 40 * SMSS);
    assert!(!train.wants_rtt_samples(), "HyStart still wants samples");
}

#[test]
fn hystart_takes_acks_with_gaps_for_no_train() {
    let mut now = Instant::ZERO;
    let mut controller = cubic_at_forty(&mut now);
    for _ in 0..40 {
        now += Duration::from_millis(3);
        controller.on_rtt_sample(now, &sample(MS_100, 31 * SMSS, 200 * SMSS));
    }
    assert!(controller.in_slow_start());
}

#[test]
fn hystart_lets_a_paced_train_last_a_round_trip() {
    let mut now = Instant::ZERO;
    let mut controller = cubic_at_forty(&mut now);
    let start = now;
    while controller.in_slow_start() && now - start < Duration::from_secs(1) {
        now += Duration::from_millis(1);
        let paced = true;
        let one = sample(MS_100, 31 * SMSS, 200 * SMSS);
        controller.on_rtt_sample(now, &RttSample { paced, ..one });
    }
    // For a paced flow, the limit is the whole sum: 101 ms.
    assert_eq!((now - start).as_millis(), 102);
}

#[test]
fn hystart_ends_slow_start_when_nine_samples_are_later_by_an_eighth() {
    for (rtt_ms, ends) in [(112, false), (113, true)] {
        let mut now = Instant::ZERO;
        let mut controller = cubic_at_forty(&mut now);
        for n in 0..9 {
            assert!(controller.in_slow_start(), "after {n}");
            now += Duration::from_millis(3);
            let late = sample(Duration::from_millis(rtt_ms), 101 * SMSS, 200 * SMSS);
            controller.on_rtt_sample(now, &late);
        }
        assert_eq!(controller.in_slow_start(), !ends, "{rtt_ms} ms");
    }
}

/// HyStart ends slow start if the RTT samples of a round exceed the minimum RTT by more than a
/// limit. The limit is an eighth of the minimum RTT, but at least 4 ms and at most 16 ms.
#[test]
fn hystart_bounds_the_increase() {
    for (base, late, ends) in [
        (2, 5, false),
        (2, 7, true),
        (400, 417, true),
        (400, 415, false),
    ] {
        let mut controller = controller(Algorithm::Cubic);
        let mut now = Instant::ZERO + MS_100;
        let span = Duration::from_millis;
        controller.on_rtt_sample(now, &sample(span(base), SMSS, 20 * SMSS));
        controller.on_ack(now, 10 * SMSS, span(base), true);
        for _ in 0..9 {
            now += span(3);
            controller.on_rtt_sample(now, &sample(span(late), 21 * SMSS, 99 * SMSS));
        }
        assert_eq!(controller.in_slow_start(), !ends, "{base} {late}");
    }
}

#[test]
fn hystart_looks_again_after_a_timeout_and_not_at_small_windows() {
    let mut now = Instant::ZERO;
    let mut controller = controller(Algorithm::Cubic);
    for n in 0..100u32 {
        now += Duration::from_millis(1);
        let rtt = Duration::from_millis(u64::from(10 + 10 * n));
        controller.on_rtt_sample(now, &sample(rtt, SMSS, 99 * SMSS));
    }
    assert!(controller.in_slow_start(), "HyStart acted on ten segments");
    let mut train = cubic_at_forty(&mut now);
    while train.in_slow_start() {
        now += Duration::from_millis(1);
        train.on_rtt_sample(now, &sample(MS_100, 31 * SMSS, 200 * SMSS));
    }
    train.on_rto(now, 40 * SMSS);
    assert!(train.wants_rtt_samples());
}
