//! The ring API (`tidelane-rings`) over the kernel's own TCP and UDP, through io_uring. In this
//! API, one call sends and receives on all sockets of a thread.
//!
//! [`KernelContext`] is a [`Context`] (the sockets of one thread). The kernel runs TCP, so the
//! context needs neither the Tidelane service nor privileges. If a [`Context::sync`] has data to
//! send, one `io_uring_enter` sends the data of all connections, and receives the data of all
//! connections into buffers of the context's pool. If this call yields no event, a further
//! `io_uring_enter` waits. [`Context::socket`] returns the kernel's socket of a connection for
//! socket calls, such as `getsockopt`.
//!
//! | call | number of `io_uring_enter` calls |
//! |---|---|
//! | [`Context::tx_sync`] | zero if there is neither data nor a close; otherwise one or more |
//! | [`Context::rx_sync`] | one, or zero in the cases below |
//! | [`Context::sync`] | the calls of `tx_sync`; if there is no event, also the call of `rx_sync` |
//!
//! [`Context::tx_sync`] makes a further call for closes that follow data. If a socket has more than
//! 64 buffers or datagrams to send, `tx_sync` also makes a further call for each further 64.
//!
//! [`Context::rx_sync`] makes no call if the preceding `tx_sync` has left events for the list. It
//! also makes none if no request is queued and no wait is needed.
//!
//! The same `io_uring_enter` calls send and receive the datagrams of UDP sockets. Each datagram has
//! a buffer of its own.
//!
//! In a plain send, the kernel copies the payload to its own buffers, so the program's buffers
//! return to the pool within the call. In a zero-copy send ([`ZeroCopy`]), the kernel reads the
//! program's buffers without a copy. When the kernel has read the buffers, a notification tells the
//! context so, and the buffers return to the pool. A notification also ends a wait, so the list may
//! be empty. The context needs Linux 6.1. Zero-copy sends need Linux 6.2.
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
mod piece;
mod request_unsafe;
mod socket;
mod sockets;
mod uring_unsafe;
mod zero_copy;

pub use crate::{
    context::KernelContext,
    options::{KernelOptions, ZeroCopy},
};
