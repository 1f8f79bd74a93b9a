//! How much more is acknowledged at once than the rate explains: the receiver, or the way back,
//! gathers acknowledgments. The window makes room for it, or it would be used up meanwhile.

use tidelane_time::{Duration, Instant};

/// Rounds that an excess is remembered for, in each of two halves.
const ROUNDS: u8 = 5;
/// The longest lump that there is room for.
const LUMP_MAX: Duration = Duration::from_millis(100);

/// Bytes, if not said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Excess {
    /// The most of the last two spans of rounds.
    most: [u32; 2],
    rounds: u8,
    /// Acknowledged since the lump began.
    lump: u32,
    lump_at: Instant,
}

impl Excess {
    pub(super) fn begin_lump(&mut self, now: Instant) {
        (self.lump, self.lump_at) = (0, now);
    }

    /// `newly` were acknowledged at a `rate` (bytes per second) that explains less; an excess above
    /// `limit` is not believed.
    pub(super) fn update(&mut self, now: Instant, rate: u32, round: bool, newly: u32, limit: u32) {
        self.rounds += u8::from(round);
        if self.rounds >= ROUNDS {
            self.rounds = 0;
            self.most = [self.most[1], 0];
        }
        let mut expected = bytes_in(rate, now - self.lump_at);
        if u64::from(self.lump) <= expected {
            self.begin_lump(now);
            expected = 0;
        }
        self.lump = self.lump.saturating_add(newly);
        let more = u64::from(self.lump).saturating_sub(expected);
        let more = more.min(limit.into()) as u32;
        self.most[1] = self.most[1].max(more);
    }

    /// The room.
    pub(super) fn room(&self, rate: u32) -> u64 {
        let most = self.most[0].max(self.most[1]);
        u64::from(most).min(bytes_in(rate, LUMP_MAX))
    }
}

fn bytes_in(rate: u32, span: Duration) -> u64 {
    u64::from(rate).saturating_mul(span.as_micros()) / 1_000_000
}
