//! The direct back end of the ring API on a queue of an interface (AF_XDP), with its set-up.
//!
//! [`open`] attaches the demux (an XDP program) to the interface, opens an AF_XDP socket on the
//! queue, and opens a [`DirectContext`] over the frames of the socket. The program needs root or
//! the capabilities that the error names.
//!
//! ```text
//!   NIC queue ── demux ── claimed (address, TCP, port) ──> AF_XDP socket ──> DirectContext
//!                  └───── all other packets ─────────────> kernel: ARP, ICMP, other ports
//! ```
//!
//! * **Ports.** [`NicContext`] claims the port of a listener for the addresses of the listener, and
//!   claims the local ports of the connections that the program starts. A claimed port is reserved
//!   in the kernel, so that no socket of the kernel gets it. A claim lives as long as the context,
//!   because connections may outlive their listener. Later connections use the port again.
//! * **Link addresses.** The kernel resolves neighbours and answers their ARP and neighbour
//!   solicitations, because the demux leaves it these packets. [`NicContext`] looks up the route
//!   and the neighbour of each peer that it connects to in the kernel's tables, and lets the kernel
//!   resolve an unknown neighbour. A peer that connects to the context is answered at the source of
//!   its frame.
//! * **The end.** The end of the process in any way detaches the demux. The kernel then gets the
//!   packets, and answers those of old connections by RST. A child process of `fork` keeps the
//!   queue until it ends or calls `execve`: after a crash of its parent, nobody answers meanwhile.
//!
//! The kernel's part is the trait [`Kernel`], so that tests run on a link in memory, without
//! privileges.
//!
//! [`DirectContext`]: tidelane_direct::DirectContext
#![forbid(unsafe_code)]

mod context;
mod error;
mod interface;
mod kernel;
mod options;

use std::io;

use tidelane_af_xdp::XdpPort;
use tidelane_direct::PollTime;

pub use crate::{
    context::NicContext, error::NicError, interface::Interface, kernel::Kernel, options::NicOptions,
};

/// Opens a context on a queue of an interface.
///
/// # Errors
///
/// A [`NicError`] inside of the [`io::Error`] says why, and what to do. `InvalidInput` for
/// impossible sizes.
pub fn open(options: &NicOptions) -> io::Result<NicContext<XdpPort, Interface>> {
    let (interface, port) = Interface::open(options)?;
    let direct = interface.direct_options(options)?;
    NicContext::new(&direct, port, PollTime::new(), interface)
}
