//! The connection states of RFC 9293 §3.3.2 and their transitions, as one table.
//!
//! The TCP engine takes its transitions from this table, by [`State::next`], with two exceptions.
//! On [`StateEvent::Abort`], the engine sets CLOSED directly, or frees the connection. On
//! [`StateEvent::TimeWaitTimeout`], the engine removes the connection's entry in its table for
//! TIME-WAIT.

use core::fmt;

/// State of a connection (RFC 9293 §3.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum State {
    /// No connection.
    #[default]
    Closed = 0,
    /// Waiting for a SYN. No connection is in this state, because listeners are a type of their
    /// own.
    Listen = 1,
    /// SYN sent, waiting for the peer's SYN.
    SynSent = 2,
    /// SYN received and sent, waiting for the ACK of our SYN.
    SynReceived = 3,
    /// Both SYNs are acknowledged.
    Established = 4,
    /// Our FIN is sent, or queued. Neither its ACK nor the peer's FIN has arrived.
    FinWait1 = 5,
    /// Our FIN is acknowledged. The peer may still send data.
    FinWait2 = 6,
    /// The peer's FIN has arrived. We may still send data.
    CloseWait = 7,
    /// Both ends have sent a FIN, and ours is not acknowledged yet.
    Closing = 8,
    /// The peer's FIN arrived first. Our FIN is not acknowledged yet.
    LastAck = 9,
    /// Both FINs are acknowledged. The engine moves such a connection to a separate table.
    TimeWait = 10,
}

/// Congestion phase of the sender (Linux: `tcp_ca_state`). In the phases `Recovery` and `Loss`, the
/// sender repairs losses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum CaState {
    /// No sign of a loss or of congestion.
    #[default]
    Open,
    /// Duplicate ACKs or SACK blocks arrived, but no loss is certain.
    Disorder,
    /// cwnd is being reduced after ECE.
    Cwr,
    /// Fast recovery: lost data is retransmitted. cwnd is reduced, unless the segments were lost
    /// only because their size exceeded the path MTU.
    Recovery,
    /// Recovery after a retransmission timeout.
    Loss,
}

/// Events that change the state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StateEvent {
    /// OPEN call, active.
    ActiveOpen,
    /// A SYN arrived at a listener.
    PassiveSyn,
    /// A SYN,ACK arrived that acknowledges our SYN.
    SynAckReceived,
    /// A SYN without ACK arrived (simultaneous open).
    SynReceived,
    /// Our SYN is acknowledged.
    SynAcked,
    /// CLOSE call, or shutdown of the sending direction. The FIN follows the data.
    CloseCall,
    /// The peer's FIN arrived in order.
    FinReceived,
    /// Our FIN is acknowledged.
    FinAcked,
    /// RST sent or received, ABORT call, or a timeout.
    Abort,
    /// 2 MSL have passed in TIME-WAIT.
    TimeWaitTimeout,
}

/// All transitions (RFC 9293 §3.3.2, Figure 5, and §3.10). Any other pair of state and event does
/// not occur, or does not change the state.
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
    /// All states, in the order of their numbers.
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

    /// Returns the state after `event`. Returns `self` if [`TRANSITIONS`] has no entry for `self`
    /// and `event`.
    pub fn next(self, event: StateEvent) -> Self {
        TRANSITIONS
            .iter()
            .find(|(from, on, _)| *from == self && *on == event)
            .map_or(self, |(_, _, to)| *to)
    }

    /// Returns true if the state is one of the synchronized states of RFC 9293 §3.3.2: ESTABLISHED
    /// to TIME-WAIT.
    pub const fn is_synchronized(self) -> bool {
        !matches!(
            self,
            Self::Closed | Self::Listen | Self::SynSent | Self::SynReceived
        )
    }

    /// Returns true if the state is synchronized and the peer may still send data, because the
    /// peer's FIN has not arrived.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// Returns true if the state is synchronized and we may still send or retransmit data, because
    /// our FIN is not acknowledged.
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
