//! The status of a connection for its program (RFC 9293 §3.10.6 STATUS).

use tidelane_engine::CloseCause;

/// The status of a connection. [`Stack::info`](crate::Stack::info) returns TCP's own variables,
/// such as the congestion window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Number of received bytes that the program has not read.
    pub readable: u32,
    /// Number of bytes that [`Stack::write`](crate::Stack::write) accepts now. `None` if the
    /// sending direction or the connection is closed.
    pub writable: Option<u32>,
    /// Number of written bytes that are unacknowledged.
    pub unacknowledged: u32,
    /// True if the peer has sent a FIN. Received data may still be unread.
    pub peer_closed: bool,
    /// Cause of the end of the connection. `None` before the end.
    pub cause: Option<CloseCause>,
    /// The most recent ICMP error that did not end the connection (RFC 9293 §3.9.2.2, MUST-56).
    pub path_error: Option<CloseCause>,
    /// The last byte of the peer's urgent data. `None` if the peer has announced no urgent data, or
    /// once the program has read the byte.
    pub urgent: Option<Urgent>,
}

/// The last byte of the peer's urgent data (RFC 9293 §3.8.5). As RFC 6093 recommends, the byte
/// stays in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Urgent {
    /// Number of unread bytes before the urgent byte in the stream.
    pub ahead: u32,
    /// Value of the urgent byte. `None` until the byte has arrived.
    pub byte: Option<u8>,
}

impl Status {
    /// Returns true if the program has read all data, and the peer has sent a FIN or the connection
    /// has ended.
    pub fn is_end(&self) -> bool {
        self.readable == 0 && (self.peer_closed || self.cause.is_some())
    }
}
