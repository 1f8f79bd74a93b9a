//! Calls for urgent data, with the semantics of Linux: MSG_OOB, SIOCATMARK and FIONREAD.

use std::os::fd::RawFd;

use crate::{
    socket::{Inner, Socket, sharing},
    sys::{Handled, TO_KERNEL},
};

/// Carries out `recv` of `wanted` bytes with MSG_OOB, which never waits. Passes the urgent byte to
/// `put`, unless `wanted` is 0. Returns the number of bytes passed to `put`: 0 or 1.
pub fn recv(
    socket: &'static Socket,
    fd: RawFd,
    flags: i32,
    wanted: usize,
    put: &mut dyn FnMut(u8),
) -> Handled {
    let peeks = flags & libc::MSG_PEEK != 0;
    let mut attempt = |inner: &mut Inner| {
        let byte = inner.take_urgent(peeks)?;
        let byte = byte.filter(|_| wanted > 0);
        if let Some(byte) = byte {
            put(byte);
        }
        Ok(byte.map_or(0, |_| 1))
    };
    loop {
        let mut inner = socket.enter(fd)?;
        if inner.state.is_in_kernel() {
            return TO_KERNEL;
        }
        // Repeat if another process has taken the connection since `enter`.
        if let Some(done) = sharing::attempt(&mut inner, &mut attempt) {
            return Some(done);
        }
    }
}

/// Carries out `ioctl` SIOCATMARK: returns 1 if the urgent byte is the next byte, or else 0.
pub fn at_mark(socket: &'static Socket, fd: RawFd) -> Handled {
    let mut inner = socket.enter(fd)?;
    match inner.connection() {
        Some(connection) => Some(Ok(connection.stream.at_mark().into())),
        // The kernel answers for its own connections, and returns 0 for a socket without a
        // connection.
        None => TO_KERNEL,
    }
}

/// Carries out `ioctl` FIONREAD: returns the number of unread bytes. Without SO_OOBINLINE, counts
/// only the bytes before the urgent byte.
pub fn unread_len(socket: &'static Socket, fd: RawFd) -> Handled {
    let mut inner = socket.enter(fd)?;
    match inner.connection() {
        Some(connection) => Some(Ok(connection.stream.unread_to_mark())),
        None => TO_KERNEL,
    }
}
