//! What fast path and slow path share: the hot state of a flow, its name, and the driver's side.
//!
//! The two paths never name each other. They meet in [`FlowState`], 128 bytes per connection, and
//! in [`FlowTable`], which finds it. Everything that only the slow path needs lives there.
//!
//! ```text
//!          engine
//!         /      \
//!   fastpath    slowpath
//!         \      /
//!           flow  ->  cc, wire, time
//! ```
#![forbid(unsafe_code)]

mod clock;
mod config;
mod counters;
mod driver;
mod emit;
mod fast_open;
mod flow_state;
mod ids;
mod socket_options;
mod state;
mod table;
mod timing;

pub use tidelane_wire::{IcmpError, IcmpErrorKind, IpFields};

pub use crate::{
    clock::{Clock, Millis},
    config::{ConfigError, EcnPolicy, EngineConfig, MtuProbing, NO_PACING, SocketOptions},
    counters::Counters,
    driver::{
        Admission, Arrival, CloseCause, Env, Event, FlowInfo, Judgement, ListenError, Misuse,
        OpenError, Route, SegmentOut, TxFull, by_our_clock,
    },
    fast_open::FastOpenPolicy,
    flow_state::{CaState, FlowState, flags},
    ids::{FlowId, LinkId, ListenerId},
    socket_options::{FinWait2, IpOptions, WindowOptions},
    state::{State, StateEvent, TRANSITIONS},
    table::FlowTable,
    timing::Timeouts,
};
