//! Cold state of a connection, which only the slow path reads and writes.

use tidelane_cc::{Algorithm, Controller};
use tidelane_flow::{
    CaState, CloseCause, EngineConfig, FinWait2, FlowState, ListenerId, Millis, SocketOptions,
    Timeouts,
};
use tidelane_wire::SeqNumber;

use crate::{
    delivered_data::DeliveredData, ecn::EcnSender, fast_open::FastOpen, frto::Frto, mtu::MtuSearch,
    pacing::Pacing, prr::Prr, ranges::Ranges, reorder::Reordering, rtt_min::RttMin,
    sack_blocks::SackReport, scoreboard::Scoreboard, send_times::SendTimes,
    ts_recent_age::TsRecentAge, undo::Undo, urgent::Urgent,
};

/// Recent values of FlightSize, in bytes.
#[derive(Debug)]
pub struct Flight {
    /// FlightSize before the segment at hand moved SND.UNA.
    pub before: u32,
    /// Largest FlightSize of the present round.
    pub max: u32,
    /// SND.NXT when `max` was last set. The round ends when `round` is acknowledged.
    pub round: SeqNumber,
}

impl Flight {
    /// Values for a connection that has sent nothing.
    pub const fn none(iss: SeqNumber) -> Self {
        Self {
            before: 0,
            max: 0,
            round: iss,
        }
    }
}

/// Cold state of one connection.
#[derive(Debug)]
pub struct Connection {
    /// Congestion control.
    pub controller: Controller,
    /// Phase of the sender (Linux: `tcp_ca_state`).
    pub ca_state: CaState,
    /// Unacknowledged transmissions, while losses are suspected or the congestion control needs a
    /// record of each transmission.
    pub scoreboard: Option<Box<Scoreboard>>,
    /// True from the first sign of a loss until some round trips after the last one.
    pub loss_suspected: bool,
    /// Transmission times of the data in flight, kept while there is no scoreboard.
    pub send_times: SendTimes,
    /// Time of the last sign of a loss.
    pub loss_suspected_at: Millis,
    /// Out-of-order ranges that were received beyond RCV.NXT (RFC 9293 §3.10.7.4).
    pub ooo: Ranges,
    /// Order in which the SACK option reports those ranges (RFC 2018 §4).
    pub sack_report: SackReport,
    /// Consecutive duplicate ACKs, on a connection without SACK.
    pub dup_acks: u32,
    /// SND.NXT when recovery began.
    pub recovery_point: SeqNumber,
    /// SND.NXT when the congestion window was last reduced.
    pub reduced_until: SeqNumber,
    /// The next retransmission ignores the congestion window: it is the first one of a recovery.
    pub retransmit_first: bool,
    /// Congestion state to restore if the recovery proves to be spurious.
    pub undo: Option<Undo>,
    /// Proportional rate reduction, in fast recovery and after an ECN echo.
    pub prr: Option<Prr>,
    /// State of pacing.
    pub pacing: Pacing,
    /// Data that the segment at hand is the first to acknowledge or SACK.
    pub delivered: DeliveredData,
    /// Urgent data in both directions.
    pub urgent: Urgent,
    /// State of F-RTO, which finds out if an RTO was spurious (RFC 5682).
    pub frto: Frto,
    /// State of ECN.
    pub ecn: EcnSender,
    /// Measured reordering of the path.
    pub reordering: Reordering,
    /// End of the range that a tail loss probe retransmitted, until the probe proves to be needed
    /// or not.
    pub probe_end: Option<SeqNumber>,
    /// Time at which the RACK reordering timer expires (RFC 8985 §6.3).
    pub reorder_deadline: Option<Millis>,
    /// A tail loss probe was sent, and no ACK has advanced SND.UNA since.
    pub probe_sent: bool,
    /// Retransmission timeouts since SND.UNA last advanced.
    pub timeouts: u8,
    /// Number of times that the RTO was doubled since the last RTT sample (RFC 6298 §5).
    pub backoff: u8,
    /// The FIN was sent in a segment without payload.
    pub fin_without_data: bool,
    /// SND.UNA after the last ACK that the slow path handled. A larger SND.UNA means that the fast
    /// path took ACKs since.
    pub snd_una_seen: SeqNumber,
    /// Recent values of FlightSize.
    pub flight: Flight,
    /// SND.WL1; RCV.NXT counts instead if it is later. SND.WL2 is SND.UNA, because the window of an
    /// older ACK is never used.
    pub snd_wl1: SeqNumber,
    /// Largest window that the peer has offered, in bytes (RFC 5961: MAX.SND.WND).
    pub snd_wnd_max: u32,
    /// Listener of a passive open.
    pub listener: Option<ListenerId>,
    /// The listener's accept queue has no room for this connection at present.
    pub accept_queue_full: bool,
    /// The peer's ACK has arrived, but the listener waits for data before it accepts the connection
    /// (TCP_DEFER_ACCEPT).
    pub deferred: bool,
    /// Socket options.
    pub options: SocketOptions,
    /// MSS that our SYN announced.
    pub rmss: u16,
    /// MSS that the path MTU allows.
    pub path_mss: u16,
    /// Search for a larger path MTU (RFC 4821).
    pub mtu: MtuSearch,
    /// The peer's window limits the segment size more than path and peer's MSS do. The segment size
    /// grows with that window.
    pub mss_bounded: bool,
    /// MSS that the peer's SYN announced.
    pub smss: u16,
    /// Our SYN offers window scaling. A passive open does if the peer's SYN did.
    pub offer_wscale: bool,
    /// State of Fast Open (RFC 7413).
    pub fast_open: FastOpen,
    /// Reason for the end of the connection. The flow stays in CLOSED until the application closes
    /// the socket.
    pub cause: Option<CloseCause>,
    /// Sequence number of a FIN that arrived out of order.
    pub fin_at: Option<SeqNumber>,
    /// Time of the next keepalive probe, or end of FIN-WAIT-2 for an orphan.
    pub slow_deadline: Option<Millis>,
    /// Time at which a lowered path MTU expires (RFC 1191 §6.3).
    pub path_deadline: Option<Millis>,
    /// Keepalive probes, window probes and retransmission timeouts since the last segment of the
    /// peer.
    pub unanswered_probes: u8,
    /// Time at which the retransmission timer first expired for SND.UNA. USER TIMEOUT counts from
    /// there.
    pub retrans_since: Option<Millis>,
    /// Time at which the closed window was first probed. USER TIMEOUT counts from there.
    pub persist_since: Option<Millis>,
    /// Time of the last answer to an unacceptable segment (RFC 5961 §10).
    pub answered_at: Millis,
    /// The application has closed the socket, or has exited.
    pub is_orphan: bool,
    /// The flow waits for a free transmit frame.
    pub tx_blocked: bool,
    /// Time at which a segment last arrived here, or at which the flow was created.
    pub last_arrival: Millis,
    /// Time of the last segment in full width, to tell if TS.Recent has expired.
    pub ts_recent_age: TsRecentAge,
    /// Stream position at which the next measurement for receive-buffer autotuning begins.
    pub autotune_from: u32,
    /// Range that arrived twice, for the next ACK to report (DSACK, RFC 2883).
    pub dsack: Option<(SeqNumber, SeqNumber)>,
    /// Entry in the timer wheel.
    pub timer: tidelane_time::TimerHandle,
    /// Retransmissions since the start, for `tcp_info`.
    pub retrans: Retransmitted,
    /// Windowed minimum of the RTT.
    pub rtt_min: RttMin,
    /// Last soft ICMP error, reported as the cause if the connection then times out.
    pub soft_error: Option<CloseCause>,
}

/// Retransmissions of a connection since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retransmitted {
    /// Segments.
    pub segments: u32,
    /// Segments with payload.
    pub data_segments: u32,
    /// Payload bytes of these segments.
    pub bytes: u64,
}

impl Retransmitted {
    /// Counts a retransmitted segment of `payload` bytes.
    pub fn add(&mut self, payload: u32) {
        self.segments += 1;
        self.data_segments += u32::from(payload > 0);
        self.bytes += u64::from(payload);
    }
}

impl Connection {
    /// Returns the congestion control that the application chose, or the engine's default.
    pub fn algorithm(&self, config: &EngineConfig) -> Algorithm {
        self.options.congestion.unwrap_or(config.congestion)
    }

    /// Returns how long an orphan stays in FIN-WAIT-2, in ms: the configured time or TCP_LINGER2,
    /// but at least 3.5 RTO, so that the peer can retransmit its FIN (as in Linux). Returns `None`
    /// if the connection has to be reset instead.
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
