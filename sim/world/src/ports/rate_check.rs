//! A check of the rate at which a mux port sends. A mux port is a pair of packet rings through
//! which a program with a TCP/IP stack of its own shares the NIC.

use tidelane_mux::SendRate;
use tidelane_time::Instant;

/// Upper bounds of the packets and bytes of one turn, a burst of frames that the mux takes from a
/// mux port: 32 frames of 2 KiB, and two GSO frames of 64 KiB in segments of 512 bytes with headers
/// of 128 bytes. The last turn may exceed the rate by these amounts.
const TURN_PACKETS: u64 = 32 + 2 * 128;
const TURN_BYTES: u64 = 32 * 2048 + 2 * 128 * (512 + 128);
/// An idle mux port collects tokens for at most one second divided by this number.
const DEPTHS_PER_SECOND: u64 = 100;

/// The limits of a mux port's rate, with the amounts that the mux port has sent since its start.
#[derive(Clone, Copy, Debug)]
pub struct RateCheck {
    /// Time since which the limits apply.
    since: Instant,
    rate: SendRate,
    /// Bytes of the frames that have left the host.
    bytes_out: u64,
}

impl RateCheck {
    /// Creates the check of a mux port that has had the limits `rate` since `since`.
    pub fn new(since: Instant, rate: SendRate) -> Self {
        Self {
            since,
            rate,
            bytes_out: 0,
        }
    }

    /// Records a frame of `len` bytes that has left the host. Returns true if the limit of bytes
    /// permits this frame.
    pub fn leaves(&mut self, now: Instant, len: usize) -> bool {
        self.bytes_out += len as u64;
        let sent = self.bytes_out;
        self.rate
            .bytes
            .is_none_or(|rate| self.permits(now, rate, sent, TURN_BYTES))
    }

    /// Returns true if the mux port may have sent `sent` packets by `now`.
    pub fn permits_packets(&self, now: Instant, sent: u64) -> bool {
        let rate = self.rate.packets;
        rate.is_none_or(|rate| self.permits(now, rate, sent, TURN_PACKETS))
    }

    /// Returns true if a limit of `rate` per second permits the amount `sent` by `now`. `turn` is
    /// the largest amount of one turn.
    fn permits(&self, now: Instant, rate: u64, sent: u64, turn: u64) -> bool {
        let nanos = u128::from((now - self.since).0);
        let earned = nanos * u128::from(rate) / 1_000_000_000;
        let saved = rate / DEPTHS_PER_SECOND + turn;
        u128::from(sent) <= earned + u128::from(saved)
    }
}
