//! The ring API over the stream buffers of the Tidelane service (`tidelane-rings`), for programs
//! without privileges.
//!
//! [`ServiceContext`] is a [`Context`] whose connections the service carries. The data lies in the
//! memory that the program shares with the service:
//!
//! ```text
//!   program ── allocate, write, send ──> send buffer of a connection ──> service ──> NIC
//!   program <── ReadyList: parts of the receive buffers ── sync ── service <── NIC
//! ```
//!
//! * **Received data** is a part of the connection's receive buffer. The part is free again when
//!   the program has dropped the buffer and all earlier ones of the connection. Data that the
//!   program holds closes the receive window of its connection, and of no other.
//! * **Data to send** is not copied if the program writes it to a buffer of [`Context::allocate`]
//!   for the same descriptor, and sends the buffers in the order in which it has allocated them.
//!   Each other buffer is copied once to the send buffer: [`ServiceContext::copies`].
//! * **System calls** occur only when the program sleeps, and when the service sleeps.
//!
//! A child process after `fork` has no access to the memory, and must not use the context.
//!
//! This crate trusts the service with the payload of received data, and validates everything else.
//! The service trusts the program with nothing: see `docs/design/rings.md`.
//!
//! [`Context`]: tidelane_rings::Context
//! [`Context::allocate`]: tidelane_rings::Context::allocate

mod cause;
mod connection;
mod context;
mod error;
mod lent_stream_unsafe;
mod links;
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
