//! The ring API in Rust: the program's side of the shared memory. This crate knows neither TCP nor
//! errno.
//!
//! ```text
//! Program   one per process: region, service page, registration socket; `&self`, thread-safe
//! Context   one per thread (or shared under the caller's lock): rings and doorbell; `&mut self`
//! Stream    one per connection, under the caller's lock: bytes and flags; `&mut self`
//! ```
//!
//! A change of a stream reaches the service in two steps. `context.submit(&mut stream)` queues the
//! change, once per flush. `context.flush()` publishes everything that is queued, and rings the
//! service's doorbell if it sleeps.
//!
//! The service is trusted with the payload, but not to be free of bugs: the library validates the
//! service's values as far as the memory of this process depends on them. An impossible value is
//! treated like the death of the service.
#![forbid(unsafe_code)]

mod child_session;
mod context;
mod control;
pub mod exceptions;
mod program;
mod rings;
mod session;
mod stream;

pub use child_session::ChildSession;
pub use context::{ClientEvent, Connect, Context, QueueError};
pub use control::{NotAdmitted, Refusal, RegisterError};
pub use program::{Listen, ListenerHandle, Program};
pub use stream::{SendLimits, Stream, StreamOptions, UrgentByte};
