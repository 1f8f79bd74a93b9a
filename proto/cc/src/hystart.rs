//! HyStart: slow start ends before it overflows a queue (RFC 9438 §4.10 leaves the way open).
//!
//! This is the one of Linux' CUBIC, so that a path sees the same sender: once per round trip, from
//! sixteen segments on, slow start ends where the window stands
//!
//! * when acknowledgments that follow each other closely have come for half of the least round-trip
//!   time: what was sent fills the path (ACK train); or
//! * when the least of more than eight round-trip samples of a round exceeds the least of all by an
//!   eighth, bounded by 4 and 16 ms: a queue is building (delay increase).
//!
//! The other one, RFC 9406, has no ACK train and goes on at a quarter of the pace.

use tidelane_time::{Duration, Instant};

use crate::{RttSample, Window};

/// Segments of window from which on it looks: a smaller one overflows nothing.
const WINDOW_MIN: u32 = 16;
/// Samples of a round before its least one counts.
const SAMPLES_MIN: u8 = 8;
/// Acknowledgments no further apart are of one train.
const TRAIN_GAP: Duration = Duration::from_millis(2);
/// Bounds of the delay increase that tells of a queue.
const INCREASE: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(16));
/// What a sender and a receiver that work in batches hold back, in bytes; and for how long at most.
const BATCHED_BYTES: u64 = 4 * 65_536;
/// See above.
const BATCH_DELAY_MAX: Duration = Duration::from_millis(1);
/// A span that no round trip reaches.
const NEVER: u32 = u32::MAX;

/// What it remembers, times in microseconds (of the clock modulo 2^32).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HyStart {
    round_start: u32,
    last_ack: u32,
    /// The round ends when more than this is acknowledged.
    round_end: u32,
    /// Least sample of the round.
    round_min: u32,
    /// Least sample of all.
    delay_min: u32,
    /// Samples of the round, up to [`SAMPLES_MIN`].
    samples: u8,
    /// The fields of the round hold.
    begun: bool,
    /// Slow start was ended.
    found: bool,
}

fn to_us(span: Duration) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(NEVER)
}

impl HyStart {
    pub(crate) const fn new() -> Self {
        Self {
            round_start: 0,
            last_ack: 0,
            round_end: 0,
            round_min: NEVER,
            delay_min: NEVER,
            samples: 0,
            begun: false,
            found: false,
        }
    }

    /// Whether samples may still end slow start.
    pub(crate) const fn is_looking(&self) -> bool {
        !self.found
    }

    /// One more round-trip sample. Whether slow start should end now.
    pub(crate) fn on_sample(&mut self, now: Instant, sample: &RttSample, window: &Window) -> bool {
        let rtt = to_us(sample.rtt).max(1);
        self.delay_min = self.delay_min.min(rtt);
        if self.found || !window.in_slow_start() {
            return false;
        }
        let now_us = now.as_micros() as u32;
        let over = (sample.una.wrapping_sub(self.round_end) as i32) > 0;
        if over || !self.begun {
            self.begun = true;
            (self.round_start, self.last_ack) = (now_us, now_us);
            self.round_end = sample.snd_nxt;
            (self.round_min, self.samples) = (NEVER, 0);
        }
        if window.cwnd() < WINDOW_MIN * window.smss() {
            return false;
        }
        let train = self.is_long_train(now_us, sample, window.cwnd());
        let slower = self.is_slower(rtt);
        self.found = train || slower;
        self.found
    }

    /// The ACK train. Paced segments come apart by design, so the train may last a whole round trip
    /// then.
    fn is_long_train(&mut self, now_us: u32, sample: &RttSample, cwnd: u32) -> bool {
        if now_us.wrapping_sub(self.last_ack) > to_us(TRAIN_GAP) {
            return false;
        }
        self.last_ack = now_us;
        let whole = self.delay_min.saturating_add(batch_delay_us(sample, cwnd));
        let limit = if sample.paced { whole } else { whole / 2 };
        now_us.wrapping_sub(self.round_start) > limit
    }

    /// The delay increase.
    fn is_slower(&mut self, rtt: u32) -> bool {
        self.round_min = self.round_min.min(rtt);
        if self.samples < SAMPLES_MIN {
            self.samples += 1;
            return false;
        }
        let (least, most) = INCREASE;
        let increase = (self.delay_min / 8).clamp(to_us(least), to_us(most));
        self.round_min > self.delay_min.saturating_add(increase)
    }
}

/// How long batches may hold segments back at twice a window per round trip: not queueing.
fn batch_delay_us(sample: &RttSample, cwnd: u32) -> u32 {
    let srtt = sample.srtt.as_micros().min(u64::from(NEVER));
    let span = BATCHED_BYTES * srtt / (2 * u64::from(cwnd.max(1)));
    span.min(BATCH_DELAY_MAX.as_micros()) as u32
}
