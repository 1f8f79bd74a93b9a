//! Parameters of a context on a NIC queue. A context is a TCP/IP stack in the program. The context
//! sends and receives on the queue without kernel sockets.

use std::net::IpAddr;

use tidelane_embedded::SocketOptions;

/// Parameters of a context on a NIC queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicOptions {
    /// Name of the interface.
    pub interface: String,
    /// Number of the queue. Without a number, the interface must have exactly one queue, because
    /// the packets of a connection may arrive on any queue. With a number, the NIC must steer the
    /// packets of the program's ports to this queue (`ethtool -N`). The kernel resets connections
    /// whose packets arrive on other queues.
    pub queue: Option<u32>,
    /// Local addresses of the context. An empty list means all addresses of the interface except
    /// IPv6 link-local addresses.
    pub addresses: Vec<IpAddr>,
    /// Number of buffers for the program, at most [`Self::BUFFERS_MAX`]. The frames in the rings of
    /// the queue are not included.
    pub buffers: u32,
    /// Largest number of buffers that one connection or UDP socket may hold for sending. Buffers
    /// that are sent and not yet acknowledged are included.
    pub send_queue_max: usize,
    /// Options of all connections. The program cannot use `setsockopt`, because the connections
    /// have no kernel sockets. By default, segments are sent without delay (TCP_NODELAY).
    pub tcp: SocketOptions,
}

impl NicOptions {
    /// Largest number of buffers. The buffers and the frames in the rings of the queue are together
    /// at most 32,768.
    pub const BUFFERS_MAX: u32 = (1 << 15) - 2 * RING_FRAMES;

    /// Returns the parameters of a context with 8,192 buffers on the only queue of `interface`.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            queue: None,
            addresses: Vec::new(),
            buffers: 8192,
            send_queue_max: 256,
            tcp: SocketOptions {
                nodelay: true,
                ..SocketOptions::default()
            },
        }
    }
}

/// Number of frames in the receive rings of the queue, and also number of frames in its transmit
/// rings.
pub(crate) const RING_FRAMES: u32 = 2048;
