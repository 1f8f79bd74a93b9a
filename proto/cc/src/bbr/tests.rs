//! Tests of BBR on a simulated path, which consists of a bottleneck and a delay.

extern crate std;

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::{Algorithm, Controller, Interval};

const SMSS: u32 = 1_000;
const RTT: Duration = Duration::from_millis(40);
/// Rate of the bottleneck in bytes per second: one segment per millisecond.
const RATE: u64 = 1_000_000;
/// Bandwidth-delay product of the path in bytes.
const BDP: u32 = 40_000;

/// A segment in flight.
struct Sent {
    /// Time at which the ACK of the segment arrives.
    arrives: Instant,
    /// Time of the transmission.
    at: Instant,
    /// `Path::delivered` and `Path::delivered_at` at the transmission.
    delivered: u64,
    delivered_at: Instant,
}

/// A BBR sender and its path. The sender sends single segments, never bursts.
struct Path {
    bbr: Bbr,
    now: Instant,
    /// Rate of the bottleneck in bytes per second.
    rate: u64,
    rtt: Duration,
    flight: VecDeque<Sent>,
    /// Time at which the last segment in the queue of the bottleneck leaves the queue.
    free_at: Instant,
    /// Time until which pacing stops the sender.
    paced_until: Instant,
    /// Number of bytes that the receiver has acknowledged.
    delivered: u64,
    /// Time of the last ACK, or the start of the simulation before the first ACK.
    delivered_at: Instant,
    /// Number of segments in flight at which the application has no more data to send; `usize::MAX`
    /// if the application always has data.
    app_flight_max: usize,
}

impl Path {
    fn new() -> Self {
        Self {
            bbr: Bbr::new(Window::new(SMSS, 10)),
            now: Instant::from_secs(1),
            rate: RATE,
            rtt: RTT,
            flight: VecDeque::new(),
            free_at: Instant::ZERO,
            paced_until: Instant::ZERO,
            delivered: 0,
            delivered_at: Instant::from_secs(1),
            app_flight_max: usize::MAX,
        }
    }

    fn in_flight(&self) -> u32 {
        self.flight.len() as u32 * SMSS
    }

    fn time_at(rate: u64) -> Duration {
        Duration::from_nanos(u64::from(SMSS) * 1_000_000_000 / rate)
    }

    fn send(&mut self) {
        let room = self.in_flight() + SMSS <= self.bbr.window().cwnd();
        if !room || self.now < self.paced_until || self.flight.len() >= self.app_flight_max {
            return;
        }
        self.paced_until = self.now + Self::time_at(self.bbr.pacing_rate().unwrap_or(1));
        self.free_at = self.free_at.max(self.now) + Self::time_at(self.rate);
        self.flight.push_back(Sent {
            arrives: self.free_at + self.rtt,
            at: self.now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
        });
    }

    fn acknowledge(&mut self) {
        let due = |sent: &Sent| sent.arrives <= self.now;
        let Some(sent) = self.flight.pop_front_if(|sent| due(sent)) else {
            return;
        };
        self.delivered += u64::from(SMSS);
        self.delivered_at = self.now;
        let sample = RateSample {
            delivered: self.delivered,
            newly_delivered: SMSS,
            lost: 0,
            prior_flight: self.in_flight() + SMSS,
            flight: self.in_flight(),
            rtt: Some(self.now - sent.at),
            srtt: RTT,
            interval: Some(Interval {
                bytes: self.delivered - sent.delivered,
                span: self.now - sent.delivered_at,
                prior_delivered: sent.delivered,
                app_limited: self.app_flight_max != usize::MAX,
            }),
        };
        self.bbr.on_delivery(self.now, &sample);
    }

    fn run(&mut self, span: Duration, mut observe: impl FnMut(&Self)) {
        let end = self.now + span;
        while self.now < end {
            self.now += Duration::from_micros(100);
            self.acknowledge();
            self.send();
            observe(self);
        }
    }
}

/// Returns true if `value` differs from `expected` by at most 5 %.
fn near(value: u64, expected: u64) -> bool {
    value.abs_diff(expected) * 20 <= expected
}

#[test]
fn bbr_finds_rate_and_round_trip_and_drains_its_queue() {
    let mut path = Path::new();
    let mut most = 0;
    path.run(Duration::from_secs(2), |path| {
        most = most.max(path.in_flight())
    });
    assert_eq!(path.bbr.mode, Mode::ProbeBw);
    assert!(near(path.bbr.bandwidth().into(), RATE), "{:?}", path.bbr);
    // The minimum RTT includes 1 ms in which the bottleneck sends the segment.
    assert_eq!(path.bbr.min_rtt().map(Duration::as_millis), Some(41));
    assert!(most > 2 * BDP, "STARTUP built no queue: {most}");
    let mut sum = 0u64;
    path.run(Duration::from_secs(4), |path| {
        sum += u64::from(path.in_flight())
    });
    // The run of 4 s has 40,000 steps of 100 us.
    let mean = sum / 40_000;
    assert!((35_000..60_000).contains(&mean), "{mean} bytes in flight");
}

#[test]
fn after_ten_seconds_bbr_measures_the_round_trip_with_four_segments() {
    let mut path = Path::new();
    path.run(Duration::from_secs(1), |_| {});
    // The path gets longer, so that the old minimum RTT does not occur again.
    path.rtt = RTT + Duration::from_millis(20);
    let mut least = u32::MAX;
    path.run(Duration::from_secs(11), |path| {
        if path.bbr.mode == Mode::ProbeRtt {
            least = least.min(path.in_flight());
        }
    });
    assert!(least <= 4 * SMSS, "{least}");
    assert_eq!(path.bbr.mode, Mode::ProbeBw);
    assert!(path.bbr.window().cwnd() > BDP);
    assert!(near(path.bbr.bandwidth().into(), RATE), "{:?}", path.bbr);
}

#[test]
fn bbr_follows_the_rate_up_and_down() {
    let mut path = Path::new();
    path.run(Duration::from_secs(2), |_| {});
    path.rate = RATE * 2;
    path.run(Duration::from_secs(3), |_| {});
    assert!(
        near(path.bbr.bandwidth().into(), RATE * 2),
        "{:?}",
        path.bbr
    );
    path.rate = RATE / 2;
    path.run(Duration::from_secs(6), |_| {});
    assert!(
        near(path.bbr.bandwidth().into(), RATE / 2),
        "{:?}",
        path.bbr
    );
}

#[test]
fn a_program_with_little_to_send_does_not_lower_the_rate() {
    let mut path = Path::new();
    path.run(Duration::from_secs(2), |_| {});
    path.app_flight_max = 4;
    path.run(Duration::from_secs(5), |_| {});
    assert!(near(path.bbr.bandwidth().into(), RATE), "{:?}", path.bbr);
}

fn delivery(newly_delivered: u32, lost: u32, flight: u32) -> RateSample {
    RateSample {
        delivered: 1 << 30,
        newly_delivered,
        lost,
        prior_flight: flight + newly_delivered + lost,
        flight,
        rtt: None,
        srtt: RTT,
        interval: None,
    }
}

#[test]
fn a_recovery_conserves_packets_and_gives_the_window_back() {
    let mut path = Path::new();
    path.run(Duration::from_secs(2), |_| {});
    let (now, mut bbr) = (path.now, path.bbr);
    let before = bbr.window().cwnd();
    bbr.on_congestion_signal(now, before);
    bbr.on_delivery(now, &delivery(SMSS, SMSS, 10 * SMSS));
    assert_eq!(bbr.window().cwnd(), 11 * SMSS);
    bbr.on_delivery(now, &delivery(SMSS, 0, 10 * SMSS));
    assert_eq!(bbr.window().cwnd(), 11 * SMSS);
    bbr.on_recovery_exit(now);
    assert_eq!(bbr.window().cwnd(), before);
    assert_eq!(bbr.pacing_rate(), path.bbr.pacing_rate());
}

#[test]
fn a_timeout_starts_with_a_segment_and_keeps_the_model() {
    let mut path = Path::new();
    path.run(Duration::from_secs(2), |_| {});
    let (now, bandwidth) = (path.now, path.bbr.bandwidth());
    let before = Controller::Bbr(path.bbr);
    let mut after = before.clone();
    after.on_rto(now, before.cwnd());
    assert_eq!(after.cwnd(), SMSS);
    let mut undone = after.clone();
    undone.undo(&before);
    assert_eq!(undone.cwnd(), before.cwnd());
    after.on_recovery_exit(now);
    assert_eq!(after.cwnd(), before.cwnd());
    let Controller::Bbr(bbr) = after else {
        unreachable!("it was BBR before")
    };
    assert_eq!(bbr.bandwidth(), bandwidth);
}

proptest! {
    /// The window stays within its bounds, and the pacing rate is positive, for any sequence of
    /// samples.
    #[test]
    fn any_deliveries_keep_the_bounds(
        samples in prop::collection::vec((any::<[u64; 4]>(), 0u32..64, 0u32..8), 1..100),
    ) {
        let mut controller = Controller::new(Algorithm::Bbr, SMSS, 10);
        let mut now = Instant::ZERO;
        let mut delivered = 0u64;
        for ([step, bytes, rtt, prior], shift, hook) in samples {
            now += Duration(step >> (10 + shift % 40));
            let newly_delivered = (bytes >> shift) as u32;
            delivered += u64::from(newly_delivered);
            match hook {
                0 => drop(controller.on_congestion_signal(now, newly_delivered)),
                1 => drop(controller.on_rto(now, newly_delivered)),
                2 => controller.on_recovery_exit(now),
                3 => controller.on_transmit_start(now, shift % 2 == 0),
                _ => {}
            }
            let interval = Interval {
                bytes: bytes >> shift,
                span: Duration(rtt >> shift),
                prior_delivered: prior % (delivered + 1),
                app_limited: shift % 3 == 0,
            };
            controller.on_delivery(now, &RateSample {
                delivered,
                newly_delivered,
                lost: (rtt >> shift) as u32,
                prior_flight: (prior >> shift) as u32,
                flight: (prior >> shift) as u32,
                rtt: (hook > 4).then_some(Duration(rtt >> shift)),
                srtt: Duration(rtt >> shift),
                interval: (hook > 3).then_some(interval),
            });
            prop_assert!(controller.cwnd() >= SMSS && controller.cwnd() <= 1 << 30);
            prop_assert!(controller.pacing_rate().is_some_and(|rate| rate > 0));
        }
    }
}
