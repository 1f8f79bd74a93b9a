//! The *direct* back end of the ring API (`tidelane-rings`): TCP and UDP run in the program's
//! process. The design follows StackMap (USENIX ATC 2016, §3).
//!
//! [`DirectContext`] is a [`Context`] on a port: a packet interface that the program owns. A port
//! is a queue of a NIC (AF_XDP), a mux port of the Tidelane service (a pair of packet rings through
//! which the program shares the service's NIC), a TUN device, or a link in memory. TCP runs within
//! the calls of the context, in the program's thread. A crash of the program affects no other
//! program.
//!
//! ```text
//!   program ── send(descriptor, buffer) ──> DirectContext ── send chain ────> Engine
//!   program <── ReadyList ── sync                         <── receive chain ──   │
//!                                                                            port (PacketIo)
//! ```
//!
//! A send chain holds the buffers that a connection sends, until the peer has acknowledged their
//! data. A receive chain holds the received buffers of a connection, until a [`ReadyList`] passes
//! them to the program.
//!
//! [`Context`]: tidelane_rings::Context
//! [`ReadyList`]: tidelane_rings::ReadyList

mod connection;
mod context;
mod counters;
mod cycle;
mod datagram_out;
mod datagrams;
mod descriptors;
mod input;
mod io;
mod ip;
mod loans_unsafe;
mod options;
mod placed;
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
