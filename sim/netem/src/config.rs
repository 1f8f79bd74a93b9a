//! Impairments of a link. The terms are those of `tc netem` and `tc tbf`.

use tidelane_time::Duration;

/// A probability in parts per million. A value of one million or more is certainty.
pub type Ppm = u32;

/// Burst loss by the Gilbert-Elliott model. The link is in a good or a bad state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BurstLoss {
    /// Probability per frame that a good link turns bad.
    pub enter: Ppm,
    /// Probability per frame that a bad link turns good.
    pub leave: Ppm,
    /// Probability that a bad link loses a frame.
    pub loss: Ppm,
}

/// Configuration of one direction of a link. The default is the ideal link,
/// [`LinkConfig::PERFECT`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// Time from the departure of a frame's last bit to the arrival of the frame.
    pub delay: Duration,
    /// Largest deviation of a frame's delay from `delay`, upwards and downwards. The deviation is
    /// uniformly distributed. A delay below zero becomes zero.
    pub jitter: Duration,
    /// True if jitter may reorder frames. If false, frames arrive in order, apart from the frames
    /// that `reorder` selects.
    pub jitter_reorders: bool,
    /// Probability that a frame is lost, independently of other frames.
    pub loss: Ppm,
    /// Burst loss, in addition to `loss`.
    pub burst_loss: BurstLoss,
    /// Probability that a frame is delayed by `reorder_delay`, so that later frames overtake it.
    pub reorder: Ppm,
    /// Additional delay of a reordered frame.
    pub reorder_delay: Duration,
    /// Probability that a frame arrives twice. The copy has its own jitter.
    pub duplicate: Ppm,
    /// Probability that one bit of a frame is flipped.
    pub corrupt: Ppm,
    /// Longest frame in bytes. The link drops longer frames silently. Zero means no limit.
    pub frame_max: u32,
    /// Longest packet in bytes that a router forwards on this link. The router drops each longer
    /// packet. The router sends an ICMP error for the packet (RFC 1191, RFC 8201), but not for an
    /// IPv4 packet without DF. Zero means no limit.
    pub mtu: u32,
    /// Rate in bits per second, counted over whole frames. Zero means no limit.
    pub rate: u64,
    /// Size of the token bucket in bytes. After a pause, frames up to this total length leave
    /// without waiting for tokens.
    pub burst: u32,
    /// Lateness of the timer that waits for tokens. The timer is due when the bucket has the tokens
    /// of the first waiting frame, and expires later by this duration. All frames for which the
    /// bucket has tokens at the expiry leave together.
    pub timer: Duration,
    /// Largest number of frames in the queue, not counting the frame in transmission. The link
    /// drops further frames. The limit has no effect without a rate, because no frame then waits.
    pub limit: u32,
    /// If at least this number of frames is in the queue and in transmission, an ECN-capable packet
    /// that enters the queue is marked CE. `None` disables marking.
    pub ecn_threshold: Option<u32>,
}

impl LinkConfig {
    /// The ideal link: no delay, no loss, no rate limit.
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

    /// Returns the time for which a frame of `len` bytes occupies the transmitter. Zero without a
    /// rate limit.
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
