//! The urgent byte of a connection, and where reading stops because of it.

use tidelane_abi::service_flags;
use tidelane_client::{Stream, UrgentByte};

use super::{Inner, Socket, state::State};
use crate::sys::Errno;

impl Inner {
    /// The urgent byte. `None`: it was announced, and will not come.
    pub(crate) fn take_urgent(&mut self, peeks: bool) -> Result<Option<u8>, Errno> {
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
