//! The connection states of RFC 9293 §3.3.2 and every transition between them, as one table.
//!
//! The table is what the slow path runs, not a picture of it: [`State::next`] looks the event up.

use core::fmt;

/// RFC 9293 §3.3.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum State {
    /// No connection.
    #[default]
    Closed = 0,
    /// Waiting for a SYN. Listeners are kept apart; no flow is ever in this state.
    Listen = 1,
    /// SYN sent, waiting for a matching one.
    SynSent = 2,
    /// SYN received and sent, waiting for the acknowledgment.
    SynReceived = 3,
    /// Data can flow both ways.
    Established = 4,
    /// We sent FIN; neither its acknowledgment nor the peer's FIN have come.
    FinWait1 = 5,
    /// Our FIN is acknowledged; the peer may still send.
    FinWait2 = 6,
    /// The peer sent FIN; we may still send.
    CloseWait = 7,
    /// Both sent FIN at once; ours is not acknowledged yet.
    Closing = 8,
    /// The peer sent FIN, then we did; waiting for the acknowledgment.
    LastAck = 9,
    /// Both FINs are acknowledged. Kept in a compact table of its own.
    TimeWait = 10,
}

/// What can move a connection to another state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StateEvent {
    /// OPEN call, active.
    ActiveOpen,
    /// A SYN came to a listener: a new flow is made.
    PassiveSyn,
    /// A SYN that acknowledges ours.
    SynAckReceived,
    /// A SYN without acknowledgment (simultaneous open).
    SynReceived,
    /// Our SYN is acknowledged.
    SynAcked,
    /// CLOSE call or shutdown for writing: FIN is queued after the data.
    CloseCall,
    /// The peer's FIN is in order.
    FinReceived,
    /// Our FIN is acknowledged.
    FinAcked,
    /// Reset in either direction, ABORT, or a time limit.
    Abort,
    /// 2 MSL have passed in TIME-WAIT.
    TimeWaitTimeout,
}

/// RFC 9293 §3.3.2, Figure 5, and §3.10. A pair that is not listed does not happen or changes
/// nothing.
pub const TRANSITIONS: &[(State, StateEvent, State)] = {
    use State as S;
    use StateEvent as E;
    &[
        (S::Closed, E::ActiveOpen, S::SynSent),
        (S::Closed, E::PassiveSyn, S::SynReceived),
        (S::SynSent, E::SynAckReceived, S::Established),
        (S::SynSent, E::SynReceived, S::SynReceived),
        (S::SynSent, E::Abort, S::Closed),
        (S::SynReceived, E::SynAcked, S::Established),
        (S::SynReceived, E::CloseCall, S::FinWait1),
        (S::SynReceived, E::FinReceived, S::CloseWait),
        (S::SynReceived, E::Abort, S::Closed),
        (S::Established, E::CloseCall, S::FinWait1),
        (S::Established, E::FinReceived, S::CloseWait),
        (S::Established, E::Abort, S::Closed),
        (S::FinWait1, E::FinAcked, S::FinWait2),
        (S::FinWait1, E::FinReceived, S::Closing),
        (S::FinWait1, E::Abort, S::Closed),
        (S::FinWait2, E::FinReceived, S::TimeWait),
        (S::FinWait2, E::Abort, S::Closed),
        (S::CloseWait, E::CloseCall, S::LastAck),
        (S::CloseWait, E::Abort, S::Closed),
        (S::Closing, E::FinAcked, S::TimeWait),
        (S::Closing, E::Abort, S::Closed),
        (S::LastAck, E::FinAcked, S::Closed),
        (S::LastAck, E::Abort, S::Closed),
        (S::TimeWait, E::TimeWaitTimeout, S::Closed),
        (S::TimeWait, E::Abort, S::Closed),
    ]
};

impl State {
    /// Every state, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Closed,
        Self::Listen,
        Self::SynSent,
        Self::SynReceived,
        Self::Established,
        Self::FinWait1,
        Self::FinWait2,
        Self::CloseWait,
        Self::Closing,
        Self::LastAck,
        Self::TimeWait,
    ];

    /// The state after `event`; the same state where [`TRANSITIONS`] has no entry.
    pub fn next(self, event: StateEvent) -> Self {
        TRANSITIONS
            .iter()
            .find(|(from, on, _)| *from == self && *on == event)
            .map_or(self, |(_, _, to)| *to)
    }

    /// Whether both SYNs are acknowledged and the connection is not over.
    pub const fn is_synchronized(self) -> bool {
        !matches!(
            self,
            Self::Closed | Self::Listen | Self::SynSent | Self::SynReceived
        )
    }

    /// Whether the peer may still send data: its FIN has not come.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// Whether data of ours may still be sent or sent again: our FIN is not acknowledged.
    pub const fn sends(self) -> bool {
        matches!(
            self,
            Self::Established | Self::CloseWait | Self::FinWait1 | Self::Closing | Self::LastAck
        )
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "CLOSED",
            Self::Listen => "LISTEN",
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECEIVED",
            Self::Established => "ESTABLISHED",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
            Self::TimeWait => "TIME-WAIT",
        })
    }
}
