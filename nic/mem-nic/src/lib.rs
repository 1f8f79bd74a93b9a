//! A NIC in memory for tests and the simulator: frames in one memory, rings of frame numbers, and a
//! wire that the owner of the other end moves.
//!
//! ```text
//!  stack ── tx_commit, tx_lend ──> Nic ── tx_flush ──> WireEnd::take_sent
//!  stack <── rx_burst ───────────  Nic <────────────── WireEnd::deliver
//! ```
//!
//! The NIC copies between its frames and the wire, as DMA does. A transmission is complete some
//! time after its flush. The NIC then compares the frame with its bytes at the flush, and panics if
//! the stack has changed the frame meanwhile. The clock belongs to the caller.

mod config;
mod frames_unsafe;
mod nic_unsafe;
mod wire;

pub use crate::{
    config::{Clock, NicConfig},
    nic_unsafe::{Nic, NicBurst},
    wire::WireEnd,
};
