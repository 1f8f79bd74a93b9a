//! The fuzz target of the engine (Tidelane's TCP): sequences of segments that arrive at a live
//! connection, and calls of the connection's program between these segments.
//!
//! Two engines communicate. The input decides when each engine's program sends, reads or closes,
//! and when time passes. The input also decides which packets arrive, are lost or are duplicated,
//! and which segments a third party forges. Each engine sends and places payload through a
//! `tidelane_hostile::party::CheckingDriver`, which panics if the engine breaks an invariant. At
//! the end, all connections are aborted, and no state may remain.

use tidelane_engine::{
    Duration, Endpoint, EngineConfig, Event, FlowId, FlowKey, Instant, IpAddress, SeqNumber,
    SocketOptions, TcpFlags, TcpOptions,
};
use tidelane_hostile::{
    forge::Edges,
    party::{Packet, Party},
};
use tidelane_wire::{Segment, Timestamps};

use crate::bytes::Bytes;

/// Largest number of steps taken from one input.
const STEPS_MAX: u32 = 256;
/// Largest number of packets in flight to one receiver. Beyond this number, the oldest packet is
/// lost.
const IN_FLIGHT_MAX: usize = 64;
const PAYLOAD: [u8; 2048] = [0x5a; 2048];

fn endpoint(last: u8, port: u16) -> Endpoint {
    Endpoint::new(IpAddress::from_v4([10, 0, 0, last]), port)
}

/// Two engines and the packets between them.
struct Scene {
    now: Instant,
    /// The client's and the server's engine.
    parties: [Party; 2],
    /// Packets in flight, by receiver.
    in_flight: [Vec<Packet>; 2],
}

/// Fuzz target: runs the sequence that the input describes. The module's documentation has the
/// details.
pub fn segments(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let mut scene = Scene::new(&mut bytes);
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        scene.step(&mut bytes);
    }
    let now = scene.now;
    for party in &mut scene.parties {
        party.assert_empty(now);
    }
}

impl Scene {
    fn new(bytes: &mut Bytes<'_>) -> Self {
        let policy = bytes.u8();
        let window = 1 << (12 + u32::from(policy & 7));
        let config = EngineConfig {
            rx_window_max: window,
            rx_window_initial: window,
            tx_limit: 1 << 16,
            flows_max: 16,
            sack: policy & 8 == 0,
            timestamps: policy & 16 == 0,
            ..EngineConfig::default()
        };
        let secrets = [[1; 16], [2; 16]];
        let mut scene = Self {
            now: Instant::from_secs(1),
            parties: secrets.map(|secret| Party::new(config.clone(), secret)),
            in_flight: [Vec::new(), Vec::new()],
        };
        let [client, server] = &mut scene.parties;
        let listens = server
            .engine
            .listen(endpoint(2, 80), 8, SocketOptions::default());
        assert!(listens.is_ok(), "the port is free");
        let (local, peer) = (endpoint(1, 40_000), endpoint(2, 80));
        client.open(scene.now, local, peer, [None; 2]);
        scene.finish_step();
        if policy & 32 == 0 {
            // An input without this bit begins with an established connection.
            for _ in 0..4 {
                (0..2).for_each(|to| scene.deliver(to, 0));
            }
        }
        scene
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        let what = bytes.u8();
        let at = usize::from(what >> 7);
        match what & 0x0f {
            0..3 => self.deliver(at, bytes.u8()),
            3 => self.lose(at, bytes.u8()),
            4 => self.repeat(at, bytes.u8()),
            5 => self.wait(u64::from(bytes.u16())),
            6 => self.wait(1_000 * u64::from(bytes.u16())),
            7 => self.call(at, |party, _, flow| party.write(flow, 4000)),
            8 => self.call(at, |party, _, flow| party.read(flow, 1500)),
            9 => self.call(at, |party, now, flow| {
                party.close_or_abort(now, flow, false)
            }),
            10 => self.call(at, |party, now, flow| party.close_or_abort(now, flow, true)),
            11 => self.call(at, |party, _, flow| {
                party.engine.shutdown_write(flow);
            }),
            12 => self.parties[at].driver.refuse = u32::from(bytes.u8() & 7),
            _ => self.forge(at, bytes),
        }
        self.finish_step();
    }

    /// Runs the timers of both engines, ends their batches (the segments and calls that an engine
    /// handles before it sends), and puts the sent packets in flight.
    fn finish_step(&mut self) {
        for (from, party) in self.parties.iter_mut().enumerate() {
            party.end_batch(self.now);
            let queue = &mut self.in_flight[1 - from];
            queue.append(&mut party.driver.sent);
            let too_many = queue.len().saturating_sub(IN_FLIGHT_MAX);
            queue.drain(..too_many);
            for (flow, event) in std::mem::take(&mut party.driver.events) {
                // The number of a released flow may be reused.
                if event == Event::Released {
                    party.driver.bindings.remove(&flow);
                }
            }
        }
    }

    fn deliver(&mut self, to: usize, which: u8) {
        if let Some(packet) = self.take(to, which) {
            self.parties[to].receive_packet(self.now, &packet);
            self.finish_step();
        }
    }

    fn take(&mut self, to: usize, which: u8) -> Option<Packet> {
        let queue = &mut self.in_flight[to];
        (!queue.is_empty()).then(|| queue.remove(usize::from(which) % queue.len()))
    }

    fn lose(&mut self, to: usize, which: u8) {
        self.take(to, which);
    }

    fn repeat(&mut self, to: usize, which: u8) {
        if let Some(packet) = self.take(to, which) {
            self.in_flight[to].push(packet.clone());
            self.in_flight[to].push(packet);
        }
    }

    fn wait(&mut self, micros: u64) {
        self.now += Duration::from_micros(micros);
    }

    fn call(&mut self, at: usize, call: impl FnOnce(&mut Party, Instant, FlowId)) {
        let party = &mut self.parties[at];
        let flow = party.engine.flows().next();
        if let Some(flow) = flow {
            call(party, self.now, flow);
        }
    }

    /// Delivers a forged segment, with sequence and acknowledgment numbers that are close to valid
    /// numbers.
    fn forge(&mut self, to: usize, bytes: &mut Bytes<'_>) {
        let ports = [40_000, 80];
        let party = &mut self.parties[to];
        let flow = party.engine.flows().next();
        let state = flow.and_then(|flow| party.engine.flow(flow));
        let edges = state.map(Edges::of).unwrap_or_default();
        let near = |edges: &[SeqNumber; 4], bytes: &mut Bytes<'_>| {
            let (edge, off) = (bytes.u8(), bytes.u16());
            let off = i32::from(off as i16) as u32;
            edges[usize::from(edge & 3)].add(off)
        };
        let seq = near(&edges.seqs, bytes);
        let ack = near(&edges.acks, bytes);
        let (flags, extras) = (bytes.u8(), bytes.u8());
        let mut options = TcpOptions::NONE;
        if extras & 1 != 0 {
            let tsval = edges.ts_recent.wrapping_add(u32::from(bytes.u8()));
            let tsecr = bytes.u32();
            options.timestamps = Some(Timestamps { tsval, tsecr });
        }
        for _ in 0..extras >> 1 & 3 {
            let left = near(&edges.acks, bytes);
            options.sack.push(left, left.add(u32::from(bytes.u16())));
        }
        if extras & 8 != 0 {
            options.mss = Some(bytes.u16());
            options.wscale = Some(bytes.u8());
        }
        let segment = Segment {
            src_port: ports[1 - to],
            dst_port: ports[to],
            seq,
            ack,
            flags: TcpFlags(flags),
            wnd: bytes.u16(),
            urgent: 0,
            options,
            payload: &PAYLOAD[..usize::from(bytes.u16()) % PAYLOAD.len()],
        };
        let own = endpoint(1 + to as u8, ports[to]);
        let peer = endpoint(2 - to as u8, ports[1 - to]);
        party.receive(self.now, FlowKey::new(own, peer), &segment);
    }
}
