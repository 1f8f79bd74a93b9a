//! Urgent data with the semantics of Linux's sockets.
//!
//! The byte before the urgent pointer is the urgent byte. A `recv` stops before the urgent byte.
//! The next `recv` skips the urgent byte, unless SO_OOBINLINE is set. `recv` with MSG_OOB returns
//! the urgent byte.

use tidelane_engine::{FlowId, State};

use crate::{
    errno::{CallResult, Errno},
    stack::{Fd, Stack},
    transfer::Received,
};

/// The urgent mark: the urgent byte that the peer announced most recently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UrgentMark {
    /// Stream position of the urgent byte.
    pub pos: u32,
    /// The urgent byte. `None` until the byte is received.
    pub byte: Option<u8>,
    /// True after `recv` with MSG_OOB and without MSG_PEEK has returned the byte.
    pub taken: bool,
}

impl Stack {
    /// Sets SND.UP (the send urgent pointer) to the position after the next `len` bytes that the
    /// program writes.
    pub(crate) fn write_urgent(&mut self, id: FlowId, len: usize) -> CallResult<()> {
        let head = self.flow(id).ok_or(Errno(libc::EPIPE))?.tx_head();
        let up = self
            .wire
            .written(id)
            .unwrap_or(head)
            .wrapping_add(len as u32);
        // The engine refuses an acknowledged position, and a position that is more than `tx_limit`
        // (of its configuration) after the acknowledged bytes. `up` lies after all written bytes.
        let accepted = self.call_in_batch(|engine, now, wire| engine.tx_urgent(now, id, up, wire));
        debug_assert_eq!(accepted, Ok(()));
        Ok(())
    }

    /// Handles a segment that announces the urgent byte at stream position `pos`.
    pub(crate) fn on_urgent(&mut self, id: FlowId, pos: u32) {
        let before = self.flows.entry(id).or_default().mark;
        let read = self.flow(id).map_or(0, |flow| flow.rx_read());
        let owner = self.flows.get(&id).and_then(|flow| flow.owner);
        let inline = owner.is_some_and(|fd| self.is_inline(fd));
        let came = self.flow(id).is_some_and(|flow| flow.rx_head() != read);
        if before.is_some_and(|mark| mark.pos == read) && came && !inline {
            // The next byte to read is the previous urgent byte. Linux skips this byte too.
            self.consume(id, read, 1);
        }
        let (byte, taken) = (None, false);
        self.flows.entry(id).or_default().mark = Some(UrgentMark { pos, byte, taken });
    }

    /// Handles the arrival of the urgent byte.
    pub(crate) fn on_urgent_byte(&mut self, id: FlowId, byte: u8) {
        if let Some(mark) = &mut self.flows.entry(id).or_default().mark {
            mark.byte = Some(byte);
        }
    }

    /// Returns true if SO_OOBINLINE is set.
    fn is_inline(&self, fd: Fd) -> bool {
        let options = self.socket(fd).map(|socket| &socket.options);
        options.is_ok_and(|options| options.is_on(libc::SOL_SOCKET, libc::SO_OOBINLINE))
    }

    /// Returns the urgent mark of `fd`. Returns `None` if the peer has announced no urgent byte, or
    /// if the program has read past the urgent byte.
    pub(crate) fn mark(&self, fd: Fd) -> Option<UrgentMark> {
        let id = self.flow_of(fd).ok()??;
        let mark = self.flows.get(&id)?.mark?;
        let ahead = mark.pos.wrapping_sub(self.flow(id)?.rx_read());
        ((ahead as i32) >= 0).then_some(mark)
    }

    /// Returns two numbers for a `recv` at the stream position `read` with `unread` bytes in the
    /// buffer. The first is the number of bytes to skip: 1 if the byte at `read` is the urgent
    /// byte, is in the buffer, and SO_OOBINLINE is not set, and otherwise 0. The second is the
    /// number of readable bytes after the skipped byte. If the urgent byte lies ahead, only the
    /// bytes before the urgent byte count.
    pub(crate) fn around_mark(&self, fd: Fd, read: u32, unread: u32) -> (u32, u32) {
        let Some(mark) = self.mark(fd) else {
            return (0, unread);
        };
        let ahead = mark.pos.wrapping_sub(read);
        match (ahead, self.is_inline(fd)) {
            (0, true) => (0, unread),
            (0, false) if unread > 0 => (1, unread - 1),
            _ => (0, unread.min(ahead)),
        }
    }

    /// Returns true if the next byte to read is the urgent byte.
    pub(crate) fn stops_at_mark(&self, fd: Fd) -> bool {
        self.at_mark(fd).is_ok_and(|at| at != 0)
    }

    /// Returns 1 if the next byte to read is the urgent byte, else 0 (SIOCATMARK).
    pub fn at_mark(&self, fd: Fd) -> CallResult<u32> {
        let id = self.flow_of(fd)?;
        let read = id.and_then(|id| self.flow(id)).map(|flow| flow.rx_read());
        let at = self.mark(fd).is_some_and(|mark| Some(mark.pos) == read);
        Ok(at.into())
    }

    /// Implements `recv` with MSG_OOB. Fails with EINVAL if there is no urgent byte to read, or if
    /// SO_OOBINLINE is set. Fails with ENOTCONN if the connection ended without the peer's FIN. If
    /// the announced byte has not arrived, fails with EAGAIN while the byte may still arrive, and
    /// afterwards returns no bytes.
    pub(crate) fn recv_urgent(&mut self, fd: Fd, len: usize, flags: i32) -> CallResult<Received> {
        let mark = self.mark(fd).filter(|mark| !mark.taken);
        let Some(mark) = mark.filter(|_| !self.is_inline(fd)) else {
            return Err(Errno::INVAL);
        };
        let id = self.flow_of(fd)?.ok_or(Errno::INVAL)?;
        let known = self.flows.get(&id).copied().unwrap_or_default();
        let closed = self.state_of(fd)? == State::Closed;
        if closed && !known.fin {
            return Err(Errno(libc::ENOTCONN));
        }
        let Some(byte) = mark.byte else {
            let over = closed || self.is_input_over(fd, id)?;
            return if over {
                Ok(Received::default())
            } else {
                Err(Errno::AGAIN)
            };
        };
        if flags & libc::MSG_PEEK == 0
            && let Some(flow) = self.flows.get_mut(&id)
            && let Some(mark) = &mut flow.mark
        {
            mark.taken = true;
        }
        let bytes = if len > 0 { vec![byte] } else { Vec::new() };
        Ok(Received {
            bytes,
            ..Received::default()
        })
    }

    /// Returns how many of the `unread` bytes from the stream position `read` on precede the urgent
    /// byte. Returns `unread` if there is no urgent mark, or if SO_OOBINLINE is set.
    pub(crate) fn unread_to_mark(&self, fd: Fd, unread: u32, read: u32) -> u32 {
        match self.mark(fd) {
            Some(mark) if !self.is_inline(fd) => unread.min(mark.pos.wrapping_sub(read)),
            _ => unread,
        }
    }

    /// Returns the number of readable bytes that `poll` considers. Without SO_OOBINLINE, an urgent
    /// byte at the read position does not count.
    pub(crate) fn pollable(&self, fd: Fd) -> u32 {
        let flow = self.flow_of(fd).ok().flatten().and_then(|id| self.flow(id));
        let unread = flow.map_or(0, |flow| flow.rx_head().wrapping_sub(flow.rx_read()));
        let hidden = self.stops_at_mark(fd) && !self.is_inline(fd);
        unread.saturating_sub(hidden.into())
    }

    /// Returns true if the urgent byte has arrived and was not read (EPOLLPRI).
    pub(crate) fn has_urgent(&self, fd: Fd) -> bool {
        self.mark(fd)
            .is_some_and(|mark| mark.byte.is_some() && !mark.taken)
    }
}
