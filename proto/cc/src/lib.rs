//! Congestion control: the number of bytes that may be in flight.
//!
//! A controller is a small state machine that counts bytes. Its caller, the crate
//! `tidelane-slowpath` of the TCP engine, reports events ([`on_ack`], [`on_congestion_signal`],
//! [`on_rto`], [`on_idle_restart`], ...), from which the controller computes a window. The caller
//! detects losses and decides when to send. During fast recovery, the caller also computes the
//! window (NewReno, RFC 6582; proportional rate reduction, RFC 6937). The controller's `cwnd` is
//! then already the window for the end of the recovery. Algorithms that use delivery rates, such as
//! BBR, are an exception: these algorithms compute the window during recovery, too.
//!
//! Each algorithm has a file of its own and implements the trait [`CongestionControl`]. The enum
//! [`Controller`] calls the algorithm in use. A program that runs the engine can add an algorithm
//! by implementing the trait and passing a [`CustomAlgorithm`] to the engine. The engine's test
//! `custom_congestion` is an example.
//!
//! [`on_ack`]: CongestionControl::on_ack
//! [`on_congestion_signal`]: CongestionControl::on_congestion_signal
//! [`on_rto`]: CongestionControl::on_rto
//! [`on_idle_restart`]: CongestionControl::on_idle_restart
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

use alloc::boxed::Box;
use core::{
    fmt,
    hash::{Hash, Hasher},
};

use tidelane_time::{Duration, Instant};

mod bbr;
mod cc_info;
mod cubic;
mod dctcp;
mod hystart;
mod max_filter;
mod newreno;
mod window;

pub use crate::{
    bbr::Bbr, cc_info::CcInfo, cubic::Cubic, dctcp::Dctcp, max_filter::MaxFilter, newreno::NewReno,
    window::Window,
};

#[cfg(test)]
mod tests;

/// Hooks of a congestion control algorithm. All sizes are in bytes.
///
/// A type that implements the trait holds the state of one connection. The type is `Clone`, because
/// the caller copies the state before the first reduction of a recovery, and restores the copy if
/// the recovery proves to be spurious.
pub trait CongestionControl: fmt::Debug + Send + CloneBoxed {
    /// Returns cwnd, `ssthresh` and the segment size, which every algorithm has.
    fn window(&self) -> &Window;

    /// Returns cwnd, `ssthresh` and the segment size, mutably.
    fn window_mut(&mut self) -> &mut Window;

    /// Handles an ACK outside of fast recovery. The ACK newly acknowledged or SACKed `acked_bytes`.
    /// Zero `acked_bytes` and a false `cwnd_limited` mean that no ACK has arrived: the caller
    /// reports a time in which cwnd did not limit the flow.
    ///
    /// `cwnd_limited` is true if cwnd limited the acknowledged flight. If the application or the
    /// peer's window limited the flight, the value is false, and the window must not grow (RFC 9438
    /// §5.8).
    fn on_ack(&mut self, now: Instant, acked_bytes: u32, srtt: Duration, cwnd_limited: bool);

    /// Reduces the window at a fast retransmit, or after a tail loss probe repaired a loss (RFC
    /// 8985 §7.4.2). The caller calls the function at most once per window of data. Returns the
    /// new `ssthresh`.
    ///
    /// `flight_size` is FlightSize (RFC 5681 §2) before the ACK that showed the loss. FlightSize
    /// includes SACKed data and may therefore exceed cwnd.
    fn on_congestion_signal(&mut self, now: Instant, flight_size: u32) -> u32;

    /// Reduces the window after ECE (RFC 3168 §6.1.2). The caller calls the function at most once
    /// per window of data. Returns the new `ssthresh`.
    fn on_ecn_echo(&mut self, now: Instant, flight_size: u32) -> u32 {
        self.on_congestion_signal(now, flight_size)
    }

    /// Takes the ECN feedback of an ACK. The caller may omit calls for ACKs without ECE.
    fn on_ecn_feedback(&mut self, feedback: &EcnFeedback) {
        let _ = feedback;
    }

    /// Takes the RTT sample of an ACK that advanced SND.UNA. The caller calls the function before
    /// it calls [`Self::on_ack`] for this ACK.
    fn on_rtt_sample(&mut self, now: Instant, sample: &RttSample) {
        let _ = (now, sample);
    }

    /// Returns true if each ACK should give an RTT sample while cwnd limits the flow. Otherwise the
    /// caller takes one sample per round trip, for which it need not record every transmission.
    fn wants_rtt_samples(&self) -> bool {
        false
    }

    /// Returns true if the algorithm uses delivery rates (BBR). The caller then records all
    /// transmissions, reports each delivery, and uses the algorithm's window in recovery as well.
    fn uses_delivery_rate(&self) -> bool {
        false
    }

    /// Takes the rate sample of an ACK that reported deliveries or losses. The caller calls the
    /// function after all other hooks of the ACK, if [`Self::uses_delivery_rate`] returns true.
    fn on_delivery(&mut self, now: Instant, sample: &RateSample) {
        let _ = (now, sample);
    }

    /// Prepares for a transmission that starts while nothing is in flight. `app_limited` is true if
    /// the flow had no data to send before. The caller calls the function only if
    /// [`Self::uses_delivery_rate`] returns true.
    fn on_transmit_start(&mut self, now: Instant, app_limited: bool) {
        let _ = (now, app_limited);
    }

    /// Returns the pacing rate in bytes per second. `None` if the algorithm sets no rate.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }

    /// Ends a recovery (also after ECE). Either all data that was outstanding at the congestion
    /// signal is acknowledged, or a tail loss probe has already repaired the loss.
    fn on_recovery_exit(&mut self, now: Instant);

    /// Reduces the window after a retransmission timeout. `flight_size` is FlightSize in bytes.
    /// Returns the new `ssthresh`.
    fn on_rto(&mut self, now: Instant, flight_size: u32) -> u32;

    /// Reduces the window of a flow that is about to send after an idle time of `idle_rtos` whole
    /// RTOs, at least one (RFC 5681 §4.1). The caller does not call the function if
    /// [`Self::uses_delivery_rate`] returns true.
    fn on_idle_restart(&mut self, now: Instant, idle_rtos: u32);
}

/// Copies a `Box<dyn CongestionControl>`, because a trait object cannot implement `Clone`. Every
/// algorithm that implements `Clone` also implements this trait.
pub trait CloneBoxed {
    /// Returns a copy.
    fn clone_boxed(&self) -> Box<dyn CongestionControl>;
}

impl<T: CongestionControl + Clone + 'static> CloneBoxed for T {
    fn clone_boxed(&self) -> Box<dyn CongestionControl> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn CongestionControl> {
    fn clone(&self) -> Self {
        (**self).clone_boxed()
    }
}

/// RTT sample of an ACK that advanced SND.UNA.
#[derive(Clone, Copy, Debug)]
pub struct RttSample {
    /// Time from the transmission of an acknowledged segment to the ACK. The segment was sent only
    /// once.
    pub rtt: Duration,
    /// SRTT (RFC 6298).
    pub srtt: Duration,
    /// SND.UNA after the ACK.
    pub una: u32,
    /// SND.NXT at the ACK.
    pub snd_nxt: u32,
    /// True if the flow is paced.
    pub paced: bool,
}

/// Delivery rate sample of an ACK (draft-cheng-iccrg-delivery-rate-estimation §3.3). All sizes are
/// in bytes.
#[derive(Clone, Copy, Debug)]
pub struct RateSample {
    /// Number of bytes delivered since the caller began to sample delivery rates.
    pub delivered: u64,
    /// Number of bytes that this ACK newly reports as delivered.
    pub newly_delivered: u32,
    /// Number of bytes marked lost since the previous sample.
    pub lost: u32,
    /// Number of bytes in flight before the ACK.
    pub prior_flight: u32,
    /// Number of bytes in flight after the ACK.
    pub flight: u32,
    /// RTT of a segment that the ACK delivered and that was sent only once. `None` if there is no
    /// such segment.
    pub rtt: Option<Duration>,
    /// SRTT (RFC 6298).
    pub srtt: Duration,
    /// Bytes and a time, from which the delivery rate follows. `None` if the ACK gives no valid
    /// rate.
    pub interval: Option<Interval>,
}

/// The bytes that were delivered between the transmission and the ACK of one segment. Of the
/// segments that the ACK delivered, this segment was sent last.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    /// Number of bytes that were delivered.
    pub bytes: u64,
    /// The time in which these bytes were sent or the time in which they were acknowledged,
    /// whichever is longer.
    pub span: Duration,
    /// Value of [`RateSample::delivered`] at the transmission of the segment.
    pub prior_delivered: u64,
    /// True if the flow was app-limited (lacked data to send) at the transmission of the segment.
    pub app_limited: bool,
}

/// ECN feedback of one ACK.
#[derive(Clone, Copy, Debug)]
pub struct EcnFeedback {
    /// SND.UNA before the ACK.
    pub prior_una: u32,
    /// SND.UNA after the ACK.
    pub una: u32,
    /// SND.NXT at the ACK.
    pub snd_nxt: u32,
    /// True if the ACK carries ECE.
    pub marked: bool,
}

/// Congestion control algorithms.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Algorithm {
    /// NewReno of RFC 5681, with appropriate byte counting.
    NewReno,
    /// CUBIC of RFC 9438, the default of Linux.
    #[default]
    Cubic,
    /// DCTCP of RFC 8257, for networks whose switches set CE at short queues.
    Dctcp,
    /// BBR version 1, which follows a model of the path instead of losses.
    Bbr,
    /// An algorithm that the program provides.
    Custom(CustomAlgorithm),
}

/// An algorithm that is defined outside of this crate. Custom algorithms with the same name compare
/// equal.
#[derive(Clone, Copy, Debug)]
pub struct CustomAlgorithm {
    /// Name of the algorithm in `TCP_CONGESTION`.
    pub name: &'static str,
    /// True if the algorithm needs ECN: see [`Algorithm::needs_ecn`].
    pub needs_ecn: bool,
    /// Creates the state of one connection. The argument is the connection's initial window, or the
    /// present window if the program changes the algorithm of an open connection.
    pub create: fn(Window) -> Box<dyn CongestionControl>,
}

impl PartialEq for CustomAlgorithm {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for CustomAlgorithm {}

impl Hash for CustomAlgorithm {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl Algorithm {
    /// All algorithms of this crate.
    pub const ALL: [Self; 4] = [Self::NewReno, Self::Cubic, Self::Dctcp, Self::Bbr];

    /// Returns the name of the algorithm in `TCP_CONGESTION`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NewReno => "reno",
            Self::Cubic => "cubic",
            Self::Dctcp => "dctcp",
            Self::Bbr => "bbr",
            Self::Custom(custom) => custom.name,
        }
    }

    /// Returns true if the algorithm needs ECN. Connections that use the algorithm always request
    /// ECN, and also send SYNs and retransmissions as ECT (as in Linux).
    pub const fn needs_ecn(self) -> bool {
        match self {
            Self::NewReno | Self::Cubic | Self::Bbr => false,
            Self::Dctcp => true,
            Self::Custom(custom) => custom.needs_ecn,
        }
    }

    /// Returns the algorithm of this crate with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// State of the congestion control of one connection. The variant is the algorithm in use.
#[derive(Clone, Debug)]
pub enum Controller {
    /// See [`NewReno`].
    NewReno(NewReno),
    /// See [`Cubic`].
    Cubic(Cubic),
    /// See [`Dctcp`].
    Dctcp(Dctcp),
    /// See [`Bbr`].
    Bbr(Bbr),
    /// State of an algorithm that the program provides.
    Custom(CustomAlgorithm, Box<dyn CongestionControl>),
}

const _: () = assert!(size_of::<Controller>() <= 176);

impl Controller {
    /// Creates a controller for segments of `smss` bytes, with an initial window of
    /// `initial_window` segments (RFC 6928 recommends ten).
    pub fn new(algorithm: Algorithm, smss: u32, initial_window: u32) -> Self {
        let window = Window::new(smss, initial_window);
        Self::with_window(algorithm, window)
    }

    fn with_window(algorithm: Algorithm, window: Window) -> Self {
        match algorithm {
            Algorithm::NewReno => Self::NewReno(NewReno::new(window)),
            Algorithm::Cubic => Self::Cubic(Cubic::new(window)),
            Algorithm::Dctcp => Self::Dctcp(Dctcp::new(window)),
            Algorithm::Bbr => Self::Bbr(Bbr::new(window)),
            Algorithm::Custom(custom) => Self::Custom(custom, (custom.create)(window)),
        }
    }

    /// Changes the algorithm (TCP_CONGESTION on an established connection). Keeps cwnd, ssthresh
    /// and segment size.
    pub fn switch_to(&mut self, algorithm: Algorithm) {
        if algorithm != self.algorithm() {
            *self = Self::with_window(algorithm, *self.window());
        }
    }

    /// Restores `before`, the state at the start of a recovery that was spurious. BBR restores only
    /// the window, and keeps its model of the path.
    pub fn undo(&mut self, before: &Self) {
        match self {
            Self::Bbr(bbr) => bbr.undo(before.window()),
            _ if self.algorithm() == before.algorithm() => self.clone_from(before),
            // The program has changed the algorithm since the recovery began.
            _ => {
                let (cwnd, ssthresh) = (before.cwnd(), before.ssthresh());
                self.window_mut().raise_to(cwnd, ssthresh);
            }
        }
    }

    /// Returns the algorithm.
    pub const fn algorithm(&self) -> Algorithm {
        match self {
            Self::NewReno(_) => Algorithm::NewReno,
            Self::Cubic(_) => Algorithm::Cubic,
            Self::Dctcp(_) => Algorithm::Dctcp,
            Self::Bbr(_) => Algorithm::Bbr,
            Self::Custom(custom, _) => Algorithm::Custom(*custom),
        }
    }

    /// Returns the congestion window in bytes.
    #[inline]
    pub fn cwnd(&self) -> u32 {
        self.window().cwnd()
    }

    /// Returns the slow start threshold in bytes; `u32::MAX` until a reduction or the end of slow
    /// start sets the threshold.
    #[inline]
    pub fn ssthresh(&self) -> u32 {
        self.window().ssthresh()
    }

    /// Returns true in slow start: `cwnd` is below `ssthresh`.
    #[inline]
    pub fn in_slow_start(&self) -> bool {
        self.window().in_slow_start()
    }

    /// Sets the segment size, after the handshake or after a change of the path MTU.
    pub fn set_smss(&mut self, smss: u32) {
        self.window_mut().set_smss(smss);
    }

    /// Sets the window to one segment after a SYN or SYN,ACK was retransmitted (RFC 5681 §3.1).
    pub fn on_handshake_retransmit(&mut self) {
        self.window_mut().start_with_one_segment();
    }
}

/// Calls a method of the algorithm in use.
macro_rules! dispatch {
    ($controller:expr, $inner:ident => $call:expr) => {
        match $controller {
            Controller::NewReno($inner) => $call,
            Controller::Cubic($inner) => $call,
            Controller::Dctcp($inner) => $call,
            Controller::Bbr($inner) => $call,
            Controller::Custom(_, $inner) => $call,
        }
    };
}

impl CongestionControl for Controller {
    #[inline]
    fn window(&self) -> &Window {
        dispatch!(self, inner => inner.window())
    }

    fn window_mut(&mut self) -> &mut Window {
        dispatch!(self, inner => inner.window_mut())
    }

    #[inline]
    fn on_ack(&mut self, now: Instant, acked_bytes: u32, srtt: Duration, cwnd_limited: bool) {
        dispatch!(self, inner => inner.on_ack(now, acked_bytes, srtt, cwnd_limited));
    }

    fn on_congestion_signal(&mut self, now: Instant, flight_size: u32) -> u32 {
        dispatch!(self, inner => inner.on_congestion_signal(now, flight_size))
    }

    fn on_ecn_echo(&mut self, now: Instant, flight_size: u32) -> u32 {
        dispatch!(self, inner => inner.on_ecn_echo(now, flight_size))
    }

    fn on_ecn_feedback(&mut self, feedback: &EcnFeedback) {
        dispatch!(self, inner => inner.on_ecn_feedback(feedback));
    }

    fn on_rtt_sample(&mut self, now: Instant, sample: &RttSample) {
        dispatch!(self, inner => inner.on_rtt_sample(now, sample));
    }

    fn wants_rtt_samples(&self) -> bool {
        dispatch!(self, inner => inner.wants_rtt_samples())
    }

    #[inline]
    fn uses_delivery_rate(&self) -> bool {
        dispatch!(self, inner => inner.uses_delivery_rate())
    }

    fn on_delivery(&mut self, now: Instant, sample: &RateSample) {
        dispatch!(self, inner => inner.on_delivery(now, sample));
    }

    fn on_transmit_start(&mut self, now: Instant, app_limited: bool) {
        dispatch!(self, inner => inner.on_transmit_start(now, app_limited));
    }

    #[inline]
    fn pacing_rate(&self) -> Option<u64> {
        dispatch!(self, inner => inner.pacing_rate())
    }

    fn on_recovery_exit(&mut self, now: Instant) {
        dispatch!(self, inner => inner.on_recovery_exit(now));
    }

    fn on_rto(&mut self, now: Instant, flight_size: u32) -> u32 {
        dispatch!(self, inner => inner.on_rto(now, flight_size))
    }

    fn on_idle_restart(&mut self, now: Instant, idle_rtos: u32) {
        dispatch!(self, inner => inner.on_idle_restart(now, idle_rtos));
    }
}
