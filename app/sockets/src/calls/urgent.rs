//! Urgent data for programs: MSG_OOB, SO_OOBINLINE, SIOCATMARK, EPOLLPRI, as Linux has them.

use std::os::fd::RawFd;

use crate::{
    socket::{Inner, Socket, sharing},
    sys::{Handled, TO_KERNEL},
};

/// `recv` with MSG_OOB: gives the urgent byte to `put`, and returns its number, at most `wanted`.
/// It never waits.
pub fn recv(
    socket: &'static Socket,
    fd: RawFd,
    flags: i32,
    wanted: usize,
    put: &mut dyn FnMut(u8),
) -> Handled {
    let mut inner = socket.enter(fd)?;
    if inner.state.is_kernels() {
        return TO_KERNEL;
    }
    let peeks = flags & libc::MSG_PEEK != 0;
    let mut attempt = |inner: &mut Inner| {
        let byte = inner.take_urgent(peeks)?;
        let byte = byte.filter(|_| wanted > 0);
        if let Some(byte) = byte {
            put(byte);
        }
        Ok(byte.map_or(0, |_| 1))
    };
    Some(sharing::attempt(&mut inner, &mut attempt))
}

/// SIOCATMARK: whether the urgent byte is next.
pub fn at_mark(socket: &'static Socket, fd: RawFd) -> Handled {
    let mut inner = socket.enter(fd)?;
    match inner.connection() {
        Some(connection) => Some(Ok(connection.stream.at_mark().into())),
        // The kernel's socket behind it is never at a mark.
        None => TO_KERNEL,
    }
}

/// FIONREAD: bytes that can be read now, by one call.
pub fn readable(socket: &'static Socket, fd: RawFd) -> Handled {
    let mut inner = socket.enter(fd)?;
    match inner.connection() {
        Some(connection) => Some(Ok(connection.stream.unread_to_mark())),
        None => TO_KERNEL,
    }
}
