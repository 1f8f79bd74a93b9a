//! Cold state of a connection: the state that the fast path (the engine's code for in-order
//! segments) neither reads nor writes. The hot state, which the fast path and the slow path use, is
//! [`FlowState`].

use tidelane_cc::{Algorithm, Controller};
use tidelane_flow::{
    CaState, CloseCause, EngineConfig, FinWait2, FlowState, ListenerId, Millis, SocketOptions,
    Timeouts,
};
use tidelane_wire::SeqNumber;

use crate::{
    delivered_data::DeliveredData,
    ecn::EcnSender,
    fast_open::FastOpen,
    frto::Frto,
    mtu::MtuSearch,
    pacing::{Pacing, pacing_rate},
    prr::Prr,
    ranges::Ranges,
    reads::Reads,
    reorder::Reordering,
    rtt_min::RttMin,
    sack_blocks::SackReport,
    scoreboard::Scoreboard,
    send_times::SendTimes,
    ts_recent_age::TsRecentAge,
    undo::Undo,
    urgent::Urgent,
};

/// Recent values of FlightSize in bytes. The growth and the reductions of cwnd depend on them.
#[derive(Debug)]
pub struct Flight {
    /// FlightSize before the present ACK was processed.
    pub before: u32,
    /// Largest FlightSize of the present round.
    pub max: u32,
    /// SND.NXT when `max` was last set. The round ends when `round` is acknowledged.
    pub round: SeqNumber,
}

impl Flight {
    /// Returns the values of a connection that has sent nothing.
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
    /// Record of the unacknowledged transmissions; `None` while none is needed (see the module
    /// `tracking`).
    pub scoreboard: Option<Box<Scoreboard>>,
    /// True from the first sign of a loss until several round trips, and at least one second, after
    /// the last sign.
    pub loss_suspected: bool,
    /// Transmission times of the data in flight, kept while there is no scoreboard.
    pub send_times: SendTimes,
    /// Time of the last sign of a loss.
    pub loss_suspected_at: Millis,
    /// Out-of-order ranges that were received beyond RCV.NXT (RFC 9293 §3.10.7.4).
    pub ooo: Ranges,
    /// Order in which the SACK option reports the out-of-order ranges (RFC 2018 §4).
    pub sack_report: SackReport,
    /// Number of duplicate ACKs. With SACK, only ACKs that SACK new data count. The number is reset
    /// by a timeout, by the end of Recovery, and, outside of Recovery, by an ACK that advances
    /// SND.UNA.
    pub dup_acks: u32,
    /// SND.NXT at the time when Recovery, Loss or CWR began. In Loss, F-RTO sets the field to
    /// SND.NXT again at the first ACK that advances SND.UNA.
    pub recovery_point: SeqNumber,
    /// SND.NXT at the time when a loss or an ECE last reduced cwnd. A retransmission timeout does
    /// not set the field. The undo of a reduction sets the field to SND.UNA.
    pub reduced_until: SeqNumber,
    /// True if the next retransmission ignores cwnd, because it is the first retransmission of a
    /// recovery or after a partial ACK (RFC 6582). This retransmission clears the field.
    pub ignore_cwnd_once: bool,
    /// Congestion state to restore if the recovery proves to be spurious.
    pub undo: Option<Undo>,
    /// Proportional rate reduction, in fast recovery and after an ECN echo.
    pub prr: Option<Prr>,
    /// State of pacing.
    pub pacing: Pacing,
    /// Data that the present segment newly acknowledges or SACKs.
    pub delivered: DeliveredData,
    /// Urgent data in both directions.
    pub urgent: Urgent,
    /// State of F-RTO, which finds out if an RTO was spurious (RFC 5682).
    pub frto: Frto,
    /// State of ECN.
    pub ecn: EcnSender,
    /// Measured reordering of the path.
    pub reordering: Reordering,
    /// End of the range that a tail loss probe retransmitted, until an ACK shows whether the probe
    /// repaired a loss.
    pub probe_end: Option<SeqNumber>,
    /// Time at which the RACK reordering timer expires (RFC 8985 §6.2 step 5).
    pub reorder_deadline: Option<Millis>,
    /// True if a tail loss probe was sent and no ACK has advanced SND.UNA since.
    pub probe_sent: bool,
    /// Retransmission timeouts since SND.UNA last advanced.
    pub timeouts: u8,
    /// Number of times that the RTO or the persist timeout was doubled since the last RTT sample
    /// (RFC 6298 §5), or since the peer last opened a closed window.
    pub backoff: u8,
    /// True if the FIN was sent in a segment without payload.
    pub fin_without_data: bool,
    /// SND.UNA after the last ACK that the slow path handled. A different SND.UNA shows that the
    /// fast path has handled ACKs since.
    pub snd_una_seen: SeqNumber,
    /// Recent values of FlightSize.
    pub flight: Flight,
    /// Lower bound of SND.WL1: the later of this number and RCV.NXT is used as SND.WL1. SND.UNA is
    /// used as SND.WL2, because the window of an older ACK is never used.
    pub snd_wl1: SeqNumber,
    /// Largest window that the peer has offered, in bytes (RFC 5961: MAX.SND.WND).
    pub snd_wnd_max: u32,
    /// Listener of a passive open; `None` for an active open.
    pub listener: Option<ListenerId>,
    /// True if the listener's accept queue has no room for this connection at present.
    pub accept_queue_full: bool,
    /// True if the peer's ACK has arrived but the listener waits for data before it accepts the
    /// connection (TCP_DEFER_ACCEPT).
    pub deferred: bool,
    /// Socket options.
    pub options: SocketOptions,
    /// MSS in bytes that our SYN announces: the MSS that the MTU of the link allows, but at most
    /// TCP_MAXSEG and `segment_max` of the configuration. A new link MTU changes the value, even
    /// after the SYN.
    pub rmss: u16,
    /// MSS in bytes that the path MTU allows, before TCP options are subtracted.
    pub path_mss: u16,
    /// Search for a larger path MTU (RFC 4821).
    pub mtu: MtuSearch,
    /// True if the peer's largest window limits the segment size more than the path and the peer's
    /// MSS do. The segment size then grows with this window.
    pub mss_bounded_by_window: bool,
    /// MSS in bytes that the peer's SYN announced, at least 48. Until the SYN arrives, and if the
    /// SYN has no MSS option, the value is the default MSS (RFC 9293 MUST-15).
    pub peer_mss: u16,
    /// True if our SYN offers window scaling. The SYN,ACK of a passive open offers window scaling
    /// only if the peer's SYN did.
    pub offer_wscale: bool,
    /// State of Fast Open (RFC 7413).
    pub fast_open: FastOpen,
    /// Reason for the end of the connection. The flow stays in CLOSED until the application closes
    /// the socket.
    pub cause: Option<CloseCause>,
    /// Sequence number of a FIN that arrived out of order.
    pub fin_at: Option<SeqNumber>,
    /// Time of the next keepalive probe. For an orphan (a connection whose socket is closed) in
    /// FIN-WAIT-2, the time at which the connection ends.
    pub keepalive_deadline: Option<Millis>,
    /// Time at which a lowered path MTU expires (RFC 1191 §6.3), or at which an MTU search tries
    /// larger sizes again.
    pub path_deadline: Option<Millis>,
    /// Keepalive probes, window probes and retransmission timeouts since the last acceptable
    /// segment that the slow path handled.
    pub unanswered_probes: u8,
    /// Time at which the retransmission timer first expired since SND.UNA last advanced. USER
    /// TIMEOUT counts from this time.
    pub retrans_since: Option<Millis>,
    /// Time of the first probe since the peer closed its window. USER TIMEOUT counts from this
    /// time.
    pub persist_since: Option<Millis>,
    /// Time of the last rate-limited answer (RFC 5961 §7): a challenge ACK, the ACK of an
    /// unacceptable segment, or the answer to a repeated SYN.
    pub answered_at: Millis,
    /// True if the application has closed the socket or has exited.
    pub is_orphan: bool,
    /// True if the flow waits for a free transmit frame.
    pub tx_blocked: bool,
    /// Time at which the slow path last took an acceptable segment, or at which the flow was
    /// created.
    pub last_arrival: Millis,
    /// Approximate arrival time of the last segment, with more bits than `hot.last_arrival`. This
    /// time determines whether TS.Recent has expired.
    pub ts_recent_age: TsRecentAge,
    /// Record of the application's reads.
    pub reads: Reads,
    /// Range that arrived twice, until a DSACK (RFC 2883) has reported the range. The next pure ACK
    /// carries the DSACK, or an earlier retransmission that has enough room.
    pub dsack: Option<(SeqNumber, SeqNumber)>,
    /// Entry in the timer wheel.
    pub timer: tidelane_time::TimerHandle,
    /// Retransmissions since the connection was opened, for `tcp_info`.
    pub retrans: Retransmitted,
    /// Windowed minimum of the RTT.
    pub rtt_min: RttMin,
    /// Last soft ICMP error since SND.UNA last advanced. If the connection times out, this error is
    /// reported as the cause.
    pub soft_error: Option<CloseCause>,
}

/// Retransmissions of a connection since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retransmitted {
    /// Retransmitted segments, with SYNs and FINs.
    pub segments: u32,
    /// Retransmitted segments with payload.
    pub data_segments: u32,
    /// Retransmitted payload bytes.
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

    /// Returns the rate in bytes per second at which the flow sends if it is paced.
    pub(crate) fn pacing_rate(&self, hot: &FlowState) -> u64 {
        pacing_rate(&self.controller, hot, self.options.pacing_rate_max)
    }

    /// Returns the time in ms that an orphan stays in FIN-WAIT-2. The time is the configured time
    /// or TCP_LINGER2, but at least 3.5 RTO, so that the peer can retransmit its FIN (as in Linux).
    /// Returns `None` if TCP_LINGER2 is negative; the caller then resets the connection.
    pub fn fin_wait_2_ms(&self, hot: &FlowState, timeouts: &Timeouts) -> Option<u32> {
        let asked = match self.options.fin_wait_2 {
            FinWait2::Configured => timeouts.fin_wait_2_ms,
            FinWait2::For(span) => span.as_millis().min(1 << 30) as u32,
            FinWait2::Never => return None,
        };
        let rto = hot.rto_ms_after(timeouts, self.backoff);
        Some(asked.max(rto.saturating_mul(7) / 2))
    }
}
