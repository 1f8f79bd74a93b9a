//! Round-trip samples (RFC 6298 §3), and what the path is seen to need at least.

use tidelane_flow::{Env, flags};
use tidelane_time::Duration;
use tidelane_wire::{Segment, SeqNumber};

use crate::Slow;

/// The longest round trip that an echoed timestamp is believed to tell of, in ms: what comes from
/// something else than our clock is mostly longer.
const ECHO_MS_MAX: u32 = 60_000;

impl<E: Env> Slow<'_, E> {
    /// SRTT as a duration.
    pub fn srtt(&self) -> Duration {
        Duration::from_micros(u64::from(self.hot.srtt >> 3))
    }

    /// Least round-trip time of the path.
    pub(crate) fn rtt_min_us(&self) -> u32 {
        let least = self.cold.rtt_min.recent_us(self.clock.ms);
        least.min(self.hot.srtt >> 3)
    }

    /// A sample from the timed segment, where nothing is recorded (RFC 6298 §3).
    pub(crate) fn sample_timed_segment(&mut self, ack: SeqNumber) -> Option<u32> {
        if !self.hot.has(flags::RTT_TIMING) || self.hot.rtt_seq.after(ack) {
            return None;
        }
        self.hot.clear(flags::RTT_TIMING);
        if self.cold.board.is_some() {
            return None;
        }
        let rtt = self.clock.us().wrapping_sub(self.hot.rtt_stamp);
        self.take_rtt_sample(rtt);
        Some(rtt)
    }

    /// A sample: the timeout is no longer a doubled one (RFC 6298 §5).
    pub(crate) fn take_rtt_sample(&mut self, rtt_us: u32) {
        self.cold.rtt_min.take(self.clock.ms, rtt_us);
        self.hot.sample_rtt(rtt_us);
        self.cold.backoff = 0;
        self.cold.delivered.sampled = true;
    }

    /// How many milliseconds ago, by its timestamp, what `segment` echoes was sent. A peer can echo
    /// what it likes.
    fn echoed_ms(&self, segment: &Segment<'_>) -> Option<u32> {
        let echo = segment.options.timestamps.filter(|t| t.tsecr != 0)?;
        let ms = self.clock.ms.0.wrapping_sub(echo.tsecr);
        (self.hot.has(flags::TIMESTAMPS) && ms < ECHO_MS_MAX).then_some(ms)
    }

    /// The time in microseconds before which what `segment` echoes was sent: the end of the
    /// millisecond that its timestamp names. None for what is echoed in the same one.
    pub(crate) fn echoed_before_us(&self, segment: &Segment<'_>) -> Option<u32> {
        let ms = self.echoed_ms(segment).filter(|ms| *ms > 0)?;
        Some(self.clock.turned_us().wrapping_sub((ms - 1) * 1000))
    }

    /// SND.UNA advanced without a sample, as what it passed was sent more than once: the echoed
    /// timestamp tells which transmission arrived (RFC 7323 §4.1).
    pub(crate) fn sample_echo(&mut self, segment: &Segment<'_>) {
        if self.cold.delivered.sampled {
            return;
        }
        if let Some(ms) = self.echoed_ms(segment) {
            self.take_rtt_sample(ms.max(1) * 1000);
        }
    }
}
