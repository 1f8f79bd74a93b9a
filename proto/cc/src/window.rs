//! Slow start, and the state that all congestion control algorithms share: cwnd, ssthresh and
//! segment size.

/// Largest cwnd in bytes: the largest scaled receive window (RFC 7323 §2.3), rounded up to a power
/// of two.
const CWND_MAX: u32 = 1 << 30;
/// Least segment size in bytes.
const SMSS_MIN: u32 = 64;
/// Largest segment size in bytes. An IP packet cannot hold a larger segment.
pub(crate) const SMSS_MAX: u32 = u16::MAX as u32;

/// Congestion window, slow start threshold and segment size, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Congestion window in bytes.
    cwnd: u32,
    /// Slow start threshold in bytes; `u32::MAX` if not set.
    ssthresh: u32,
    /// Segment size in bytes.
    smss: u32,
    /// Initial window in segments.
    initial_segments: u32,
    /// True if an RTO has expired, and neither an ACK of new data nor another congestion signal has
    /// arrived since then.
    in_timeout: bool,
    /// True from an RTO to the end of the slow start that follows the RTO. In this slow start, an
    /// ACK may cover data that arrived long before the RTO.
    after_timeout: bool,
}

impl Window {
    pub(crate) fn new(smss: u32, initial_segments: u32) -> Self {
        let mut window = Self {
            cwnd: 0,
            ssthresh: u32::MAX,
            smss: smss.clamp(SMSS_MIN, SMSS_MAX),
            initial_segments: initial_segments.max(1),
            in_timeout: false,
            after_timeout: false,
        };
        window.cwnd = window.initial_window();
        window
    }

    /// Returns the congestion window in bytes.
    #[inline]
    pub const fn cwnd(&self) -> u32 {
        self.cwnd
    }

    /// Returns the slow start threshold in bytes; `u32::MAX` until a reduction or the end of slow
    /// start sets the threshold.
    #[inline]
    pub const fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    /// Returns the segment size in bytes.
    #[inline]
    pub const fn smss(&self) -> u32 {
        self.smss
    }

    /// Returns true if cwnd is below ssthresh.
    #[inline]
    pub const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Returns the initial window in bytes: `n` segments, but at most the larger of two segments
    /// and `n` times 1460 bytes. `n` is the configured number of segments (RFC 6928 §2: ten).
    pub fn initial_window(&self) -> u32 {
        let at_ethernet_size = self.initial_segments.saturating_mul(1460);
        let limit = at_ethernet_size.max(2 * self.smss);
        self.initial_segments
            .saturating_mul(self.smss)
            .min(limit)
            .min(CWND_MAX)
    }

    /// Sets the segment size in bytes. If cwnd is still the initial window, cwnd becomes the
    /// initial window for the new segment size. Otherwise cwnd keeps its number of bytes, because
    /// the number of bytes in flight does not change. If cwnd is smaller than one new segment, cwnd
    /// rises to one new segment.
    pub(crate) fn set_smss(&mut self, smss: u32) {
        let untouched = self.cwnd == self.initial_window() && self.ssthresh == u32::MAX;
        self.smss = smss.clamp(SMSS_MIN, SMSS_MAX);
        self.cwnd = if untouched {
            self.initial_window()
        } else {
            self.cwnd.max(self.smss)
        };
    }

    /// Raises cwnd to `cwnd` and ssthresh to `ssthresh`, but lowers neither. The undo of a
    /// reduction therefore keeps the growth since the reduction.
    pub fn raise_to(&mut self, cwnd: u32, ssthresh: u32) {
        self.cwnd = self.cwnd.max(cwnd);
        self.ssthresh = self.ssthresh.max(ssthresh);
    }

    /// Sets cwnd to one segment, after a SYN or SYN,ACK was retransmitted (RFC 5681 §3.1).
    pub(crate) fn start_with_one_segment(&mut self) {
        self.cwnd = self.smss;
    }

    /// Grows cwnd up to ssthresh in slow start. Returns the number of acknowledged bytes that slow
    /// start has not used, for congestion avoidance.
    #[inline]
    pub fn slow_start(&mut self, acked_bytes: u32) -> u32 {
        self.in_timeout = false;
        if !self.in_slow_start() {
            self.after_timeout = false;
            return acked_bytes;
        }
        // RFC 3465 §2.3: at most one segment per ACK after an RTO. Otherwise all acknowledged bytes
        // count, as in Linux, because receivers that process batches (this stack, and Linux with
        // GRO) send one ACK for many segments. The limit per ACK is one segment in RFC 5681 §3.1,
        // two in RFC 3465, and eight without pacing in RFC 9406 §4.2.
        let growth = if self.after_timeout {
            acked_bytes.min(self.smss)
        } else {
            acked_bytes
        };
        let to_threshold = self.ssthresh - self.cwnd;
        if growth < to_threshold {
            self.cwnd = (self.cwnd + growth).min(CWND_MAX);
            return 0;
        }
        self.cwnd = self.ssthresh.min(CWND_MAX);
        self.after_timeout = false;
        growth - to_threshold
    }

    /// Handles an ACK that must not grow the window.
    pub fn on_ack_without_growth(&mut self) {
        self.in_timeout = false;
    }

    /// Grows cwnd by `bytes`.
    pub fn grow(&mut self, bytes: u32) {
        self.cwnd = self.cwnd.saturating_add(bytes).min(CWND_MAX);
    }

    /// Sets ssthresh and cwnd to `ssthresh` bytes, but to at least two segments (RFC 5681 §3.1
    /// equation 4).
    pub fn reduce_to(&mut self, ssthresh: u32) {
        self.ssthresh = ssthresh.max(2 * self.smss);
        self.cwnd = self.ssthresh;
        self.in_timeout = false;
        self.after_timeout = false;
    }

    /// Ends slow start without a loss: sets ssthresh to the present cwnd.
    pub fn end_slow_start(&mut self) {
        self.ssthresh = self.cwnd;
    }

    /// Sets cwnd, for an algorithm with its own rule. The new cwnd is at least one segment and at
    /// most 2^30 bytes.
    pub fn set_cwnd(&mut self, cwnd: u32) {
        self.cwnd = cwnd.clamp(self.smss, CWND_MAX);
    }

    /// Sets ssthresh, for an algorithm with its own rule. The new ssthresh is at least two
    /// segments.
    pub fn set_ssthresh(&mut self, ssthresh: u32) {
        self.ssthresh = ssthresh.max(2 * self.smss);
    }

    /// Sets cwnd to the loss window of one segment after an RTO (RFC 5681 §3.1). Also sets ssthresh
    /// to `ssthresh` bytes, but to at least two segments. If [`in_timeout`](Self::in_timeout)
    /// returns true because of an earlier RTO, ssthresh does not change.
    pub fn collapse_to_loss_window(&mut self, ssthresh: u32) {
        if !self.in_timeout {
            self.ssthresh = ssthresh.max(2 * self.smss);
        }
        self.cwnd = self.smss;
        self.in_timeout = true;
        self.after_timeout = true;
    }

    /// Restarts after an idle time: halves cwnd once per RTO of idle time, down to the restart
    /// window of RFC 5681 §4.1. An `ssthresh` that is set rises to at least 3/4 of the old cwnd, so
    /// that slow start regains most of the old window (RFC 2861 §2.1, as in Linux).
    pub fn restart(&mut self, idle_rtos: u32) {
        let restart = self.cwnd.min(self.initial_window());
        if self.ssthresh != u32::MAX {
            self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        }
        self.cwnd = self.cwnd.checked_shr(idle_rtos).unwrap_or(0).max(restart);
    }

    /// Returns true if an RTO has expired, and neither an ACK of new data nor another congestion
    /// signal has arrived since then.
    pub const fn in_timeout(&self) -> bool {
        self.in_timeout
    }
}
