//! `sendfile` and `splice` on accelerated connections, which the service (the process `tidelaned`)
//! carries. `sendfile` usually reads the file directly into the send buffer. `splice` copies the
//! payload through a temporary buffer (a bounce buffer), which costs a second copy. In some cases,
//! `sendfile` also uses a bounce buffer.

use std::{os::fd::RawFd, sync::atomic::AtomicU8};

use super::{bounce::Bounce, transfer};
use crate::{
    socket::Socket,
    sys::{self, Errno, Handled, TO_KERNEL, cancellation_unsafe::without_cancellation, fail},
};

/// Largest number of bytes in one read of a file. The thread holds the socket's lock during a read,
/// so the maximum keeps short the time for which other threads wait for the lock.
const READ_MAX: usize = 256 << 10;

/// Carries out `sendfile` to an accelerated connection. Reads the file at `offset` and advances
/// `offset`. Without an `offset`, reads at the file position and advances the file position.
pub fn send_file(
    socket: &'static Socket,
    fd: RawFd,
    file: RawFd,
    offset: Option<&mut i64>,
    count: usize,
) -> Handled {
    if socket.enter(fd)?.state.is_in_kernel() {
        return TO_KERNEL;
    }
    let own_position = offset.is_none();
    let mut position = match &offset {
        Some(offset) => **offset,
        None => match sys::seek(file, 0, libc::SEEK_CUR) {
            Ok(position) => position as i64,
            Err(_) => return fail(libc::EINVAL),
        },
    };
    let begin = position;
    let result = copy_file(socket, fd, file, &mut position, count);
    match offset {
        Some(offset) => *offset = position,
        None if own_position && position != begin => {
            let _ = sys::seek(file, position, libc::SEEK_SET);
        }
        None => {}
    }
    result
}

/// Sends up to `count` bytes of a file, and advances `position` by the number of bytes sent.
fn copy_file(
    socket: &'static Socket,
    fd: RawFd,
    file: RawFd,
    position: &mut i64,
    count: usize,
) -> Handled {
    let mut sent = 0;
    while sent < count {
        let len = (count - sent).min(READ_MAX);
        let read = |runs: [&[AtomicU8]; 2]| sys::pread_shared(file, runs, *position);
        let placed = socket.enter(fd)?.send_in_place(socket, len, read);
        let copied = match placed {
            Some(copied) => copied,
            // `send_in_place` was not possible: the send buffer is full, the handshake is not
            // complete, the last write had MSG_MORE, or the connection has an error or is shared
            // with another process. `copy_bounced` then sends the bytes, if need be after a wait,
            // or returns the error.
            None => copy_bounced(socket, fd, file, *position, len)?,
        };
        match copied {
            Ok(0) => break,
            Ok(copied) => {
                sent += copied;
                *position += copied as i64;
            }
            Err(_) if sent > 0 => break,
            Err(error) => return Some(Err(error)),
        }
    }
    Some(Ok(sent))
}

/// Sends up to `len` bytes of a file through a bounce buffer. On a blocking socket, waits until at
/// least one byte is sent. Returns 0 at the end of the file.
fn copy_bounced(
    socket: &'static Socket,
    fd: RawFd,
    file: RawFd,
    position: i64,
    len: usize,
) -> Handled {
    let mut bounce = Bounce::new();
    let room = socket.enter(fd)?.room().unwrap_or(0).max(1);
    let len = len.min(room).min(bounce.0.len());
    match sys::pread(file, &mut bounce.0[..len], position) {
        Ok(0) => Some(Ok(0)),
        Ok(got) => transfer::send(socket, fd, &bounce.0[..got], 0),
        error => Some(error),
    }
}

/// Carries out `splice` from a pipe to an accelerated connection.
pub fn splice_in(
    socket: &'static Socket,
    fd: RawFd,
    pipe: RawFd,
    len: usize,
    flags: u32,
) -> Handled {
    let room = {
        let mut inner = socket.enter(fd)?;
        if inner.state.is_in_kernel() {
            return TO_KERNEL;
        }
        inner.room().unwrap_or(0)
    };
    if let Err(error) = pipe_capacity(pipe) {
        return Some(Err(error));
    }
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0;
    let room = match room {
        0 if waits && socket.blocks() => match transfer::await_room(socket, fd)? {
            Ok(room) => room,
            Err(error) => return Some(Err(error)),
        },
        // An empty send fails if the connection was shut down or reset. If the empty send succeeds,
        // the send buffer is full.
        0 => match transfer::send(socket, fd, &[0; 0], libc::MSG_DONTWAIT)? {
            Ok(_) => return fail(libc::EAGAIN),
            Err(error) => return Some(Err(error)),
        },
        room => room,
    };
    if !waits && !is_ready(pipe, libc::POLLIN) {
        return fail(libc::EAGAIN);
    }
    let mut bounce = Bounce::new();
    let len = len.min(room).min(bounce.0.len());
    let got = match sys::read_waiting(pipe, &mut bounce.0[..len]) {
        Ok(got) => got,
        Err(error) => return Some(Err(error)),
    };
    without_cancellation(|| send_all(socket, fd, &bounce.0[..got]))
}

/// Sends bytes that were taken from a pipe. The bytes cannot go back into the pipe. If another
/// thread has used the room in the send buffer, the call therefore waits for room, even if the
/// socket is non-blocking or a signal arrives.
fn send_all(socket: &'static Socket, fd: RawFd, bytes: &[u8]) -> Handled {
    let mut sent = 0;
    while sent < bytes.len() {
        match transfer::send_waiting(socket, fd, &bytes[sent..])? {
            Ok(taken) => sent += taken,
            Err(Errno(libc::EINTR | libc::EAGAIN)) => {}
            Err(error) if sent == 0 => return Some(Err(error)),
            Err(_) => break,
        }
    }
    Some(Ok(sent))
}

/// Carries out `splice` from an accelerated connection to a pipe.
pub fn splice_out(
    socket: &'static Socket,
    fd: RawFd,
    pipe: RawFd,
    len: usize,
    flags: u32,
) -> Handled {
    if socket.enter(fd)?.state.is_in_kernel() {
        return TO_KERNEL;
    }
    let capacity = match pipe_capacity(pipe) {
        Ok(capacity) => capacity,
        Err(error) => return Some(Err(error)),
    };
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0;
    if !waits && !is_ready(pipe, libc::POLLOUT) {
        return fail(libc::EAGAIN);
    }
    let mut bounce = Bounce::new();
    let len = len.min(bounce.0.len());
    let peek = libc::MSG_PEEK | if waits { 0 } else { libc::MSG_DONTWAIT };
    let got = match transfer::recv(socket, fd, &mut bounce.0[..len], peek)? {
        Ok(0) => return Some(Ok(0)),
        Ok(got) => got,
        Err(error) => return Some(Err(error)),
    };
    match fill_pipe(pipe, capacity, &bounce.0[..got]) {
        Ok(moved) => transfer::skip(socket, fd, moved, libc::MSG_DONTWAIT),
        Err(error) => Some(Err(error)),
    }
}

/// Returns the capacity of the pipe `fd` in bytes. Fails with EBADF if `fd` is closed, and with
/// EINVAL if `fd` refers to another kind of file.
fn pipe_capacity(fd: RawFd) -> Result<usize, Errno> {
    // F_GETPIPE_SZ of an open file that is not a pipe fails with EBADF, too.
    sys::fcntl(fd, libc::F_GETPIPE_SZ, 0).map_err(|_| match sys::fcntl(fd, libc::F_GETFD, 0) {
        Ok(_) => Errno(libc::EINVAL),
        Err(error) => error,
    })
}

/// Writes as many bytes as a pipe of `capacity` bytes has room for. If the pipe is full and
/// blocking, first waits for room. If the pipe is full and non-blocking, fails with EAGAIN. Returns
/// the number of bytes, which is at least one.
fn fill_pipe(pipe: RawFd, capacity: usize, bytes: &[u8]) -> Result<usize, Errno> {
    if sys::is_empty_pipe(pipe) {
        return sys::write_waiting(pipe, &bytes[..bytes.len().min(capacity)]);
    }
    // The pages that the pipe holds may be only partly filled, so the number of unread bytes does
    // not tell how much room the pipe has. A pipe that is ready for writing has room for at least
    // one page.
    let mut done = 0;
    while done < bytes.len() && (done == 0 || is_ready(pipe, libc::POLLOUT)) {
        let end = bytes.len().min(done + libc::PIPE_BUF);
        match sys::write_waiting(pipe, &bytes[done..end]) {
            Ok(count) => done += count,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn is_ready(fd: RawFd, events: i16) -> bool {
    let mut fds = [libc::pollfd {
        fd,
        events,
        revents: 0,
    }];
    sys::ppoll(&mut fds, Some(0), None).is_ok_and(|count| count > 0)
}
