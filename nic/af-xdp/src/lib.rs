//! AF_XDP port: receives and transmits the frames of one NIC queue through shared memory.
//!
//! ```text
//!            UMEM, one mapping, cut into frames ("chunks")
//!            | rx_frames            | tx_packets           | shared_frames |
//!  kernel     FILL ring  <-- rx_release      TX ring         <-- tx_commit + tx_flush
//!             RX ring    --> rx_burst        COMPLETION ring --> reaped by tx_flush, tx_frame
//! ```
//!
//! The FILL and RX rings have an entry for each receive frame. The TX and COMPLETION rings have an
//! entry for each frame of the transmit packets. A ring can therefore never overflow, and no entry
//! has to be queued elsewhere. The *user* of the port is the TCP/IP stack that opened the port.
//! Each frame has exactly one owner at any time: the kernel, the port, the user, or a burst
//! (received frames that the port lends to the user).
//!
//! Packets of a jumbo MTU take several frames (multi-buffer, Linux 6.6), but the user sees only
//! whole packets: the port copies the frames of a received packet into one buffer, and the frames
//! of a transmitted packet are adjacent.
//!
//! A program uses the port together with the crate `tidelane-steering`, whose `Demux` loads the XDP
//! program that redirects frames to the port:
//!
//! 1. `Demux::load_and_attach(ifindex, queue_counts(name)?.rx, Buffers::One)`. If packets may take
//!    several frames, the last argument is `Buffers::Several`;
//! 2. for every queue [`XdpPort::open`], then `demux.register_xsk(queue, port.fd())`. No queue may
//!    be left out: a flow that hashes to a queue without a socket would go to the kernel instead;
//! 3. `demux.claim(..)` for each address and port whose packets the program wants;
//! 4. loop: `rx_burst`, `tx_frame`, `tx_commit`, `rx_release`, `tx_flush`
//!    ([`PacketIo`](tidelane_packet_io::PacketIo)); sleep by polling [`XdpPort::fd`] for input.
//!
//! With [`XdpConfig::shared_frames`], the user of the port has frames of the UMEM, too. To keep a
//! received frame, the user gives the port a free frame in exchange. For a transmission, the user
//! lends a frame to the port.
//!
//! GSO frames, which carry the payload of many TCP segments, are sent through a packet socket
//! (`gso.rs`).
//!
//! Copy mode (every driver, including veth) and zero-copy (drivers with support) have the same
//! interface. [`XdpPort::mode`] returns the mode.

mod bind;
mod config;
mod error;
mod gso;
mod port;
mod queues;
mod ring_unsafe;
mod rx_unsafe;
mod shared_memory;
mod shared_unsafe;
mod sys;
mod tx_unsafe;
mod umem_unsafe;

pub use bind::XdpMode;
pub use config::{BusyPoll, MTU_MAX, XdpConfig};
pub use error::XdpError;
pub use port::{XdpCounters, XdpPort, XdpStatistics};
pub use queues::{QueueCounts, queue_counts};
pub use rx_unsafe::XdpBurst;
pub use umem_unsafe::UmemPages;
