//! [`Placed`]: a received payload that a socket has accepted while the payload is still in its
//! frame. After the processing of the frame, the context's packet interface (`PacketIo`) gets a
//! spare buffer in exchange for the frame, and the frame becomes the buffer of the payload.

use std::net::SocketAddr;

use tidelane_engine::FlowId;
use tidelane_rings::Buffer;

use crate::datagrams::DatagramSocketId;

/// The socket that receives a payload.
#[derive(Clone, Copy, Debug)]
pub enum Receiver {
    /// A connection, and the stream position of the payload.
    Connection { flow: FlowId, pos: u32 },
    /// A UDP socket, and the sender of the datagram.
    DatagramSocket {
        id: DatagramSocketId,
        sender: SocketAddr,
    },
}

/// A payload that a socket has accepted and that is still in its frame, with the spare buffer for
/// the exchange.
#[derive(Debug)]
pub struct Placed {
    pub receiver: Receiver,
    /// Offset of the payload in the frame.
    pub offset: usize,
    /// Length of the payload in bytes.
    pub len: usize,
    /// The buffer that the packet interface gets in exchange for the frame.
    pub spare: Buffer,
}
