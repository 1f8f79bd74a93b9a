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
//! A doorbell is an eventfd that wakes a sleeping thread. A change of a stream reaches the service
//! in two steps. `context.submit(&mut stream)` queues an ADVANCE request for a changed stream, at
//! most one per stream and flush. `context.flush()` publishes the queued requests, and rings the
//! service's doorbell if the service sleeps.
//!
//! This crate trusts the service with the payload. A bug of the service must not corrupt the memory
//! of the program, so this crate validates all values of the service that decide which memory is
//! accessed. An invalid ring index is handled like the death of the service. Events with invalid
//! slots and invalid positions of a stream are ignored.
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
