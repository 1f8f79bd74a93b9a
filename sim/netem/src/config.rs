//! What a link does to frames, in the words of `tc netem` and `tc tbf`.

use tidelane_time::Duration;

/// Parts per million: a probability. A million and more is certainty.
pub type Ppm = u32;

/// Loss in bursts, after Gilbert and Elliott: the link is in a good or a bad state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BurstLoss {
    /// Per frame: the chance that a good link turns bad.
    pub enter: Ppm,
    /// Per frame: the chance that a bad link turns good.
    pub leave: Ppm,
    /// The chance that a bad link loses a frame.
    pub loss: Ppm,
}

/// The properties of one direction of a link. The default is a perfect one: no delay, no loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// Time from the end of transmission to arrival.
    pub delay: Duration,
    /// Largest deviation from `delay`, either way, spread evenly.
    pub jitter: Duration,
    /// Whether jitter lets frames overtake each other. If not, a frame waits for those before it.
    pub jitter_reorders: bool,
    /// Independent loss.
    pub loss: Ppm,
    /// Loss in bursts, on top.
    pub burst_loss: BurstLoss,
    /// The chance that a frame is held back by `reorder_delay`, so that others overtake it.
    pub reorder: Ppm,
    /// See `reorder`.
    pub reorder_delay: Duration,
    /// The chance that a frame arrives twice. The copy has a jitter of its own.
    pub duplicate: Ppm,
    /// The chance that one bit of a frame is flipped.
    pub corrupt: Ppm,
    /// Longer frames are dropped without a word; zero: none are.
    pub frame_max: u32,
    /// The longest packet that a router sends this way: of a longer one it tells the sender
    /// (RFC 1191, RFC 8201). Zero: it sends all.
    pub mtu: u32,
    /// Bits per second of frame; zero is infinitely fast.
    pub rate: u64,
    /// Bytes that may leave at once after a pause, and are paid for at `rate` later (tokens).
    pub burst: u32,
    /// How much later than there are tokens again the bucket's timer looks. Until then all waits,
    /// and leaves together.
    pub timer: Duration,
    /// Frames that may wait for transmission at `rate`; one more is dropped.
    pub limit: u32,
    /// An ECN-capable packet that finds at least so many frames waiting is marked CE.
    pub ecn_threshold: Option<u32>,
}

impl LinkConfig {
    /// No delay, no loss, infinitely fast.
    pub const PERFECT: Self = Self {
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        jitter_reorders: false,
        loss: 0,
        burst_loss: BurstLoss {
            enter: 0,
            leave: 0,
            loss: 0,
        },
        reorder: 0,
        reorder_delay: Duration::ZERO,
        duplicate: 0,
        corrupt: 0,
        frame_max: 0,
        mtu: 0,
        rate: 0,
        burst: 0,
        timer: Duration::ZERO,
        limit: 1_000,
        ecn_threshold: None,
    };

    /// A perfect link with this delay.
    pub const fn with_delay(delay: Duration) -> Self {
        Self {
            delay,
            ..Self::PERFECT
        }
    }

    /// How long a frame of `len` bytes occupies the transmitter.
    pub fn transmission_time(&self, len: usize) -> Duration {
        if self.rate == 0 {
            return Duration::ZERO;
        }
        let nanos = len as u128 * 8 * 1_000_000_000 / u128::from(self.rate);
        Duration(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self::PERFECT
    }
}
