//! What a program can do with a connection, whoever carries it.

use std::io::IoSliceMut;

use tidelane_abi::{program_flags, service_flags};
use tidelane_client::Stream;
use tidelane_netem::Rng;

/// One end of a byte stream.
pub trait Pipe {
    /// Bytes that can be read now.
    fn readable(&mut self) -> usize;
    /// Copies bytes out and leaves them there. How many.
    fn peek(&mut self, into: &mut [u8]) -> usize;
    /// Reads `count` bytes and forgets them. How many there were.
    fn discard(&mut self, count: usize) -> usize;
    /// Reads in one of the ways that there are. How many bytes.
    fn receive(&mut self, rng: &mut Rng, into: &mut [u8]) -> usize;
    /// Writes what there is room for. How many bytes.
    fn write(&mut self, bytes: &[u8]) -> usize;
    /// Whether a write that took nothing would have, had there been memory: no event says when
    /// there is.
    fn lacks_memory(&mut self) -> bool {
        false
    }
    /// No more bytes are written.
    fn shutdown_write(&mut self);
    /// The program is done with it; `abort` resets the connection.
    fn close(&mut self, abort: bool);
    /// Whether the program has closed it.
    fn is_closed(&self) -> bool;
    /// Why the connection is over (`close_cause`), if it is.
    fn ended(&mut self) -> Option<u32>;
    /// Whether the peer has said that no more bytes come.
    fn fin_received(&self) -> bool;
    /// Whether the peer has said so and all is read.
    fn at_end(&mut self) -> bool;
    /// Whether nothing more will come.
    fn peer_closed(&mut self) -> bool;
    /// Whether the handshake is over.
    fn established(&mut self) -> bool;
    /// Small segments do not wait.
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
