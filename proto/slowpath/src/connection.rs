//! The cold state of a connection: all that only the slow path needs.

use tidelane_cc::{Algorithm, Controller};
use tidelane_flow::{
    CaState, CloseCause, EngineConfig, FinWait2, FlowState, ListenerId, Millis, SocketOptions,
    Timeouts,
};
use tidelane_wire::{SeqNumber, TcpFlags};

use crate::{
    blocks::Reported, delivered::Delivery, fast_open::FastOpen, frto::Frto, heard::Heard,
    marks::Marks, mtu::MtuSearch, pacing::Pacing, prr::Prr, ranges::Ranges, reorder::Reordering,
    rtt_min::RttMin, scoreboard::Scoreboard, undo::Undo, urgent::Urgent,
};

/// FlightSize as it was.
#[derive(Debug)]
pub struct Flight {
    /// Before the acknowledgment that was looked at last.
    pub before: u32,
    /// At its largest since `round` was SND.NXT.
    pub max: u32,
    /// The largest is remembered until this number is acknowledged.
    pub round: SeqNumber,
}

impl Flight {
    /// Nothing is in flight.
    pub const fn none(iss: SeqNumber) -> Self {
        Self {
            before: 0,
            max: 0,
            round: iss,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    /// Congestion control.
    pub controller: Controller,
    /// Phase of the sender.
    pub ca_state: CaState,
    /// What was sent and is not acknowledged, in times of trouble or where the controller wants it.
    pub board: Option<Box<Scoreboard>>,
    /// There were signs of trouble lately.
    pub trouble: bool,
    /// When what is in flight was sent, as long as there are no records.
    pub marks: Marks,
    /// When there last was a sign of trouble.
    pub trouble_at: Millis,
    /// Our own out-of-order ranges, to be placed in order (RFC 9293 §3.10.7.4).
    pub ooo: Ranges,
    /// Which of them were reported last: these come first (RFC 2018 §4).
    pub reported: Reported,
    /// Duplicate acknowledgments in a row, without SACK.
    pub dup_acks: u32,
    /// SND.NXT when recovery began.
    pub recovery_point: SeqNumber,
    /// SND.NXT when the window was last reduced.
    pub reduced_until: SeqNumber,
    /// The first repair goes whatever the congestion window says.
    pub repair_first: bool,
    /// What to take back if nothing was lost.
    pub undo: Option<Undo>,
    /// How the window is being reduced, in fast recovery and after an ECN echo.
    pub prr: Option<Prr>,
    /// Where pacing stands.
    pub pacing: Pacing,
    /// Bytes that the segment at hand is the first to report as arrived.
    pub delivered: Delivery,
    /// Urgent data, both ways.
    pub urgent: Urgent,
    /// F-RTO is on: the timeout may have been spurious (RFC 5682).
    pub frto: Frto,
    /// CWR for the next new text (RFC 3168 §6.1.2), or none.
    pub cwr_queued: TcpFlags,
    /// What is known of the path's reordering.
    pub reordering: Reordering,
    /// End of what a tail loss probe sent again, until it is known whether that was needed.
    pub probe_end: Option<SeqNumber>,
    /// When to look for losses again (RFC 8985 §6.3).
    pub reorder_deadline: Option<Millis>,
    /// A tail loss probe was sent and nothing came since.
    pub probed: bool,
    /// Timeouts since SND.UNA last advanced.
    pub timeouts: u8,
    /// How often the timeout was doubled since the last round-trip sample (RFC 6298 §5).
    pub backoff: u8,
    /// FIN was sent without text.
    pub fin_alone: bool,
    /// SND.UNA after the last acknowledgment that came here: what the fast path took moved it on.
    pub acked_here: SeqNumber,
    /// What was in flight.
    pub flight: Flight,
    /// SND.WL1, unless RCV.NXT is later. SND.WL2 is SND.UNA: a window is never taken from an older
    /// acknowledgment.
    pub snd_wl1: SeqNumber,
    /// Largest window that the peer offered.
    pub snd_wnd_max: u32,
    /// The listener that it came from.
    pub listener: Option<ListenerId>,
    /// Its listener's accept queue has no room for it at present.
    pub accept_queue_full: bool,
    /// The handshake is complete, but for the text that its listener waits for (TCP_DEFER_ACCEPT).
    pub deferred: bool,
    /// Options of the socket.
    pub options: SocketOptions,
    /// MSS that we announced.
    pub rmss: u16,
    /// MSS that the path allows.
    pub path_mss: u16,
    /// The search for a larger one.
    pub mtu: MtuSearch,
    /// The peer's window, not path or peer, bounds the segment size: it may still grow.
    pub mss_bounded: bool,
    /// The peer's MSS option.
    pub smss: u16,
    /// Whether our SYN offers window scaling (a passive open mirrors the peer).
    pub offer_wscale: bool,
    /// Its part in Fast Open (RFC 7413).
    pub fast_open: FastOpen,
    /// Why it ended; the flow stays in CLOSED until the program closes it.
    pub cause: Option<CloseCause>,
    /// Sequence number of the peer's FIN, if it came out of order.
    pub fin_at: Option<SeqNumber>,
    /// FIN-WAIT-2 without a program, or keepalive: next look.
    pub slow_deadline: Option<Millis>,
    /// When the path's MTU may have grown again (RFC 1191 §6.3).
    pub path_deadline: Option<Millis>,
    /// Keepalive and window probes and timeouts since the peer was last heard of.
    pub unanswered_probes: u8,
    /// When the timer first expired for what is outstanding: USER TIMEOUT counts from there.
    pub retrans_since: Option<Millis>,
    /// When the closed window was first probed: the same for it.
    pub persist_since: Option<Millis>,
    /// When a segment that means nothing here was last answered (RFC 5961 §10).
    pub answered_at: Millis,
    /// The program is gone from this flow.
    pub is_orphan: bool,
    /// The flow waits for transmit frames.
    pub tx_blocked: bool,
    /// When a segment last arrived; before any has, when the flow was made.
    pub last_arrival: Millis,
    /// How long nothing has come, for spans that are too long for `last_arrival`.
    pub heard: Heard,
    /// Position from which the next full quota counts for its growth.
    pub tune_from: u32,
    /// A range that arrived twice, to be reported (RFC 2883).
    pub dsack: Option<(SeqNumber, SeqNumber)>,
    /// The entry of the timer wheel.
    pub timer: tidelane_time::TimerHandle,
    /// For `info`.
    pub retrans: u32,
    /// Least round-trip time of the last minutes.
    pub rtt_min: RttMin,
    /// Soft ICMP error seen last, used if a timeout follows.
    pub soft_error: Option<CloseCause>,
}

impl Connection {
    /// The congestion control that the program asked for, or the engine's.
    pub fn algorithm(&self, config: &EngineConfig) -> Algorithm {
        self.options.congestion.unwrap_or(config.congestion)
    }

    /// How long FIN-WAIT-2 lasts for a flow without program, in ms: what is configured or set
    /// (TCP_LINGER2), but no less than the peer may need to send its FIN again, as in Linux.
    /// `None`: the flow is to be reset.
    pub fn fin_wait_2_ms(&self, hot: &FlowState, timeouts: &Timeouts) -> Option<u32> {
        let asked = match self.options.fin_wait_2 {
            FinWait2::Usual => timeouts.fin_wait_2_ms,
            FinWait2::For(span) => span.as_millis().min(1 << 30) as u32,
            FinWait2::Never => return None,
        };
        let rto = hot.rto_ms_after(timeouts, self.backoff);
        Some(asked.max(rto.saturating_mul(7) / 2))
    }
}
