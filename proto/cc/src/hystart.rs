//! HyStart, which ends slow start before cwnd overflows a queue. RFC 9438 §4.10 recommends
//! HyStart++, and names HyStart as another option.
//!
//! This module implements the variant of Linux's CUBIC. A round is a round trip. If cwnd has at
//! least sixteen segments, slow start ends at the present cwnd in either of two cases:
//!
//! * ACK train: since the start of the round, closely spaced ACKs have arrived for more than half
//!   of the minimum RTT, or for more than the whole minimum RTT if the flow is paced. The flight
//!   therefore fills the path.
//! * Delay increase: the minimum of more than eight RTT samples of a round exceeds the minimum RTT
//!   by more than an eighth (at least 4 ms, at most 16 ms), so a queue is building.
//!
//! HyStart++ (RFC 9406) differs: it has no ACK train. After a delay increase, HyStart++ first
//! continues slow start at a quarter of the pace.

use tidelane_time::{Duration, Instant};

use crate::{RttSample, Window};

/// Least window in segments at which HyStart ends slow start. A smaller window does not overflow a
/// queue.
const WINDOW_MIN: u32 = 16;
/// Number of RTT samples in a round after which a further sample can end slow start.
const SAMPLES_MIN: u8 = 8;
/// Longest gap between two ACKs of a train.
const TRAIN_GAP: Duration = Duration::from_millis(2);
/// Least and largest value of the delay increase above which HyStart assumes a queue. Between them,
/// the value is an eighth of the minimum RTT.
const INCREASE: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(16));
/// Number of bytes that batch processing (GSO, GRO) at sender and receiver may hold back.
const BATCHED_BYTES: u64 = 4 * 65_536;
/// Longest time that batch processing may hold back segments.
const BATCH_DELAY_MAX: Duration = Duration::from_millis(1);
/// A time in µs that is longer than any RTT.
const NEVER: u32 = u32::MAX;

/// State of HyStart for one connection. Times are in µs. `round_start` and `last_ack` are times of
/// the clock modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HyStart {
    /// Time of the start of the round.
    round_start: u32,
    /// Time of the last ACK of the ACK train.
    last_ack: u32,
    /// SND.NXT at the start of the round. The round ends when SND.UNA is after this number.
    round_end: u32,
    /// Minimum RTT of the round; [`NEVER`] before its first sample.
    round_min: u32,
    /// Minimum RTT since the start of the connection or the last RTO.
    delay_min: u32,
    /// Number of samples in the round, up to [`SAMPLES_MIN`].
    samples: u8,
    /// True if the fields of the round are valid.
    round_valid: bool,
    /// True if HyStart has ended slow start.
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
            round_valid: false,
            found: false,
        }
    }

    /// Returns true if samples may still end slow start.
    pub(crate) const fn is_searching(&self) -> bool {
        !self.found
    }

    /// Adds an RTT sample. Returns true if slow start should end now.
    pub(crate) fn on_sample(&mut self, now: Instant, sample: &RttSample, window: &Window) -> bool {
        let rtt = to_us(sample.rtt).max(1);
        self.delay_min = self.delay_min.min(rtt);
        if self.found || !window.in_slow_start() {
            return false;
        }
        let now_us = now.as_micros() as u32;
        let over = (sample.una.wrapping_sub(self.round_end) as i32) > 0;
        if over || !self.round_valid {
            self.round_valid = true;
            (self.round_start, self.last_ack) = (now_us, now_us);
            self.round_end = sample.snd_nxt;
            (self.round_min, self.samples) = (NEVER, 0);
        }
        if window.cwnd() < WINDOW_MIN * window.smss() {
            return false;
        }
        let train = self.is_ack_train(now_us, sample, window.cwnd());
        let slower = self.is_delay_increase(rtt);
        self.found = train || slower;
        self.found
    }

    /// Returns true if the ACK train ends slow start. Pacing spreads the segments, so a train of
    /// paced segments may last a whole RTT.
    fn is_ack_train(&mut self, now_us: u32, sample: &RttSample, cwnd: u32) -> bool {
        if now_us.wrapping_sub(self.last_ack) > to_us(TRAIN_GAP) {
            return false;
        }
        self.last_ack = now_us;
        let whole = self.delay_min.saturating_add(batch_delay_us(sample, cwnd));
        let limit = if sample.paced { whole } else { whole / 2 };
        now_us.wrapping_sub(self.round_start) > limit
    }

    /// Returns true if the delay increase ends slow start. `rtt` is in µs.
    fn is_delay_increase(&mut self, rtt: u32) -> bool {
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

/// Returns the time in µs for which batch processing may hold back segments, at a rate of two
/// windows per RTT. Segments that were held back lengthen an ACK train even if the flight does not
/// fill the path, so the limit for an ACK train includes this time.
fn batch_delay_us(sample: &RttSample, cwnd: u32) -> u32 {
    let srtt = sample.srtt.as_micros().min(u64::from(NEVER));
    let span = BATCHED_BYTES * srtt / (2 * u64::from(cwnd.max(1)));
    span.min(BATCH_DELAY_MAX.as_micros()) as u32
}
