//! Reads and writes of payload on a connection that the service (the process `tidelaned`) carries:
//! the checks before a read or write, and the bookkeeping afterwards.

use std::sync::atomic::AtomicU8;

use tidelane_abi::program_flags;

use super::{Inner, Socket, state::State};
use crate::{service::Channel, sys::Errno};

/// Result of a write during the handshake.
const WOULD_BLOCK: Errno = Errno(libc::EAGAIN);
/// Result of a write after the sending direction has ended.
const BROKEN_PIPE: Errno = Errno(libc::EPIPE);

impl Inner {
    /// Returns true if a write is fast-path eligible: the write only has to copy bytes to the send
    /// buffer. The connection is then established, has had no error (not even an ICMP error), and
    /// is not shared with another process (after `fork`). The previous write did not have MSG_MORE.
    #[inline(always)]
    pub(crate) fn is_fast_path_eligible(&self) -> bool {
        let needs_slow_path = self.error != 0 || self.corked_once || self.shared;
        !needs_slow_path && matches!(&self.state, State::Stream(c) if !c.stream.has_error())
    }

    /// If the write is fast-path eligible, writes as many bytes as fit into the send buffer.
    /// Returns the number of bytes written.
    #[inline]
    pub(crate) fn send_fast(&mut self, socket: &Socket, from: &[u8]) -> usize {
        let is_eligible = self.is_fast_path_eligible();
        let State::Stream(connection) = &mut self.state else {
            return 0;
        };
        if !is_eligible {
            return 0;
        }
        let count = connection.stream.write(from);
        self.no_space |= count < from.len();
        if count > 0
            && let Some(channel) = self.channel
        {
            channel.submit(&socket.member, connection);
        }
        count
    }

    /// Accounts for `count` bytes that the program has read, and sends the new read position to the
    /// service if a window update may be due.
    #[inline]
    pub(crate) fn after_read(&mut self, socket: &Socket, count: usize) {
        self.bytes_read += count as u64;
        if let State::Stream(connection) = &mut self.state
            && connection.stream.submit_due()
            && let Some(channel) = self.channel
        {
            channel.submit(&socket.member, connection);
        }
    }

    /// Queues the new write position for the service. `Channel::submit` decides when to publish it.
    pub(crate) fn after_write(&mut self, socket: &Socket) {
        let channel: Option<&'static Channel> = self.channel;
        if let Some(connection) = self.connection()
            && let Some(channel) = channel
        {
            channel.submit(&socket.member, connection);
        }
    }

    /// Returns the result of a read that found no bytes: 0 at the end of the stream, or an error.
    /// Returns `None` if the program has to wait or to read again, because more bytes may come, or
    /// because bytes have just arrived. `wanted_none` is true if the program asked for zero bytes.
    /// The read of zero bytes then returns 0 as soon as bytes are readable.
    pub(crate) fn end_of_input(&mut self, wanted_none: bool) -> Option<Result<usize, Errno>> {
        if let State::Stream(connection) = &mut self.state {
            // The service stores the FIN flag after the position of the last bytes, so load the
            // flag before the position.
            let has_ended = connection.stream.has_received_fin();
            if connection.stream.readable() > 0 {
                // Bytes have arrived since the read, or the program asked for zero bytes.
                return wanted_none.then_some(Ok(0));
            }
            if has_ended {
                // As in Linux (SOCK_DONE), a read after a FIN returns 0 also if the socket has an
                // error. The error stays for the next write or SO_ERROR.
                return Some(Ok(0));
            }
        }
        if let Some(error) = self.take_error() {
            return Some(Err(error));
        }
        let shut = self.shut_read;
        match &mut self.state {
            State::Stream(connection) => (shut || connection.stream.at_end()).then_some(Ok(0)),
            State::Connecting(_) => None,
            State::Failed => Some(Ok(0)),
            State::Inherited(_) | State::LostByFork => Some(Err(Errno(libc::ECONNRESET))),
            _ => Some(Err(Errno(libc::ENOTCONN))),
        }
    }

    /// Returns an error if the program cannot write. The error is EAGAIN during the handshake.
    pub(crate) fn check_writable(&mut self) -> Result<(), Errno> {
        self.refresh();
        if let Some(error) = self.take_error() {
            return Err(error);
        }
        match &self.state {
            State::Stream(_) if self.shut_write || self.cause_reported => Err(BROKEN_PIPE),
            State::Stream(_) => Ok(()),
            State::Connecting(_) => Err(WOULD_BLOCK),
            State::Failed => Err(BROKEN_PIPE),
            State::Inherited(_) | State::LostByFork => Err(Errno(libc::ECONNRESET)),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// Applies MSG_MORE, which a write has if `more` is true: the service holds back a partial
    /// segment at the end of this write, until a write without MSG_MORE follows.
    pub(crate) fn cork_once(&mut self, more: bool) {
        if more == self.corked_once {
            return;
        }
        self.corked_once = more;
        let corked = self.options.corked();
        if let Some(connection) = self.connection()
            && !corked
        {
            if more {
                connection.stream.set_flag(program_flags::CORK);
            } else {
                connection.stream.clear_flag(program_flags::CORK);
            }
        }
    }

    /// Sends up to `wanted` bytes, which `fill` writes directly into the send buffer. Returns
    /// `None` without calling `fill` if the buffer is full or the write is not fast-path eligible.
    pub(crate) fn send_in_place(
        &mut self,
        socket: &Socket,
        wanted: usize,
        fill: impl FnOnce([&[AtomicU8]; 2]) -> Result<usize, Errno>,
    ) -> Option<Result<usize, Errno>> {
        if !self.is_fast_path_eligible() {
            return None;
        }
        let filled = self.connection()?.stream.write_in_place(wanted, fill)?;
        if matches!(filled, Ok(count) if count > 0) {
            self.after_write(socket);
        }
        Some(filled)
    }

    /// Returns the number of bytes that a write would accept, or `None` without a connection.
    pub(crate) fn room(&mut self) -> Option<usize> {
        Some(self.connection()?.stream.writable())
    }
}
