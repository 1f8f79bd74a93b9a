//! [`Connection`]: the state that a context (the sockets of one thread) keeps for a TCP connection.
//! The engine keeps the TCP state itself.

use tidelane_engine::CloseCause;
use tidelane_rings::{Cause, Descriptor};
use tidelane_wire::HeaderTemplate;

use crate::{receive_chain::ReceiveChain, send_chain::SendChain};

/// How the program has ended a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Send all queued data and then a FIN, or a RST if received data is unread.
    Close,
    /// Reset the connection at once.
    Abort,
}

/// The context's state of one connection: headers, the buffers of both directions, the program's
/// pending calls, and the events that the next ready list must report.
#[derive(Debug)]
pub struct Connection {
    /// Ethernet and IP headers of the connection's segments.
    pub template: HeaderTemplate,
    /// The program's descriptor. `None` before the accept and after the close.
    pub descriptor: Option<Descriptor>,
    /// Received data that the program has not taken.
    pub rx: ReceiveChain,
    /// Data that the peer has not acknowledged.
    pub tx: SendChain,
    /// Close or abort by the program, if any.
    pub ending: Option<Ending>,
    /// Cause of the end of the connection. `None` before the end.
    pub cause: Option<CloseCause>,
    /// True if the connection is in the list of connections with events.
    pub is_ready: bool,
    /// True if the connection is in `Cycle::dirty`: the program's calls are not yet applied to the
    /// engine.
    pub is_dirty: bool,
    /// True if the next ready list must report CONNECTED.
    pub owes_connected: bool,
    /// True if a buffer was refused because the send queue was full. A ready list must then report
    /// WRITABLE when the send queue has room.
    pub owes_writable: bool,
    /// True if the next list must report END: the peer has sent a FIN.
    pub owes_end: bool,
    /// True if the next list must report CLOSED.
    pub owes_closed: bool,
    /// True while the program has paused receiving.
    pub is_paused: bool,
    /// True once the program has closed the sending direction.
    pub is_shut_down: bool,
}

impl Connection {
    /// Returns the state of a new connection.
    pub fn new(template: HeaderTemplate) -> Self {
        Self {
            template,
            descriptor: None,
            rx: ReceiveChain::default(),
            tx: SendChain::default(),
            ending: None,
            cause: None,
            is_ready: false,
            is_dirty: false,
            owes_connected: false,
            owes_writable: false,
            owes_end: false,
            owes_closed: false,
            is_paused: false,
            is_shut_down: false,
        }
    }

    /// Returns true if the program may queue data, before or after the connection is established.
    pub fn can_queue(&self) -> bool {
        !self.is_shut_down && self.ending.is_none() && self.cause.is_none()
    }

    /// Returns true if received data cannot be reported now, because the program has paused or not
    /// yet accepted the connection.
    pub fn is_waiting(&self) -> bool {
        self.is_paused || self.descriptor.is_none()
    }
}

/// Returns the cause that a CLOSED event reports. Returns `None` if both sides have closed the
/// connection by FIN, which needs no event.
pub fn cause_of(cause: CloseCause) -> Option<Cause> {
    match cause {
        CloseCause::Finished => None,
        CloseCause::Reset => Some(Cause::Reset),
        CloseCause::Refused => Some(Cause::Refused),
        CloseCause::TimedOut => Some(Cause::TimedOut),
        CloseCause::HostUnreachable | CloseCause::NetUnreachable => Some(Cause::Unreachable),
        CloseCause::Aborted => Some(Cause::Other),
    }
}
