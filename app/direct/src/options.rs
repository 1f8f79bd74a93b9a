//! Parameters of a [`DirectContext`](crate::DirectContext). The port of a context is its packet
//! interface, such as a queue of a NIC.

use tidelane_embedded::{EngineConfig, IpAddress, SocketOptions, StackConfig};

/// Initial receive window of a connection in bytes. TCP enlarges the window as the program reads.
const RX_WINDOW_INITIAL: u32 = 64 << 10;
/// Largest receive window of a connection in bytes.
const RX_WINDOW_MAX: u32 = 256 << 10;

/// Parameters of a [`DirectContext`](crate::DirectContext).
#[derive(Clone, Debug)]
pub struct DirectOptions {
    /// Addresses, keys and TCP parameters of the context.
    pub stack: StackConfig,
    /// Number of buffers, at most 32,768. Ignored if the port (the packet interface of the context)
    /// shares its memory, because the port then determines the number.
    pub buffers: u32,
    /// Length of each buffer in bytes, including the headroom for headers. Ignored if the port
    /// shares its memory.
    pub buffer_len: u32,
    /// Maximum number of queued or unacknowledged buffers of one socket. A further send is refused.
    pub send_queue_max: usize,
    /// MTU of the link in bytes. The context uses a smaller MTU if the frames of the port are
    /// shorter. If the frames may be longer than the link's MTU, as on a NIC queue, the program has
    /// to set the MTU.
    pub mtu: u32,
}

impl DirectOptions {
    /// Returns the parameters of a context with one IP address, on a link without link addresses
    /// (MAC addresses). `secret` keys the initial sequence numbers (RFC 9293 §3.4.1) and must not
    /// be known to others.
    ///
    /// Segments are sent without delay (TCP_NODELAY). The receive window grows up to 256 KiB.
    pub fn new(address: IpAddress, secret: [u8; 16]) -> Self {
        Self {
            stack: StackConfig {
                engine: EngineConfig {
                    rx_window_initial: RX_WINDOW_INITIAL,
                    rx_window_max: RX_WINDOW_MAX,
                    ..EngineConfig::default()
                },
                options: SocketOptions {
                    nodelay: true,
                    ..SocketOptions::default()
                },
                ..StackConfig::new(address, secret)
            },
            buffers: 8192,
            buffer_len: 4096,
            send_queue_max: 256,
            mtu: u32::MAX,
        }
    }
}
