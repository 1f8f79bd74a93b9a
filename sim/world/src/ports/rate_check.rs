//! A check of the rate at which a mux port sends. A mux port is a pair of packet rings through
//! which a program with a TCP/IP stack of its own shares the NIC.

use tidelane_mux::SendRate;
use tidelane_time::Instant;

/// Amounts that a mux port may send beyond its rate: one turn of 32 frames of 2 KiB, of which the
/// last two may be GSO frames of 64 KiB, with segments of 512 bytes and headers of 128 bytes.
const TURN_PACKETS: u64 = 32 + 2 * 128;
const TURN_BYTES: u64 = 32 * 2048 + 2 * 128 * (512 + 128);
/// The time for which an idle mux port collects tokens, as a part of a second.
const DEPTHS_PER_SECOND: u64 = 100;

/// The limits of a mux port's rate, with the amounts that the mux port has sent since its start.
#[derive(Clone, Copy, Debug)]
pub struct RateCheck {
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

    fn permits(&self, now: Instant, rate: u64, sent: u64, turn: u64) -> bool {
        let nanos = u128::from((now - self.since).0);
        let earned = nanos * u128::from(rate) / 1_000_000_000;
        let saved = rate / DEPTHS_PER_SECOND + turn;
        u128::from(sent) <= earned + u128::from(saved)
    }
}
