//! State that the fast path and the slow path of the TCP engine share.
//!
//! On established flows (connections), the fast path receives in-order data and ACKs, and sends new
//! data. The slow path handles everything else, such as setup, teardown and loss recovery. Neither
//! path depends on the other path.
//!
//! [`FlowState`] is the hot state of a flow: the 192 bytes that the fast path uses. [`FlowTable`]
//! stores the hot states, and finds a state by flow id or 4-tuple. The crate `tidelane-slowpath`
//! defines the state that only the slow path uses. This crate also re-exports `tidelane-interface`:
//! the types that the engine and its driver (the program that runs the engine) exchange.
//!
//! ```text
//!          engine
//!         /      \
//!   fastpath    slowpath
//!         \      /
//!           flow  ->  interface  ->  cc, wire, time
//! ```
#![forbid(unsafe_code)]

mod emit;
mod flow_state;
mod table;
mod timing;

pub use tidelane_interface::*;

pub use crate::{
    flow_state::{FlowState, flags},
    table::FlowTable,
    timing::Timeouts,
};
