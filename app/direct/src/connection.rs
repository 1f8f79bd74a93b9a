//! [`Connection`]: the state that a context (the sockets of one thread) keeps for a TCP connection,
//! such as buffers and pending events. The engine, which runs TCP, keeps the state of the protocol.

use tidelane_engine::CloseCause;
use tidelane_rings::{Cause, Descriptor};
use tidelane_wire::HeaderTemplate;

use crate::{receive_chain::ReceiveChain, send_chain::SendChain};

/// How the program has ended a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Send all queued data and then a FIN. If received data has not reached a ready list, reset
    /// the connection instead.
    Close,
    /// Reset the connection, without waiting until the queued data is sent.
    Abort,
}

/// The context's state of one connection: headers, the buffers of both directions, the program's
/// pending calls, and the events that the next ready list must report. A ready list is the result
/// of one call by which the program receives.
#[derive(Debug)]
pub struct Connection {
    /// Ethernet and IP headers of the connection's segments.
    pub template: HeaderTemplate,
    /// The program's descriptor. `None` before the program has accepted the connection, and after
    /// the program has closed or aborted the connection.
    pub descriptor: Option<Descriptor>,
    /// Received data that no ready list has passed to the program.
    pub rx: ReceiveChain,
    /// Data to send: queued data, and sent data that the peer has not acknowledged.
    pub tx: SendChain,
    /// How the program has ended the connection. `None` before the program closes or aborts the
    /// connection.
    pub ending: Option<Ending>,
    /// Cause of the end of the connection. `None` before the end.
    pub cause: Option<CloseCause>,
    /// True if the connection is in `Io::ready`, the list of connections with events to report.
    pub is_ready: bool,
    /// True if the connection is in `Cycle::dirty`: the program's calls are not yet applied to the
    /// engine.
    pub is_dirty: bool,
    /// True if the next ready list must report CONNECTED.
    pub owes_connected: bool,
    /// True if a buffer was refused because the send queue was full. A ready list must then report
    /// WRITABLE when the send queue has room.
    pub owes_writable: bool,
    /// True if the next ready list must report END: the peer has sent a FIN.
    pub owes_end: bool,
    /// True if the next ready list must report CLOSED.
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

    /// Returns true if the program may queue data. The connection need not be established. Returns
    /// false if the program has closed the sending direction, has closed or aborted the connection,
    /// or if the connection is over.
    pub fn can_queue(&self) -> bool {
        !self.is_shut_down && self.ending.is_none() && self.cause.is_none()
    }

    /// Returns true if received data cannot be reported now, because the program has paused the
    /// connection or has no descriptor of the connection (before the accept and after the close).
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
