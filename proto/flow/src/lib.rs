//! Types that the fast path and the slow path share: hot state, flow table, and interface to the
//! driver. The driver is the program that runs the engine, not a NIC driver.
//!
//! The two paths do not depend on each other. Both use [`FlowState`], which has 192 bytes per
//! connection, and [`FlowTable`], which finds the state of a flow. The slow path's crate holds the
//! state that only the slow path needs.
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
mod traffic;

pub use tidelane_wire::{IcmpError, IcmpErrorKind, IpFields};

pub use crate::{
    clock::{Clock, Millis},
    config::{ConfigError, EcnPolicy, EngineConfig, MtuProbing, NO_PACING, SocketOptions},
    counters::Counters,
    driver::{
        Admission, Arrival, CloseCause, Driver, Event, FlowInfo, FlowRoute, IpChange, ListenError,
        Misuse, NewFlow, OpenError, Origin, SegmentOut, TxFull, Verdict,
    },
    fast_open::FastOpenPolicy,
    flow_state::{CaState, FlowState, flags},
    ids::{FlowId, LinkId, ListenerId},
    socket_options::{FinWait2, IpOptions, WindowOptions},
    state::{State, StateEvent, TRANSITIONS},
    table::FlowTable,
    timing::Timeouts,
    traffic::Traffic,
};
