//! State that the fast path and the slow path share: the hot state of flows, and the flow table.
//! The hot state of a flow (connection) is the state that the fast path uses. The crate re-exports
//! the interface to the driver (the program that runs the TCP engine), for both paths.
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
