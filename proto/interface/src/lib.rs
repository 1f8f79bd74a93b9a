//! The types that the TCP engine and its driver exchange. The driver is the program that runs the
//! engine.
//!
//! [`Driver`] has the functions that a driver implements for the engine, and [`Event`] has the
//! engine's reports. [`EngineConfig`] and [`SocketOptions`] are the configuration, and [`FlowInfo`]
//! and [`Counters`] are the statistics. The crate `tidelane-engine` has the engine and re-exports
//! this crate, so a driver depends on `tidelane-engine` only.
#![forbid(unsafe_code)]

mod clock;
mod config;
mod counters;
mod driver;
mod error;
mod event;
mod fast_open;
mod ids;
mod info;
mod socket_options;
mod state;
mod traffic;

pub use tidelane_wire::{IcmpError, IcmpErrorKind, IpFields};

pub use crate::{
    clock::{Clock, Millis},
    config::{
        ConfigError, EcnPolicy, EngineConfig, MtuProbing, PACING_RATE_UNLIMITED, SocketOptions,
    },
    counters::Counters,
    driver::{
        Admission, Arrival, Driver, FlowRoute, IpChange, NewFlow, Origin, SegmentOut, TxFull,
        Verdict,
    },
    error::{ListenError, Misuse, OpenError},
    event::{CloseCause, Event},
    fast_open::FastOpenPolicy,
    ids::{FlowId, LinkId, ListenerId},
    info::FlowInfo,
    socket_options::{FinWait2, IpOptions, WindowOptions},
    state::{CaState, State, StateEvent, TRANSITIONS},
    traffic::Traffic,
};
