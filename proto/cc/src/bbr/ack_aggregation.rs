//! ACK aggregation in BBR. If the receiver or the return path delays ACKs, a burst of ACKs
//! acknowledges more bytes than the bottleneck bandwidth (BtlBw) delivers in the same time. BBR
//! enlarges cwnd by these extra bytes, because the flow would otherwise use up cwnd between two
//! bursts of ACKs.

use tidelane_time::{Duration, Instant};

/// Length of a span in rounds (round trips). The windowed maximum covers the present span and the
/// previous span.
const ROUNDS: u8 = 5;
/// Upper limit of the bytes by which cwnd is enlarged: the bytes that BtlBw delivers in this time.
const EXTRA_ACKED_MAX: Duration = Duration::from_millis(100);

/// Windowed maximum of the extra bytes. The extra bytes are counted in epochs. A new epoch starts
/// when the ACKs of the present epoch have acknowledged no more bytes than BtlBw delivers in the
/// time of the epoch.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct AckAggregation {
    /// Largest number of extra bytes in the previous span, and in the present span.
    extra_acked: [u32; 2],
    /// Number of rounds in the present span.
    rounds: u8,
    /// Bytes acknowledged since the start of the present epoch.
    acked: u32,
    /// Time of the start of the present epoch.
    epoch_start: Instant,
}

impl AckAggregation {
    pub(super) fn start_epoch(&mut self, now: Instant) {
        (self.acked, self.epoch_start) = (0, now);
    }

    /// Adds `newly_delivered` acknowledged bytes, at a BtlBw of `rate` bytes per second. `round` is
    /// true at the start of a round. More than `limit` extra bytes count as `limit` bytes.
    pub(super) fn update(
        &mut self,
        now: Instant,
        rate: u32,
        round: bool,
        newly_delivered: u32,
        limit: u32,
    ) {
        self.rounds += u8::from(round);
        if self.rounds >= ROUNDS {
            self.rounds = 0;
            self.extra_acked = [self.extra_acked[1], 0];
        }
        let mut expected = bytes_in(rate, now - self.epoch_start);
        if u64::from(self.acked) <= expected {
            self.start_epoch(now);
            expected = 0;
        }
        self.acked = self.acked.saturating_add(newly_delivered);
        let more = u64::from(self.acked).saturating_sub(expected);
        let more = more.min(limit.into()) as u32;
        self.extra_acked[1] = self.extra_acked[1].max(more);
    }

    /// Returns the bytes by which BBR enlarges cwnd, at a BtlBw of `rate` bytes per second.
    pub(super) fn extra_acked(&self, rate: u32) -> u64 {
        let extra_acked = self.extra_acked[0].max(self.extra_acked[1]);
        u64::from(extra_acked).min(bytes_in(rate, EXTRA_ACKED_MAX))
    }
}

fn bytes_in(rate: u32, span: Duration) -> u64 {
    u64::from(rate).saturating_mul(span.as_micros()) / 1_000_000
}
