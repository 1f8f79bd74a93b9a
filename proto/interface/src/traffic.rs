//! Counts and times of a flow's segments, for `TCP_INFO` (RFC 4898 §4: tcpEStatsPerf).
//!
//! A flow is a TCP connection. The fast path (the engine's code for in-order segments) also updates
//! [`Traffic`]. Therefore [`Traffic`] has only values that are cheap to update. The engine computes
//! the other values of `TCP_INFO` from [`Traffic`] and from the rest of the flow's state.

use crate::clock::{Clock, Millis};

/// Counts and times of one flow. The type has no padding, so that another field of the flow's state
/// fits into the same cache line of 64 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(4))]
pub struct Traffic {
    /// Segments received with payload (Linux: `tcpi_data_segs_in`).
    pub data_segs_in: u32,
    /// Segments sent with payload, including retransmissions (Linux: `tcpi_data_segs_out`).
    pub data_segs_out: u32,
    /// Segments received without payload.
    empty_segs_in: u32,
    /// Segments sent without payload.
    empty_segs_out: u32,
    /// Time at which payload was last sent.
    pub data_sent_at: Millis,
    /// Time at which payload last arrived in order.
    pub data_received_at: Millis,
    /// Time at which an ACK last arrived. On the fast path, only an ACK that advances SND.UNA sets
    /// this time.
    pub ack_received_at: Millis,
    /// Start of the present busy time, in us modulo 2^32; zero if the flow is idle. A flow is busy
    /// while data is in flight or waits for the peer's window.
    busy_since: u32,
    /// Sum of past busy times, in us.
    busy_us: u64,
    /// Bytes acknowledged. The count may include SYN and FIN.
    acked: u64,
    /// Sum of past times in which the peer's window limited the flow, in us.
    window_limited_us: u64,
    /// Start of the present time in which the peer's window limits the flow, in us modulo 2^32;
    /// zero if the window does not limit the flow.
    window_limited_since: u32,
}

const _: () = assert!(core::mem::size_of::<Traffic>() == 60);

impl Traffic {
    /// Returns the counts and times of a passive open at `now`. The peer's SYN counts. Our SYN,ACK
    /// does not count, as in Linux, which has no full socket at the time of the SYN,ACK.
    pub fn after_syn(now: Millis) -> Self {
        let mut traffic = Self::default();
        traffic.establish(now);
        traffic.empty_segs_in = 1;
        traffic
    }

    /// Sets the times of a connection that is established at `now`.
    pub fn establish(&mut self, now: Millis) {
        self.data_sent_at = now;
        self.data_received_at = now;
        self.ack_received_at = now;
    }

    /// Counts a segment that arrived, with or without payload.
    pub fn on_arrival(&mut self, payload: bool) {
        let count = match payload {
            true => &mut self.data_segs_in,
            false => &mut self.empty_segs_in,
        };
        *count = count.wrapping_add(1);
    }

    /// Counts a segment that was sent, with or without payload.
    pub fn on_transmission(&mut self, now: Millis, payload: bool) {
        if payload {
            self.on_data_sent(now, 1);
        } else {
            self.on_empty_sent();
        }
    }

    /// Counts `segments` that were sent with payload.
    #[inline(always)]
    pub fn on_data_sent(&mut self, now: Millis, segments: u32) {
        self.data_segs_out = self.data_segs_out.wrapping_add(segments);
        self.data_sent_at = now;
    }

    /// Counts a segment that was sent without payload.
    #[inline(always)]
    pub fn on_empty_sent(&mut self) {
        self.empty_segs_out = self.empty_segs_out.wrapping_add(1);
    }

    /// Counts a segment that arrived in order with payload.
    #[inline(always)]
    pub fn on_data_received(&mut self, now: Millis) {
        self.data_segs_in = self.data_segs_in.wrapping_add(1);
        self.data_received_at = now;
    }

    /// Counts a segment that arrived without payload.
    #[inline(always)]
    pub fn on_empty_received(&mut self) {
        self.empty_segs_in = self.empty_segs_in.wrapping_add(1);
    }

    /// Counts the peer's SYN as a segment with payload. [`Traffic::after_syn`] has counted this SYN
    /// as a segment without payload.
    pub fn on_syn_data(&mut self) {
        (self.empty_segs_in, self.data_segs_in) = (0, 1);
    }

    /// Returns the number of segments received (Linux: `tcpi_segs_in`).
    pub const fn segs_in(&self) -> u32 {
        self.data_segs_in.wrapping_add(self.empty_segs_in)
    }

    /// Returns the number of segments sent, including retransmissions (Linux: `tcpi_segs_out`).
    pub const fn segs_out(&self) -> u32 {
        self.data_segs_out.wrapping_add(self.empty_segs_out)
    }

    /// Records an ACK that arrived at `now` and acknowledged `acked` new bytes.
    #[inline(always)]
    pub fn on_acked(&mut self, now: Millis, acked: u32) {
        self.note_acked(acked);
        self.ack_received_at = now;
    }

    /// Adds `acked` newly acknowledged bytes.
    #[inline(always)]
    pub fn note_acked(&mut self, acked: u32) {
        self.acked += u64::from(acked);
    }

    /// Returns the bytes acknowledged since the connection was established. `low` is the stream
    /// position of the first unacknowledged byte, and equals the low 32 bits of the result.
    pub fn acked(&self, low: u32) -> u64 {
        // `self.acked` includes SYN and FIN, so it differs from the result by a few bytes.
        let error = low.wrapping_sub(self.acked as u32) as i32;
        self.acked.saturating_add_signed(error.into())
    }

    /// Starts the busy time of a flow that has just sent data and had no data in flight before.
    #[inline(always)]
    pub fn begin_flight(&mut self, now_us: u32) {
        self.busy_since = now_us;
    }

    /// Starts the busy time, unless the flow is busy already.
    #[inline]
    pub fn begin_busy(&mut self, now_us: u32) {
        if self.busy_since == 0 {
            self.busy_since = now_us;
        }
    }

    /// If the flow is busy, ends the busy time and the time in which the peer's window limits the
    /// flow. The caller has found that no data is in flight.
    #[inline(always)]
    pub fn end_busy(&mut self, clock: &Clock) {
        if self.busy_since != 0 {
            let now_us = clock.us();
            self.busy_us += u64::from(now_us.wrapping_sub(self.busy_since));
            self.busy_since = 0;
            if self.window_limited_since != 0 {
                self.set_window_limited(false, now_us);
            }
        }
    }

    /// Records whether the peer's window limits the flow from `now_us` on.
    #[inline]
    pub fn set_window_limited(&mut self, limited: bool, now_us: u32) {
        if limited != (self.window_limited_since != 0) {
            self.switch_window_limited(limited, now_us);
        }
    }

    #[inline(never)]
    fn switch_window_limited(&mut self, limited: bool, now_us: u32) {
        if limited {
            self.begin_busy(now_us);
            self.window_limited_since = now_us;
        } else {
            let span = now_us.wrapping_sub(self.window_limited_since);
            self.window_limited_us += u64::from(span);
            self.window_limited_since = 0;
        }
    }

    /// Returns the time in us in which data was in flight, or waited for the peer's window (Linux:
    /// `tcpi_busy_time`).
    pub fn busy_us(&self, now_us: u32) -> u64 {
        self.busy_us + since_us(self.busy_since, now_us)
    }

    /// Returns the time in us in which the peer's window limited the flow (Linux:
    /// `tcpi_rwnd_limited`).
    pub fn window_limited_us(&self, now_us: u32) -> u64 {
        self.window_limited_us + since_us(self.window_limited_since, now_us)
    }
}

/// Returns the time from `start` to `now_us` in us; zero if `start` is zero.
fn since_us(start: u32, now_us: u32) -> u64 {
    match start {
        0 => 0,
        start => now_us.wrapping_sub(start).into(),
    }
}

#[cfg(test)]
mod tests {
    use tidelane_time::Instant;

    use super::*;

    #[test]
    fn bytes_acknowledged_do_not_wrap() {
        let mut traffic = Traffic::default();
        // The peer acknowledges a SYN and 6 GiB.
        traffic.note_acked(1);
        for _ in 0..6 {
            traffic.note_acked(1 << 30);
        }
        assert_eq!(traffic.acked((6_u64 << 30) as u32), 6 << 30);
        let start = Traffic::default();
        assert_eq!(start.acked(0), 0);
    }

    #[test]
    fn waiting_for_the_window_is_busy() {
        let clock = |ms| Clock::at(Instant::from_millis(ms));
        let mut traffic = Traffic::default();
        traffic.begin_flight(10_000);
        traffic.end_busy(&clock(15));
        assert_eq!(traffic.busy_us(99_000), 5_000);
        traffic.set_window_limited(true, 20_000);
        assert_eq!(traffic.busy_us(30_000), 15_000);
        assert_eq!(traffic.window_limited_us(30_000), 10_000);
        traffic.set_window_limited(false, 40_000);
        traffic.begin_busy(40_000);
        traffic.end_busy(&clock(50));
        assert_eq!(traffic.busy_us(99_000), 35_000);
        assert_eq!(traffic.window_limited_us(99_000), 20_000);
    }
}
