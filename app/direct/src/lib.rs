//! The ring API over the TCP engine of this process (`tidelane-rings`): the *direct* back end of
//! StackMap (§3).
//!
//! [`DirectContext`] is a [`Context`] on a port that the program owns: a queue of a NIC (AF_XDP), a
//! port of the Tidelane service, a TUN device, or a link in memory. TCP runs within the calls of
//! the context, in the thread of the program. If the program crashes, no other program is affected.
//!
//! ```text
//!   program ── send(descriptor, buffer) ──> DirectContext ── send chain ────> Engine
//!   program <── ReadyList ── sync                         <── receive chain ──   │
//!                                                                            port (PacketIo)
//! ```
//!
//! [`Context`]: tidelane_rings::Context

mod connection;
mod context;
mod counters;
mod cycle;
mod descriptors;
mod input;
mod io;
mod loans_unsafe;
mod options;
mod receive_chain;
mod segment_writer;
mod send_chain;
mod supply;
mod time;

pub use crate::{
    context::DirectContext,
    counters::DirectCounters,
    options::DirectOptions,
    time::{FnTime, PollTime, TimeSource, poll_descriptor},
};
