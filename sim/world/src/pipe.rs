//! A program's operations on a connection. Each kind of stack implements the operations for its
//! streams. The kinds are the service, the direct back end of the ring API (which runs TCP within
//! the program's calls), the embedded stack, and smoltcp.

use std::io::IoSliceMut;

use tidelane_abi::{program_flags, service_flags};
use tidelane_client::Stream;
use tidelane_netem::Rng;

/// A program's interface to one end of a connection.
pub trait Pipe {
    /// Returns the number of bytes that can be read now.
    fn readable(&mut self) -> usize;
    /// Copies bytes without consuming them. Returns their number.
    fn peek(&mut self, into: &mut [u8]) -> usize;
    /// Consumes up to `count` bytes without copying them. Returns their number.
    fn discard(&mut self, count: usize) -> usize;
    /// Reads with a randomly chosen function of the stream, if the stream has several. Returns the
    /// number of bytes.
    fn receive(&mut self, rng: &mut Rng, into: &mut [u8]) -> usize;
    /// Writes as many bytes as fit. Returns their number.
    fn write(&mut self, bytes: &[u8]) -> usize;
    /// Returns true if the most recent write stopped for lack of memory, and not at the limit of
    /// unacknowledged bytes. The caller asks only after a write that took no byte. No event reports
    /// when memory becomes available.
    fn lacks_memory(&mut self) -> bool {
        false
    }
    /// Closes the sending direction.
    fn shutdown_write(&mut self);
    /// Closes the stream for the program. If `abort` is true, resets the connection.
    fn close(&mut self, abort: bool);
    /// Returns true if the program has closed the stream.
    fn is_closed(&self) -> bool;
    /// Returns the close cause (`close_cause`) if the connection has ended.
    fn ended(&mut self) -> Option<u32>;
    /// Returns true if the peer's FIN has arrived.
    fn fin_received(&self) -> bool;
    /// Returns true if the peer's FIN has arrived and all data has been read. A stream of the
    /// service also returns true if all data has been read and the connection has ended.
    fn at_end(&mut self) -> bool;
    /// Returns true if no more data will arrive, because the peer's FIN has arrived or the
    /// connection has ended.
    fn peer_closed(&mut self) -> bool;
    /// Returns true if the handshake is complete. The direct back end always returns true.
    fn established(&mut self) -> bool;
    /// Disables Nagle's algorithm. Has no effect on the direct back end.
    fn set_nodelay(&mut self);
}

impl Pipe for Stream {
    fn readable(&mut self) -> usize {
        Self::readable(self)
    }

    fn peek(&mut self, into: &mut [u8]) -> usize {
        Self::peek(self, into)
    }

    fn discard(&mut self, count: usize) -> usize {
        Self::discard(self, count)
    }

    fn receive(&mut self, rng: &mut Rng, into: &mut [u8]) -> usize {
        match rng.below(8) {
            0 => {
                let cut = rng.below(into.len() as u64) as usize;
                let (first, second) = into.split_at_mut(cut);
                self.read_vectored(&mut [IoSliceMut::new(first), IoSliceMut::new(second)])
            }
            1 => {
                let got = Self::peek(self, into);
                Self::discard(self, got)
            }
            _ => self.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        Self::write(self, bytes)
    }

    fn lacks_memory(&mut self) -> bool {
        self.writable() > 0
    }

    fn shutdown_write(&mut self) {
        Self::shutdown_write(self);
    }

    fn close(&mut self, abort: bool) {
        Self::close(self, abort, abort.then_some(0));
    }

    fn is_closed(&self) -> bool {
        self.flags() & program_flags::CLOSE != 0
    }

    fn ended(&mut self) -> Option<u32> {
        self.closed()
    }

    fn fin_received(&self) -> bool {
        self.service_flags() & service_flags::FIN_RECEIVED != 0
    }

    fn at_end(&mut self) -> bool {
        Self::at_end(self)
    }

    fn peer_closed(&mut self) -> bool {
        Self::peer_closed(self)
    }

    fn established(&mut self) -> bool {
        Self::established(self)
    }

    fn set_nodelay(&mut self) {
        self.set_flag(program_flags::NODELAY);
    }
}
