//! The direct back end of the ring API (`tidelane-rings`) on a queue of a NIC (AF_XDP). TCP and UDP
//! run in the program's process.
//!
//! [`open`] attaches the demux (an XDP program) to the interface, opens an AF_XDP socket on the
//! queue, and returns a [`NicContext`]. A [`NicContext`] has the sockets of one thread. Its
//! [`DirectContext`] runs TCP and UDP on the AF_XDP socket. In addition, the [`NicContext`] claims
//! ports, and looks up routes and neighbours in the kernel. The program needs root or the
//! capabilities that the error of [`open`] names.
//!
//! ```text
//!   NIC queue ── demux ── claimed 3-tuple ──────────────> AF_XDP socket ──> DirectContext
//!                  └───── all other packets ─────────────> kernel: ARP, ping, other ports
//! ```
//!
//! * **Ports.** A claim reserves a port in the kernel, so that no kernel socket can use the port.
//!   The claim also makes the demux pass the packets of a 3-tuple (protocol, local address and
//!   local port) to the AF_XDP socket. [`NicContext`] claims the port of a listener or UDP socket
//!   at each of the socket's addresses, and the local ports of the connections that the program
//!   starts. A claim of a TCP port lasts as long as the context, because connections may outlive
//!   their listener. Later connections reuse claimed ports. The claim of a UDP socket ends when the
//!   socket is closed.
//! * **Link addresses.** The kernel resolves neighbours, and answers ARP requests and neighbour
//!   solicitations, because the demux passes these packets to the kernel. For each peer to which
//!   the program sends first, [`NicContext`] looks up the route and the neighbour in the kernel's
//!   tables. If the neighbour is unknown, the kernel resolves its link address. Answers to a peer
//!   that connects, or that has sent a datagram, go to the source link address of the peer's frame.
//! * **Process exit.** The end of the process, even by a crash, detaches the demux. The kernel
//!   then gets the packets, and answers the segments of old connections by RST. However, a child
//!   process after `fork` keeps the demux and the queue until the child ends or calls `execve`.
//!   Until then, nobody answers the packets to the ports of a parent that has crashed.
//!
//! The trait [`Kernel`] abstracts the kernel, so that tests run on a link in memory without
//! privileges. [`Interface`] implements the trait for a network interface of this machine.
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
    context::NicContext,
    error::NicError,
    interface::Interface,
    kernel::{Kernel, Transport},
    options::NicOptions,
};

/// Opens a context on a queue of an interface.
///
/// # Errors
///
/// A [`NicError`] inside the [`io::Error`] gives the reason, and usually a remedy. `InvalidInput`
/// for impossible options. Otherwise, the errors of system calls.
pub fn open(options: &NicOptions) -> io::Result<NicContext<XdpPort, Interface>> {
    let (interface, port) = Interface::open(options)?;
    let direct = interface.direct_options(options)?;
    NicContext::new(&direct, port, PollTime::new(), interface)
}
