//! Urgent data of a connection: the urgent byte, which `recv` with MSG_OOB returns, and the urgent
//! mark, which is the position of this byte in the stream. Ordinary reads stop at the mark.

use tidelane_abi::service_flags;
use tidelane_client::{Stream, UrgentByte};

use super::{Inner, Socket, state::State};
use crate::sys::Errno;

impl Inner {
    /// Returns the urgent byte. Consumes the byte if `peeks` is false.
    ///
    /// Returns EINVAL if there is no urgent byte that the program has not read yet, or if
    /// SO_OOBINLINE is set. Otherwise, returns ENOTCONN if the connection has ended without a FIN
    /// of the peer, even if the byte has arrived.
    ///
    /// If the urgent pointer has arrived but the byte has not, returns `Ok(None)` after the peer's
    /// FIN or after the program has shut down reading, and EAGAIN in all other cases.
    pub(crate) fn take_urgent(&mut self, peeks: bool) -> Result<Option<u8>, Errno> {
        self.refresh();
        let inline = self.options.urgent_inline();
        let (over, shut) = (self.cause_reported, self.shut_read);
        let State::Stream(connection) = &mut self.state else {
            return Err(Errno(libc::EINVAL));
        };
        let stream = &mut connection.stream;
        let byte = match stream.urgent_byte() {
            UrgentByte::None => return Err(Errno(libc::EINVAL)),
            _ if inline => return Err(Errno(libc::EINVAL)),
            UrgentByte::Arrived(byte) => Some(byte),
            UrgentByte::Announced => None,
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
            None if finished || shut => Ok(None),
            None => Err(Errno(libc::EAGAIN)),
        }
    }

    /// Skips the urgent byte if SO_OOBINLINE is off, and if the byte has arrived and is at the read
    /// position. Returns true if a byte was skipped, so that the read can continue after this byte.
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

    /// Returns true if the read position is at the urgent mark. A read that already has bytes ends
    /// there.
    pub(crate) fn stops_at_mark(&mut self) -> bool {
        match &mut self.state {
            State::Stream(connection) => connection.stream.at_mark(),
            _ => false,
        }
    }
}

/// Copies received bytes without consuming them. Skips an urgent byte that a read would skip.
/// Returns the number of copied bytes.
pub(crate) fn peek(stream: &mut Stream, into: &mut [u8]) -> usize {
    match stream.peek(into) {
        0 => stream.peek_past_mark(into),
        count => count,
    }
}

/// Returns EPOLLPRI if the urgent byte has arrived, and if the program has read neither this byte
/// nor beyond it. Otherwise, returns 0.
pub(crate) fn readiness(stream: &mut Stream) -> u32 {
    if stream.has_urgent() {
        libc::EPOLLPRI as u32
    } else {
        0
    }
}
