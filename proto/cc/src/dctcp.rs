//! DCTCP (RFC 8257), which reduces cwnd in proportion to the fraction of CE-marked bytes.
//!
//! `alpha` is an estimate of this fraction. DCTCP updates `alpha` once per window of data. After an
//! ACK with ECE, DCTCP reduces cwnd, at most once per window of data:
//!
//! ```text
//! alpha = (1 - g) * alpha + g * marked / acked          g = 1/16
//! cwnd  = cwnd * (1 - alpha / 2)
//! ```
//!
//! In all other cases, such as a loss, DCTCP does the same as NewReno (§3.4, §3.5).

use tidelane_time::{Duration, Instant};

use crate::{CcInfo, CongestionControl, EcnFeedback, NewReno, Window};

/// Fixed-point representation of an alpha of 1.0.
const ALPHA_UNIT: u32 = 1 << 10;
/// Right shift that multiplies by g = 2^-4, the weight of the newest window (RFC 8257 §4.2).
const G_SHIFT: u32 = 4;

/// State of DCTCP for one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dctcp {
    reno: NewReno,
    /// DCTCP.Alpha in units of 1/1024. The initial alpha is 1.0 (§4.2).
    alpha: u32,
    /// SND.UNA at the last ECN feedback.
    una: u32,
    /// DCTCP.WindowEnd: the window ends when SND.UNA is after this sequence number.
    window_end: u32,
    /// DCTCP.BytesAcked: bytes acknowledged in the present window.
    acked: u32,
    /// DCTCP.BytesMarked: bytes acknowledged with ECE in the present window.
    marked: u32,
    /// True after the first ECN feedback, which sets `una` and `window_end`.
    initialized: bool,
}

impl Dctcp {
    pub(crate) const fn new(window: Window) -> Self {
        Self {
            reno: NewReno::new(window),
            alpha: ALPHA_UNIT,
            una: 0,
            window_end: 0,
            acked: 0,
            marked: 0,
            initialized: false,
        }
    }

    /// Returns DCTCP.Alpha in units of 1/1024.
    pub const fn alpha(&self) -> u32 {
        self.alpha
    }

    pub(crate) const fn cc_info(&self) -> CcInfo {
        CcInfo::Dctcp {
            alpha: self.alpha,
            marked: self.marked,
            acked: self.acked,
        }
    }

    /// Updates alpha at the end of a window, and resets the byte counts (§3.3 steps 5, 6 and 8).
    fn end_window(&mut self) {
        let mark = u64::from(self.marked) * u64::from(ALPHA_UNIT) / u64::from(self.acked.max(1));
        // Decay by at least 1, because rounding down would otherwise keep alpha above zero.
        let decay = (self.alpha >> G_SHIFT).max(1).min(self.alpha);
        self.alpha = (self.alpha - decay + (mark as u32 >> G_SHIFT)).min(ALPHA_UNIT);
        (self.acked, self.marked) = (0, 0);
    }
}

impl CongestionControl for Dctcp {
    #[inline]
    fn window(&self) -> &Window {
        self.reno.window()
    }

    fn window_mut(&mut self) -> &mut Window {
        self.reno.window_mut()
    }

    #[inline]
    fn on_ack(&mut self, now: Instant, acked_bytes: u32, srtt: Duration, cwnd_limited: bool) {
        self.reno.on_ack(now, acked_bytes, srtt, cwnd_limited);
    }

    fn on_congestion_signal(&mut self, now: Instant, flight_size: u32) -> u32 {
        self.reno.on_congestion_signal(now, flight_size)
    }

    fn on_ecn_echo(&mut self, _now: Instant, _flight_size: u32) -> u32 {
        let cwnd = u64::from(self.window().cwnd());
        let less = cwnd * u64::from(self.alpha) / u64::from(2 * ALPHA_UNIT);
        self.window_mut().reduce_to((cwnd - less) as u32);
        self.window().ssthresh()
    }

    fn on_ecn_feedback(&mut self, feedback: &EcnFeedback) {
        if !self.initialized {
            self.initialized = true;
            self.una = feedback.prior_una;
            self.window_end = feedback.snd_nxt;
        }
        // The caller may omit ACKs without ECE, so count all bytes since the last call.
        let acked = feedback.una.wrapping_sub(self.una);
        self.una = feedback.una;
        self.acked = self.acked.saturating_add(acked);
        if feedback.marked {
            let newly_acked = feedback.una.wrapping_sub(feedback.prior_una);
            self.marked = self.marked.saturating_add(newly_acked);
        }
        if (feedback.una.wrapping_sub(self.window_end) as i32) > 0 {
            self.end_window();
            self.window_end = feedback.snd_nxt;
        }
    }

    fn on_recovery_exit(&mut self, now: Instant) {
        self.reno.on_recovery_exit(now);
    }

    fn on_rto(&mut self, now: Instant, flight_size: u32) -> u32 {
        self.reno.on_rto(now, flight_size)
    }

    fn on_idle_restart(&mut self, now: Instant, idle_rtos: u32) {
        self.reno.on_idle_restart(now, idle_rtos);
    }
}
