//! The calls that read and write payload: `recv`, `send` and their variants. An accelerated
//! connection is a connection that the service (the process `tidelaned`) carries. For such a
//! connection, a call copies payload between the program's memory and the stream buffers that the
//! process shares with the service.

use std::{
    io::{IoSlice, IoSliceMut},
    os::fd::RawFd,
};

use super::{fast_open, urgent};
use crate::{
    readiness::wait::{self, Deadline},
    socket::{Inner, Socket, sharing, state::State, urgent::peek},
    sys::{self, Errno, Handled, TO_KERNEL, cancellation_unsafe::CANCELLED, fail},
};

/// Result of an attempt that cannot transfer a byte yet.
const WOULD_BLOCK: Errno = Errno(libc::EAGAIN);
/// Result of a write after the sending direction has ended.
const BROKEN_PIPE: Errno = Errno(libc::EPIPE);
/// Flags of `send` that do not change a write for which the send buffer has room.
const PLAIN_SEND: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Reads bytes that have arrived, without waiting: the fast path of `recv` and `read`. Returns the
/// number of bytes, or 0 if the caller has to call [`recv`].
#[inline]
pub fn recv_now(socket: &'static Socket, fd: RawFd, into: &mut [u8]) -> usize {
    let Some(mut inner) = socket.enter(fd) else {
        return 0;
    };
    if inner.shared || inner.options.rcvlowat > 1 {
        return 0;
    }
    let State::Stream(connection) = &mut inner.state else {
        return 0;
    };
    let event_count = socket.event_count();
    let count = connection.stream.read(into);
    if count > 0 {
        // At the end of the stream and at the urgent mark (the position of the urgent byte), the
        // socket stays readable although the program has read all bytes. In these two cases, do not
        // record the socket as drained.
        if count < into.len() && !connection.stream.has_end_or_urgent() {
            socket.note_drained(event_count);
        }
        inner.after_read(socket, count);
    }
    count
}

/// Carries out `recv`, or `read` with no flags.
#[inline(never)]
pub fn recv(socket: &'static Socket, fd: RawFd, into: &mut [u8], flags: i32) -> Handled {
    let peeks = flags & libc::MSG_PEEK != 0;
    let wanted = into.len();
    if flags & libc::MSG_OOB != 0 {
        return urgent::recv(socket, fd, flags, wanted, &mut |byte| into[0] = byte);
    }
    receive(socket, fd, flags, wanted, &mut |inner, done| {
        let rest = &mut into[done..];
        match inner.connection() {
            Some(connection) if peeks => peek(&mut connection.stream, rest),
            Some(connection) => connection.stream.read(rest),
            None => 0,
        }
    })
}

/// Carries out `recv` with MSG_TRUNC, which copies no bytes. Consumes the received bytes, unless
/// `flags` contains MSG_PEEK.
pub fn skip(socket: &'static Socket, fd: RawFd, wanted: usize, flags: i32) -> Handled {
    let peeks = flags & libc::MSG_PEEK != 0;
    if flags & libc::MSG_OOB != 0 {
        return urgent::recv(socket, fd, flags, wanted, &mut |_| ());
    }
    receive(socket, fd, flags, wanted, &mut |inner, done| {
        let rest = wanted - done;
        match inner.connection() {
            Some(connection) if peeks => match connection.stream.readable() {
                0 => connection.stream.pollable().min(rest),
                readable => readable.min(rest),
            },
            Some(connection) => connection.stream.discard(rest),
            None => 0,
        }
    })
}

/// Carries out `readv` or `recvmsg`.
pub fn recv_vectored(
    socket: &'static Socket,
    fd: RawFd,
    into: &mut [IoSliceMut<'_>],
    flags: i32,
) -> Handled {
    let wanted = into.iter().map(|part| part.len()).sum();
    if flags & libc::MSG_TRUNC != 0 {
        return skip(socket, fd, wanted, flags);
    }
    let peeks = flags & libc::MSG_PEEK != 0;
    if flags & libc::MSG_OOB != 0 {
        let mut put = |byte| scatter(&[byte], into);
        return urgent::recv(socket, fd, flags, wanted, &mut put);
    }
    receive(socket, fd, flags, wanted, &mut |inner, done| {
        let Some(connection) = inner.connection() else {
            return 0;
        };
        let stream = &mut connection.stream;
        if peeks {
            let mut all = vec![0; wanted.min(stream.unread())];
            let count = peek(stream, &mut all);
            scatter(&all[..count], into);
            count
        } else if done == 0 {
            stream.read_vectored(into)
        } else {
            let mut skip = done;
            let mut count = 0;
            for part in into.iter_mut() {
                let from = skip.min(part.len());
                skip -= from;
                let rest = &mut part[from..];
                let got = stream.read(rest);
                count += got;
                if got < rest.len() {
                    break;
                }
            }
            count
        }
    })
}

/// Copies `bytes` to the first buffers of `into`.
fn scatter(mut bytes: &[u8], into: &mut [IoSliceMut<'_>]) {
    for part in into {
        let (now, later) = bytes.split_at(part.len().min(bytes.len()));
        part[..now.len()].copy_from_slice(now);
        bytes = later;
    }
}

/// Returns and clears the pending error of an accelerated connection. As in Linux, `recvmmsg`
/// returns this error even if bytes have arrived.
pub fn pending_error(socket: &'static Socket, fd: RawFd) -> Option<Errno> {
    let mut inner = socket.enter(fd)?;
    if inner.state.is_in_kernel() {
        return None;
    }
    inner.refresh();
    inner.take_error()
}

/// Keeps the error of a message of `recvmmsg` for the next call or for SO_ERROR, because `recvmmsg`
/// itself returns the number of messages before the error. Linux keeps all errors except EAGAIN.
/// This function drops EAGAIN, and also the errors EINTR and CANCELLED of an interrupted wait.
pub fn keep_error(socket: &'static Socket, fd: RawFd, error: Errno) {
    if matches!(error, WOULD_BLOCK | CANCELLED | Errno(libc::EINTR)) {
        return;
    }
    if let Some(mut inner) = socket.enter(fd)
        && !inner.state.is_in_kernel()
    {
        inner.error = error.0;
    }
}

/// Calls `take(inner, number of bytes so far)` until the program has enough bytes: one byte with
/// MSG_PEEK, all `wanted` bytes with MSG_WAITALL, and otherwise SO_RCVLOWAT bytes. The call ends
/// with fewer bytes at the urgent mark, at the end of the stream, at an error, after the receive
/// timeout, and if the call must not wait.
fn receive(
    socket: &'static Socket,
    fd: RawFd,
    flags: i32,
    wanted: usize,
    take: &mut dyn FnMut(&mut Inner, usize) -> usize,
) -> Handled {
    let (timeout, low) = {
        let inner = socket.enter(fd)?;
        if inner.state.is_in_kernel() {
            return TO_KERNEL;
        }
        (
            inner.options.receive_timeout_ns,
            inner.options.rcvlowat as usize,
        )
    };
    if flags & libc::MSG_ERRQUEUE != 0 {
        // The error queue of an accelerated connection is always empty.
        return fail(libc::EAGAIN);
    }
    let peeks = flags & libc::MSG_PEEK != 0;
    let least = match flags & libc::MSG_WAITALL {
        _ if peeks => 1,
        0 => low.min(wanted),
        _ => wanted,
    };
    let mut done = 0;
    let attempt = |inner: &mut Inner| {
        let mut count = if wanted == 0 { 0 } else { take(inner, done) };
        if count == 0 && done == 0 && wanted > 0 && !peeks && inner.pass_mark(socket) {
            count = take(inner, done);
        }
        done += count;
        if count > 0 && !peeks {
            inner.after_read(socket, count);
        }
        if done > 0 && (done >= least || inner.stops_at_mark()) {
            return Ok(done);
        }
        inner.refresh();
        match inner.end_of_input(wanted == 0) {
            Some(_) if done > 0 => Ok(done),
            Some(end) => end,
            None => Err(WOULD_BLOCK),
        }
    };
    let waits = socket.blocks() && flags & libc::MSG_DONTWAIT == 0;
    let result = attempt_or_wait(socket, fd, waits, timeout, attempt);
    if done > 0 { Some(Ok(done)) } else { result }
}

/// Calls `attempt` once. If `waits` is true, waits and repeats the call as long as `attempt`
/// returns EAGAIN.
fn attempt_or_wait(
    socket: &'static Socket,
    fd: RawFd,
    waits: bool,
    timeout_ns: Option<u64>,
    mut attempt: impl FnMut(&mut Inner) -> Result<usize, Errno>,
) -> Handled {
    loop {
        let mut inner = socket.enter(fd)?;
        match sharing::attempt(&mut inner, &mut attempt) {
            // Another process has taken the connection since `enter`: try again.
            None => {}
            Some(Err(WOULD_BLOCK)) if waits => break,
            done => return done,
        }
    }
    wait::blocking(socket, fd, Deadline::after(timeout_ns), None, attempt)
}

/// Returns true if a `send` with these flags may begin with [`send_now`]: no flag changes a write
/// for which the send buffer has room.
#[inline]
pub fn is_plain_send(flags: i32) -> bool {
    flags & !PLAIN_SEND == 0
}

/// Writes as many bytes as fit, without waiting: the fast path of `send` and `write`. Returns the
/// number of bytes. If the number is less than the length of `from`, the caller has to call
/// [`send_rest`].
#[inline]
pub fn send_now(socket: &'static Socket, fd: RawFd, from: &[u8]) -> usize {
    match socket.enter(fd) {
        Some(mut inner) => inner.send_fast(socket, from),
        None => 0,
    }
}

/// Completes a `send` after [`send_now`] has written `sent` bytes.
pub fn send_rest(
    socket: &'static Socket,
    fd: RawFd,
    from: &[u8],
    flags: i32,
    sent: usize,
) -> Handled {
    let mode = SendMode::new(socket, flags);
    if sent > 0 && !mode.waits {
        return Some(Ok(sent));
    }
    let mode = SendMode {
        already: sent,
        ..mode
    };
    send_slow(socket, fd, from, mode)
}

/// Carries out `send`, or `write` with no flags.
pub fn send(socket: &'static Socket, fd: RawFd, from: &[u8], flags: i32) -> Handled {
    send_rest(socket, fd, from, flags, 0)
}

#[inline(never)]
fn send_slow(socket: &'static Socket, fd: RawFd, from: &[u8], mode: SendMode) -> Handled {
    transmit(socket, fd, from.len(), mode, &mut |inner, done| {
        let Some(connection) = inner.connection() else {
            return 0;
        };
        match mode.flags & libc::MSG_OOB {
            0 => connection.stream.write(&from[done..]),
            _ => connection.stream.write_urgent(&from[done..]),
        }
    })
}

/// The parameters of a send call.
#[derive(Clone, Copy)]
struct SendMode {
    /// MSG_* flags of the call.
    flags: i32,
    /// Number of bytes that [`send_now`] has written.
    already: usize,
    /// True if the call waits for room in the send buffer.
    waits: bool,
}

impl SendMode {
    fn new(socket: &Socket, flags: i32) -> Self {
        let waits = socket.blocks() && flags & libc::MSG_DONTWAIT == 0;
        Self {
            flags,
            already: 0,
            waits,
        }
    }
}

/// Carries out `writev` or `sendmsg`.
pub fn send_vectored(
    socket: &'static Socket,
    fd: RawFd,
    from: &[IoSlice<'_>],
    flags: i32,
) -> Handled {
    let wanted = from.iter().map(|part| part.len()).sum();
    transmit(
        socket,
        fd,
        wanted,
        SendMode::new(socket, flags),
        &mut |inner, done| {
            let Some(connection) = inner.connection() else {
                return 0;
            };
            let stream = &mut connection.stream;
            if flags & libc::MSG_OOB != 0 {
                let all: Vec<u8> = from.iter().flat_map(|part| part.iter().copied()).collect();
                return stream.write_urgent(&all[done..]);
            }
            if done == 0 {
                return stream.write_vectored(from);
            }
            let mut skip = done;
            let mut count = 0;
            for part in from {
                let begin = skip.min(part.len());
                skip -= begin;
                let rest = &part[begin..];
                let taken = stream.write(rest);
                count += taken;
                if taken < rest.len() {
                    break;
                }
            }
            count
        },
    )
}

/// Calls `write(inner, number of bytes so far)` until all `wanted` bytes are written. If the call
/// does not wait, ends as soon as the send buffer is full.
fn transmit(
    socket: &'static Socket,
    fd: RawFd,
    wanted: usize,
    mode: SendMode,
    write: &mut dyn FnMut(&mut Inner, usize) -> usize,
) -> Handled {
    let (flags, waits) = (mode.flags, mode.waits);
    let (timeout, syn_room) = {
        let inner = socket.enter(fd)?;
        if inner.state.is_in_kernel() {
            return TO_KERNEL;
        }
        (inner.options.send_timeout_ns, inner.syn_room())
    };
    let mut done = mode.already;
    if syn_room > 0 {
        done = match fast_open::send_with_syn(socket, fd, waits, write)? {
            Ok(count) if waits => count,
            at_once => return Some(at_once),
        };
    }
    let in_syn = done - mode.already;
    let attempt = |inner: &mut Inner| {
        inner.check_writable()?;
        inner.cork_once(flags & libc::MSG_MORE != 0);
        let count = if wanted == done {
            0
        } else {
            write(inner, done)
        };
        done += count;
        inner.after_write(socket);
        if done == wanted || count > 0 && !waits {
            inner.no_space = done < wanted;
            return Ok(done);
        }
        inner.no_space = true;
        // The connection may have ended between the check and the write.
        inner.check_writable()?;
        Err(WOULD_BLOCK)
    };
    let result = attempt_or_wait(socket, fd, waits, timeout, attempt);
    // If the connection fails after only the SYN's payload was written, the call returns the error
    // instead of the number of bytes.
    let unopened = in_syn == done && !matches!(result, Some(Err(WOULD_BLOCK)));
    if done > 0 && !unopened && !matches!(result, Some(Ok(_))) {
        return Some(Ok(done));
    }
    if result == Some(Err(BROKEN_PIPE)) && flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise(libc::SIGPIPE);
    }
    result
}

/// Carries out `send`, but waits for room in the send buffer even if the socket is non-blocking.
pub(crate) fn send_waiting(socket: &'static Socket, fd: RawFd, from: &[u8]) -> Handled {
    let mode = SendMode {
        waits: true,
        ..SendMode::new(socket, 0)
    };
    send_slow(socket, fd, from, mode)
}

/// Waits until the send buffer has room, as a blocking `send` does. Returns the number of bytes
/// that a write would accept.
pub(crate) fn await_room(socket: &'static Socket, fd: RawFd) -> Handled {
    let timeout = socket.enter(fd)?.options.send_timeout_ns;
    let attempt = |inner: &mut Inner| {
        inner.check_writable()?;
        let room = inner.room().unwrap_or(0);
        inner.no_space = room == 0;
        if room == 0 {
            Err(WOULD_BLOCK)
        } else {
            Ok(room)
        }
    };
    let result = attempt_or_wait(socket, fd, true, timeout, attempt);
    if result == Some(Err(BROKEN_PIPE)) {
        sys::raise(libc::SIGPIPE);
    }
    result
}

/// Carries out `ioctl` SIOCOUTQ: returns the number of bytes that are written but not acknowledged.
pub fn unacknowledged(socket: &'static Socket, fd: RawFd) -> Handled {
    let mut inner = socket.enter(fd)?;
    match inner.connection() {
        Some(connection) => Some(Ok(connection.stream.unacked() as usize)),
        None => TO_KERNEL,
    }
}
