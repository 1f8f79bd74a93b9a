//! The context's state of one connection.

use tidelane_engine::CloseCause;
use tidelane_rings::{Cause, Descriptor};
use tidelane_wire::HeaderTemplate;

use crate::{receive_chain::ReceiveChain, send_chain::SendChain};

/// End of a connection that the program has asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The connection closes after all data.
    Close,
    /// The connection is reset.
    Abort,
}

/// The context's state of one connection: buffers of both directions, and the knowledge of the
/// program.
#[derive(Debug)]
pub struct Connection {
    /// Ethernet and IP headers of the connection's segments.
    pub template: HeaderTemplate,
    /// Descriptor of the program: `None` before the accept and after the close.
    pub descriptor: Option<Descriptor>,
    /// Received data that the program has not got.
    pub rx: ReceiveChain,
    /// Data that the peer has not acknowledged.
    pub tx: SendChain,
    /// End that the program has asked for.
    pub ending: Option<Ending>,
    /// Reason for the end of the connection.
    pub cause: Option<CloseCause>,
    /// True if the connection is in the list of connections with events.
    pub is_touched: bool,
    /// True if the connection is in the list of connections with requests of the program.
    pub is_dirty: bool,
    /// True if the program has to learn that its open is complete.
    pub owes_connected: bool,
    /// True if a buffer was refused, so that WRITABLE is due when there is room.
    pub owes_writable: bool,
    /// True if the program has to learn that the peer has closed its direction.
    pub owes_end: bool,
    /// True if the program has to learn the cause of the end.
    pub owes_closed: bool,
    /// True while the program does not want to receive.
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
            is_touched: false,
            is_dirty: false,
            owes_connected: false,
            owes_writable: false,
            owes_end: false,
            owes_closed: false,
            is_paused: false,
            is_shut_down: false,
        }
    }

    /// Returns true if the program may send, now or once the connection is established.
    pub fn can_queue(&self) -> bool {
        !self.is_shut_down && self.ending.is_none() && self.cause.is_none()
    }

    /// Returns true if the data of the connection waits until the program wants it: the program has
    /// paused or not accepted the connection.
    pub fn is_waiting(&self) -> bool {
        self.is_paused || self.descriptor.is_none()
    }
}

/// Returns the cause of a CLOSED event; `None` if both sides have closed the connection, which the
/// program knows.
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
