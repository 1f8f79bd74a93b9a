//! Parameters of a context on a queue.

use std::net::IpAddr;

use tidelane_embedded::SocketOptions;

/// Parameters of a context on a queue of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicOptions {
    /// Name of the interface.
    pub interface: String,
    /// Number of the queue. Without a number, the interface must have one queue, because the
    /// packets of a connection may arrive on any queue. With a number, the NIC has to send the
    /// packets of the program's ports to this queue (`ethtool -N`). The kernel resets connections
    /// whose packets arrive on other queues.
    pub queue: Option<u32>,
    /// Addresses of the context. An empty list stands for all addresses of the interface, except
    /// link-local ones.
    pub addresses: Vec<IpAddr>,
    /// Number of the program's buffers. The frames in the rings of the queue are added, so that
    /// the limit is [`Self::BUFFERS_MAX`].
    pub buffers: u32,
    /// Limit of buffers on one descriptor that are queued or not acknowledged.
    pub send_queue_max: usize,
    /// Options of all connections, because the kernel has no sockets on which to set them. Messages
    /// leave at once (TCP_NODELAY) by default.
    pub tcp: SocketOptions,
}

impl NicOptions {
    /// Largest number of buffers: 32,768 less the frames of the rings.
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

/// Frames in the rings of each direction.
pub(crate) const RING_FRAMES: u32 = 2048;
