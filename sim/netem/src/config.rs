//! Impairments of a link, in the terms of `tc netem` and `tc tbf`.

use tidelane_time::Duration;

/// A probability in parts per million. A value of a million or more is certainty.
pub type Ppm = u32;

/// Burst loss by the Gilbert-Elliott model: the link is in a good or a bad state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BurstLoss {
    /// Probability per frame that a good link turns bad.
    pub enter: Ppm,
    /// Probability per frame that a bad link turns good.
    pub leave: Ppm,
    /// Probability that a bad link loses a frame.
    pub loss: Ppm,
}

/// Configuration of one direction of a link. The default is an ideal link: no delay, no loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// Time from the end of transmission to arrival.
    pub delay: Duration,
    /// Largest deviation from `delay` in both directions, uniformly distributed.
    pub jitter: Duration,
    /// True if jitter may reorder frames. If false, a frame arrives no earlier than the frames
    /// before it.
    pub jitter_reorders: bool,
    /// Independent loss.
    pub loss: Ppm,
    /// Burst loss in addition.
    pub burst_loss: BurstLoss,
    /// Probability that a frame is delayed by `reorder_delay`, so that others overtake it.
    pub reorder: Ppm,
    /// Additional delay of a reordered frame.
    pub reorder_delay: Duration,
    /// Probability that a frame arrives twice. The copy has a jitter of its own.
    pub duplicate: Ppm,
    /// Probability that one bit of a frame is flipped.
    pub corrupt: Ppm,
    /// Longest frame; the link silently drops longer ones. Zero: no limit.
    pub frame_max: u32,
    /// Longest packet that a router forwards on this link. The router answers a longer one with an
    /// ICMP error (RFC 1191, RFC 8201). Zero: no limit.
    pub mtu: u32,
    /// Rate in bits per second of frames; zero for no limit.
    pub rate: u64,
    /// Size of the token bucket in bytes: frames that leave at once after a pause.
    pub burst: u32,
    /// Delay of the timer after the bucket has tokens again. All frames wait until the timer
    /// expires, and leave together.
    pub timer: Duration,
    /// Queue length in frames; the link drops further frames.
    pub limit: u32,
    /// Queue length from which on ECN-capable packets are marked CE.
    pub ecn_threshold: Option<u32>,
}

impl LinkConfig {
    /// No delay, no loss, no rate limit.
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

    /// Returns an ideal link with this delay.
    pub const fn with_delay(delay: Duration) -> Self {
        Self {
            delay,
            ..Self::PERFECT
        }
    }

    /// Returns the time that a frame of `len` bytes occupies the transmitter.
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
