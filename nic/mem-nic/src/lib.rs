//! A simulated NIC for tests and the simulator. The user of the NIC is a TCP/IP stack. The frames
//! of the NIC are numbered parts of one memory, and queues hold the numbers of frames. A wire
//! replaces the link: the owner of the wire's far end delivers frames to the NIC, and takes the
//! frames that the NIC has sent.
//!
//! ```text
//!  stack ── tx_commit, tx_lend ──> Nic ── tx_flush ──> WireEnd::take_sent
//!  stack <── rx_burst ───────────  Nic <────────────── WireEnd::deliver
//! ```
//!
//! The NIC copies between its frames and the wire, as DMA does. A transmission is complete some
//! time after its flush. At the completion, the NIC compares a hash of the frame's data with the
//! hash at the flush, and panics if the stack has changed the data meanwhile. The creator of the
//! NIC gives the NIC a [`Clock`], and sets the virtual time.

mod config;
mod frames_unsafe;
mod nic_unsafe;
mod wire;

pub use crate::{
    config::{Clock, NicConfig},
    nic_unsafe::{Nic, NicBurst},
    wire::WireEnd,
};
