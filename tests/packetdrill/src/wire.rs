//! The engine's driver ([`Driver`]): stream buffers, the queue of sent packets, and the events of
//! the engine.

use std::collections::{HashMap, VecDeque};

use tidelane_engine::{
    Driver, Duration, Event, FlowId, FlowKey, FlowRoute, Instant, IpChange, LinkId, NewFlow,
    Origin, SegmentOut, TcpFlags, TxFull,
};

use crate::{offload::TsoPacket, packet, streams::Streams};

/// A sent packet that packetdrill has not taken yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Time of sending.
    pub at: Instant,
    /// The packet, from the IP header on.
    pub bytes: Vec<u8>,
}

/// The engine's environment, which the stack owns and passes to each call of the engine.
#[derive(Debug)]
pub struct Wire {
    /// Virtual time of the present call, at which packets are sent.
    pub now: Instant,
    /// MTU of the device in bytes.
    pub mtu: u32,
    /// True if PSH follows Linux's rules for segmentation offload (TSO or GSO).
    pub offload: bool,
    /// True if large packets leave unsegmented (TSO), false if they are segmented first (GSO).
    pub tso: bool,
    /// True while the engine runs timers.
    pub on_timer: bool,
    /// Sent packets that packetdrill has not taken yet.
    pub sent: VecDeque<Sent>,
    /// Segments of the present batch (the calls of the engine up to its next `batch_end`). The
    /// segments are not joined into packets yet.
    pub segments: Vec<TsoPacket>,
    /// Events that the stack has not handled yet.
    pub events: Vec<(FlowId, Event)>,
    /// Buffers of each flow.
    streams: HashMap<FlowId, Streams>,
    /// Counter of encoded packets. An IPv4 packet carries the counter as its identification field.
    ip_id: u16,
}

impl Wire {
    /// Returns an environment without flows (connections) and packets. `mtu` is in bytes.
    pub fn new(mtu: u32, offload: bool, tso: bool) -> Self {
        Self {
            now: Instant::ZERO,
            mtu,
            offload,
            tso,
            on_timer: false,
            sent: VecDeque::new(),
            segments: Vec::new(),
            events: Vec::new(),
            streams: HashMap::new(),
            ip_id: 0,
        }
    }

    /// Returns the buffers of a flow. Creates them at the first call.
    pub fn streams(&mut self, flow: FlowId) -> &mut Streams {
        self.streams.entry(flow).or_default()
    }

    /// Returns true if the flow has a record that is not sent completely. A record is the data up
    /// to the end of a write with MSG_EOR.
    pub fn has_records(&self, flow: FlowId) -> bool {
        self.streams
            .get(&flow)
            .is_some_and(|streams| !streams.record_ends.is_empty())
    }

    /// Returns the stream position after the last written byte of a flow, or `None` before the
    /// first write.
    pub fn written(&self, flow: FlowId) -> Option<u32> {
        self.streams.get(&flow)?.written
    }

    /// Takes RTT samples from the ACKs of the present batch. `now_acked` returns the stream
    /// position up to which a flow's bytes are acknowledged, and the engine's smoothed RTT of the
    /// flow. For a released flow, `now_acked` returns `None`.
    pub fn time_packets(&mut self, now_acked: impl Fn(FlowId) -> Option<(u32, Duration)>) {
        let acked_flow = |(id, event): &(FlowId, Event)| {
            matches!(event, Event::Progress { writable: true, .. }).then_some(*id)
        };
        let flows: Vec<FlowId> = self.events.iter().filter_map(acked_flow).collect();
        for id in flows {
            if let Some((acked, srtt)) = now_acked(id) {
                let now = self.now;
                self.streams(id).round_trips.acknowledged(acked, now, srtt);
            }
        }
    }

    /// Returns the smoothed RTT of a flow as Linux measures it, or `None` before the first sample.
    pub fn srtt(&self, flow: FlowId) -> Option<Duration> {
        self.streams.get(&flow)?.round_trips.srtt()
    }

    /// Joins the segments of the batch into packets, and sends the packets. `most` takes a flow and
    /// its smoothed RTT, and returns the largest permitted number of segments in a packet.
    pub fn finish_batch(&mut self, most: impl Fn(FlowId, Option<Duration>) -> u32) {
        let mut segments = std::mem::take(&mut self.segments).into_iter();
        let Some(mut packet) = segments.next() else {
            return;
        };
        for next in segments {
            let flow = packet.out.flow();
            let joins = flow.is_some_and(|flow| {
                let most = most(flow, self.srtt(flow));
                !self.streams(flow).packet_ends.is_end(packet.end()) && packet.join(&next, most)
            });
            if !joins {
                self.send(std::mem::replace(&mut packet, next));
            }
        }
        self.send(packet);
    }

    /// Returns a packet of one segment: `out` with its payload from the send buffer.
    fn fill(&mut self, out: &SegmentOut) -> TsoPacket {
        let payload = match out.flow() {
            Some(flow) if out.payload_len > 0 => {
                let len = out.payload_len as usize;
                self.streams(flow).tx.copy(out.payload_pos, len)
            }
            _ => Vec::new(),
        };
        TsoPacket::new(*out, payload)
    }

    /// Splits off and returns the bytes of `rest` up to the end of its first record. Returns `None`
    /// if no record ends before the end of `rest`.
    fn split_at_record(&mut self, rest: &mut TsoPacket) -> Option<TsoPacket> {
        let start = rest.out.payload_pos;
        let packet_ends = &self.streams.get(&rest.out.flow()?)?.packet_ends;
        let at = packet_ends.record_within(start, rest.end())?;
        Some(rest.take_front(at.wrapping_sub(start)))
    }

    /// Records the packet's end, and sets PSH by Linux's rules. Then emits the packet as a whole
    /// with TSO, and segment by segment without TSO.
    fn send(&mut self, mut packet: TsoPacket) {
        if let Some(flow) = packet.out.flow()
            && !packet.payload.is_empty()
        {
            let (end, now) = (packet.end(), self.now);
            self.streams(flow).round_trips.sent(end, now);
            let packet_ends = &mut self.streams(flow).packet_ends;
            packet_ends.end(end);
            let pushed = packet_ends.is_push(end);
            // With segmentation offload, a packet of one segment has PSH in two cases: a write ends
            // with the segment, or the segment ends more than half a window after the previous PSH.
            // Otherwise the segment loses PSH, unless a timer sends the segment. These rules do not
            // apply to a SYN.
            let syn = packet.out.flags.contains(TcpFlags::SYN);
            let single = self.offload && packet.is_single() && !syn;
            if single && pushed {
                packet.out.flags |= TcpFlags::PSH;
            } else if single && !self.on_timer {
                packet.out.flags.remove(TcpFlags::PSH);
            }
        }
        while !self.tso && !packet.is_single() {
            let first = packet.cut_first();
            self.emit(&first);
        }
        self.emit(&packet);
    }

    /// Encodes a packet and queues it for packetdrill.
    fn emit(&mut self, packet: &TsoPacket) {
        self.ip_id = self.ip_id.wrapping_add(1);
        let fields = match packet.out.origin {
            Origin::NoFlow(fields) => fields,
            Origin::Flow(flow) | Origin::EndingFlow(flow) => self.streams(flow).fields,
        };
        if let Some(bytes) = packet::emit_with(&packet.out, &packet.payload, self.ip_id, fields) {
            let at = self.now;
            self.sent.push_back(Sent { at, bytes });
        }
    }

    /// Removes the buffers of a flow that the engine has released.
    pub fn forget(&mut self, flow: FlowId) {
        self.streams.remove(&flow);
    }
}

impl Driver for Wire {
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        let mut rest = self.fill(out);
        while out.urgent == 0
            && let Some(first) = self.split_at_record(&mut rest)
        {
            self.segments.push(first);
        }
        self.segments.push(rest);
        Ok(())
    }

    fn place(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        self.streams(flow).rx.put(pos, payload);
        true
    }

    fn event(&mut self, flow: FlowId, event: Event) {
        self.events.push((flow, event));
    }

    fn route(&mut self, _key: &FlowKey, link: LinkId) -> FlowRoute {
        let mtu = self.mtu;
        FlowRoute { link, mtu }
    }

    fn created(&mut self, flow: FlowId, new: &NewFlow) {
        self.streams(flow).fields = new.ip;
    }

    fn set_ip(&mut self, flow: FlowId, change: IpChange) {
        if let IpChange::Fields(fields) = change {
            self.streams(flow).fields = fields;
        }
    }
}
