//! The reading side of a socket with a connection.

use tidelane_embedded::{Connection, Status};
use tidelane_packetdrill::errno::{CallResult, Errno};

use super::{host::Host, urgent::UrgentReader};

/// The reading side of a socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reader {
    /// True after `shutdown(SHUT_RD)`.
    pub shut: bool,
    /// State of the reading of urgent data.
    pub urgent: UrgentReader,
}

impl Reader {
    /// Implements `recv(2)`. `error` is the pending error of the socket. The call returns this
    /// error only if there is no data and the peer has not closed its direction.
    pub fn receive(
        &mut self,
        host: &mut Host,
        (connection, status): (Connection, Status),
        error: &mut Option<Errno>,
        len: usize,
        flags: i32,
    ) -> CallResult<Vec<u8>> {
        let over = self.is_input_over(&status) || error.is_some();
        if flags & libc::MSG_OOB != 0 {
            return self.urgent.receive(&status, flags, over);
        }
        let part = self.urgent.next_part(&status);
        if part.skip > 0 && part.len == 0 {
            host.stack.consume(connection, part.skip as usize);
        }
        if part.len == 0 && len > 0 {
            return match over {
                false => Err(Errno::AGAIN),
                true if status.peer_closed => Ok(Vec::new()),
                true => error.take().map_or(Ok(Vec::new()), Err),
            };
        }
        let received = host.stack.received(connection).concat();
        let (start, count) = (part.skip as usize, len.min(part.len as usize));
        if flags & libc::MSG_PEEK == 0 {
            host.stack.consume(connection, start + count);
        }
        Ok(received[start..start + count].to_vec())
    }

    /// Returns true if no further bytes can arrive from the peer, or if the program has shut down
    /// reading. Bytes that arrived before may still be unread.
    pub fn is_input_over(&self, status: &Status) -> bool {
        self.shut || status.peer_closed || status.cause.is_some()
    }
}
