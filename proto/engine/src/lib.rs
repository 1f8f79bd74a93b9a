//! A TCP engine: all flows (connections) of one core, with their listeners and timers. Each segment
//! goes to the fast path, which handles in-order data and new ACKs of established flows, or to the
//! slow path, which handles everything else.
//!
//! The engine is sans-IO: time, secret key and all I/O are arguments of its functions. The *driver*
//! is the code that runs the engine, for example the crate `tidelane-host` or a test. The driver
//! implements [`Driver`], through which the engine sends segments and reports events. The driver is
//! no NIC driver. `docs/design/engine.md` describes the design.
#![forbid(unsafe_code)]

mod connections;
mod cookies;
mod engine;
mod fast_open;
mod listeners;
mod path_mtu_cache;
mod resets;
mod secret;
mod time_wait;

pub use tidelane_cc::{
    Algorithm, CcInfo, CloneBoxed, CongestionControl, CustomAlgorithm, EcnFeedback, Interval,
    RateSample, RttSample, Window,
};
pub use tidelane_flow::FlowState;
pub use tidelane_interface::*;
pub use tidelane_time::{Duration, Instant};
pub use tidelane_wire::{
    DropReason, Ecn, Endpoint, FastOpenCookie, FastOpenOption, FlowKey, IpAddress, Segment,
    SeqNumber, TcpFlags, TcpOptions, Timestamps,
};

pub use crate::{
    engine::{Engine, advance::Advance, fast_open::FastOpenRequest},
    fast_open::keys::FastOpenKeys,
};
