//! Parameters of a context.

use tidelane_embedded::{EngineConfig, IpAddress, SocketOptions, StackConfig};

/// Receive window of a connection at its start, in bytes.
const RX_WINDOW_INITIAL: u32 = 64 << 10;
/// Largest receive window of a connection in bytes.
const RX_WINDOW_MAX: u32 = 256 << 10;

/// Parameters of a context.
#[derive(Clone, Debug)]
pub struct DirectOptions {
    /// Addresses, keys and TCP of the context.
    pub stack: StackConfig,
    /// Number of buffers, at most 32,768. A port that shares its memory with the context has its
    /// own number.
    pub buffers: u32,
    /// Length of each buffer in bytes, with the room for headers. A port that shares its memory
    /// with the context has its own length.
    pub buffer_len: u32,
    /// Limit of buffers on one descriptor that are queued or not acknowledged.
    pub send_queue_max: usize,
    /// MTU of the link in bytes, at most that of the port's frames. A frame of a NIC queue has room
    /// for more than the MTU of its interface.
    pub mtu: u32,
}

impl DirectOptions {
    /// Returns the parameters of a context with one address, on a link without link addresses.
    /// `secret` is the key of initial sequence numbers, and nobody else may know it.
    ///
    /// Messages leave at once (TCP_NODELAY). The receive window grows up to 256 KiB.
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
