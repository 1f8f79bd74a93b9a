//! The rate at which a mux port may send: a token bucket for packets, and another for bytes. A mux
//! port is a pair of packet rings through which a program with a TCP/IP stack of its own shares the
//! NIC.
//!
//! A token is the right to send one packet or one byte. The mux serves the mux ports in *turns*,
//! each of which is a burst of packets of one mux port. A mux port gets a turn only while neither
//! bucket has a debt. The turn takes as many packets as the tokens allow, but at least one packet.
//! If the turn uses more tokens than a bucket has, the bucket has a debt, which new tokens pay.
//! While a bucket has a debt, the port's packets stay in its packet ring. No packet is lost, and no
//! other port waits.

use std::ops::AddAssign;

use tidelane_time::{Duration, Instant};

/// A second in nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// Depth of a bucket: the longest time for which an idle mux port collects tokens.
const DEPTH: Duration = Duration::from_millis(10);
/// Time that a mux port waits after its debt is paid, so that the core does not wake up for each
/// packet.
pub const WAIT_MIN: Duration = Duration::from_millis(1);
/// Assumed length in bytes of a packet before its length is known: a full Ethernet frame.
const PACKET_LEN: u64 = 1514;

/// Limits of the rate at which a mux port sends over one core. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendRate {
    /// Packets per second. Each segment of a GSO frame counts.
    pub packets: Option<u64>,
    /// Bytes of frames per second, without preamble and frame check sequence.
    pub bytes: Option<u64>,
}

/// Packets that a mux port has sent in a turn, or in a part of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of packets.
    pub packets: u64,
    /// Bytes of the packets' frames.
    pub bytes: u64,
}

impl Amount {
    /// Returns the amount of one frame.
    #[inline]
    pub fn of_frame(frame: &[u8]) -> Self {
        Self {
            packets: 1,
            bytes: frame.len() as u64,
        }
    }

    /// Returns the total amount of all frames.
    pub fn of_frames<'a>(frames: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut amount = Self::default();
        frames.for_each(|frame| amount += Self::of_frame(frame));
        amount
    }

    /// Returns the part of the amount that exceeds the amount of `frame`.
    pub fn beyond(self, frame: &[u8]) -> Self {
        Self {
            packets: self.packets.saturating_sub(1),
            bytes: self.bytes.saturating_sub(frame.len() as u64),
        }
    }
}

impl AddAssign for Amount {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// The two token buckets of a mux port on one core.
#[derive(Debug, Default)]
pub struct RateLimiter {
    rate: SendRate,
    packets: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl RateLimiter {
    /// Makes buckets without tokens and without debt.
    pub fn new(rate: SendRate) -> Self {
        Self {
            rate,
            packets: rate.packets.map(Bucket::new),
            bytes: rate.bytes.map(Bucket::new),
        }
    }

    /// Returns the limits.
    pub fn rate(&self) -> SendRate {
        self.rate
    }

    /// Returns true if the mux port has no limit.
    #[inline]
    pub fn is_unlimited(&self) -> bool {
        self.packets.is_none() && self.bytes.is_none()
    }

    /// Returns the earliest time at which no bucket has a debt, so that the mux port may have a
    /// turn. If the port has to wait, the wait ends [`WAIT_MIN`] after this time.
    pub fn due(&self) -> Instant {
        let buckets = [&self.packets, &self.bytes].into_iter().flatten();
        let due = buckets.map(Bucket::due).max();
        due.unwrap_or(Instant(0))
    }

    /// Returns the largest number of packets for a turn at `now`, at least 1 and at most `max`. The
    /// caller has checked that `now` is not before [`due`](Self::due).
    pub fn packets_in_turn(&self, now: Instant, max: usize) -> usize {
        let of_packets = self.packets.as_ref().map(|bucket| bucket.tokens(now));
        let of_bytes = self.bytes.as_ref().map(|bucket| bucket.tokens(now));
        let of_bytes = of_bytes.map(|bytes| bytes / PACKET_LEN);
        let fewest = of_packets.into_iter().chain(of_bytes).min();
        fewest.map_or(max, |fewest| fewest.clamp(1, max as u64) as usize)
    }

    /// Takes the tokens for the packets of a turn from the buckets.
    pub fn pay(&mut self, now: Instant, amount: Amount) {
        if let Some(bucket) = &mut self.packets {
            bucket.pay(now, amount.packets);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.pay(now, amount.bytes);
        }
    }
}

/// A token bucket, whose state is the time at which the bucket is empty.
#[derive(Debug)]
struct Bucket {
    /// Tokens per second.
    rate: u64,
    /// The time at which the bucket has neither tokens nor debt. `None` before the first payment:
    /// until then, the bucket collects no tokens.
    empty_at: Option<Instant>,
}

impl Bucket {
    fn new(rate: u64) -> Self {
        Self {
            rate,
            empty_at: None,
        }
    }

    /// Returns the time at which the debt is paid. If there is no debt, returns a time that is not
    /// in the future. If the rate is zero, returns the largest `Instant`: a mux port with this
    /// limit never sends.
    fn due(&self) -> Instant {
        match self.rate {
            0 => Instant(u64::MAX),
            _ => self.empty_at.unwrap_or(Instant(0)),
        }
    }

    /// Returns the number of tokens at `now`: the tokens of the time since the bucket was empty,
    /// but of no longer time than [`DEPTH`].
    fn tokens(&self, now: Instant) -> u64 {
        let since = self.empty_at.map_or(Duration::ZERO, |at| now - at);
        let time = u128::from(since.0.min(DEPTH.0));
        (time * u128::from(self.rate) / u128::from(SECOND)) as u64
    }

    /// Takes `tokens` from the bucket. If the bucket held fewer tokens, the bucket has a debt.
    fn pay(&mut self, now: Instant, tokens: u64) {
        let oldest = Instant(now.0.saturating_sub(DEPTH.0));
        let empty_at = self.empty_at.unwrap_or(now).max(oldest);
        let cost = u128::from(tokens) * u128::from(SECOND);
        let cost = cost.div_ceil(u128::from(self.rate.max(1)));
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        self.empty_at = Some(Instant(empty_at.0.saturating_add(cost)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_secs(5);

    /// Sends packets of `len` bytes for ten seconds, in turns of at most 32 packets, whenever the
    /// limiter allows a turn. Returns the amount that was sent.
    fn send(rate: SendRate, len: u64) -> Amount {
        let mut limiter = RateLimiter::new(rate);
        let (mut now, end) = (START, START + Duration::from_secs(10));
        let mut sent = Amount::default();
        loop {
            now = limiter.due().max(now);
            if now >= end {
                return sent;
            }
            let packets = limiter.packets_in_turn(now, 32) as u64;
            let bytes = packets * len;
            limiter.pay(now, Amount { packets, bytes });
            sent.packets += packets;
            sent.bytes += bytes;
        }
    }

    #[test]
    fn a_port_gets_the_rate_of_its_tighter_limit() {
        for rate in [1, 3, 1000, 999_999] {
            let limit = SendRate {
                packets: Some(rate),
                bytes: None,
            };
            let sent = send(limit, 60).packets;
            assert!(
                (rate * 9..=rate * 10 + 32).contains(&sent),
                "{rate}: {sent}"
            );
        }
        for rate in [100, 10_000, 125_000_000] {
            let limit = SendRate {
                packets: None,
                bytes: Some(rate),
            };
            for len in [60, 1514, 65_536] {
                let sent = send(limit, len).bytes;
                let burst = 32 * len;
                assert!(
                    (rate * 9..=rate * 10 + burst).contains(&sent),
                    "{rate} {len}"
                );
            }
        }
        let both = SendRate {
            packets: Some(100),
            bytes: Some(1_000_000),
        };
        assert!(send(both, 60).packets <= 1001);
        assert!(send(both, 60_000).bytes <= 10_060_000);
    }

    #[test]
    fn a_quiet_port_saves_tokens_of_the_depth_only() {
        let mut limiter = RateLimiter::new(SendRate {
            packets: Some(1000),
            bytes: None,
        });
        assert_eq!(limiter.packets_in_turn(START, 32), 1, "the port has tokens");
        let one = Amount {
            packets: 1,
            bytes: 60,
        };
        limiter.pay(START, one);
        assert_eq!(limiter.due(), START + Duration::from_millis(1));
        let later = START + Duration::from_secs(60);
        assert_eq!(limiter.packets_in_turn(later, 32), 10);
        let ten = Amount { packets: 10, ..one };
        limiter.pay(later, ten);
        assert_eq!(limiter.due(), later);
        limiter.pay(later, one);
        assert_eq!(limiter.due(), later + Duration::from_millis(1));
    }

    #[test]
    fn a_rate_of_zero_is_never_due_and_no_rate_always() {
        let none = RateLimiter::new(SendRate::default());
        assert!(none.is_unlimited());
        assert_eq!(none.due(), Instant(0));
        assert_eq!(none.packets_in_turn(START, 32), 32);
        let zero = RateLimiter::new(SendRate {
            packets: None,
            bytes: Some(0),
        });
        assert_eq!(zero.due(), Instant(u64::MAX));
        // Amounts near the largest integer do not overflow.
        let mut slow = RateLimiter::new(SendRate {
            packets: Some(1),
            bytes: Some(u64::MAX),
        });
        let huge = Amount {
            packets: u64::MAX,
            bytes: u64::MAX,
        };
        slow.pay(Instant(u64::MAX - 5), huge);
        slow.pay(Instant(u64::MAX - 5), huge);
        assert_eq!(slow.due(), Instant(u64::MAX));
    }
}
