//! Two TCP engines with the same input: one with the fast path (the engine's code for the common
//! segments of established connections), and one that handles all segments on the slow path. The
//! test compares the output and the state of the engines after each batch: a group of segments and
//! requests that ends with a call of `batch_end`.

use tidelane_engine::{
    Arrival, Driver, Duration, Ecn, Endpoint, Engine, EngineConfig, Event, FlowId, FlowInfo,
    FlowKey, FlowRoute, Instant, IpChange, LinkId, NewFlow, Segment, SegmentOut, SeqNumber,
    SocketOptions, TcpFlags, TcpOptions, TxFull,
};

const LINK: LinkId = LinkId(1);
const START: Instant = Instant(1_000_000_000_000);

/// A segment of the peer. `seq` and `ack` are the numbers on the wire, not relative to the ISNs.
#[derive(Clone, Debug)]
pub struct PeerSegment {
    pub seq: SeqNumber,
    pub ack: SeqNumber,
    pub flags: TcpFlags,
    pub wnd: u16,
    pub options: TcpOptions,
    pub ecn: Ecn,
    pub payload: Vec<u8>,
}

/// A driver: the program that runs one engine. This driver records all output of its engine.
#[derive(Default)]
struct Side {
    out: Vec<SegmentOut>,
    events: Vec<(FlowId, Event)>,
    /// Payloads that the engine has stored, each with its stream position.
    placed: Vec<(u32, Vec<u8>)>,
    /// Number of free transmit frames.
    frames: u32,
    /// True if there is no memory for received data.
    full: bool,
    /// Largest payload in bytes of a burst (a large segment that the link splits); zero if the link
    /// does not split bursts.
    burst_len: u32,
}

impl Driver for Side {
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        self.frames = self.frames.checked_sub(1).ok_or(TxFull)?;
        self.out.push(*out);
        Ok(())
    }

    fn place(&mut self, _: FlowId, pos: u32, payload: &[u8]) -> bool {
        if !self.full {
            self.placed.push((pos, payload.to_vec()));
        }
        !self.full
    }

    fn event(&mut self, flow: FlowId, event: Event) {
        // An engine reports progress in both directions by one event or by two events. The fast
        // path and the slow path differ in this choice, so record one event per direction.
        let Event::Progress { readable, writable } = event else {
            return self.events.push((flow, event));
        };
        if readable {
            self.events.push((flow, Event::READABLE));
        }
        if writable {
            self.events.push((flow, Event::WRITABLE));
        }
    }

    fn burst_len(&self, _: FlowId, _: u32) -> u32 {
        self.burst_len
    }

    fn route(&mut self, _: &FlowKey, link: LinkId) -> FlowRoute {
        FlowRoute { link, mtu: 1500 }
    }

    fn created(&mut self, _flow: FlowId, _new: &NewFlow) {}

    fn set_ip(&mut self, _flow: FlowId, _change: IpChange) {}
}

/// Output that was the same in both engines.
#[derive(Debug, Default)]
pub struct Output {
    pub out: Vec<SegmentOut>,
    pub events: Vec<Event>,
    /// Payloads that the engines have stored, each with its stream position.
    pub placed: Vec<(u32, Vec<u8>)>,
}

/// Both engines with their drivers.
pub struct EnginePair {
    engines: [Engine; 2],
    sides: [Side; 2],
    pub now: Instant,
    key: FlowKey,
}

/// Returns the compared part of the state of a flow, as text.
fn summary(info: &FlowInfo) -> String {
    format!(
        "{} {:?} cwnd {} ssthresh {} srtt {:?} rttvar {:?} rto {:?} mss {} snd_wnd {} rcv_wnd {} \
         flight {} sacked {} lost {} unsent {} unread {} ooo {} retrans {} backoff {}",
        info.state,
        info.ca_state,
        info.cwnd,
        info.ssthresh,
        info.srtt,
        info.rttvar,
        info.rto,
        info.mss,
        info.snd_wnd,
        info.rcv_wnd,
        info.flight_size,
        info.sacked,
        info.lost,
        info.unsent,
        info.unread,
        info.ooo_ranges,
        info.retrans,
        info.backoff
    )
}

impl EnginePair {
    /// Creates both engines, each with one listener.
    pub fn new(config: &EngineConfig, options: SocketOptions, burst_len: u32) -> Self {
        let local = Endpoint::v4([10, 0, 0, 1], 80);
        let peer = Endpoint::v4([10, 0, 0, 2], 4242);
        let make = |fast_path| {
            let config = EngineConfig {
                fast_path,
                ..config.clone()
            };
            let mut engine = Engine::new(config, [7; 16]);
            engine.listen(local, 16, options).expect("a listener");
            engine
        };
        let side = || Side {
            burst_len,
            frames: u32::MAX,
            ..Side::default()
        };
        Self {
            engines: [make(true), make(false)],
            sides: [side(), side()],
            now: START,
            key: FlowKey { local, peer },
        }
    }

    /// Calls `act` for each engine with the engine, the present time and the engine's driver.
    fn both(&mut self, mut act: impl FnMut(&mut Engine, Instant, &mut Side)) {
        for (engine, side) in self.engines.iter_mut().zip(&mut self.sides) {
            act(engine, self.now, side);
        }
    }

    /// Returns the id of the flow, or `None` if there is no flow.
    pub fn flow(&self) -> Option<FlowId> {
        self.engines[0].flows().next()
    }

    /// Returns the state of the flow in the first engine.
    pub fn info(&self) -> Option<FlowInfo> {
        self.engines[0].info(self.flow()?)
    }

    /// Returns the number of segments that each engine's fast path handled.
    pub fn fast_receives(&self) -> [u64; 2] {
        [0, 1].map(|at: usize| self.engines[at].counters().fast_receives)
    }

    /// Passes a segment to both engines, within the present batch.
    pub fn arrive(&mut self, segment: &PeerSegment) {
        let key = self.key;
        let bits = Segment {
            src_port: key.peer.port,
            dst_port: key.local.port,
            seq: segment.seq,
            ack: segment.ack,
            flags: segment.flags,
            wnd: segment.wnd,
            urgent: 0,
            options: segment.options,
            payload: &segment.payload,
        };
        let arrival = Arrival {
            key,
            link: LINK,
            ecn: segment.ecn,
        };
        self.both(|engine, now, side| engine.segment_arrives(now, &arrival, &bits, side));
    }

    /// Ends the batch. Returns the common output of both engines, or the first difference between
    /// the engines.
    pub fn end(&mut self) -> Result<Output, String> {
        self.both(|engine, now, side| engine.batch_end(now, side));
        self.compare()
    }

    fn compare(&mut self) -> Result<Output, String> {
        let [fast, slow] = &mut self.sides;
        let [fast, slow] = [fast, slow].map(|side| {
            let mut events = std::mem::take(&mut side.events);
            // A driver may collect the events of a flow, so the order and the number of equal
            // events within a batch do not matter.
            events.sort_by_cached_key(|event| format!("{event:?}"));
            events.dedup();
            Output {
                out: std::mem::take(&mut side.out),
                events: events.into_iter().map(|(_, event)| event).collect(),
                placed: std::mem::take(&mut side.placed),
            }
        });
        if fast.out != slow.out {
            return Err(format!("sent {:#?}\nnot {:#?}", fast.out, slow.out));
        }
        if fast.events != slow.events {
            return Err(format!("events {:?} not {:?}", fast.events, slow.events));
        }
        if fast.placed != slow.placed {
            let spans = |output: &Output| -> Vec<(u32, usize)> {
                let spans = output
                    .placed
                    .iter()
                    .map(|(pos, payload)| (*pos, payload.len()));
                spans.collect()
            };
            return Err(format!("placed {:?} not {:?}", spans(&fast), spans(&slow)));
        }
        let state = |engine: &Engine| {
            let flows = engine.flows().filter_map(|flow| engine.info(flow));
            let flows: Vec<String> = flows.map(|info| summary(&info)).collect();
            (flows, engine.time_wait_len())
        };
        let (a, b) = (state(&self.engines[0]), state(&self.engines[1]));
        if a != b {
            return Err(format!("state\n  {a:?}\nnot\n  {b:?}"));
        }
        Ok(fast)
    }

    /// Advances the time by `span`. At each timeout of either engine, both engines handle their
    /// timers. Returns the common output, or the first difference between the engines.
    pub fn wait(&mut self, span: Duration) -> Result<Output, String> {
        let end = self.now + span;
        let mut all = Output::default();
        let mut turns = 0;
        loop {
            let timers = self.engines.iter().filter_map(Engine::next_timeout);
            let Some(at) = timers.min().filter(|at| *at <= end) else {
                break;
            };
            turns += 1;
            assert!(turns < 100_000, "timers never stop");
            self.now = self.now.max(at);
            self.both(|engine, now, side| engine.advance_time(now, side));
            let output = self.end()?;
            all.out.extend(output.out);
            all.events.extend(output.events);
            all.placed.extend(output.placed);
        }
        self.now = end;
        Ok(all)
    }

    /// Reports to both engines that the application has written up to stream position `head`.
    pub fn write(&mut self, head: u32) {
        if let Some(flow) = self.flow() {
            self.both(|engine, _, _| {
                let _ = engine.tx_advance(flow, head);
            });
        }
    }

    /// Reports to both engines that the application has read up to stream position `read`.
    pub fn read(&mut self, read: u32) {
        if let Some(flow) = self.flow() {
            self.both(|engine, _, _| {
                let _ = engine.rx_advance(flow, read);
            });
        }
    }

    /// Changes the socket options in both engines.
    pub fn set_options(&mut self, options: SocketOptions) {
        if let Some(flow) = self.flow() {
            self.both(|engine, now, side| engine.set_options(now, flow, options, side));
        }
    }

    /// Closes the sending direction in both engines.
    pub fn shut_down(&mut self) {
        if let Some(flow) = self.flow() {
            self.both(|engine, _, _| engine.shutdown_write(flow));
        }
    }

    /// Closes the socket in both engines.
    pub fn close(&mut self) {
        if let Some(flow) = self.flow() {
            self.both(|engine, now, side| engine.close(now, flow, side));
        }
    }

    /// Sets the number of free transmit frames.
    pub fn set_frames(&mut self, frames: u32) {
        self.both(|engine, _, side| {
            side.frames = frames;
            if frames > 0 {
                engine.resume_transmit();
            }
        });
    }

    /// Sets whether the drivers refuse received data because there is no memory.
    pub fn set_full(&mut self, full: bool) {
        self.both(|_, _, side| side.full = full);
    }
}
