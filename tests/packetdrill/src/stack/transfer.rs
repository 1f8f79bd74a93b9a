//! The calls `recv` and `send` and the ioctl requests SIOCINQ, SIOCOUTQ and SIOCOUTQNSD of a stack.
//! These calls never block.

use tidelane_engine::{FlowId, State};

use crate::{
    errno::{CallResult, Errno},
    stack::{Fd, Stack},
};

/// Result of a successful `recv`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Received bytes. The list is empty at the end of the stream.
    pub bytes: Vec<u8>,
    /// Number of readable bytes after `bytes`. If the urgent byte lies ahead, only the bytes before
    /// the urgent byte count.
    pub left: u32,
    /// True if the next byte to read is the urgent byte. A blocking `recv` then returns without
    /// waiting for more bytes.
    pub stops: bool,
}

impl Stack {
    /// Implements `recv(2)` of at most `len` bytes. Fails with EAGAIN if the input is not over (see
    /// `is_input_over`) and the number of readable bytes is below both `least` and `len`.
    pub fn recv(&mut self, fd: Fd, len: usize, flags: i32, least: usize) -> CallResult<Received> {
        if flags & libc::MSG_OOB != 0 {
            return self.recv_urgent(fd, len, flags);
        }
        if self.state_of(fd)? == State::Listen {
            return Err(Errno(libc::ENOTCONN));
        }
        let Some(id) = self.flow_of(fd)? else {
            return self.recv_nothing(fd);
        };
        let Some(flow) = self.flow(id) else {
            return self.recv_nothing(fd);
        };
        let (state, read) = (flow.state(), flow.rx_read());
        let unread = flow.rx_head().wrapping_sub(read);
        let (hidden, unread) = self.around_mark(fd, read, unread);
        let take = (unread as usize).min(len);
        let over = self.is_input_over(fd, id)?;
        if hidden > 0 && unread == 0 {
            self.consume(id, read, hidden);
        }
        if take < least.min(len) && !over {
            return Err(Errno::AGAIN);
        }
        if unread == 0 && len > 0 {
            return match state {
                State::SynSent | State::SynReceived if !over => Err(Errno::AGAIN),
                _ => self.recv_nothing(fd),
            };
        }
        let from = read.wrapping_add(hidden);
        let bytes = self.wire.streams(id).rx.copy(from, take);
        if flags & libc::MSG_PEEK == 0 {
            self.consume(id, read, hidden + take as u32);
        }
        let left = unread - take as u32;
        let stops = self.stops_at_mark(fd);
        Ok(Received { bytes, left, stops })
    }

    /// Returns the result of a `recv` that finds no bytes: an error, or the end of the stream.
    /// After the peer's FIN, a pending error of the socket is not returned.
    fn recv_nothing(&mut self, fd: Fd) -> CallResult<Received> {
        let fin = self.had_fin(fd)?;
        let socket = self.socket_mut(fd)?;
        if !fin && let Some(error) = socket.error.take() {
            return Err(error);
        }
        if socket.fast_open.deferred.is_some() {
            return Err(Errno::AGAIN);
        }
        let never = matches!(socket.role, crate::role::Role::Unconnected);
        if never {
            return Err(Errno(libc::ENOTCONN));
        }
        Ok(Received::default())
    }

    /// Returns true if the peer's FIN was received in order.
    fn had_fin(&self, fd: Fd) -> CallResult<bool> {
        let flow = self.flow_of(fd)?.and_then(|id| self.flows.get(&id));
        Ok(flow.is_some_and(|flow| flow.fin))
    }

    /// Returns true if no further bytes can arrive, the program shut down reading, or an error is
    /// pending. The program can still read the bytes that have arrived.
    pub(crate) fn is_input_over(&self, fd: Fd, id: FlowId) -> CallResult<bool> {
        let socket = self.socket(fd)?;
        let known = self.flows.get(&id).copied().unwrap_or_default();
        let error = socket.error.is_some();
        Ok(socket.read_shut || known.fin || known.cause.is_some() || error)
    }

    /// Drops `len` bytes from the stream position `read` on. The program has read or skipped these
    /// bytes.
    pub(crate) fn consume(&mut self, id: FlowId, read: u32, len: u32) {
        let to = read.wrapping_add(len);
        self.wire.streams(id).rx.drop_before(to);
        // The engine refuses only an invalid position. `read` comes from the engine.
        let accepted = self.drive(|engine, _, _| engine.rx_advance(id, to));
        debug_assert_eq!(accepted, Ok(()));
    }

    /// Returns the number of readable bytes (SIOCINQ). Without SO_OOBINLINE, only the bytes before
    /// the urgent byte count.
    pub fn unread(&self, fd: Fd) -> CallResult<u32> {
        if self.state_of(fd)? == State::Listen {
            return Err(Errno::INVAL);
        }
        let flow = self.flow_of(fd)?.and_then(|id| self.flow(id));
        Ok(flow.map_or(0, |flow| {
            let read = flow.rx_read();
            self.unread_to_mark(fd, flow.rx_head().wrapping_sub(read), read)
        }))
    }

    /// Returns the number of written bytes that are not acknowledged (SIOCOUTQ).
    pub fn unacknowledged(&self, fd: Fd) -> CallResult<u32> {
        if self.state_of(fd)? == State::Listen {
            return Err(Errno::INVAL);
        }
        let flow = self.flow_of(fd)?.and_then(|id| self.flow(id));
        let Some(flow) = flow else { return Ok(0) };
        let written = self.flow_of(fd)?.and_then(|id| self.wire.written(id));
        let head = written.unwrap_or(flow.tx_head());
        Ok(head.wrapping_sub(flow.tx_acked()))
    }

    /// Returns the number of written bytes that are not sent (SIOCOUTQNSD).
    pub fn unsent(&self, fd: Fd) -> CallResult<u32> {
        Ok(self.flow_of(fd)?.map_or(0, |id| self.unsent_of(id)))
    }

    /// Implements `send(2)` of as many bytes as fit. Fails with EAGAIN if none fit.
    pub fn send(&mut self, fd: Fd, bytes: &[u8], flags: i32) -> CallResult<usize> {
        let id = self.sender(fd)?;
        if bytes.is_empty() {
            return Ok(0);
        }
        let mut done = 0;
        while done < bytes.len() {
            let room = self.room(fd, id)?;
            if room == 0 {
                break;
            }
            let end = bytes.len().min(done + room as usize);
            let last = end == bytes.len();
            let push = last && flags & libc::MSG_MORE == 0;
            let ends = last && flags & libc::MSG_EOR != 0;
            if flags & libc::MSG_OOB != 0 {
                self.write_urgent(id, end - done)?;
            }
            self.append(id, &bytes[done..end], push, ends)?;
            done = end;
        }
        if done < bytes.len() {
            let written = self.wire.written(id).filter(|_| done > 0);
            if let Some(written) = written {
                self.mark_push(id, written, true);
            }
            self.blocked_writers.insert(id);
            self.update_buffer_limited_time(id);
        }
        if done == 0 {
            return Err(Errno::AGAIN);
        }
        Ok(done)
    }

    /// Returns the flow (connection) of `fd` if the socket's state permits writing. Otherwise fails
    /// with the error that `send` returns.
    fn sender(&mut self, fd: Fd) -> CallResult<FlowId> {
        let state = self.state_of(fd)?;
        let id = self.flow_of(fd)?;
        let socket = self.socket_mut(fd)?;
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        match (state, id) {
            _ if socket.write_shut => Err(Errno(libc::EPIPE)),
            (State::SynReceived, Some(id)) if self.is_pending(id) => Ok(id),
            (State::SynSent | State::SynReceived, _) => Err(Errno::AGAIN),
            (State::Established | State::CloseWait, Some(id)) => Ok(id),
            _ => Err(Errno(libc::EPIPE)),
        }
    }

    /// Returns true if Fast Open passed the connection to the program before the handshake was
    /// complete (RFC 7413).
    fn is_pending(&self, id: FlowId) -> bool {
        self.flow_info(id)
            .is_some_and(|info| info.fast_open_pending)
    }

    /// Returns true if the socket is writable: at least a third of SO_SNDBUF is free, and the
    /// number of unsent bytes is below TCP_NOTSENT_LOWAT.
    pub(crate) fn is_writable(&self, fd: Fd, id: FlowId) -> bool {
        let Ok(socket) = self.socket(fd) else {
            return false;
        };
        let queued = self.queued(id);
        let unsent = self.unsent_of(id);
        let free = socket.options.sndbuf.saturating_sub(queued);
        free >= queued / 2 && unsent < socket.options.unsent_max()
    }
}
