//! The status of a connection, as its program sees it (RFC 9293 §3.10.6 STATUS).

use tidelane_engine::CloseCause;

/// The status of a connection for the program. [`Stack::info`](crate::Stack::info) returns TCP's
/// own variables, such as the congestion window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Number of received bytes that the program has not read.
    pub readable: u32,
    /// Number of bytes that [`Stack::write`](crate::Stack::write) takes now. `None` if the program
    /// can write no more, because it has closed its direction or the connection is over.
    pub writable: Option<u32>,
    /// Number of written bytes that the peer has not acknowledged.
    pub unacknowledged: u32,
    /// True if the peer has closed its direction. Received data may still be unread.
    pub peer_closed: bool,
    /// Reason for the end of the connection; `None` while the connection is open.
    pub cause: Option<CloseCause>,
    /// The last ICMP error that did not end the connection (RFC 9293 §3.9.2.2, MUST-56).
    pub path_error: Option<CloseCause>,
    /// The last urgent byte, if the program has not read past the byte.
    pub urgent: Option<Urgent>,
}

/// The last byte of the urgent data that the peer has announced (RFC 9293 §3.8.5). The byte stays
/// in the stream, as RFC 6093 recommends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Urgent {
    /// Number of bytes in the stream between the next byte to read and the urgent byte.
    pub ahead: u32,
    /// Value of the urgent byte; `None` until the byte has arrived.
    pub byte: Option<u8>,
}
