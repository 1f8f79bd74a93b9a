//! The cold state of a connection: all that only the slow path needs.

use tidelane_cc::Controller;
use tidelane_flow::{CaState, CloseCause, ListenerId, Millis, SocketOptions};
use tidelane_time::Instant;
use tidelane_wire::SeqNumber;

use crate::ranges::Ranges;

/// A retransmission under way: what was sent, and SND.NXT at that time.
#[derive(Clone, Copy, Debug)]
pub struct Retransmission {
    /// First byte.
    pub start: SeqNumber,
    /// After the last byte.
    pub end: SeqNumber,
    /// SND.NXT when it was sent: data from here on was sent later.
    pub snd_nxt: SeqNumber,
    /// When it was sent.
    pub at: Instant,
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    /// Congestion control.
    pub controller: Controller,
    /// Phase of the sender.
    pub ca_state: CaState,
    /// Ranges that the peer holds out of order (RFC 2018).
    pub sacked: Ranges,
    /// Our own out-of-order ranges, to be placed in order (RFC 9293 §3.10.7.4).
    pub ooo: Ranges,
    /// The out-of-order range that arrived last: reported first (RFC 2018 §4).
    pub ooo_latest: SeqNumber,
    /// Duplicate acknowledgments in a row, without SACK.
    pub dup_acks: u32,
    /// SND.NXT when recovery began.
    pub recovery_point: SeqNumber,
    /// All below this that is not sacked is taken for lost.
    pub lost_to: SeqNumber,
    /// All below this that is not sacked was sent again.
    pub high_rxt: SeqNumber,
    /// Retransmissions under way, oldest first.
    pub retransmissions: std::collections::VecDeque<Retransmission>,
    /// When the reordering window ends, if one runs (in the spirit of RFC 8985 §6.2).
    pub reorder_deadline: Option<Millis>,
    /// A tail loss probe was sent and nothing came since.
    pub probed: bool,
    /// Timeouts in a row.
    pub backoff: u8,
    /// SND.WL1, unless RCV.NXT is later. SND.WL2 is SND.UNA: a window is never taken from an older
    /// acknowledgment.
    pub snd_wl1: SeqNumber,
    /// Largest window that the peer offered.
    pub snd_wnd_max: u32,
    /// The listener that it came from.
    pub listener: Option<ListenerId>,
    /// Options of the socket.
    pub options: SocketOptions,
    /// MSS that we announced.
    pub rmss: u16,
    /// MSS that the path allows.
    pub path_mss: u16,
    /// The peer's window, not path or peer, bounds the segment size: it may still grow.
    pub mss_bounded: bool,
    /// The peer's MSS option.
    pub smss: u16,
    /// Whether our SYN offers window scaling (a passive open mirrors the peer).
    pub offer_wscale: bool,
    /// Why it ended; the flow stays in CLOSED until the program closes it.
    pub cause: Option<CloseCause>,
    /// Sequence number of the peer's FIN, if it came out of order.
    pub fin_at: Option<SeqNumber>,
    /// FIN-WAIT-2 without a program, or keepalive: next look.
    pub slow_deadline: Option<Millis>,
    /// Keepalive and window probes and timeouts since the peer was last heard of.
    pub unanswered_probes: u8,
    /// When the first of these was sent.
    pub silent_since: Millis,
    /// When an unacceptable segment without length was last answered.
    pub answered_at: Millis,
    /// When a segment last arrived.
    pub last_arrival: Millis,
    /// Position from which the next full quota counts for its growth.
    pub tune_from: u32,
    /// The entry of the timer wheel.
    pub timer: tidelane_time::TimerHandle,
    /// For `info`.
    pub retrans: u32,
    /// For `info`: bytes acknowledged beyond 2^32.
    pub bytes_acked: u64,
    /// For `info`.
    pub rtt_min_us: u32,
    /// Soft ICMP error seen last, used if a timeout follows.
    pub soft_error: Option<CloseCause>,
}
