//! The socket calls that may block, such as `accept` and `recv`, with Rust types.
//!
//! A blocking call repeats an attempt on the stack while the attempt fails with EAGAIN, but at most
//! until the call's timeout.

use tidelane_engine::{Duration, Endpoint};

use crate::{
    address::Address,
    epoll::Ready,
    errno::{CallResult, Errno},
    shared::Shared,
    stack::{Fd, Stack},
    transfer::Received,
};

/// One entry of the list that `poll` takes (`struct pollfd`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Polled {
    /// Descriptor to poll.
    pub fd: Fd,
    /// Requested events, as `POLL*` bits.
    pub events: u32,
}

/// How long a call may block.
#[derive(Clone, Copy)]
enum Blocking {
    /// The call makes one attempt and does not block.
    No,
    /// The call blocks for at most this time. `None` means no limit.
    UpTo(Option<Duration>),
}

/// Converts a timeout in milliseconds. Returns `None`, which means no limit, for a negative value.
pub fn timeout_ms(ms: i32) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

impl Shared {
    /// Returns how long a call on `fd` may block. A call with O_NONBLOCK, or with MSG_DONTWAIT in
    /// `flags`, may not block. The time limit of other calls is SO_RCVTIMEO if `receive` is true,
    /// or else SO_SNDTIMEO.
    fn blocking_of(&self, fd: Fd, flags: i32, receive: bool) -> CallResult<Blocking> {
        self.call(|stack| {
            let socket = stack.socket(fd)?;
            let options = &socket.options;
            let span = match receive {
                true => options.receive_timeout,
                false => options.send_timeout,
            };
            let nonblocking = socket.nonblocking || flags & libc::MSG_DONTWAIT != 0;
            Ok(match nonblocking {
                true => Blocking::No,
                false => Blocking::UpTo(span),
            })
        })
    }

    /// Repeats `attempt` while it fails with EAGAIN and the call may block. Fails with
    /// `timeout_errno` after the timeout.
    fn block_while_again<R>(
        &self,
        blocking: Blocking,
        timeout_errno: i32,
        mut attempt: impl FnMut(&mut Stack) -> CallResult<R>,
    ) -> CallResult<R> {
        match blocking {
            Blocking::No => self.call(attempt),
            Blocking::UpTo(span) => self.wait(span, Errno(timeout_errno), &mut attempt),
        }
    }

    /// Implements `accept4(2)`. `open` opens the descriptor of the accepted socket.
    pub fn accept(
        &self,
        fd: Fd,
        flags: i32,
        open: impl Fn() -> CallResult<Fd>,
    ) -> CallResult<(Fd, Endpoint)> {
        let blocking = self.blocking_of(fd, 0, true)?;
        let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
        self.block_while_again(blocking, libc::EAGAIN, |stack| {
            if !stack.accept_ready(fd)? {
                return Err(Errno::AGAIN);
            }
            let new = open()?;
            let peer = stack.accept(fd, new, nonblocking)?;
            Ok((new, peer))
        })
    }

    /// Implements `connect(2)`. If TCP_FASTOPEN_CONNECT defers the SYN to the first write, the call
    /// succeeds without blocking.
    pub fn connect(&self, fd: Fd, to: Endpoint) -> CallResult<()> {
        let blocking = self.blocking_of(fd, 0, false)?;
        self.call(|stack| stack.connect(fd, to))?;
        if self.call(|stack| stack.sends_with_syn(fd, 0))? {
            return Ok(());
        }
        let result = self.block_while_again(blocking, libc::EINPROGRESS, |stack| {
            stack.connect_result(fd)
        });
        result.map_err(|error| match error {
            Errno::AGAIN => Errno(libc::EINPROGRESS),
            error => error,
        })
    }

    /// Implements `recv(2)` of at most `len` bytes. A blocking call with MSG_WAITALL waits for
    /// `len` bytes. A blocking call without MSG_WAITALL waits for SO_RCVLOWAT bytes, but not for
    /// more than `len`.
    pub fn recv(&self, fd: Fd, len: usize, flags: i32) -> CallResult<Received> {
        let blocking = self.blocking_of(fd, flags, true)?;
        let rcvlowat = self.call(|stack| Ok(stack.socket(fd)?.options.rcvlowat))? as usize;
        let target = match blocking {
            Blocking::No => 1,
            Blocking::UpTo(_) if flags & libc::MSG_WAITALL != 0 => len,
            Blocking::UpTo(_) => rcvlowat.min(len),
        };
        if flags & libc::MSG_PEEK != 0 {
            return self.block_while_again(blocking, libc::EAGAIN, |stack| {
                stack.recv(fd, len, flags, target)
            });
        }
        let mut all = Received::default();
        let result = self.block_while_again(blocking, libc::EAGAIN, |stack| {
            loop {
                let part = stack.recv(fd, len - all.bytes.len(), flags, 1)?;
                let ended = part.bytes.is_empty() || part.stops;
                all.left = part.left;
                all.bytes.extend(part.bytes);
                if ended || all.bytes.len() >= target {
                    return Ok(());
                }
            }
        });
        match result {
            Err(error) if all.bytes.is_empty() => Err(error),
            _ => Ok(all),
        }
    }

    /// Implements `sendto(2)`. The address `to` has an effect only with MSG_FASTOPEN, as on Linux.
    ///
    /// If the call opens the connection (with MSG_FASTOPEN, or after a `connect` that deferred the
    /// SYN), the SYN carries as many bytes as fit. A blocking call writes the other bytes after the
    /// handshake.
    pub fn send_to(
        &self,
        fd: Fd,
        bytes: &[u8],
        flags: i32,
        to: Option<Address>,
    ) -> CallResult<usize> {
        let with_syn = self.call(|stack| stack.sends_with_syn(fd, flags))?;
        let blocking = self.blocking_of(fd, flags, false)?;
        let waits = matches!(blocking, Blocking::UpTo(_));
        let sent = match with_syn {
            true => self.call(|stack| stack.send_with_syn(fd, bytes, to, waits))?,
            false => None,
        };
        let Some(sent) = sent else {
            return self.send(fd, bytes, flags);
        };
        let zero_copy = flags & libc::MSG_ZEROCOPY != 0;
        self.call(|stack| stack.on_written(fd, sent, zero_copy));
        let complete = self.block_while_again(blocking, libc::EINPROGRESS, |stack| {
            stack.connect_result(fd)
        });
        match complete {
            Err(Errno::AGAIN | Errno(libc::EINPROGRESS)) if sent > 0 => Ok(sent),
            Err(Errno::AGAIN) => Err(Errno(libc::EINPROGRESS)),
            Err(error) => Err(error),
            Ok(()) if sent == bytes.len() => Ok(sent),
            Ok(()) => match self.send(fd, &bytes[sent..], flags) {
                Err(_) if sent > 0 => Ok(sent),
                rest => rest.map(|rest| sent + rest),
            },
        }
    }

    /// Implements `send(2)`. Returns the number of written bytes. A blocking call writes all bytes,
    /// unless an error or the timeout ends the call.
    pub fn send(&self, fd: Fd, bytes: &[u8], flags: i32) -> CallResult<usize> {
        let blocking = self.blocking_of(fd, flags, false)?;
        self.call(|stack| stack.more_to_come(fd, flags & libc::MSG_MORE != 0))?;
        let mut done = 0;
        let result = self.block_while_again(blocking, libc::EAGAIN, |stack| {
            while done < bytes.len() || bytes.is_empty() {
                if done > 0 && !stack.has_write_space(fd) {
                    return Err(Errno::AGAIN);
                }
                done += stack.send(fd, &bytes[done..], flags)?;
                if bytes.is_empty() {
                    break;
                }
            }
            Ok(())
        });
        match result {
            Err(error) if done == 0 => Err(error),
            _ => {
                let zero_copy = flags & libc::MSG_ZEROCOPY != 0;
                self.call(|stack| stack.on_written(fd, done, zero_copy));
                Ok(done)
            }
        }
    }

    /// Implements `poll(2)` with a timeout of `ms` milliseconds; a negative `ms` means no limit.
    /// Returns the ready events of each entry. `other` polls a descriptor that the stack does not
    /// own. All events that `other` returns count, requested or not.
    pub fn poll(&self, entries: &[Polled], ms: i32, other: impl Fn(Fd) -> u32) -> Vec<u32> {
        let always = (libc::POLLERR | libc::POLLHUP) as u32;
        let ready_events = |stack: &mut Stack| -> Vec<u32> {
            let one = |entry: &Polled| match stack.has(entry.fd) {
                true => stack.readiness(entry.fd) & (entry.events | always),
                false if entry.fd < 0 => 0,
                false => other(entry.fd),
            };
            entries.iter().map(one).collect()
        };
        let attempt = |stack: &mut Stack| {
            let ready = ready_events(stack);
            match ready.iter().any(|events| *events != 0) {
                true => Ok(ready),
                false => Err(Errno::AGAIN),
            }
        };
        let result = match ms {
            0 => self.call(attempt),
            ms => self.wait(timeout_ms(ms), Errno::AGAIN, attempt),
        };
        result.unwrap_or_else(|_| vec![0; entries.len()])
    }

    /// Implements `epoll_wait(2)` for at most `max` entries, with a timeout of `ms` milliseconds.
    /// Returns an empty list after the timeout.
    pub fn epoll_wait(&self, epoll: Fd, max: usize, ms: i32) -> CallResult<Vec<Ready>> {
        if max == 0 {
            return Err(Errno::INVAL);
        }
        let attempt = |stack: &mut Stack| stack.epoll_ready(epoll, max);
        let result = match ms {
            0 => self.call(attempt),
            ms => self.wait(timeout_ms(ms), Errno::AGAIN, attempt),
        };
        match result {
            Err(Errno::AGAIN) => Ok(Vec::new()),
            result => result,
        }
    }
}

impl Stack {
    /// Corks the flow (makes it send full segments only) before a write with MSG_MORE, and uncorks
    /// the flow before the next write without MSG_MORE. `more` is true if the write has MSG_MORE.
    pub fn more_to_come(&mut self, fd: Fd, more: bool) -> CallResult<()> {
        let mut options = self.socket(fd)?.options.engine;
        let Some(id) = self.flow_of(fd)? else {
            return Ok(());
        };
        let corked = self.corked.contains(&id);
        if more == corked {
            return Ok(());
        }
        match more {
            true => self.corked.insert(id),
            false => self.corked.remove(&id),
        };
        if more {
            options.cork = true;
            self.drive(|engine, now, wire| engine.set_options(now, id, options, wire));
        } else {
            // Segments leave at the end of a batch. Do not end the batch here, so that the corked
            // bytes leave together with the bytes of the next write.
            self.call_in_batch(|engine, now, wire| engine.set_options(now, id, options, wire));
        }
        Ok(())
    }

    /// Informs the error queue of `fd`, which reports the progress of writes, that a call has
    /// written `len` bytes. `zero_copy` is true if the write had MSG_ZEROCOPY.
    fn on_written(&mut self, fd: Fd, len: usize, zero_copy: bool) {
        let id = self.flow_of(fd).ok().flatten();
        let head = id.and_then(|id| self.wire.written(id));
        let (Some(id), Some(head), Ok(socket)) = (id, head, self.socket_mut(fd)) else {
            return;
        };
        if len > 0 {
            let enabled = socket.options.is_on(libc::SOL_SOCKET, libc::SO_ZEROCOPY);
            socket.error_queue.on_written(head, zero_copy && enabled);
            self.update_error_queue(id);
        }
    }

    /// Returns true if a writer that is blocked on `fd` must be woken. A writer on a socket without
    /// a flow is woken to get its error.
    fn has_write_space(&self, fd: Fd) -> bool {
        match self.flow_of(fd) {
            Ok(Some(id)) => self.is_writable(fd, id),
            _ => true,
        }
    }
}
