//! Urgent data for programs: MSG_OOB, SO_OOBINLINE, SIOCATMARK, EPOLLPRI, as Linux has them.

use std::os::fd::RawFd;

use tidelane_abi::service_flags;
use tidelane_client::{Stream, UrgentByte};

use crate::{
    errno::{Errno, Handled, TO_KERNEL},
    fork,
    socket::{Inner, Socket, State},
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
    if matches!(
        inner.state,
        State::Free | State::Fresh | State::Listening(_) | State::Kernel
    ) {
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
    Some(fork::attempt(&mut inner, &mut attempt))
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

impl Inner {
    /// The urgent byte. `None`: it was announced, and will not come.
    fn take_urgent(&mut self, peeks: bool) -> Result<Option<u8>, Errno> {
        self.refresh();
        let inline = self.options.urgent_inline();
        let (over, shut) = (self.cause_seen, self.shut_read);
        let State::Stream(connection) = &mut self.state else {
            return Err(Errno(libc::EINVAL));
        };
        let stream = &mut connection.stream;
        let byte = match stream.urgent_byte() {
            UrgentByte::None => return Err(Errno(libc::EINVAL)),
            _ if inline => return Err(Errno(libc::EINVAL)),
            UrgentByte::There(byte) => Some(byte),
            UrgentByte::Awaited => None,
        };
        let finished = stream.service_flags() & service_flags::FIN_RECEIVED != 0;
        match byte {
            _ if over && !finished => Err(Errno(libc::ENOTCONN)),
            Some(byte) => {
                if !peeks {
                    stream.take_urgent_byte();
                }
                Ok(Some(byte))
            }
            None if over || finished || shut => Ok(None),
            None => Err(Errno(libc::EAGAIN)),
        }
    }

    /// A read that found nothing goes on behind an urgent byte that is left out. Whether it may.
    pub(crate) fn pass_mark(&mut self, socket: &Socket) -> bool {
        let State::Stream(connection) = &mut self.state else {
            return false;
        };
        let passed = connection.stream.pass_mark();
        if passed {
            self.after_read(socket, 0);
        }
        passed
    }

    /// Whether a read that has some bytes ends here.
    pub(crate) fn stops_at_mark(&mut self) -> bool {
        match &mut self.state {
            State::Stream(connection) => connection.stream.at_mark(),
            _ => false,
        }
    }
}

/// Bytes that came and no read gave, with those that never will: edges are told by what came.
pub(crate) fn ungiven(stream: &mut Stream) -> u64 {
    stream.unread() as u64 + u64::from(stream.left_out())
}

/// Copies received bytes without taking them; behind an urgent byte that a read would leave out.
pub(crate) fn peek(stream: &mut Stream, into: &mut [u8]) -> usize {
    match stream.peek(into) {
        0 => stream.peek_past_mark(into),
        count => count,
    }
}

/// EPOLLPRI while the urgent byte is there and was not read by itself.
pub(crate) fn readiness(stream: &mut Stream) -> u32 {
    if stream.has_urgent() {
        libc::EPOLLPRI as u32
    } else {
        0
    }
}
