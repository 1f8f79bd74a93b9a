//! The program's side of the memory that a program shares with the service. The service (the
//! process `tidelaned`) runs TCP for the program. This crate knows neither TCP nor the socket calls
//! and their error numbers. The crate `tidelane-sockets` implements the socket calls of unmodified
//! programs with this crate.
//!
//! ```text
//! Program   one per process: shared memory, registration socket; `&self`, thread-safe
//! Context   one per thread (or shared under the caller's lock): rings and doorbell; `&mut self`
//! Stream    one per connection, under the caller's lock: bytes and flags; `&mut self`
//! ```
//!
//! A doorbell is an eventfd that wakes a sleeping thread. A slot is the record of one connection in
//! the shared memory. A change of a stream reaches the service in two steps.
//! `context.submit(&mut stream)` queues an ADVANCE request for a changed stream, at most one per
//! stream and flush. The request makes the service read the slot. `context.flush()` publishes the
//! queued requests, and rings the doorbell of each sleeping core (polling thread of the service)
//! that has a request.
//!
//! This crate trusts the service with the payload. However, a bug of the service must not corrupt
//! the memory of the program. This crate therefore validates all values of the service that decide
//! which memory is accessed. An invalid ring index is handled like the death of the service. An
//! event with an invalid slot number is ignored, and so is an invalid stream position.
#![forbid(unsafe_code)]

mod child_session;
mod client_event;
mod context;
mod control;
pub mod exceptions;
mod listener_handle;
mod program;
mod rings;
mod session;
mod stream;

pub use child_session::ChildSession;
pub use client_event::ClientEvent;
pub use context::{Connect, Context, QueueError};
pub use control::{NotAdmitted, Refusal, RegisterError};
pub use listener_handle::ListenerHandle;
pub use program::{Listen, Program};
pub use stream::{Run, SendLimits, Stream, StreamOptions, UrgentByte};
