//! The state of a flow (connection), for statistics. The crate `tidelane-slowpath` fills in the
//! values.

use tidelane_cc::CcInfo;
use tidelane_time::Duration;
use tidelane_wire::FlowKey;

use crate::{
    ids::{LinkId, ListenerId},
    state::{CaState, State},
    traffic::Traffic,
};

/// A copy of the state of a flow, for `TCP_INFO` and `ss -ti`.
#[derive(Clone, Copy, Debug)]
pub struct FlowInfo {
    /// 4-tuple.
    pub key: FlowKey,
    /// Connection state.
    pub state: State,
    /// Congestion phase of the sender (Linux: `tcpi_ca_state`).
    pub ca_state: CaState,
    /// Name of the congestion control.
    pub congestion: &'static str,
    /// State of the congestion control beyond the window (Linux: TCP_CC_INFO).
    pub cc_info: CcInfo,
    /// Smoothed RTT; zero before the first sample.
    pub srtt: Duration,
    /// RTT variation.
    pub rttvar: Duration,
    /// Minimum RTT of the last five minutes; `u32::MAX` microseconds before the first sample.
    pub rtt_min: Duration,
    /// Retransmission timeout, with its present backoff.
    pub rto: Duration,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Pacing rate in bytes per second (Linux: `tcpi_pacing_rate`). If the flow is not paced, the
    /// rate that pacing would use. `u64::MAX` before the first RTT sample, unless BBR or
    /// `pacing_rate_max` gives a rate.
    pub pacing_rate: u64,
    /// SO_MAX_PACING_RATE in bytes per second;
    /// [`PACING_RATE_UNLIMITED`](crate::PACING_RATE_UNLIMITED) if the option is not set.
    pub pacing_rate_max: u64,
    /// Slow start threshold in bytes; `u32::MAX` until a congestion event or an early end of slow
    /// start (HyStart, BBR) sets the threshold.
    pub ssthresh: u32,
    /// Eff.snd.MSS: payload bytes of a full segment.
    pub mss: u32,
    /// Largest payload of the peer's segments, in bytes; an estimate before the first payload.
    pub rcv_mss: u32,
    /// SND.WND: the peer's window in bytes.
    pub snd_wnd: u32,
    /// Largest window that the peer has offered, in bytes.
    pub snd_wnd_max: u32,
    /// RCV.WND: bytes from RCV.NXT to the right edge of the window that we have advertised.
    pub rcv_wnd: u32,
    /// Snd.Wind.Shift: window shift of the peer.
    pub snd_wscale: u8,
    /// Rcv.Wind.Shift: our window shift.
    pub rcv_wscale: u8,
    /// True if timestamps are in use.
    pub timestamps: bool,
    /// True if SACK is in use.
    pub sack: bool,
    /// True if ECN is in use.
    pub ecn: bool,
    /// True if data of the SYN was acknowledged (RFC 7413). In an active open, true if the peer
    /// acknowledged all data of our SYN. In a passive open, true if we took data from the peer's
    /// SYN.
    pub syn_data: bool,
    /// True if the application has the flow although the handshake is not complete (RFC 7413).
    pub fast_open_pending: bool,
    /// Bytes sent and not acknowledged, SYN and FIN included (FlightSize of RFC 5681).
    pub flight_size: u32,
    /// Bytes after SND.UNA that the peer has SACKed.
    pub sacked: u32,
    /// Bytes that are marked lost and not yet retransmitted.
    pub lost: u32,
    /// Retransmitted bytes in flight.
    pub retrans_out: u32,
    /// Degree of reordering (Linux: `tcpi_reordering`): the largest distance, in segments, by which
    /// a later segment overtook an earlier segment; at least 3.
    pub reordering: u32,
    /// Number of detected reorderings of the path (Linux: `tcpi_reord_seen`).
    pub reorder_seen: u32,
    /// Bytes that the application has written and that are not sent.
    pub unsent: u32,
    /// Bytes that were received in order and that the application has not read.
    pub unread: u32,
    /// Segments that were received out of order (Linux: `tcpi_rcv_ooopack`).
    pub ooo_segs_in: u32,
    /// Number of ranges of received bytes beyond RCV.NXT.
    pub ooo_ranges: u32,
    /// Bytes acknowledged since the connection was established.
    pub bytes_acked: u64,
    /// Bytes received in order since the connection was established.
    pub bytes_received: u64,
    /// Segments retransmitted since the connection was opened.
    pub retrans: u32,
    /// Payload bytes retransmitted since the connection was opened.
    pub retrans_bytes: u64,
    /// Counts and times of segments.
    pub traffic: Traffic,
    /// Segments that the peer has acknowledged or SACKed, the SYN included.
    pub delivered: u32,
    /// Segments that ACKs with ECE have acknowledged or SACKed (RFC 3168).
    pub delivered_ce: u32,
    /// Delivery rate in bytes per second. Zero before the first sample, and for a congestion
    /// control that measures no rate.
    pub delivery_rate: u64,
    /// True if the application limited `delivery_rate`. Also true before the first sample.
    pub app_limited: bool,
    /// Retransmission timeouts since SND.UNA last advanced.
    pub timeouts: u8,
    /// Number of times that the RTO or the persist timeout was doubled since the last RTT sample
    /// (RFC 6298 §5), or since the peer last opened a closed window. In SYN-SENT, the number
    /// includes the timeouts that did not double the RTO.
    pub backoff: u8,
    /// While the persist timer runs, the number of window probes, keepalive probes and
    /// retransmission timeouts without an answer. Zero if the persist timer does not run.
    pub probes: u8,
    /// Number of received DSACK blocks (RFC 2883).
    pub dsacks: u32,
    /// Path MTU less the IP and TCP headers, in bytes.
    pub path_mss: u32,
    /// Link that the flow sends on.
    pub link: LinkId,
    /// Listener of a passive open; `None` for an active open.
    pub listener: Option<ListenerId>,
}
