//! The writing side of a socket with a connection.

use tidelane_embedded::{Connection, SocketOptions, State};
use tidelane_packetdrill::errno::{CallResult, Errno};

use super::host::Host;

/// The writing side of a socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writer {
    /// True after `shutdown(SHUT_WR)`.
    pub shut: bool,
    /// True if the most recent write had MSG_MORE.
    more: bool,
}

impl Writer {
    /// Implements `send(2)` on a socket without a pending error. `state` is the TCP state of
    /// `connection`.
    pub fn send(
        &self,
        host: &mut Host,
        (connection, state): (Connection, State),
        bytes: &[u8],
        flags: i32,
    ) -> CallResult<usize> {
        let info = host.stack.info(connection);
        let pending = info.is_some_and(|info| info.fast_open_pending);
        match state {
            _ if self.shut => return Err(Errno(libc::EPIPE)),
            State::Established | State::CloseWait => {}
            State::SynReceived if pending => {}
            State::SynSent | State::SynReceived => return Err(Errno::AGAIN),
            _ => return Err(Errno(libc::EPIPE)),
        }
        let written = match flags & libc::MSG_OOB != 0 {
            true => host.stack.write_urgent(connection, bytes),
            false => host.stack.write(connection, bytes),
        };
        match written {
            0 if !bytes.is_empty() => Err(Errno::AGAIN),
            written => Ok(written),
        }
    }

    /// Records whether the next write has MSG_MORE, which corks the connection: the stack holds
    /// back data that does not fill a segment. `options` are the socket options that the program
    /// has set.
    pub fn more_to_come(
        &mut self,
        host: &mut Host,
        (connection, options): (Connection, SocketOptions),
        more: bool,
    ) {
        if std::mem::replace(&mut self.more, more) != more {
            let cork = more || options.cork;
            let options = SocketOptions { cork, ..options };
            host.stack.set_options(connection, options);
        }
    }

    /// Removes the cork of MSG_MORE before a packet arrives. In Linux, MSG_MORE holds data back
    /// only until the next ACK.
    pub fn before_packet(&self, host: &mut Host, connection: Connection, options: SocketOptions) {
        if self.more {
            host.stack.set_options(connection, options);
        }
    }

    /// Restores the cork of MSG_MORE after a packet.
    pub fn after_packet(&self, host: &mut Host, connection: Connection, options: SocketOptions) {
        if self.more {
            let cork = true;
            let options = SocketOptions { cork, ..options };
            host.stack.set_options(connection, options);
        }
    }
}
