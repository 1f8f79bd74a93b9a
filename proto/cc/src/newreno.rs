//! NewReno: the congestion window of RFC 5681, with appropriate byte counting (RFC 3465). The
//! caller runs fast recovery (RFC 6582).

use tidelane_time::{Duration, Instant};

use crate::{CongestionControl, Window};

/// State of NewReno for one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewReno {
    window: Window,
    /// Bytes acknowledged in congestion avoidance that have not yet grown cwnd.
    bytes_acked: u32,
}

impl NewReno {
    pub(crate) const fn new(window: Window) -> Self {
        Self {
            window,
            bytes_acked: 0,
        }
    }
}

impl CongestionControl for NewReno {
    #[inline]
    fn window(&self) -> &Window {
        &self.window
    }

    fn window_mut(&mut self) -> &mut Window {
        &mut self.window
    }

    #[inline]
    fn on_ack(&mut self, _now: Instant, acked_bytes: u32, _srtt: Duration, cwnd_limited: bool) {
        if !cwnd_limited {
            return self.window.on_ack_without_growth();
        }
        let acked_bytes = self.window.slow_start(acked_bytes);
        // RFC 5681 §3.1: cwnd grows by one SMSS after each cwnd of acknowledged bytes. At most one
        // cwnd of bytes is left for later, because an ACK after a reduction may cover many times
        // cwnd.
        self.bytes_acked = self.bytes_acked.saturating_add(acked_bytes);
        if self.bytes_acked >= self.window.cwnd() {
            self.bytes_acked = (self.bytes_acked - self.window.cwnd()).min(self.window.cwnd());
            self.window.grow(self.window.smss());
        }
    }

    fn on_congestion_signal(&mut self, _now: Instant, flight_size: u32) -> u32 {
        self.window
            .reduce_to(flight_size.min(self.window.cwnd()) / 2);
        self.bytes_acked = 0;
        self.window.ssthresh()
    }

    fn on_recovery_exit(&mut self, _now: Instant) {
        self.bytes_acked = 0;
    }

    fn on_rto(&mut self, _now: Instant, flight_size: u32) -> u32 {
        self.window.collapse_to_loss_window(flight_size / 2);
        self.bytes_acked = 0;
        self.window.ssthresh()
    }

    fn on_idle_restart(&mut self, _now: Instant, idle_rtos: u32) {
        self.window.restart(idle_rtos);
        self.bytes_acked = 0;
    }
}
