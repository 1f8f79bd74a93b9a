//! What the engine and its driver say to each other: arrivals, segments, events, refusals.

use core::fmt;

use tidelane_cc::Details;
use tidelane_time::Duration;
use tidelane_wire::{Ecn, FlowKey, IpFields, Segment, SeqNumber, TcpFlags, TcpOptions};

use crate::{
    flow_state::CaState,
    ids::{FlowId, LinkId, ListenerId},
    state::State,
};

/// Where a segment came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Both ends, as this host sees them.
    pub key: FlowKey,
    /// The link that it came over. Stored with the flow; the flow sends there.
    pub link: LinkId,
    /// The ECN field of its IP header.
    pub ecn: Ecn,
}

/// How to reach a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The link to send over.
    pub link: LinkId,
    /// Bytes of the largest IP packet on it.
    pub mtu: u32,
}

/// A segment to send. The driver adds link and IP headers, payload and checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentOut {
    /// The flow it belongs to; `None` for an answer to a segment that belongs to none.
    pub flow: Option<FlowId>,
    /// Both ends.
    pub key: FlowKey,
    /// The link to send over.
    pub link: LinkId,
    /// SEG.SEQ.
    pub seq: SeqNumber,
    /// SEG.ACK; zero without ACK.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// The window field, scaled already.
    pub wnd: u16,
    /// Options.
    pub options: TcpOptions,
    /// Stream position of the first payload byte in the flow's send buffer.
    pub payload_pos: u32,
    /// Bytes of payload. They lie between `tx_acked` and `tx_head`.
    pub payload_len: u32,
    /// Bytes of payload of one segment. Where `payload_len` is more ([`Env::burst_len`] allowed
    /// it), the link cuts it; PSH and FIN go with the last piece.
    pub segment_size: u16,
    /// The ECN field for the IP header.
    pub ecn: Ecn,
}

impl SegmentOut {
    /// The segment as it arrives, uncut, with `payload` and no urgent pointer.
    #[inline(always)]
    pub fn segment<'a>(&self, payload: &'a [u8]) -> Segment<'a> {
        Segment {
            src_port: self.key.local.port,
            dst_port: self.key.peer.port,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            wnd: self.wnd,
            urgent: 0,
            options: self.options,
            payload,
        }
    }
}

/// The driver has no frame to send with. It calls `resume_transmit` when it has one again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxFull;

/// A driver's verdict on a connection that a peer asks for. See [`Env::judge`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// The connection may open.
    Accept,
    /// The connection is refused, and the peer gets a reset.
    Refuse,
    /// The connection is refused, and the peer gets no answer.
    Drop,
}

/// A driver's room for one more connection. See [`Env::admit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// The flow.
    Flow,
    /// No more half-open flows: a SYN cookie has to do.
    Cookie,
    /// Nothing: the peer may try again later.
    Nothing,
}

/// What the engine needs from its driver. Called from within the engine's methods.
pub trait Env {
    /// Sends one segment.
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull>;

    /// Whether the driver has code of its own for single segments of `flow`, with text or without.
    #[inline(always)]
    fn takes_directly(&self, flow: FlowId, text: bool) -> bool {
        let _ = (flow, text);
        false
    }

    /// As [`transmit`](Self::transmit), for what is sent most: one segment with text, or an
    /// acknowledgment, of a flow that [`takes_directly`](Self::takes_directly) such. Inlined, it
    /// never has the whole of `out` in memory.
    #[inline(always)]
    fn transmit_directly(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        self.transmit(out)
    }

    /// As [`transmit`](Self::transmit), with URG among the flags and `pointer` in the field for it
    /// (RFC 9293 §3.8.5); never more than one segment. A driver without this sends urgent text as
    /// any other.
    fn transmit_urgent(&mut self, out: &SegmentOut, pointer: u16) -> Result<(), TxFull> {
        let _ = pointer;
        let mut out = *out;
        out.flags.remove(TcpFlags::URG);
        self.transmit(&out)
    }

    /// As [`transmit`](Self::transmit), for the reset of a flow that ends: nobody sends it again. A
    /// driver that has no frame may keep it until it has one; the flow is gone by then.
    fn transmit_reset(&mut self, out: &SegmentOut) {
        let _ = self.transmit(out);
    }

    /// As [`transmit`](Self::transmit), for an answer to a segment without flow, whose IP header
    /// says this. A driver without this has one header for all of them.
    fn transmit_reply(&mut self, out: &SegmentOut, fields: IpFields) -> Result<(), TxFull> {
        let _ = fields;
        self.transmit(out)
    }

    /// Copies `payload` to stream position `pos` of the flow's receive buffer, in order or not.
    ///
    /// `pos + payload.len()` is at most one receive window after `rx_read`. False if there is no
    /// memory: the engine treats the payload as not arrived.
    fn place(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool;

    /// Something that the program must see. The driver gathers these and reads the getters later.
    fn event(&mut self, flow: FlowId, event: Event);

    /// [`Event::Readable`], [`Event::Writable`] or both, from one segment. A driver to which they
    /// are the same may take it as one.
    #[inline]
    fn progress(&mut self, flow: FlowId, readable: bool, writable: bool) {
        if readable {
            self.event(flow, Event::Readable);
        }
        if writable {
            self.event(flow, Event::Writable);
        }
    }

    /// Bytes of payload that one [`transmit`](Self::transmit) of `flow` may carry, if the link cuts
    /// it into segments; zero if not.
    fn burst_len(&self, flow: FlowId) -> u32 {
        let _ = flow;
        0
    }

    /// A flow was made before anything is sent on it: by a SYN cookie that came back, or with
    /// [`headers`](Self::headers) of its own.
    fn made(&mut self, flow: FlowId, key: &FlowKey, link: LinkId) {
        let _ = (flow, key, link);
    }

    /// A peer asks `listener` for the connection `key`: the first that is done about a SYN that
    /// could open one, and about a SYN cookie that came back.
    fn judge(&mut self, listener: ListenerId, key: &FlowKey) -> Judgement {
        let _ = (listener, key);
        Judgement::Accept
    }

    /// A peer wants a connection from `listener`, in whose SYN queue it takes a place if it is
    /// `half_open`. Says what the driver, which may keep accounts, has room for; without this,
    /// everything. If it is [`Admission::Flow`], [`admitted`](Self::admitted) follows.
    fn admit(&mut self, listener: ListenerId, half_open: bool) -> Admission {
        let _ = (listener, half_open);
        Admission::Flow
    }

    /// `flow` is what was admitted last. It was [`made`](Self::made) before.
    fn admitted(&mut self, flow: FlowId) {
        let _ = flow;
    }

    /// From now on the IP headers of `flow`, which was sent on or [`made`](Self::made), say this.
    fn headers(&mut self, flow: FlowId, fields: IpFields) {
        let _ = (flow, fields);
    }

    /// How far ahead of the engine's clock the driver sends TSval on segments with these ends
    /// (RFC 7323 §7.1); the engine takes as much off TSecr. The same for every connection of two
    /// addresses, so that TIME-WAIT sees time go on (RFC 6191 §2).
    fn timestamp_offset(&self, key: &FlowKey, link: LinkId) -> u32 {
        let _ = (key, link);
        0
    }

    /// Whether routers may cut packets of `flow`: not at first, and only where a path takes none of
    /// the least size that segments have (RFC 1191 §3). IPv6 has no such thing.
    fn fragments(&mut self, flow: FlowId, allowed: bool) {
        let _ = (flow, allowed);
    }

    /// R1 (RFC 9293 §3.8.3, MUST-20): the peer of `flow` has not answered for so many
    /// timeouts that the way to it is in doubt.
    fn negative_advice(&mut self, flow: FlowId) {
        let _ = flow;
    }

    /// Returns true if a segment without a flow may come from the peer of `key`; the driver counts
    /// those that may not, and they have no other effect. Peers of flows are not asked about again.
    fn admits(&mut self, key: &FlowKey, link: LinkId) -> bool {
        let _ = (key, link);
        true
    }

    /// The route back to the peer of a passive open that came over `link`.
    fn route(&mut self, key: &FlowKey, link: LinkId) -> Route;
}

/// `segment`, which arrived from the peer of `key` over `link`, with what it echoes in the engine's
/// clock (see [`Env::timestamp_offset`]). The fast path does without, as it reads no echo.
#[inline(never)]
pub fn by_our_clock<'s>(
    segment: &Segment<'s>,
    key: &FlowKey,
    link: LinkId,
    env: &impl Env,
) -> Segment<'s> {
    let mut segment = *segment;
    if let Some(timestamps) = &mut segment.options.timestamps {
        timestamps.take_off(env.timestamp_offset(key, link));
    }
    segment
}

/// What happened to a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// `rx_head` moved.
    Readable,
    /// `tx_acked` moved.
    Writable,
    /// An active open is complete.
    Connected,
    /// A passive open is complete and counts in the listener's accept queue.
    Accepted(ListenerId),
    /// The peer's FIN is in order: end of file after `rx_head`.
    PeerClosed,
    /// The peer has urgent data: its last byte is, or will be, at this stream position (RFC 9293
    /// MUST-32). It is at or after `rx_head`, and after that of an earlier event.
    Urgent(u32),
    /// That byte; it comes in the stream, too.
    UrgentByte(u8),
    /// Our FIN is acknowledged.
    FinAcked,
    /// A soft error of the path (RFC 9293 MUST-47): the connection goes on.
    SoftError(CloseCause),
    /// The connection is over for the program. What was received can still be read: the flow stays
    /// (in CLOSED) until `close` or `abort`.
    Closed(CloseCause),
    /// The last event: after `close` or `abort`, or when a half-open flow ends. The flow's number
    /// is not given out again before the next `batch_end` has returned. TIME-WAIT does not
    /// delay it.
    Released,
}

/// Why a connection ended. The numbers are those of the `close_cause` values at the boundary.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum CloseCause {
    /// Both sides finished.
    Finished = 1,
    /// The peer sent RST.
    Reset = 2,
    /// The peer refused: RST in SYN-SENT.
    Refused = 3,
    /// No answer.
    TimedOut = 4,
    /// ICMP: host unreachable.
    HostUnreachable = 5,
    /// ICMP: network unreachable.
    NetUnreachable = 6,
    /// Aborted on this side.
    Aborted = 8,
}

impl CloseCause {
    /// The number at the boundary.
    pub const fn to_u32(self) -> u32 {
        self as u32
    }
}

macro_rules! refusal {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $text,)+
                })
            }
        }

        impl core::error::Error for $name {}
    };
}

refusal! {
    /// Why a listener was not made.
    ListenError {
        /// There is a listener on the same end.
        InUse => "there is a listener on this address and port",
        /// Listeners are at their bound.
        Full => "too many listeners",
        /// Port zero, or a group address.
        BadEndpoint => "not an end that can be listened on",
    }
}

refusal! {
    /// Why an active open was not started.
    OpenError {
        /// There is a flow with the same ends, or one in TIME-WAIT that may not be replaced.
        InUse => "a connection with these ends exists",
        /// Flows are at their bound.
        Full => "too many flows",
        /// A port is zero, an address unspecified or a group's, or the MTU too small.
        BadEndpoint => "not ends that can be connected",
    }
}

refusal! {
    /// The program asked for what it may not: its request was ignored.
    Misuse {
        /// There is no such flow.
        NoFlow => "no such flow",
        /// `tx_head` went backwards, or past the send buffer's limit.
        TxHead => "tx_head went backwards or past the limit",
        /// `tx_head` moved after shutdown for writing.
        TxAfterShutdown => "tx_head moved after shutdown",
        /// Urgent data ends before what is acknowledged, or past the limit.
        Urgent => "urgent data ends outside of what may be written",
        /// `rx_read` went backwards, or past what was received.
        RxRead => "rx_read went backwards or past rx_head",
    }
}

/// A flow in the words of `ss -ti`.
#[derive(Clone, Copy, Debug)]
pub struct FlowInfo {
    /// Both ends.
    pub key: FlowKey,
    /// Connection state.
    pub state: State,
    /// Sender phase.
    pub ca_state: CaState,
    /// Name of the congestion control.
    pub congestion: &'static str,
    /// What its congestion control knows beyond the window (Linux: TCP_CC_INFO).
    pub details: Details,
    /// Smoothed round-trip time; zero before the first sample.
    pub srtt: Duration,
    /// Its variation.
    pub rttvar: Duration,
    /// Least round-trip time seen.
    pub rtt_min: Duration,
    /// Retransmission timeout with its present backoff.
    pub rto: Duration,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Bytes per second at which it sends if it is paced, or would (Linux: `tcpi_pacing_rate`).
    pub pacing_rate: u64,
    /// SO_MAX_PACING_RATE; [`NO_PACING`](crate::NO_PACING) without.
    pub pacing_rate_max: u64,
    /// Slow start threshold in bytes; `u32::MAX` before the first loss.
    pub ssthresh: u32,
    /// Eff.snd.MSS: payload bytes of a full segment.
    pub mss: u32,
    /// Payload bytes of the largest recent segment of the peer.
    pub rcv_mss: u32,
    /// The peer's window in bytes.
    pub snd_wnd: u32,
    /// The largest that it was seen to be.
    pub snd_wnd_max: u32,
    /// Our window in bytes, as last advertised.
    pub rcv_wnd: u32,
    /// Shift of the peer's window.
    pub snd_wscale: u8,
    /// Shift of our window.
    pub rcv_wscale: u8,
    /// Whether timestamps are in use.
    pub timestamps: bool,
    /// Whether SACK is in use.
    pub sack: bool,
    /// Whether ECN is in use.
    pub ecn: bool,
    /// Whether SYN carried text and all of it was taken (RFC 7413).
    pub syn_data: bool,
    /// Whether the program may write although the handshake has not ended (RFC 7413).
    pub fast_open_pending: bool,
    /// Bytes sent and not acknowledged.
    pub flight_size: u32,
    /// Those of them that the peer reported as arrived.
    pub sacked: u32,
    /// Those of them that are taken for lost.
    pub lost: u32,
    /// Bytes in flight that were sent again.
    pub retrans_out: u32,
    /// The farthest that a segment was seen to be overtaken, in segments; 3 before that.
    pub reordering: u32,
    /// How often the path was seen to reorder.
    pub reorder_seen: u32,
    /// Bytes written and not sent.
    pub unsent: u32,
    /// Bytes received in order and not read.
    pub unread: u32,
    /// Out-of-order ranges held.
    pub ooo_ranges: u32,
    /// Bytes acknowledged by the peer since the start.
    pub bytes_acked: u64,
    /// Bytes received in order since the start.
    pub bytes_received: u64,
    /// Segments retransmitted since the start.
    pub retrans: u32,
    /// Timeouts since SND.UNA last advanced.
    pub timeouts: u8,
    /// How often the timeout was doubled since the last round-trip sample (RFC 6298 §5).
    pub backoff: u8,
    /// Probes of a closed window without an answer.
    pub probes: u8,
    /// Duplicates that the peer reported (RFC 2883).
    pub dsacks: u32,
    /// Payload bytes of the largest segment that the path takes.
    pub path_mss: u32,
    /// The link.
    pub link: LinkId,
    /// The listener that it came from.
    pub listener: Option<ListenerId>,
}
