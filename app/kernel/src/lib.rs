//! The ring API over the kernel's own TCP (`tidelane-rings`), through io_uring.
//!
//! [`KernelContext`] is a [`Context`] without the Tidelane service, without privileges and without
//! its own TCP: each improvement of the kernel's TCP applies to it. One `io_uring_enter` for each
//! [`Context::sync`] sends the data of all connections, and receives the data of all connections
//! into buffers of the pool. A second one waits if there is no event. Socket calls work on the same
//! connections: see [`Context::socket`].
//!
//! | call | `io_uring_enter` calls |
//! |---|---|
//! | [`Context::tx_sync`] | none without data to send, else one; one more for closes after data |
//! | [`Context::rx_sync`] | one; none if events are there or there is nothing to wait for |
//! | [`Context::sync`] | those of `tx_sync`; if there is no event then, those of `rx_sync` |
//!
//! The kernel copies sent data to its own buffers within the call, so the program's buffers return
//! to the pool at once. Linux 6.1 is the oldest kernel with all features.
//!
//! [`Context`]: tidelane_rings::Context
//! [`Context::sync`]: tidelane_rings::Context::sync
//! [`Context::rx_sync`]: tidelane_rings::Context::rx_sync
//! [`Context::socket`]: tidelane_rings::Context::socket
//! [`Context::tx_sync`]: tidelane_rings::Context::tx_sync

mod address;
mod context;
mod options;
mod socket;
mod sockets;
mod uring_unsafe;

pub use crate::{context::KernelContext, options::KernelOptions};
