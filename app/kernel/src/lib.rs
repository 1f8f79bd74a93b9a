//! The ring API over the kernel's own TCP (`tidelane-rings`), through io_uring.
//!
//! [`KernelContext`] is a [`Context`] that needs neither the Tidelane service nor privileges. TCP
//! is the kernel's. One `io_uring_enter` for each [`Context::sync`] sends the data of all
//! connections, and receives the data of all connections into buffers of the pool. If there is no
//! event, a second `io_uring_enter` waits. [`Context::socket`] gives the kernel's socket of a
//! connection for socket calls, such as `getsockopt`.
//!
//! | call | `io_uring_enter` calls |
//! |---|---|
//! | [`Context::tx_sync`] | none without data to send, else one; one more for closes after data |
//! | [`Context::rx_sync`] | one; none if there are events, or neither requests nor a wait |
//! | [`Context::sync`] | those of `tx_sync`; without events, also those of `rx_sync` |
//!
//! UDP sockets send and receive in the same calls. Each datagram has a buffer of its own.
//!
//! The kernel copies the payload to its own buffers during a send, so the program's buffers return
//! to the pool at once. The context needs Linux 6.1.
//!
//! [`Context`]: tidelane_rings::Context
//! [`Context::sync`]: tidelane_rings::Context::sync
//! [`Context::rx_sync`]: tidelane_rings::Context::rx_sync
//! [`Context::socket`]: tidelane_rings::Context::socket
//! [`Context::tx_sync`]: tidelane_rings::Context::tx_sync

mod address;
mod context;
mod driver;
mod options;
mod request_unsafe;
mod socket;
mod sockets;
mod uring_unsafe;

pub use crate::{context::KernelContext, options::KernelOptions};
