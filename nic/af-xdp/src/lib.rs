//! AF_XDP: frames of one NIC queue in and out through memory shared with the kernel.
//!
//! ```text
//!            UMEM, one mapping, cut into frames ("chunks")
//!            | rx_frames            | tx_frames packets    |
//!  kernel     FILL ring  <-- rx_release      TX ring         <-- tx_commit + tx_flush
//!             RX ring    --> rx_burst        COMPLETION ring --> reaped by tx_flush, tx_frame
//! ```
//!
//! Every ring is at least as long as its half of the UMEM has frames, so no ring can ever be
//! over-full and nothing has to be kept aside. A frame is at any time in exactly one place: a ring,
//! the free stack of transmit packets, or the caller's hands.
//!
//! Packets of a jumbo MTU take several frames (multi-buffer, Linux 6.6). Received ones are copied
//! together; transmitted ones lie in adjacent frames. The caller sees whole packets only.
//!
//! What a program needs, together with `tidelane-steering`:
//!
//! 1. `Demux::load_and_attach(ifindex, queue_counts(name)?.rx, Buffers::One)`;
//! 2. for every queue [`XdpPort::open`], then `demux.register_xsk(queue, port.fd())`. *Every*
//!    queue: a flow that hashes to a queue without a socket would go to the kernel instead;
//! 3. `demux.claim(..)`;
//! 4. loop: `rx_burst`, `tx_frame`, `tx_commit`, `rx_release`, `tx_flush`
//!    ([`PacketIo`](tidelane_packet_io::PacketIo)); sleep by polling [`XdpPort::fd`] for input.
//!
//! Super-frames leave by a packet socket beside it (`super_frames.rs`).
//!
//! Copy mode (every driver, veth too) and zero-copy (drivers that have it) look the same to the
//! caller; [`XdpPort::mode`] tells which it is.

mod bind;
mod config;
mod error;
mod port;
mod queues;
mod ring_unsafe;
mod rx_unsafe;
mod super_frames;
mod sys;
mod tx_unsafe;
mod umem_unsafe;

pub use config::{BusyPoll, MTU_MAX, XdpConfig};
pub use error::XdpError;
pub use port::{XdpCounters, XdpMode, XdpPort, XdpStatistics};
pub use queues::{QueueCounts, queue_counts};
pub use rx_unsafe::XdpBurst;
pub use umem_unsafe::UmemMemory;
