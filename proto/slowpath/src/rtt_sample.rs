//! RTT samples (RFC 6298 §3). A flow (connection) without a scoreboard (a record of all
//! transmissions in flight) times one segment per round trip.

use tidelane_flow::{Driver, flags};
use tidelane_time::Duration;
use tidelane_wire::{Segment, SeqNumber};

use crate::SlowPath;

/// Age in ms from which an echoed timestamp gives no RTT sample. Most values that are not
/// timestamps of this flow appear to have at least this age.
const ECHO_MS_MAX: u32 = 60_000;

impl<E: Driver> SlowPath<'_, E> {
    /// Returns SRTT as a duration.
    pub fn srtt(&self) -> Duration {
        Duration::from_micros(u64::from(self.hot.srtt >> 3))
    }

    /// Returns the minimum RTT of the path in us, at most SRTT.
    pub(crate) fn rtt_min_us(&self) -> u32 {
        let least = self.cold.rtt_min.recent_us(self.clock.ms);
        least.min(self.hot.srtt >> 3)
    }

    /// Takes an RTT sample if `ack` covers the timed segment and there is no scoreboard (RFC 6298
    /// §3). Returns the sample in us.
    pub(crate) fn sample_timed_segment(&mut self, ack: SeqNumber) -> Option<u32> {
        if !self.hot.has(flags::RTT_TIMING) || self.hot.rtt_seq.after(ack) {
            return None;
        }
        self.hot.clear(flags::RTT_TIMING);
        if self.cold.scoreboard.is_some() {
            return None;
        }
        let rtt = self.clock.us().wrapping_sub(self.hot.rtt_stamp);
        self.add_rtt_sample(rtt);
        Some(rtt)
    }

    /// Takes an RTT sample and ends the backoff of the RTO (RFC 6298 §5).
    pub(crate) fn add_rtt_sample(&mut self, rtt_us: u32) {
        self.cold.rtt_min.update(self.clock.ms, rtt_us);
        self.hot.sample_rtt(rtt_us);
        self.cold.backoff = 0;
        self.cold.delivered.sampled = true;
    }

    /// Returns the age in ms of the timestamp that `segment` echoes. The peer may echo any value,
    /// so the result is `None` for ages of ECHO_MS_MAX or more. The result is also `None` if the
    /// segment echoes no timestamp, or if timestamps are not in use.
    fn echoed_ms(&self, segment: &Segment<'_>) -> Option<u32> {
        let echo = segment.options.timestamps.filter(|t| t.tsecr != 0)?;
        let ms = self.clock.ms.0.wrapping_sub(echo.tsecr);
        (self.hot.has(flags::TIMESTAMPS) && ms < ECHO_MS_MAX).then_some(ms)
    }

    /// Returns the end of the millisecond that the timestamp echoed by `segment` stands for, in us
    /// modulo 2^32. Our segment with this timestamp was sent before this time. Returns `None` for a
    /// timestamp of the present millisecond, and if there is no valid echo.
    pub(crate) fn echoed_before_us(&self, segment: &Segment<'_>) -> Option<u32> {
        let ms = self.echoed_ms(segment).filter(|ms| *ms > 0)?;
        Some(self.clock.ms_start_us().wrapping_sub((ms - 1) * 1000))
    }

    /// Takes an RTT sample from the echoed timestamp if the ACK has given no other sample, for
    /// example because the ACK covered only retransmitted data. The timestamp shows which
    /// transmission arrived (RFC 7323 §4.1).
    pub(crate) fn sample_echo(&mut self, segment: &Segment<'_>) {
        if self.cold.delivered.sampled {
            return;
        }
        if let Some(ms) = self.echoed_ms(segment) {
            self.add_rtt_sample(ms.max(1) * 1000);
        }
    }
}
