//! The ring API (crate `tidelane-rings`) on the stream buffers of the Tidelane service (the process
//! `tidelaned`), for unprivileged programs.
//!
//! [`ServiceContext`] is a [`Context`] whose connections the service carries. The payload lies in
//! memory that the program shares with the service:
//!
//! ```text
//!   program ── allocate, write, send ──> send buffer of a connection ──> service ──> NIC
//!   program <── ReadyList: parts of the receive buffers ── sync ── service <── NIC
//! ```
//!
//! * **Received data** is a part of the connection's receive buffer, which the program gets as a
//!   `Buffer` of the ring API. The part is free again when the program has dropped this `Buffer`
//!   and all earlier buffers of the connection. Data that the program holds reduces the receive
//!   window of the same connection only.
//! * **Data to send** is not copied if the program writes it to a buffer of [`Context::allocate`]
//!   for the same descriptor, and sends the buffers in the order in which it has allocated them. If
//!   the program sends one of these buffers out of order, the payload is copied twice. The payload
//!   of every other buffer is copied once, to the send buffer. [`ServiceContext::copies`] counts
//!   the copies.
//! * **System calls** for data occur only when the program sleeps, when the service sleeps, and for
//!   UDP. A program that never sleeps also makes one system call for every 256 calls of `sync`
//!   without an event, to check that the service still runs.
//! * **UDP** stays with the kernel, as for programs under `tidelane run`: each datagram costs a
//!   system call. If a context has UDP sockets, each [`sync`](tidelane_rings::Context::sync) makes
//!   at least one system call, to ask the kernel for events of these sockets.
//!
//! A child process after `fork` cannot access the shared memory, and must not use the context.
//!
//! The crate trusts the service not to change received payload that the program holds, and
//! validates all other data in the shared memory. The service trusts no data of the program: see
//! `docs/design/rings.md`.
//!
//! [`Context`]: tidelane_rings::Context
//! [`Context::allocate`]: tidelane_rings::Context::allocate

mod cause;
mod connection;
mod connections;
mod context;
mod datagrams;
mod error;
mod lent_stream_unsafe;
mod listener;
mod options;
mod program_unsafe;
mod requests;
mod sleeper;
mod sockets;

pub use crate::{
    context::ServiceContext,
    error::ServiceError,
    options::ServiceOptions,
    program_unsafe::{ServiceProgram, context_in_memory},
};
