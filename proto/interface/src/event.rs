//! Events of flows (connections). The TCP engine reports each event to its driver, the program that
//! runs the engine. The driver passes the event to the application.

use crate::ids::ListenerId;

/// An event of a flow. `rx_head` is the stream position after the last byte received in order, and
/// `tx_acked` the position after the last byte that the peer acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A segment brought data, or acknowledged what the flow has sent. A segment that did both may
    /// cause two events.
    Progress {
        /// True if `rx_head` has advanced: there is new data to read.
        readable: bool,
        /// True if SND.UNA has advanced. Unless the segment acknowledged only a FIN, `tx_acked` has
        /// advanced, too, and there is room to write.
        writable: bool,
    },
    /// An active open is complete.
    Connected,
    /// A passive open is complete, and the connection is in the listener's accept queue. With Fast
    /// Open (RFC 7413), the handshake may still be incomplete.
    Accepted(ListenerId),
    /// The peer's FIN has arrived in order: the peer's stream ends at `rx_head`.
    PeerClosed,
    /// The peer has announced urgent data (RFC 9293 MUST-32). The value is the stream position of
    /// the last urgent byte, which may not have arrived yet. The position is at or after `rx_head`,
    /// and after the position of every earlier event of this kind.
    Urgent(u32),
    /// The last byte of urgent data has arrived, and has this value. The stream contains this byte,
    /// too.
    UrgentByte(u8),
    /// Our FIN is acknowledged.
    FinAcked,
    /// The retransmission timer has expired R1 times without an answer: negative advice about the
    /// path to the peer (RFC 9293 §3.8.3, MUST-20). The connection continues.
    NegativeAdvice,
    /// A soft error of the path (RFC 9293 MUST-47). The connection continues.
    SoftError(CloseCause),
    /// The connection is over. Received data can still be read: the flow stays in CLOSED or
    /// TIME-WAIT until the driver calls the engine's `close` or `abort`.
    Closed(CloseCause),
    /// The flow does not exist any more. This last event of a flow follows a call of `close` or
    /// `abort`, or the end of a half-open flow. The event does not wait for the end of TIME-WAIT.
    /// The engine does not reuse the flow's id before the next call of `batch_end` has returned.
    Released,
}

/// Reason for the end of a connection. The numbers equal the constants of `close_cause` in the
/// crate `tidelane-abi`, the format of the memory that the service (process `tidelaned`) shares
/// with applications. The engine never reports the numbers 7 and 9, which the service itself uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum CloseCause {
    /// Both sides have closed the connection.
    Finished = 1,
    /// The peer sent RST.
    Reset = 2,
    /// The peer refused the connection: a RST arrived during the handshake, or an ICMP error
    /// reported that the port is unreachable.
    Refused = 3,
    /// The peer did not answer in time.
    TimedOut = 4,
    /// An ICMP error reported that the host is unreachable, or reported a problem for which there
    /// is no other value (Linux: `icmp_err_convert`).
    HostUnreachable = 5,
    /// An ICMP error reported that the network is unreachable.
    NetUnreachable = 6,
    /// Our end aborted the connection.
    Aborted = 8,
}

impl Event {
    /// The event that reports data to read, and no acknowledgment.
    pub const READABLE: Self = Self::Progress {
        readable: true,
        writable: false,
    };
    /// The event that reports an acknowledgment, and no data to read.
    pub const WRITABLE: Self = Self::Progress {
        readable: false,
        writable: true,
    };

    /// Returns the event of an ACK that makes room to write. `readable` is true if the segment also
    /// brought data to read.
    #[inline(always)]
    pub const fn acked(readable: bool) -> Self {
        let writable = true;
        Self::Progress { readable, writable }
    }
}

impl CloseCause {
    /// Returns the constant of `close_cause` for the cause.
    pub const fn to_u32(self) -> u32 {
        self as u32
    }
}
