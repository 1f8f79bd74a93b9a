//! The interface between the engine and its driver: segments in and out, events and errors. The
//! driver is the program that runs the engine: the service's host, or a test. The driver is not a
//! NIC driver.

use core::fmt;

use tidelane_cc::Details;
use tidelane_time::Duration;
use tidelane_wire::{Ecn, FlowKey, IpFields, Segment, SeqNumber, TcpFlags, TcpOptions};

use crate::{
    flow_state::CaState,
    ids::{FlowId, LinkId, ListenerId},
    state::State,
    traffic::Traffic,
};

/// Source of a received segment: 4-tuple, link and ECN field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// 4-tuple, as this host sees it.
    pub key: FlowKey,
    /// Link on which the segment arrived. Answers without a flow leave on this link.
    pub link: LinkId,
    /// ECN field of the IP header.
    pub ecn: Ecn,
}

/// Route to the peer of a flow: the link to send on, and its MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowRoute {
    /// Link to send on.
    pub link: LinkId,
    /// MTU of the link in bytes.
    pub mtu: u32,
}

/// Origin of a segment to send. The origin determines the IP fields of the segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The segment belongs to a flow. The IP fields are those of [`Driver::set_ip`].
    Flow(FlowId),
    /// The segment is the RST of a flow that ends. The engine never retransmits this RST, and
    /// ignores [`TxFull`]. A driver without a free frame may keep the RST until a frame is free,
    /// although the flow no longer exists then.
    EndingFlow(FlowId),
    /// The segment answers a segment without a connection. The answer has these IP fields.
    NoFlow(IpFields),
}

/// A flow that the engine has created. See [`Driver::created`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewFlow {
    /// 4-tuple.
    pub key: FlowKey,
    /// Link to send on.
    pub link: LinkId,
    /// Listener of a passive open; `None` for an active open.
    pub listener: Option<ListenerId>,
    /// IP fields of the flow's segments.
    pub ip: IpFields,
}

/// A change of the IP headers of a flow. See [`Driver::set_ip`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpChange {
    /// The segments have these IP fields.
    Fields(IpFields),
    /// If true, routers may fragment the flow's IPv4 packets, so that DF is zero. A new flow has DF
    /// set. The engine allows fragmentation on a path whose MTU is below the least segment size
    /// (RFC 1191 §3).
    MayFragment(bool),
}

/// A segment to send, or a burst that the link splits. The driver adds link and IP headers, payload
/// and checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentOut {
    /// Origin of the segment: a flow, or none.
    pub origin: Origin,
    /// 4-tuple.
    pub key: FlowKey,
    /// Link to send on.
    pub link: LinkId,
    /// SEG.SEQ.
    pub seq: SeqNumber,
    /// SEG.ACK. Zero if the ACK bit is not set.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window field of the header: the window shifted right by Rcv.Wind.Shift.
    pub wnd: u16,
    /// Urgent pointer (RFC 9293 §3.8.5). Zero if the URG bit is not set.
    pub urgent: u16,
    /// TCP options.
    pub options: TcpOptions,
    /// Stream position of the first payload byte in the flow's send buffer.
    pub payload_pos: u32,
    /// Payload length in bytes. The payload lies between the stream positions `tx_acked` and
    /// `tx_head`.
    pub payload_len: u32,
    /// Payload bytes per segment. If `payload_len` is larger, as [`Driver::burst_len`] allowed, the
    /// link splits the payload (GSO). PSH and FIN go with the last segment.
    pub segment_size: u16,
    /// ECN field for the IP header.
    pub ecn: Ecn,
}

impl SegmentOut {
    /// Returns the flow of the segment, or `None` for an answer to a segment without a connection.
    #[inline(always)]
    pub fn flow(&self) -> Option<FlowId> {
        match self.origin {
            Origin::Flow(flow) | Origin::EndingFlow(flow) => Some(flow),
            Origin::NoFlow(_) => None,
        }
    }

    /// Returns the segment as the receiver sees it, before any split, with `payload`.
    #[inline(always)]
    pub fn segment<'a>(&self, payload: &'a [u8]) -> Segment<'a> {
        Segment {
            src_port: self.key.local.port,
            dst_port: self.key.peer.port,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            wnd: self.wnd,
            urgent: self.urgent,
            options: self.options,
            payload,
        }
    }
}

/// Error of a transmission: the driver has no free frame for the segment. The driver calls the
/// engine's `resume_transmit` once a frame is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxFull;

/// A driver's decision on a segment without a flow. See [`Driver::filter`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The engine handles the segment.
    Accept,
    /// The segment is answered by a RST, within the limit of the configuration.
    Refuse,
    /// The segment is dropped without an answer.
    Drop,
}

/// A driver's decision on resources for one more connection. See [`Driver::admit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// A flow may be created.
    Flow,
    /// No further half-open flow may be created. The SYN is answered by a SYN cookie.
    Cookie,
    /// The SYN is dropped. The peer may retransmit it later.
    Nothing,
}

/// Functions that the driver gives the engine. The engine calls these functions within its own
/// methods.
pub trait Driver {
    /// Sends `out`: one segment, or a burst that the link splits. Returns [`TxFull`] if no frame is
    /// free. The engine then keeps the data, and sends `out` again after `resume_transmit`; an
    /// answer without a flow is lost, as the network may lose it.
    ///
    /// The fast path inlines this function, so that the fields of `out` stay in registers. A driver
    /// keeps its uncommon cases in functions that are not inlined.
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull>;

    /// Copies `payload` to stream position `pos` of the flow's receive buffer. The payload may lie
    /// beyond a hole.
    ///
    /// `pos + payload.len()` is at most one receive window beyond `rx_read`. Returns false if there
    /// is no memory for the payload. The engine then treats the payload as if it had not arrived.
    fn place(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool;

    /// Reports an event of `flow` for the application. The driver may collect events, and read the
    /// flow's stream positions later.
    fn event(&mut self, flow: FlowId, event: Event);

    /// Returns the route to the peer of a passive open that arrived on `link`.
    fn route(&mut self, key: &FlowKey, link: LinkId) -> FlowRoute;

    /// Reports a new flow, before its first segment.
    fn created(&mut self, flow: FlowId, new: &NewFlow);

    /// Changes the IP headers of all later segments of `flow`.
    fn set_ip(&mut self, flow: FlowId, change: IpChange);

    /// Returns the largest payload of one [`transmit`](Self::transmit) of `flow`, in bytes, if the
    /// link splits the payload into segments (GSO). Returns zero if the link does not.
    fn burst_len(&self, flow: FlowId) -> u32 {
        let _ = flow;
        0
    }

    /// Decides on a segment of the peer of `key` that belongs to no flow. The engine first asks
    /// with
    /// `None` for `listener`, before it looks for a listener. If the segment is a SYN for a
    /// listener, or an ACK with a valid SYN cookie, the engine asks again with that listener.
    ///
    /// The default implementation accepts every segment.
    fn filter(&mut self, key: &FlowKey, link: LinkId, listener: Option<ListenerId>) -> Verdict {
        let _ = (key, link, listener);
        Verdict::Accept
    }

    /// Decides whether there are resources for a new connection of `listener`. The connection
    /// enters the SYN queue if `half_open` is true. If the answer is [`Admission::Flow`] and the
    /// engine has room, [`created`](Self::created) follows within the same call.
    ///
    /// The default implementation allows every connection, up to the limits of the configuration.
    fn admit(&mut self, listener: ListenerId, half_open: bool) -> Admission {
        let _ = (listener, half_open);
        Admission::Flow
    }
}

/// An event of a flow, which the driver passes to the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A segment advanced the flow's stream positions.
    Progress {
        /// True if `rx_head` has advanced: there is new data to read.
        readable: bool,
        /// True if `tx_acked` has advanced: there is room to write.
        writable: bool,
    },
    /// An active open is complete.
    Connected,
    /// A passive open is complete, and the connection is in the listener's accept queue.
    Accepted(ListenerId),
    /// The peer's FIN has arrived in order: end of file at `rx_head`.
    PeerClosed,
    /// The last byte of urgent data is, or will be, at this stream position (RFC 9293 MUST-32). The
    /// position is at or after `rx_head`, and after the position of any earlier event.
    Urgent(u32),
    /// The value of the last byte of urgent data. The stream contains this byte, too.
    UrgentByte(u8),
    /// Our FIN is acknowledged.
    FinAcked,
    /// The retransmission timer has expired R1 times: negative advice about the path to the peer
    /// (RFC 9293 §3.8.3, MUST-20). The connection continues.
    NegativeAdvice,
    /// A soft error of the path (RFC 9293 MUST-47). The connection continues.
    SoftError(CloseCause),
    /// The connection is over. Received data can still be read: the flow stays in CLOSED until
    /// `close` or `abort`.
    Closed(CloseCause),
    /// The flow no longer exists. This last event follows `close` or `abort`, or the end of a
    /// half-open flow. The id is not reused before the next `batch_end` has returned. TIME-WAIT
    /// does not delay this event.
    Released,
}

/// Reason for the end of a connection. The values are those of `close_cause` in the shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum CloseCause {
    /// Both sides have closed the connection.
    Finished = 1,
    /// The peer sent RST.
    Reset = 2,
    /// The peer refused the connection by a RST or an ICMP error during the handshake.
    Refused = 3,
    /// The peer did not answer in time.
    TimedOut = 4,
    /// An ICMP error reported that the host is unreachable.
    HostUnreachable = 5,
    /// An ICMP error reported that the network is unreachable.
    NetUnreachable = 6,
    /// Our end aborted the connection.
    Aborted = 8,
}

impl Event {
    /// There is new data to read.
    pub const READABLE: Self = Self::Progress {
        readable: true,
        writable: false,
    };
    /// There is room to write.
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
    /// Returns the value of `close_cause` in the shared memory.
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
    /// Reason why a listener was not created.
    ListenError {
        /// A listener has the same address and port.
        InUse => "there is a listener on this address and port",
        /// The largest number of listeners is reached.
        Full => "too many listeners",
        /// The port is zero, or the address is multicast or broadcast.
        BadEndpoint => "not an end that can be listened on",
    }
}

refusal! {
    /// Reason why an active open was not started.
    OpenError {
        /// A flow has this 4-tuple, or a TIME-WAIT entry that may not be reused.
        InUse => "a connection with these ends exists",
        /// The largest number of flows is reached.
        Full => "too many flows",
        /// A port is zero, an address is unspecified, multicast or broadcast, or the MTU is too
        /// small.
        BadEndpoint => "not ends that can be connected",
    }
}

refusal! {
    /// Reason why a request of an application was ignored.
    Misuse {
        /// There is no such flow.
        NoFlow => "no such flow",
        /// `tx_head` went backwards or beyond the limit of the send buffer.
        TxHead => "tx_head went backwards or past the limit",
        /// `tx_head` advanced after the sending direction was closed.
        TxAfterShutdown => "tx_head moved after shutdown",
        /// The urgent data ends before SND.UNA or beyond the limit of the send buffer.
        Urgent => "urgent data ends outside of what may be written",
        /// `rx_read` went backwards or beyond the received data.
        RxRead => "rx_read went backwards or past rx_head",
    }
}

/// A copy of the state of a flow, for `TCP_INFO` and `ss -ti`.
#[derive(Clone, Copy, Debug)]
pub struct FlowInfo {
    /// 4-tuple.
    pub key: FlowKey,
    /// Connection state.
    pub state: State,
    /// Sender phase.
    pub ca_state: CaState,
    /// Name of the congestion control.
    pub congestion: &'static str,
    /// State of the congestion control beyond the window (Linux: TCP_CC_INFO).
    pub details: Details,
    /// Smoothed RTT; zero before the first sample.
    pub srtt: Duration,
    /// RTT variation.
    pub rttvar: Duration,
    /// Windowed minimum of the RTT.
    pub rtt_min: Duration,
    /// Retransmission timeout, with its present backoff.
    pub rto: Duration,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Pacing rate in bytes per second, also for a flow that is not paced (Linux:
    /// `tcpi_pacing_rate`).
    pub pacing_rate: u64,
    /// SO_MAX_PACING_RATE; [`NO_PACING`](crate::NO_PACING) if not set.
    pub pacing_rate_max: u64,
    /// Slow start threshold in bytes; `u32::MAX` before the first loss.
    pub ssthresh: u32,
    /// Eff.snd.MSS: payload bytes of a full segment.
    pub mss: u32,
    /// Largest recent payload of the peer's segments, in bytes.
    pub rcv_mss: u32,
    /// SND.WND: the peer's window in bytes.
    pub snd_wnd: u32,
    /// Largest window that the peer has offered, in bytes.
    pub snd_wnd_max: u32,
    /// Our window in bytes, as last advertised.
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
    /// True if the SYN of the active side carried data and the other side acknowledged this data
    /// (RFC 7413).
    pub syn_data: bool,
    /// True if the application has the flow although the handshake is not complete (RFC 7413).
    pub fast_open_pending: bool,
    /// Bytes sent and not acknowledged.
    pub flight_size: u32,
    /// SACKed bytes in flight.
    pub sacked: u32,
    /// Bytes marked lost and not retransmitted.
    pub lost: u32,
    /// Retransmitted bytes in flight.
    pub retrans_out: u32,
    /// Largest distance by which a segment was overtaken, in segments; at least 3.
    pub reordering: u32,
    /// Number of times that the path was seen to reorder.
    pub reorder_seen: u32,
    /// Bytes written and not sent.
    pub unsent: u32,
    /// Bytes received in order and not read.
    pub unread: u32,
    /// Segments that were received out of order (Linux: `tcpi_rcv_ooopack`).
    pub ooo_segs_in: u32,
    /// Number of out-of-order ranges.
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
    /// True if the application limited `delivery_rate`.
    pub app_limited: bool,
    /// Timeouts since SND.UNA last advanced.
    pub timeouts: u8,
    /// Number of times that the RTO was doubled since the last RTT sample (RFC 6298 §5).
    pub backoff: u8,
    /// Unanswered probes while the peer's window is closed.
    pub probes: u8,
    /// Number of received DSACK blocks (RFC 2883).
    pub dsacks: u32,
    /// Path MTU as an MSS, in bytes.
    pub path_mss: u32,
    /// Link that the flow sends on.
    pub link: LinkId,
    /// Listener of a passive open; `None` for an active open.
    pub listener: Option<ListenerId>,
}
