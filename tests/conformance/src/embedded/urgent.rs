//! Reading of urgent data as in Linux, from a stream of the embedded stack.
//!
//! In the embedded stack, the urgent byte is an ordinary byte of the stream. In Linux, `recv` stops
//! before the urgent byte. Without SO_OOBINLINE, the next `recv` skips the byte, and `recv` with
//! MSG_OOB returns the byte.

use tidelane_embedded::{Status, Urgent};
use tidelane_packetdrill::errno::{CallResult, Errno};

/// State of the reading of urgent data by one socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct UrgentReader {
    /// SO_OOBINLINE.
    pub inline: bool,
    /// True if `recv` with MSG_OOB and without MSG_PEEK has returned the urgent byte.
    taken: bool,
    /// True if the urgent byte was the next byte to read when the most recent packet arrived.
    was_next: bool,
}

/// The bytes that the next `recv` handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Number of bytes to skip: 1 if the next byte is an urgent byte that `recv` skips, else 0.
    pub skip: u32,
    /// Largest number of bytes to return after the skipped bytes.
    pub len: u32,
}

impl UrgentReader {
    /// Records, before a packet arrives, whether the urgent byte is the next byte to read.
    pub fn before_packet(&mut self, status: &Status) {
        self.was_next = Self::is_next(status);
    }

    /// Handles the announcement of a new urgent byte. Returns true if the caller must skip the next
    /// byte, as Linux does: the byte is the previous urgent byte, and SO_OOBINLINE is not set.
    pub fn on_announced(&mut self, status: &Status) -> bool {
        self.taken = false;
        self.was_next && status.readable > 0 && !self.inline
    }

    /// Returns true if the next byte to read is the urgent byte.
    pub fn is_next(status: &Status) -> bool {
        status.urgent.is_some_and(|urgent| urgent.ahead == 0)
    }

    /// Returns the bytes that the next `recv` handles.
    pub fn next_part(&self, status: &Status) -> Part {
        let readable = status.readable;
        let (skip, len) = match status.urgent.map(|urgent| urgent.ahead) {
            None => (0, readable),
            Some(0) if self.inline => (0, readable),
            Some(0) if readable > 0 => (1, readable - 1),
            Some(ahead) => (0, readable.min(ahead)),
        };
        Part { skip, len }
    }

    /// Returns the value of SIOCINQ: the number of readable bytes before the urgent byte. Counts
    /// all readable bytes if there is no urgent byte, or if SO_OOBINLINE is set.
    pub fn unread(&self, status: &Status) -> u32 {
        match status.urgent {
            Some(urgent) if !self.inline => status.readable.min(urgent.ahead),
            _ => status.readable,
        }
    }

    /// Returns true if `poll` reports data to read. An urgent byte that is the next byte does not
    /// count as data to read, unless SO_OOBINLINE is set.
    pub fn is_readable(&self, status: &Status) -> bool {
        let hidden = Self::is_next(status) && !self.inline;
        status.readable > hidden.into()
    }

    /// Returns true if the urgent byte has arrived and was not read with MSG_OOB (POLLPRI).
    pub fn has_urgent(&self, status: &Status) -> bool {
        let arrived = |urgent: Urgent| urgent.byte.is_some();
        status.urgent.is_some_and(arrived) && !self.taken
    }

    /// Implements `recv` with MSG_OOB. `over` is true if the call must not wait for more data.
    pub fn receive(&mut self, status: &Status, flags: i32, over: bool) -> CallResult<Vec<u8>> {
        let urgent = status.urgent.filter(|_| !self.taken && !self.inline);
        match urgent.ok_or(Errno::INVAL)?.byte {
            Some(byte) => {
                self.taken = flags & libc::MSG_PEEK == 0;
                Ok(vec![byte])
            }
            None if over => Ok(Vec::new()),
            None => Err(Errno::AGAIN),
        }
    }
}
