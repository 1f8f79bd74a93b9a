//! The interface between the TCP engine (crate `tidelane-engine`) and its driver: segments in and
//! out, and the driver's decisions. The driver is the program that runs the engine: the service
//! (crate `tidelane-host`), or a test. The driver is not a NIC driver.
//!
//! A flow is a TCP connection. A stream position is the offset of a byte in the stream of one
//! direction, modulo 2^32; the byte after the SYN has position 0. A burst is a segment with the
//! payload of several segments, which the link splits (GSO). A frame is a packet buffer of the
//! driver.

use tidelane_wire::{Ecn, FlowKey, IpFields, Segment, SeqNumber, TcpFlags, TcpOptions};

use crate::{
    event::Event,
    ids::{FlowId, LinkId, ListenerId},
};

/// Source of a received segment: 4-tuple, link and ECN field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// 4-tuple, as this host sees it.
    pub key: FlowKey,
    /// Link on which the segment arrived. If the segment belongs to no flow, the engine sends its
    /// answer on this link.
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
    /// The segment belongs to a flow. The IP fields are those of [`NewFlow::ip`], until
    /// [`Driver::set_ip`] changes them.
    Flow(FlowId),
    /// The segment is the RST of a flow that ends. The engine never retransmits this RST, and
    /// ignores [`TxFull`]. A driver without a free frame may keep the RST until a frame is free.
    /// The flow may be gone by then.
    EndingFlow(FlowId),
    /// The segment answers a segment without a connection, and has these IP fields.
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
    /// If true, DF is clear in the flow's IPv4 packets, so that routers may fragment the packets.
    /// If false, as for a new flow, DF is set. The engine demands a clear DF if the path MTU is
    /// below the smallest MTU that the engine adapts to (552 bytes, as in Linux).
    MayFragment(bool),
}

/// A segment to send, or a burst. The driver adds link header, IP header, payload and checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentOut {
    /// Origin of the segment: a flow, a flow that ends, or a segment without a connection.
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
    /// Window field of the header: the window shifted right by Rcv.Wind.Shift. A SYN has the window
    /// without a shift.
    pub wnd: u16,
    /// Urgent pointer (RFC 9293 §3.8.5). Zero if the URG bit is not set.
    pub urgent: u16,
    /// TCP options.
    pub options: TcpOptions,
    /// Stream position of the first payload byte. The driver reads the payload from the flow's send
    /// buffer.
    pub payload_pos: u32,
    /// Payload length in bytes. The payload lies between the stream positions `tx_acked` (the
    /// first unacknowledged byte) and `tx_head` (the end of the application's data).
    pub payload_len: u32,
    /// Payload bytes per segment (Linux: `gso_size`). If `payload_len` is larger, the segment is a
    /// burst: the link splits the payload, and only the last segment has PSH and FIN.
    /// [`Driver::burst_len`] limits the length of a burst.
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

    /// Returns the segment with `payload`, as it is before the link splits a burst.
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
    /// The engine answers the segment by a RST, within the rate limits of the configuration
    /// ([`EngineConfig::resets_per_second`](crate::EngineConfig::resets_per_second) and
    /// `peer_resets_per_second`).
    Refuse,
    /// The engine drops the segment without an answer. If the engine called [`Driver::filter`] with
    /// a listener, the engine counts the drop. Otherwise, the driver counts the drop.
    Drop,
}

/// A driver's decision on resources for one more connection. See [`Driver::admit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// A flow may be created.
    Flow,
    /// No further half-open flow may be created. The engine answers the SYN by a SYN cookie, or
    /// drops the SYN if the configuration turns SYN cookies off.
    SynCookie,
    /// The engine drops the SYN, or the ACK that returns a SYN cookie. The peer may retransmit.
    Drop,
}

/// The functions through which the engine uses its driver. The engine calls them only from within
/// its own methods.
pub trait Driver {
    /// Sends `out`: one segment, or a burst. Returns [`TxFull`] if no frame is free.
    ///
    /// After [`TxFull`], the engine sends the flow's pending data and ACKs again once the driver
    /// has called `resume_transmit`. The engine does not repeat RSTs, challenge ACKs, window and
    /// keepalive probes, and answers to segments without a flow: for the peer, such a segment is
    /// lost as if in the network.
    ///
    /// The fast path (the engine's code for in-order segments) inlines this function, so that the
    /// fields of `out` stay in registers. A driver keeps its uncommon cases in functions that are
    /// not inlined.
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull>;

    /// Copies `payload` to stream position `pos` of the flow's receive buffer. Data before `pos`
    /// may still be missing.
    ///
    /// `pos + payload.len()` is at most one receive window beyond `rx_read`, the application's read
    /// position. Returns true if the payload was copied. Returns false if there is no memory for
    /// the payload. The engine then treats the payload as if it had not arrived.
    fn place(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool;

    /// Reports an event of `flow` for the application. An event does not carry the flow's stream
    /// positions. A driver may queue the event and read the positions when it notifies the
    /// application, so that one notification covers several events.
    fn event(&mut self, flow: FlowId, event: Event);

    /// Returns the route to the peer of `key`, for a passive open. The SYN, or the ACK that returns
    /// a SYN cookie, arrived on `link`.
    fn route(&mut self, key: &FlowKey, link: LinkId) -> FlowRoute;

    /// Reports a new flow. The call precedes the flow's first [`transmit`](Self::transmit).
    fn created(&mut self, flow: FlowId, new: &NewFlow);

    /// Changes the IP headers of all later segments of `flow`.
    fn set_ip(&mut self, flow: FlowId, change: IpChange);

    /// Returns the largest payload of a burst of `flow`, in bytes. `segment_size` is the payload of
    /// each segment after the split. Returns zero if the link does not split bursts.
    ///
    /// The default implementation returns zero.
    fn burst_len(&self, flow: FlowId, segment_size: u32) -> u32 {
        let _ = (flow, segment_size);
        0
    }

    /// Decides on a segment that the peer of `key` sent and that belongs to no flow. The engine
    /// calls the function with `None` for `listener` before it looks for a listener. If the segment
    /// is a SYN for a listener, or an ACK with a valid SYN cookie, the engine calls the function
    /// again with that listener.
    ///
    /// The default implementation accepts every segment.
    fn filter(&mut self, key: &FlowKey, link: LinkId, listener: Option<ListenerId>) -> Verdict {
        let _ = (key, link, listener);
        Verdict::Accept
    }

    /// Decides whether there are resources for a new connection of `listener`. `half_open` is true
    /// for a SYN, which creates a half-open flow in the SYN queue. `half_open` is false for an ACK
    /// with a valid SYN cookie, which creates an established flow.
    ///
    /// If the result is [`Admission::Flow`] and the engine has room, the engine calls
    /// [`created`](Self::created) before the engine's present function returns.
    ///
    /// The default implementation allows every connection, up to the limits of the configuration.
    fn admit(&mut self, listener: ListenerId, half_open: bool) -> Admission {
        let _ = (listener, half_open);
        Admission::Flow
    }
}
