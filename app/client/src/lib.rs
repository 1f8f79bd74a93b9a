//! The ring API in Rust: a program's side of the boundary. Knows no TCP and no errno.
//!
//! ```text
//! Program   one per process: region, service page, registration socket; `&self`, thread-safe
//! Context   one per thread (or shared under the caller's lock): rings and doorbell; `&mut self`
//! Stream    one per connection, under the caller's lock: bytes and flags; `&mut self`
//! ```
//!
//! A change of a stream reaches the service in two steps: `context.submit(&mut stream)` queues it
//! (once per flush, however often), `context.flush()` publishes all that is queued and rings the
//! service's doorbell if it sleeps.
//!
//! The service is trusted to carry the bytes, not to be free of faults: what it writes is validated
//! as far as this process's memory depends on it. Nonsense counts as the service's death.
#![forbid(unsafe_code)]

mod context;
mod control;
pub mod exceptions;
mod heir;
mod program;
mod rings;
mod session;
mod stream;

pub use context::{ClientEvent, Connect, Context, QueueError};
pub use control::{NotAdmitted, Refusal, RegisterError};
pub use heir::Heir;
pub use program::{Listen, ListenerHandle, Program};
pub use stream::{SendLimits, Stream, StreamOptions, UrgentByte};
