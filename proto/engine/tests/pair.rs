//! Tests with two TCP engines, a link between them, and virtual time. All bytes must arrive intact
//! in spite of loss, reordering and duplication, and both engines must be empty at the end.

use std::collections::{BinaryHeap, HashMap};

use tidelane_engine::{
    Arrival, Driver, Duration, Ecn, Endpoint, Engine, EngineConfig, Event, FlowId, FlowKey,
    FlowRoute, Instant, IpChange, LinkId, NewFlow, SegmentOut, SocketOptions, TcpFlags, TxFull,
};

const LINK: LinkId = LinkId(1);
/// Size of a flow's receive buffer in bytes.
const BUFFER: usize = 8 << 20;

/// A random number generator: xorshift64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns true with a probability of `ppm` millionths.
    fn chance(&mut self, ppm: u64) -> bool {
        self.next() % 1_000_000 < ppm
    }
}

/// A driver: the program that runs one engine. This driver holds the data of the application, and
/// the segments that the engine has sent.
#[derive(Default)]
struct Side {
    /// Largest payload in bytes of a burst (a large segment that the link splits); zero if the link
    /// does not split bursts.
    burst_len: u32,
    /// Segments that the engine has sent and that are not yet on the link, each with its payload.
    out: Vec<(SegmentOut, Vec<u8>)>,
    /// Bytes that the application has written, per flow.
    tx: HashMap<FlowId, Vec<u8>>,
    /// Receive buffers, per flow.
    rx: HashMap<FlowId, Vec<u8>>,
    events: Vec<(FlowId, Event)>,
}

impl Driver for Side {
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        let payload = match out.flow() {
            Some(flow) if out.payload_len > 0 => {
                let start = out.payload_pos as usize;
                self.tx[&flow][start..start + out.payload_len as usize].to_vec()
            }
            _ => Vec::new(),
        };
        let size = usize::from(out.segment_size).max(1);
        if payload.len() <= size {
            self.out.push((*out, payload));
            return Ok(());
        }
        assert!(out.payload_len <= self.burst_len);
        for (number, piece) in payload.chunks(size).enumerate() {
            self.out
                .push((cut(out, number * size, piece), piece.to_vec()));
        }
        Ok(())
    }

    fn burst_len(&self, _: FlowId, _: u32) -> u32 {
        self.burst_len
    }

    fn place(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        let buffer = self.rx.entry(flow).or_insert_with(|| vec![0; BUFFER]);
        buffer[pos as usize..pos as usize + payload.len()].copy_from_slice(payload);
        true
    }

    fn event(&mut self, flow: FlowId, event: Event) {
        self.events.push((flow, event));
    }

    fn route(&mut self, _: &FlowKey, link: LinkId) -> FlowRoute {
        FlowRoute { link, mtu: 1500 }
    }

    fn created(&mut self, _flow: FlowId, _new: &NewFlow) {}

    fn set_ip(&mut self, _flow: FlowId, _change: IpChange) {}
}

/// Returns the segment that the link makes from `piece`, the bytes of the burst `out` from offset
/// `at`.
fn cut(out: &SegmentOut, at: usize, piece: &[u8]) -> SegmentOut {
    let last = at + piece.len() == out.payload_len as usize;
    let flags = if last { out.flags } else { TcpFlags::ACK };
    SegmentOut {
        seq: out.seq.add(at as u32),
        payload_len: piece.len() as u32,
        flags,
        ..*out
    }
}

/// A link and the transfer over it. `loss`, `reorder` and `duplicate` are probabilities per
/// segment, in millionths.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    /// Largest payload in bytes of a burst; zero if the link does not split bursts.
    burst_len: u32,
    loss: u64,
    reorder: u64,
    duplicate: u64,
    /// Number of bytes that each side sends.
    bytes: [usize; 2],
    seed: u64,
    /// Index of the side that closes its sending direction first.
    first_to_close: usize,
}

/// Both engines with their drivers, and the segments on the link.
struct World {
    now: Instant,
    engines: [Engine; 2],
    sides: [Side; 2],
    /// The segments on the link in order of arrival: arrival time in ns, serial number, and index
    /// of the receiving side.
    wire: BinaryHeap<std::cmp::Reverse<(u64, u64, usize)>>,
    /// The segments on the link and their payloads, by serial number.
    frames: HashMap<u64, (SegmentOut, Vec<u8>)>,
    /// The highest serial number so far.
    serial: u64,
    rng: Rng,
    scenario: Scenario,
    /// Time at which a side most recently closed its socket.
    closed_at: Instant,
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let side = || Side {
            burst_len: scenario.burst_len,
            ..Side::default()
        };
        let config = EngineConfig {
            tx_limit: 8 << 20,
            ..EngineConfig::default()
        };
        Self {
            now: Instant(1_000_000_000),
            engines: [
                Engine::new(config.clone(), [1; 16]),
                Engine::new(config, [2; 16]),
            ],
            sides: [side(), side()],
            wire: BinaryHeap::new(),
            frames: HashMap::new(),
            serial: 0,
            rng: Rng(scenario.seed | 1),
            scenario,
            closed_at: Instant(0),
        }
    }

    /// Moves the sent segments of both sides to the link, which may lose, duplicate or delay a
    /// segment.
    fn ship(&mut self) {
        for side in 0..2 {
            for (out, payload) in std::mem::take(&mut self.sides[side].out) {
                if self.rng.chance(self.scenario.loss) {
                    continue;
                }
                let copies = 1 + usize::from(self.rng.chance(self.scenario.duplicate));
                for _ in 0..copies {
                    let late = self.rng.chance(self.scenario.reorder);
                    let delay = 100_000 + if late { 1_000_000 } else { 0 };
                    self.serial += 1;
                    self.frames.insert(self.serial, (out, payload.clone()));
                    self.wire.push(std::cmp::Reverse((
                        self.now.0 + delay,
                        self.serial,
                        1 - side,
                    )));
                }
            }
        }
    }

    /// Ends the batch (the segments and requests since the previous turn) of both engines. Then
    /// advances virtual time to the next arrival or timer, and lets the engines handle the arrivals
    /// and timers. Returns false if there is neither an arrival nor a timer.
    fn turn(&mut self) -> bool {
        for side in 0..2 {
            self.engines[side].batch_end(self.now, &mut self.sides[side]);
        }
        self.ship();
        let arrival = self.wire.peek().map(|next| next.0.0);
        let timers = self
            .engines
            .iter()
            .filter_map(Engine::next_timeout)
            .map(|at| at.0)
            .min();
        let Some(next) = [arrival, timers].into_iter().flatten().min() else {
            return false;
        };
        self.now = Instant(next.max(self.now.0));
        for side in 0..2 {
            self.engines[side].advance_time(self.now, &mut self.sides[side]);
        }
        while self.wire.peek().is_some_and(|next| next.0.0 <= self.now.0) {
            let Some(std::cmp::Reverse((_, serial, side))) = self.wire.pop() else {
                break;
            };
            let Some((out, payload)) = self.frames.remove(&serial) else {
                continue;
            };
            let segment = out.segment(&payload);
            let arrival = Arrival {
                key: out.key.reversed(),
                link: LINK,
                ecn: Ecn::NotEct,
            };
            let driver = &mut self.sides[side];
            self.engines[side].segment_arrives(self.now, &arrival, &segment, driver);
        }
        true
    }

    fn flow(&self, side: usize) -> Option<FlowId> {
        self.engines[side].flows().next()
    }
}

/// Returns the bytes that `side` sends.
fn pattern(side: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|n| (n * 31 + n / 251 + side * 7) as u8)
        .collect()
}

/// Opens a connection, sends the bytes of both sides, closes the connection, and checks the result.
/// Returns the time at the end, when the engines have no flows and no timers.
fn run(scenario: Scenario) -> Instant {
    let mut world = World::new(scenario);
    let server = Endpoint::v4([10, 0, 0, 1], 80);
    let client = Endpoint::v4([10, 0, 0, 2], 4242);
    let options = SocketOptions::default();
    let wildcard = Endpoint {
        port: 80,
        ..Endpoint::default()
    };
    world.engines[1].listen(wildcard, 16, options).unwrap();
    let route = FlowRoute {
        link: LINK,
        mtu: 1500,
    };
    let (now, driver) = (world.now, &mut world.sides[0]);
    world.engines[0]
        .open(now, client, server, route, options, driver)
        .unwrap();
    let sent = [pattern(0, scenario.bytes[0]), pattern(1, scenario.bytes[1])];
    let mut written = [false; 2];
    let mut shut = [false; 2];
    let mut closed = [false; 2];
    let mut got = [0usize; 2];
    for _ in 0..2_000_000 {
        if !world.turn() {
            break;
        }
        for side in 0..2 {
            let Some(flow) = world.flow(side) else {
                continue;
            };
            let state = world.engines[side].flow(flow).unwrap();
            let synced = state.state().is_synchronized();
            let head = state.rx_head();
            let (now, driver) = (world.now, &mut world.sides[side]);
            if synced && !written[side] {
                written[side] = true;
                driver.tx.insert(flow, sent[side].clone());
                let len = sent[side].len() as u32;
                world.engines[side].tx_advance(flow, len).unwrap();
            }
            if head as usize > got[side] {
                got[side] = head as usize;
                world.engines[side].rx_advance(flow, head).unwrap();
            }
            let finished = got[side] == sent[1 - side].len();
            let eof = world.sides[side]
                .events
                .iter()
                .any(|(_, e)| *e == Event::PeerClosed);
            let driver = &mut world.sides[side];
            let my_turn = side == scenario.first_to_close || eof;
            if written[side] && finished && !shut[side] && my_turn {
                shut[side] = true;
                world.engines[side].shutdown_write(flow);
            }
            if shut[side] && eof && !closed[side] {
                closed[side] = true;
                world.closed_at = world.now;
                world.engines[side].close(now, flow, driver);
            }
        }
    }
    check_ends(&world, &scenario, &sent, closed, got);
    world.now
}

/// Checks that both sides have closed, that all bytes have arrived, and that neither engine still
/// has a flow, a TIME-WAIT entry or a timer.
fn check_ends(
    world: &World,
    scenario: &Scenario,
    sent: &[Vec<u8>; 2],
    closed: [bool; 2],
    got: [usize; 2],
) {
    for side in 0..2 {
        assert!(
            closed[side],
            "side {side} never ended: {scenario:?}, got {got:?} at {:?}, {:?}",
            world.now,
            world
                .flow(side)
                .and_then(|flow| world.engines[side].info(flow))
        );
        let buffers: Vec<&Vec<u8>> = world.sides[side].rx.values().collect();
        let expected = &sent[1 - side];
        if !expected.is_empty() {
            assert!(
                buffers[0][..expected.len()] == expected[..],
                "bytes differ: {scenario:?}"
            );
        }
        assert_eq!(
            world.engines[side].flows().count(),
            0,
            "a flow remains: {scenario:?}"
        );
        assert_eq!(world.engines[side].time_wait_len(), 0);
        assert_eq!(
            world.engines[side].next_timeout(),
            None,
            "a timer remains: {scenario:?}"
        );
    }
    let c = world.engines[0].counters();
    if std::env::var("VERBOSE").is_ok() {
        eprintln!(
            "{scenario:?} {}: fast {} slow {} retrans {} timeouts {} fastrec {} probes {} \
             lostretx {}",
            world.closed_at - Instant(1_000_000_000),
            c.fast_receives,
            c.slow_receives,
            c.retrans_segs,
            c.timeouts,
            c.fast_retrans,
            c.loss_probes,
            c.lost_retransmit
        );
    }
}

/// In addition to the checks of [`run`], the test checks only the time. TIME-WAIT takes 60 s, so
/// the rest of the connection takes less than 2 s.
#[test]
fn a_clean_link_carries_both_ways_without_retransmissions() {
    let scenario = Scenario {
        burst_len: 0,
        loss: 0,
        reorder: 0,
        duplicate: 0,
        bytes: [1 << 20, 1 << 20],
        seed: 1,
        first_to_close: 0,
    };
    let end = run(scenario);
    let spent = end - Instant(1_000_000_000);
    assert!(spent < Duration::from_secs(62), "{spent:?}");
}

#[test]
fn every_order_of_closing_ends_empty_on_bad_links() {
    for seed in 1..400u64 {
        let mut rng = Rng(seed * 0x9e37_79b9);
        for _ in 0..8 {
            rng.next();
        }
        run(Scenario {
            burst_len: [0, 10_000, 65_000][(seed % 3) as usize],
            loss: [0, 1000, 20_000, 100_000][(rng.next() % 4) as usize],
            reorder: [0, 20_000, 200_000][(rng.next() % 3) as usize],
            duplicate: [0, 50_000][(rng.next() % 2) as usize],
            bytes: [
                (rng.next() % 300_000) as usize,
                (rng.next() % 300_000) as usize,
            ],
            seed,
            first_to_close: (rng.next() % 2) as usize,
        });
    }
}

#[test]
fn bulk_through_loss_and_reordering() {
    for seed in 1..4 {
        run(Scenario {
            burst_len: [0, 65_000][(seed % 2) as usize],
            loss: 50_000,
            reorder: 50_000,
            duplicate: 0,
            bytes: [4 << 20, 0],
            seed,
            first_to_close: 0,
        });
    }
}
