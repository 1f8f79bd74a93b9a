//! The ring API: messages over many connections without copies, after the StackMap paper (USENIX
//! ATC 2016, §4.5).
//!
//! A program opens a [`Context`]: a set of TCP and UDP sockets. One call, [`Context::sync`], sends
//! and receives on all these sockets. The library does nothing outside of the calls of a context.
//! If TCP runs in the program, TCP and its timers thus run within these calls. The result of one
//! call is a [`ReadyList`]: the descriptors (sockets) with data or events, each with a chain of
//! slots that hold its received data. The data lies in a [`Buffer`]: a piece of the context's
//! [`Pool`], or memory that the back end (the TCP/IP stack behind the context) lends, such as a
//! part of a stream buffer. To pass data between the program and the context, a buffer changes its
//! owner. The API does not copy the contents.
//!
//! ```text
//!   program ── send(descriptor, buffer) ──> Context ──> back end, such as tidelane-kernel
//!   program <── ReadyList: descriptors, slots ── sync
//! ```
//!
//! An echo server, which sends each received buffer back as it is:
//!
//! ```
//! use tidelane_rings::{Context, Events, ReadyList, Wait};
//!
//! fn echo_cycle(context: &mut dyn Context, list: &mut ReadyList) -> std::io::Result<()> {
//!     context.sync(list, Wait::Forever)?;
//!     for at in 0..list.len() {
//!         let entry = list.entry(at);
//!         while let Some(buffer) = list.take_next(at) {
//!             // This example drops a refused buffer, so that it returns to the pool. A real
//!             // server keeps the buffer until the event WRITABLE.
//!             let _ = context.send(entry.descriptor, buffer);
//!         }
//!         if entry.events.intersects(Events::END.union(Events::CLOSED)) {
//!             context.close(entry.descriptor);
//!         }
//!     }
//!     Ok(())
//! }
//! ```

mod buffer_unsafe;
mod context;
mod descriptor;
mod pieces_unsafe;
mod pool_unsafe;
mod ready;

pub use crate::{
    buffer_unsafe::{Buffer, Lender, Loan},
    context::{Context, ListenOptions, SendError, SendRefusal, Wait},
    descriptor::Descriptor,
    pool_unsafe::{BackEndMemory, Pool},
    ready::{Arrival, Cause, Entry, Events, ReadyList},
};
