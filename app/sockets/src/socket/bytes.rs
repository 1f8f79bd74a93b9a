//! Bytes of a connection that the program takes or gives, and what they change.

use std::sync::atomic::AtomicU8;

use tidelane_abi::program_flags;

use super::{Inner, Socket, state::State};
use crate::{service::Lane, sys::Errno};

const WOULD_BLOCK: Errno = Errno(libc::EAGAIN);
const BROKEN_PIPE: Errno = Errno(libc::EPIPE);

impl Inner {
    /// Whether a write may take the shortest path: on a stream with no error to tell, not corked by
    /// the last write, and not shared with another process.
    #[inline(always)]
    pub(crate) fn sends_as_usual(&self) -> bool {
        let unusual = self.error != 0 || self.corked_once || self.shared;
        !unusual && matches!(&self.state, State::Stream(c) if !c.stream.is_troubled())
    }

    /// Writes what there is room for, if nothing is unusual. Else 0.
    #[inline]
    pub(crate) fn send_plain(&mut self, socket: &Socket, from: &[u8]) -> usize {
        let usual = self.sends_as_usual();
        let State::Stream(connection) = &mut self.state else {
            return 0;
        };
        if !usual {
            return 0;
        }
        let count = connection.stream.write(from);
        self.no_space |= count < from.len();
        if count > 0
            && let Some(lane) = self.lane
        {
            lane.submit(&socket.member, connection);
        }
        count
    }

    /// Accounts for bytes that the program took.
    #[inline]
    pub(crate) fn after_read(&mut self, socket: &Socket, count: usize) {
        self.bytes_read += count as u64;
        if let State::Stream(connection) = &mut self.state
            && connection.stream.submit_due()
            && let Some(lane) = self.lane
        {
            lane.submit(&socket.member, connection);
        }
    }

    pub(crate) fn after_write(&mut self, socket: &Socket) {
        let lane: Option<&'static Lane> = self.lane;
        if let Some(connection) = self.connection()
            && let Some(lane) = lane
        {
            lane.submit(&socket.member, connection);
        }
    }

    /// With nothing left to read: the end, an error, or None if more may come.
    pub(crate) fn end_of_input(&mut self, wanted_none: bool) -> Option<Result<usize, Errno>> {
        if let State::Stream(connection) = &mut self.state
            && connection.stream.readable() > 0
        {
            // It came since the last look; or no byte was asked for.
            return wanted_none.then_some(Ok(0));
        }
        if let Some(error) = self.take_error() {
            return Some(Err(error));
        }
        let shut = self.shut_read;
        match &mut self.state {
            State::Stream(connection) => (shut || connection.stream.at_end()).then_some(Ok(0)),
            State::Connecting(_) => None,
            State::Failed => Some(Ok(0)),
            State::Inherited(_) | State::Forked => Some(Err(Errno(libc::ECONNRESET))),
            _ => Some(Err(Errno(libc::ENOTCONN))),
        }
    }

    /// Whether bytes can be written; EAGAIN: not yet.
    pub(crate) fn check_writable(&mut self) -> Result<(), Errno> {
        self.refresh();
        if let Some(error) = self.take_error() {
            return Err(error);
        }
        match &self.state {
            State::Stream(_) if self.shut_write || self.cause_seen => Err(BROKEN_PIPE),
            State::Stream(_) => Ok(()),
            State::Connecting(_) => Err(WOULD_BLOCK),
            State::Failed => Err(BROKEN_PIPE),
            State::Inherited(_) | State::Forked => Err(Errno(libc::ECONNRESET)),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// MSG_MORE holds back the last part of this write, and the next write without it does not.
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

    /// Sends up to `wanted` bytes that `fill` puts into the send buffer itself. None, without a
    /// call of `fill`, where there is no room or something is unusual.
    pub(crate) fn send_in_place(
        &mut self,
        socket: &Socket,
        wanted: usize,
        fill: impl FnOnce([&[AtomicU8]; 2]) -> Result<usize, Errno>,
    ) -> Option<Result<usize, Errno>> {
        if !self.sends_as_usual() {
            return None;
        }
        let filled = self.connection()?.stream.write_in_place(wanted, fill)?;
        if matches!(filled, Ok(count) if count > 0) {
            self.after_write(socket);
        }
        Some(filled)
    }

    /// Bytes that a write would take now.
    pub(crate) fn room(&mut self) -> Option<usize> {
        Some(self.connection()?.stream.writable())
    }
}
