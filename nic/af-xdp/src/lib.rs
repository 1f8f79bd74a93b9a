//! AF_XDP port: receives and transmits the frames of one NIC queue through shared memory.
//!
//! ```text
//!            UMEM, one mapping, cut into frames ("chunks")
//!            | rx_frames            | tx_frames packets    | shared_frames |
//!  kernel     FILL ring  <-- rx_release      TX ring         <-- tx_commit + tx_flush
//!             RX ring    --> rx_burst        COMPLETION ring --> reaped by tx_flush, tx_frame
//! ```
//!
//! Every ring has at least as many entries as its half of the UMEM has frames. A ring can therefore
//! never overflow, and no entry has to be queued elsewhere. Each frame is in exactly one place at
//! any time: a ring, the free stack of transmit packets, or the caller's burst.
//!
//! Packets of a jumbo MTU take several frames (multi-buffer, Linux 6.6). Received frames are copied
//! into one packet; transmitted frames are adjacent. The caller sees only whole packets.
//!
//! A program uses the port together with the crate `tidelane-steering`, whose `Demux` is the XDP
//! program that redirects frames to the port:
//!
//! 1. `Demux::load_and_attach(ifindex, queue_counts(name)?.rx, Buffers::One)`;
//! 2. for every queue [`XdpPort::open`], then `demux.register_xsk(queue, port.fd())`. No queue may
//!    be left out: a flow that hashes to a queue without a socket would go to the kernel instead;
//! 3. `demux.claim(..)` for each address and port whose packets the program wants;
//! 4. loop: `rx_burst`, `tx_frame`, `tx_commit`, `rx_release`, `tx_flush`
//!    ([`PacketIo`](tidelane_packet_io::PacketIo)); sleep by polling [`XdpPort::fd`] for input.
//!
//! With `shared_frames`, the user of the port has frames of the UMEM, too. The user exchanges a
//! free frame against a received frame that it keeps, and lends frames for transmission.
//!
//! GSO frames are sent through a packet socket (`gso.rs`).
//!
//! Copy mode (every driver, including veth) and zero-copy (drivers with support) have the same
//! interface; [`XdpPort::mode`] tells them apart.

mod bind;
mod config;
mod error;
mod gso;
mod port;
mod queues;
mod ring_unsafe;
mod rx_unsafe;
mod shared_unsafe;
mod sys;
mod tx_unsafe;
mod umem_unsafe;

pub use config::{BusyPoll, MTU_MAX, XdpConfig};
pub use error::XdpError;
pub use port::{XdpCounters, XdpMode, XdpPort, XdpStatistics};
pub use queues::{QueueCounts, queue_counts};
pub use rx_unsafe::XdpBurst;
pub use umem_unsafe::UmemMemory;
