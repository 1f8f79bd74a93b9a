//! The loads `receive` and `send`: the TCP engine (`tidelane-engine`) alone, with one flow
//! (connection). In each turn, the engine receives one data segment, or sends one.
//!
//! The engine passes its segments and events to a driver. The driver of the Tidelane service writes
//! the segments to frames, and the driver of these loads discards the segments. At the end of a
//! batch of arrived segments and requests, the engine sends pure ACKs and data.

use std::hint::black_box;

use tidelane_engine::{
    Arrival, Driver, Duration, Ecn, Endpoint, Engine, EngineConfig, Event, FlowId, FlowKey,
    FlowRoute, Instant, IpChange, LinkId, NewFlow, Segment, SegmentOut, SeqNumber, SocketOptions,
    TcpFlags, TcpOptions, Timestamps, TxFull,
};

use crate::{Load, Tally, allocations_unsafe};

/// Payload of every data segment.
static PAYLOAD: [u8; 64] = [0x5a; 64];
/// The link (NIC queue) of the flow.
const LINK: LinkId = LinkId(1);
/// Virtual time between two turns.
const STEP: Duration = Duration::from_micros(20);

/// The fields that differ between the segments of a flow. The service's driver writes only these
/// fields, and copies the other header fields from a template.
#[derive(Clone, Copy)]
struct Sent {
    seq: SeqNumber,
    ack: SeqNumber,
    wnd: u16,
    flags: TcpFlags,
    ecn: Ecn,
    timestamps: Option<Timestamps>,
    /// Stream position (distance from ISS + 1) and length of the payload.
    payload: Option<(u32, u32)>,
}

impl Sent {
    #[inline(always)]
    fn of(out: &SegmentOut) -> Self {
        Self {
            seq: out.seq,
            ack: out.ack,
            wnd: out.wnd,
            flags: out.flags,
            ecn: out.ecn,
            timestamps: out.options.timestamps,
            payload: match out.payload_len {
                0 => None,
                len => Some((out.payload_pos, len)),
            },
        }
    }
}

/// A driver that accepts every segment, and keeps only the fields of the most recent segment.
#[derive(Default)]
pub struct Sink {
    last: Option<Sent>,
    /// Number of segments that the engine has sent.
    sent: u64,
    /// Number of payload bytes that the engine has delivered.
    placed: u64,
    /// The flow of the most recent event.
    flow: Option<FlowId>,
}

impl Driver for Sink {
    /// Reads the same fields as the service's driver, so that the compiler cannot omit their
    /// computation.
    #[inline(always)]
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        if out.flags.contains(TcpFlags::SYN) || out.payload_len > u32::from(out.segment_size) {
            return self.transmit_any(out);
        }
        self.last = Some(Sent::of(out));
        self.sent += 1;
        Ok(())
    }

    #[inline]
    fn place(&mut self, _flow: FlowId, _pos: u32, payload: &[u8]) -> bool {
        self.placed += payload.len() as u64;
        true
    }

    #[inline]
    fn event(&mut self, flow: FlowId, _event: Event) {
        self.flow = Some(flow);
    }

    fn route(&mut self, _key: &FlowKey, link: LinkId) -> FlowRoute {
        FlowRoute { link, mtu: 1500 }
    }

    fn created(&mut self, _flow: FlowId, _new: &NewFlow) {}

    fn set_ip(&mut self, _flow: FlowId, _change: IpChange) {}
}

impl Sink {
    /// Takes a SYN, or a super-segment (several segments in one buffer, as with GSO). The function
    /// is not inlined, because the service's driver handles these rare cases out of line, too.
    #[inline(never)]
    fn transmit_any(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        self.last = Some(Sent::of(black_box(out)));
        self.sent += 1;
        Ok(())
    }
}

/// An engine with one established flow, and the state of its peer.
pub struct OneFlow {
    engine: Engine,
    driver: Sink,
    now: Instant,
    arrival: Arrival,
    flow: FlowId,
    /// SEG.SEQ of the peer's next segment.
    seq: SeqNumber,
    /// SEG.ACK of the peer's next segment.
    ack: SeqNumber,
    /// SEG.WND of the peer's segments.
    wnd: u16,
    /// Stream position up to which the program has read (load `receive`) or written (load `send`).
    position: u32,
}

fn flow_key() -> FlowKey {
    FlowKey::new(
        Endpoint::v4([10, 0, 0, 1], 80),
        Endpoint::v4([10, 0, 0, 2], 40_000),
    )
}

impl OneFlow {
    /// Returns an engine with one flow. The listener has the socket options `options`, and the peer
    /// has opened the flow to the listener.
    pub fn new(options: SocketOptions) -> Self {
        let key = flow_key();
        let mut engine = Engine::new(EngineConfig::default(), [3; 16]);
        engine
            .listen(key.local, 16, options)
            .expect("an engine without listeners has room for one");
        let mut one = Self {
            engine,
            driver: Sink::default(),
            now: Instant::from_secs(100),
            arrival: Arrival {
                key,
                link: LINK,
                ecn: Default::default(),
            },
            flow: FlowId(0),
            seq: SeqNumber(1000),
            ack: SeqNumber(0),
            wnd: u16::MAX,
            position: 0,
        };
        let mut syn = TcpOptions::timestamps(one.tsval(), 0);
        syn.mss = Some(1460);
        syn.wscale = Some(7);
        syn.sack_permitted = true;
        one.arrive(TcpFlags::SYN, syn, &[]);
        one.seq = one.seq.add(1);
        let answer = one.driver.last.expect("a SYN is answered");
        assert!(answer.flags.contains(TcpFlags::SYN));
        one.ack = answer.seq.add(1);
        one.pass(TcpFlags::ACK, &[]);
        one.flow = one.driver.flow.expect("the connection is accepted");
        one
    }

    fn tsval(&self) -> u32 {
        self.now.as_millis() as u32
    }

    fn segment<'a>(&self, flags: TcpFlags, options: TcpOptions, payload: &'a [u8]) -> Segment<'a> {
        Segment {
            src_port: self.arrival.key.peer.port,
            dst_port: self.arrival.key.local.port,
            seq: self.seq,
            ack: self.ack,
            flags,
            wnd: self.wnd,
            urgent: 0,
            options,
            payload,
        }
    }

    /// Passes the peer's segment with these fields to the engine, and ends the batch.
    fn arrive(&mut self, flags: TcpFlags, options: TcpOptions, payload: &[u8]) {
        let segment = self.segment(flags, options, payload);
        self.receive(&segment);
    }

    /// Passes the peer's segment to the engine, and ends the batch. The segment has timestamps.
    fn pass(&mut self, flags: TcpFlags, payload: &[u8]) {
        let options = TcpOptions::timestamps(self.tsval(), self.tsval());
        self.arrive(flags, options, payload);
    }

    /// Returns the peer's next data segment.
    fn data(&self) -> Segment<'static> {
        let options = TcpOptions::timestamps(self.tsval(), self.tsval());
        self.segment(TcpFlags::ACK.union(TcpFlags::PSH), options, &PAYLOAD)
    }

    /// Advances the clock and runs the timers that are due.
    fn next_turn(&mut self) {
        self.now += STEP;
        if self.engine.next_timeout().is_some_and(|at| at <= self.now) {
            self.engine.advance_time(self.now, &mut self.driver);
        }
    }

    /// Passes a parsed segment to the engine, and ends the batch.
    #[inline]
    pub fn receive(&mut self, segment: &Segment<'_>) {
        self.engine
            .segment_arrives(self.now, &self.arrival, segment, &mut self.driver);
        self.engine.batch_end(self.now, &mut self.driver);
    }

    /// Tells the engine that the program has written bytes up to `position`, and ends the batch.
    pub fn send(&mut self) {
        let written = self.engine.tx_advance(self.flow, self.position);
        assert!(written.is_ok());
        self.engine.batch_end(self.now, &mut self.driver);
    }
}

/// Checks the properties that each sent segment must have: a window above 0, timestamps, and no
/// ECN.
fn check(sent: &Sent) {
    assert!(sent.wnd > 0, "the window is open");
    assert!(sent.timestamps.is_some(), "timestamps are in use");
    assert_eq!(sent.ecn, Ecn::NotEct, "ECN is not in use");
}

/// Passes a segment to the TCP engine and ends the batch, so that the engine sends an ACK.
#[unsafe(no_mangle)]
#[inline(never)]
fn tidelane_micro_receive(one: &mut OneFlow, segment: &Segment<'_>) {
    one.receive(segment);
}

/// Tells the TCP engine that the program has written bytes, so that the engine sends a segment.
#[unsafe(no_mangle)]
#[inline(never)]
fn tidelane_micro_send(one: &mut OneFlow) {
    one.send();
}

/// Runs the load `receive`. Each turn delivers an in-order segment with 64 bytes to the engine. The
/// engine acknowledges the segment at the end of the batch.
pub fn receive(load: Load) -> Tally {
    let options = SocketOptions {
        quickack: true,
        ..SocketOptions::default()
    };
    let mut one = OneFlow::new(options);
    let mut tally = Tally::default();
    let len = PAYLOAD.len() as u32;
    for turn in 0..load.warmup + load.count {
        one.next_turn();
        let (sent, placed) = (one.driver.sent, one.driver.placed);
        let segment = one.data();
        if turn < load.warmup {
            one.receive(&segment);
        } else {
            let before = allocations_unsafe::count();
            tidelane_micro_receive(&mut one, &segment);
            tally.allocations += allocations_unsafe::count() - before;
            tally.count += 1;
        }
        assert_eq!(one.driver.placed - placed, u64::from(len), "all delivered");
        assert_eq!(one.driver.sent - sent, 1, "one acknowledgment");
        one.seq = one.seq.add(len);
        let out = one.driver.last.expect("an acknowledgment");
        check(&out);
        assert_eq!((out.ack, out.payload), (one.seq, None), "a pure ACK");
        one.position = one.position.wrapping_add(len);
        let read = one.engine.rx_advance(one.flow, one.position);
        assert!(read.is_ok());
    }
    tally
}

/// Runs the load `send`. In each turn, the program writes 64 bytes, the engine sends the bytes
/// immediately, and the peer acknowledges the bytes. Only the send is counted.
pub fn send(load: Load) -> Tally {
    let options = SocketOptions {
        nodelay: true,
        ..SocketOptions::default()
    };
    let mut one = OneFlow::new(options);
    let mut tally = Tally::default();
    let len = PAYLOAD.len() as u32;
    for turn in 0..load.warmup + load.count {
        one.next_turn();
        one.position = one.position.wrapping_add(len);
        let sent = one.driver.sent;
        if turn < load.warmup {
            one.send();
        } else {
            let before = allocations_unsafe::count();
            tidelane_micro_send(&mut one);
            tally.allocations += allocations_unsafe::count() - before;
            tally.count += 1;
        }
        assert_eq!(one.driver.sent - sent, 1, "one segment");
        let out = one.driver.last.expect("a segment");
        check(&out);
        assert_eq!(out.payload, Some((one.position.wrapping_sub(len), len)));
        one.ack = out.seq.add(len);
        one.pass(TcpFlags::ACK, &[]);
    }
    tally
}
