//! The ring API (`tidelane-rings`) over the kernel's own TCP, through io_uring.
//!
//! [`KernelContext`] is a [`Context`] that needs neither the Tidelane service nor privileges. TCP
//! is the kernel's. One `io_uring_enter` for each [`Context::sync`] sends the data of all
//! connections, and receives the data of all connections into buffers of the pool. If there is no
//! event, a second `io_uring_enter` waits. [`Context::socket`] gives the kernel's socket of a
//! connection for socket calls, such as `getsockopt`.
//!
//! | call | `io_uring_enter` calls |
//! |---|---|
//! | [`Context::tx_sync`] | none without data or closes, else one; more as described below |
//! | [`Context::rx_sync`] | one; none if there are events, or neither requests nor a wait |
//! | [`Context::sync`] | those of `tx_sync`; without events, also those of `rx_sync` |
//!
//! [`Context::tx_sync`] makes a further call for closes that follow data, and for each further 64
//! buffers or datagrams of one socket.
//!
//! UDP sockets send and receive in the same calls. Each datagram has a buffer of its own.
//!
//! In a plain send, the kernel copies the payload to its own buffers, so the program's buffers
//! return to the pool at once. In a zero-copy send ([`ZeroCopy`]), the kernel reads the program's
//! buffers, which return to the pool when the kernel notifies the context that it has read them. A
//! wait ends with such a notification, perhaps with an empty list. The context needs Linux 6.1, and
//! for zero-copy sends Linux 6.2.
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
