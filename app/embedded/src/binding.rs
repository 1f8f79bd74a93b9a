//! [`Binding`]: the state that the stack keeps for one connection. The engine (`tidelane-engine`),
//! which runs TCP, keeps a state of its own, and identifies the connection by a flow id.

use tidelane_engine::{CloseCause, FlowId, ListenerId};
use tidelane_wire::HeaderTemplate;

use crate::{
    buffer::{BufferPool, StreamBuffer},
    handles::Connection,
    status::{Status, Urgent},
};

/// The stack's state of one connection: buffers and headers, the program's position in both
/// streams, and the events that the engine has reported. A stream position counts the bytes of one
/// direction, modulo 2^32.
#[derive(Debug)]
pub struct Binding {
    /// Ethernet and IP headers of the connection's segments.
    pub template: HeaderTemplate,
    /// Received data.
    pub rx: StreamBuffer,
    /// Written data that the peer has not acknowledged.
    pub tx: StreamBuffer,
    /// Stream position up to which the program has read.
    pub rx_read: u32,
    /// Stream position up to which the program has written.
    pub tx_head: u32,
    /// Distinguishes connections that reuse a flow id.
    pub generation: u32,
    /// Listener of a passive open that the program has not accepted. `None` for an active open, and
    /// after the accept.
    pub listener: Option<ListenerId>,
    /// True if the peer has sent a FIN.
    pub peer_closed: bool,
    /// True if the program has closed its sending direction.
    pub write_closed: bool,
    /// Cause of the end of the connection. `None` before the end.
    pub cause: Option<CloseCause>,
    /// The most recent path error (ICMP) that did not end the connection.
    pub path_error: Option<CloseCause>,
    /// Stream position of the last byte of the urgent data, and the value of this byte once it has
    /// arrived. `None` if the peer has announced no urgent data.
    pub urgent: Option<(u32, Option<u8>)>,
    /// True if data or a FIN has arrived since the program last read. More data then causes no
    /// event.
    pub readable_reported: bool,
    /// True if the most recent write took only a part of its data, so that an event must report
    /// when there is room.
    pub wants_room: bool,
    /// True if the program has closed the connection.
    pub closed_by_program: bool,
}

impl Binding {
    /// Returns the state of a new connection. `listener` is the listener of a passive open.
    pub fn new(template: HeaderTemplate, generation: u32, listener: Option<ListenerId>) -> Self {
        Self {
            template,
            rx: StreamBuffer::default(),
            tx: StreamBuffer::default(),
            rx_read: 0,
            tx_head: 0,
            generation,
            listener,
            peer_closed: false,
            write_closed: false,
            cause: None,
            path_error: None,
            urgent: None,
            readable_reported: false,
            wants_room: false,
            closed_by_program: false,
        }
    }

    /// Returns true if `connection` is a handle of this connection, and the program has not closed
    /// the connection.
    pub fn is_of(&self, connection: Connection) -> bool {
        self.generation == connection.generation && !self.closed_by_program
    }

    /// Returns the handle of the connection, whose flow id is `flow`. Returns `None` if the program
    /// has not accepted the connection, or has closed it.
    pub fn handle(&self, flow: FlowId) -> Option<Connection> {
        let generation = self.generation;
        let open = !self.closed_by_program && self.listener.is_none();
        open.then_some(Connection { flow, generation })
    }

    /// Returns true if the program may write: the program has not closed its sending direction, and
    /// the connection has not ended.
    pub fn may_write(&self) -> bool {
        !self.write_closed && self.cause.is_none()
    }

    /// Returns the number of bytes for which the send buffer has room. `acked` is the stream
    /// position up to which the peer has acknowledged. `limit` is the largest number of
    /// unacknowledged bytes.
    pub fn room(&self, acked: u32, limit: u32) -> u32 {
        limit.saturating_sub(self.tx_head.wrapping_sub(acked))
    }

    /// Copies as much of `parts`, one after another, as the send buffer has room for. `acked` and
    /// `limit` are the arguments of [`room`](Self::room). Returns the number of copied bytes. The
    /// caller then advances `tx_head`.
    pub fn copy_to_send(
        &mut self,
        (acked, limit): (u32, u32),
        parts: &[&[u8]],
        buffers: &mut BufferPool,
    ) -> u32 {
        let data: usize = parts.iter().map(|part| part.len()).sum();
        let len = data.min(self.room(acked, limit) as usize);
        self.wants_room = len < data;
        let used = self.tx_head.wrapping_sub(acked);
        self.tx.reserve(acked, used + len as u32, buffers);
        let mut copied = 0;
        for part in parts {
            let part = &part[..part.len().min(len - copied)];
            self.tx
                .write(self.tx_head.wrapping_add(copied as u32), part);
            copied += part.len();
        }
        len as u32
    }

    /// Returns the received data that the program has not read. `rx_head` is the stream position
    /// after the in-order data.
    pub fn received(&self, rx_head: u32) -> [&[u8]; 2] {
        let unread = rx_head.wrapping_sub(self.rx_read);
        self.rx.slices(self.rx_read, unread)
    }

    /// Returns the status of the connection. `rx_head` is the argument of
    /// [`received`](Self::received). `acked` and `limit` are the arguments of [`room`](Self::room).
    pub fn status(&self, rx_head: u32, acked: u32, limit: u32) -> Status {
        let urgent = self.urgent.and_then(|(pos, byte)| {
            let ahead = pos.wrapping_sub(self.rx_read);
            // Once the program has read the byte, the difference is negative as an `i32`.
            (ahead as i32 >= 0).then_some(Urgent { ahead, byte })
        });
        Status {
            readable: rx_head.wrapping_sub(self.rx_read),
            writable: self.may_write().then(|| self.room(acked, limit)),
            unacknowledged: self.tx_head.wrapping_sub(acked),
            peer_closed: self.peer_closed,
            cause: self.cause,
            path_error: self.path_error,
            urgent,
        }
    }
}
