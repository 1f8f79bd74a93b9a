//! A check of the rate at which a mux port sends. A mux port is a pair of packet rings through
//! which a program with a TCP/IP stack of its own shares the NIC.

use tidelane_mux::SendRate;
use tidelane_time::Instant;

/// Upper bound of the number of packets that a mux port sends in one turn. In a turn, the mux takes
/// a burst of frames from one mux port. The bound covers 32 frames of 2 KiB, and two GSO frames
/// (which are split into segments) of 64 KiB in segments of 512 bytes. The most recent turn may
/// exceed the rate by this number of packets.
const TURN_PACKETS: u64 = 32 + 2 * 128;
/// Upper bound of the number of bytes that a mux port sends in one turn: the bytes of the frames
/// that [`TURN_PACKETS`] covers, with headers of 128 bytes for each segment of a GSO frame.
const TURN_BYTES: u64 = 32 * 2048 + 2 * 128 * (512 + 128);
/// While a mux port is idle, it saves up packets and bytes that it may send later in addition to
/// its rate. The saved amount is at most the amount that the rate permits in one second, divided by
/// this number.
const DEPTHS_PER_SECOND: u64 = 100;

/// The limits of a mux port's rate, with the number of bytes that the mux port has sent.
#[derive(Clone, Copy, Debug)]
pub struct RateCheck {
    /// Time since which the limits apply.
    since: Instant,
    rate: SendRate,
    /// Bytes of the mux port's frames that have left the host since `since`.
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
    /// per second permits this frame.
    pub fn leaves(&mut self, now: Instant, len: usize) -> bool {
        self.bytes_out += len as u64;
        let sent = self.bytes_out;
        self.rate
            .bytes
            .is_none_or(|rate| self.permits(now, rate, sent, TURN_BYTES))
    }

    /// Returns true if the limit of packets per second permits the mux port to have sent `sent`
    /// packets from `since` to `now`.
    pub fn permits_packets(&self, now: Instant, sent: u64) -> bool {
        let rate = self.rate.packets;
        rate.is_none_or(|rate| self.permits(now, rate, sent, TURN_PACKETS))
    }

    /// Returns true if a limit of `rate` per second permits the amount `sent` from `since` to
    /// `now`. `turn` is the largest amount of one turn.
    fn permits(&self, now: Instant, rate: u64, sent: u64, turn: u64) -> bool {
        let nanos = u128::from((now - self.since).0);
        let earned = nanos * u128::from(rate) / 1_000_000_000;
        let saved = rate / DEPTHS_PER_SECOND + turn;
        u128::from(sent) <= earned + u128::from(saved)
    }
}
