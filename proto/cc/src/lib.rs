//! Congestion control: how much may be in flight.
//!
//! A controller is a small state machine over bytes. It is told what happened ([`on_ack`],
//! [`on_congestion_signal`], [`on_rto`], [`on_idle_restart`], ...) and answers with a window; which
//! segments are lost and when to send is the caller's business. Window inflation during fast
//! recovery (RFC 6582, PRR) is the caller's too: a controller's `cwnd` is then already the one with
//! which recovery will end.
//!
//! One file per algorithm, behind one trait, dispatched by the enum [`Controller`].
//!
//! [`on_ack`]: CongestionControl::on_ack
//! [`on_congestion_signal`]: CongestionControl::on_congestion_signal
//! [`on_rto`]: CongestionControl::on_rto
//! [`on_idle_restart`]: CongestionControl::on_idle_restart
#![forbid(unsafe_code)]
#![no_std]

use core::fmt;

use tidelane_time::{Duration, Instant};

mod bbr;
mod cubic;
mod dctcp;
mod details;
mod hystart;
mod max_filter;
mod newreno;
mod window;

pub use crate::{
    bbr::Bbr, cubic::Cubic, dctcp::Dctcp, details::Details, max_filter::MaxFilter,
    newreno::NewReno, window::Window,
};

#[cfg(test)]
mod tests;

/// What every algorithm does. All hooks take the time first, all sizes are bytes.
pub trait CongestionControl {
    /// The window, `ssthresh` and what they share.
    fn window(&self) -> &Window;

    /// As [`CongestionControl::window`], to change it.
    fn window_mut(&mut self) -> &mut Window;

    /// An ACK moved SND.UNA by `acked_bytes`, outside of fast recovery.
    ///
    /// `cwnd_limited` tells whether the window, and not the program or the peer's window, limited
    /// what was sent in the flight that is acknowledged: if not, the window must not grow
    /// (RFC 9438 §5.8).
    fn on_ack(&mut self, now: Instant, acked_bytes: u32, srtt: Duration, cwnd_limited: bool);

    /// Fast retransmit: once per window of data. Returns the new `ssthresh`.
    ///
    /// `flight_size` is what was outstanding when the loss was detected (RFC 5681 §2); what
    /// limited transmit sent beyond the window does not count.
    fn on_congestion_signal(&mut self, now: Instant, flight_size: u32) -> u32;

    /// The peer echoes congestion (RFC 3168 §6.1.2): once per window of data. Returns the new
    /// `ssthresh`.
    fn on_ecn_echo(&mut self, now: Instant, flight_size: u32) -> u32 {
        self.on_congestion_signal(now, flight_size)
    }

    /// What an ACK of an ECN-capable connection says. Not called for each: those without mark may
    /// be left out.
    fn on_ecn_feedback(&mut self, feedback: &EcnFeedback) {
        let _ = feedback;
    }

    /// A round-trip time was measured on an ACK that moved SND.UNA; before [`Self::on_ack`].
    fn on_rtt_sample(&mut self, now: Instant, sample: &RttSample) {
        let _ = (now, sample);
    }

    /// Whether each ACK should bring a sample while the window limits what is sent. One per round
    /// trip costs the caller nothing; more make it record what it sends.
    fn wants_samples(&self) -> bool {
        false
    }

    /// Whether it goes by what is delivered: it is told of each delivery, all that is sent is
    /// recorded for it, and its window holds in recovery, too.
    fn models_delivery(&self) -> bool {
        false
    }

    /// An ACK told of something delivered, or lost; after all other hooks of this ACK. Called where
    /// [`Self::models_delivery`].
    fn on_delivery(&mut self, now: Instant, sample: &RateSample) {
        let _ = (now, sample);
    }

    /// Something is about to be sent with nothing in flight; whether there was nothing to send.
    /// Called where [`Self::models_delivery`].
    fn on_transmit_start(&mut self, now: Instant, app_limited: bool) {
        let _ = (now, app_limited);
    }

    /// Bytes per second at which to send; none if the window is all that counts.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }

    /// Everything that was outstanding at the congestion signal is acknowledged.
    fn on_recovery_exit(&mut self, now: Instant);

    /// The retransmission timer expired. Returns the new `ssthresh`.
    fn on_rto(&mut self, now: Instant, flight_size: u32) -> u32;

    /// The connection is about to send after it was silent for `idle_rtos` whole RTOs, at least one
    /// (RFC 5681 §4.1).
    fn on_idle_restart(&mut self, now: Instant, idle_rtos: u32);
}

/// A round-trip time, and where the connection stands.
#[derive(Clone, Copy, Debug)]
pub struct RttSample {
    /// From the last sending of the newest of what the ACK acknowledges, to the ACK.
    pub rtt: Duration,
    /// SRTT (RFC 6298).
    pub srtt: Duration,
    /// SND.UNA after the ACK.
    pub una: u32,
    /// SND.NXT.
    pub snd_nxt: u32,
    /// Whether what is sent is paced.
    pub paced: bool,
}

/// What an ACK delivered (draft-cheng-iccrg-delivery-rate-estimation §3.3). Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub struct RateSample {
    /// Delivered since the connection began.
    pub delivered: u64,
    /// First reported as arrived by this ACK.
    pub newly: u32,
    /// Found lost with this ACK.
    pub lost: u32,
    /// In flight before the ACK, and after it.
    pub prior_flight: u32,
    /// See above.
    pub flight: u32,
    /// Round-trip time of the newest of what arrived, unless it was sent more than once.
    pub rtt: Option<Duration>,
    /// SRTT (RFC 6298).
    pub srtt: Duration,
    /// The rate; none if what arrived does not tell.
    pub interval: Option<Interval>,
}

/// What was delivered since the newest of what arrived was sent.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    /// Bytes.
    pub bytes: u64,
    /// In this time.
    pub span: Duration,
    /// [`RateSample::delivered`] when it was sent.
    pub prior_delivered: u64,
    /// There was nothing more to send then.
    pub app_limited: bool,
}

/// What an ACK says of congestion marks.
#[derive(Clone, Copy, Debug)]
pub struct EcnFeedback {
    /// SND.UNA before it.
    pub prior_una: u32,
    /// SND.UNA after it.
    pub una: u32,
    /// SND.NXT.
    pub snd_nxt: u32,
    /// Whether it carries ECE.
    pub marked: bool,
}

/// The algorithms by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Algorithm {
    /// RFC 5681 with appropriate byte counting.
    NewReno,
    /// RFC 9438: what Linux uses unless told otherwise.
    #[default]
    Cubic,
    /// RFC 8257: for networks whose switches mark early.
    Dctcp,
    /// BBR version 1: by a model of the path, whatever is lost.
    Bbr,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::NewReno, Self::Cubic, Self::Dctcp, Self::Bbr];

    /// The name under which `TCP_CONGESTION` knows the algorithm.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NewReno => "reno",
            Self::Cubic => "cubic",
            Self::Dctcp => "dctcp",
            Self::Bbr => "bbr",
        }
    }

    /// Whether it is nothing without ECN: its connections ask for it, and send SYNs and what they
    /// send again as ECT, too (as Linux does).
    pub const fn needs_ecn(self) -> bool {
        matches!(self, Self::Dctcp)
    }

    /// The algorithm with this name.
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

/// The controller of one connection.
#[derive(Clone, Copy, Debug)]
pub enum Controller {
    /// See [`NewReno`].
    NewReno(NewReno),
    /// See [`Cubic`].
    Cubic(Cubic),
    /// See [`Dctcp`].
    Dctcp(Dctcp),
    /// See [`Bbr`].
    Bbr(Bbr),
}

const _: () = assert!(size_of::<Controller>() <= 176);

impl Controller {
    /// A controller for segments of `smss` bytes that starts with `initial_window` segments
    /// (ten: RFC 6928).
    pub fn new(algorithm: Algorithm, smss: u32, initial_window: u32) -> Self {
        let window = Window::new(smss, initial_window);
        Self::over(algorithm, window)
    }

    fn over(algorithm: Algorithm, window: Window) -> Self {
        match algorithm {
            Algorithm::NewReno => Self::NewReno(NewReno::new(window)),
            Algorithm::Cubic => Self::Cubic(Cubic::new(window)),
            Algorithm::Dctcp => Self::Dctcp(Dctcp::new(window)),
            Algorithm::Bbr => Self::Bbr(Bbr::new(window)),
        }
    }

    /// Another algorithm goes on with the same window (TCP_CONGESTION on a live connection).
    pub fn switch_to(&mut self, algorithm: Algorithm) {
        if algorithm != self.algorithm() {
            *self = Self::over(algorithm, *self.window());
        }
    }

    /// What was repaired since `before` was not lost: takes the reductions back. A model of the
    /// path stays.
    pub fn undo(&mut self, before: &Self) {
        match self {
            Self::Bbr(bbr) => bbr.undo(before.window()),
            _ => *self = *before,
        }
    }

    /// Which algorithm this is.
    pub const fn algorithm(&self) -> Algorithm {
        match self {
            Self::NewReno(_) => Algorithm::NewReno,
            Self::Cubic(_) => Algorithm::Cubic,
            Self::Dctcp(_) => Algorithm::Dctcp,
            Self::Bbr(_) => Algorithm::Bbr,
        }
    }

    /// The congestion window.
    #[inline]
    pub fn cwnd(&self) -> u32 {
        self.window().cwnd()
    }

    /// The slow start threshold; `u32::MAX` before the first congestion.
    #[inline]
    pub fn ssthresh(&self) -> u32 {
        self.window().ssthresh()
    }

    /// Whether the window is below the threshold, where it grows by what is acknowledged.
    #[inline]
    pub fn in_slow_start(&self) -> bool {
        self.window().in_slow_start()
    }

    /// The segment size changed: negotiated at last, or the path's MTU was discovered.
    pub fn set_smss(&mut self, smss: u32) {
        self.window_mut().set_smss(smss);
    }

    /// A SYN or SYN-ACK was retransmitted: start with one segment (RFC 5681 §3.1).
    pub fn on_handshake_retransmit(&mut self) {
        self.window_mut().start_with_one_segment();
    }
}

/// Calls a method of whichever algorithm it is.
macro_rules! dispatch {
    ($controller:expr, $inner:ident => $call:expr) => {
        match $controller {
            Controller::NewReno($inner) => $call,
            Controller::Cubic($inner) => $call,
            Controller::Dctcp($inner) => $call,
            Controller::Bbr($inner) => $call,
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

    fn wants_samples(&self) -> bool {
        dispatch!(self, inner => inner.wants_samples())
    }

    #[inline]
    fn models_delivery(&self) -> bool {
        dispatch!(self, inner => inner.models_delivery())
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
