//! Ten thousand connections of one direct context in virtual time. A direct context (`app/direct`)
//! runs TCP in the program's calls and exchanges payload in buffers. Three of the connections do
//! not delay the others: one to a peer that does not read, one that the program does not read, and
//! one on a path that loses frames.
//!
//! ```text
//!  crowd: 9,997 connections ──┐
//!  blocked: reads nothing ────┼── switch, constant delay ── server: echo, one context
//!  stalled: is not read ──────┤
//!  lossy: loses 3 of 10 ──────┘
//! ```

use std::{cell::Cell, collections::HashMap, collections::VecDeque, io, net::SocketAddr, rc::Rc};

use tidelane_direct::{DirectContext, DirectOptions, TimeSource};
use tidelane_engine::{Duration, Instant, IpAddress};
use tidelane_mem_nic::{Clock, Nic, NicConfig, WireEnd};
use tidelane_netem::Rng;
use tidelane_rings::{
    Buffer, Context, Descriptor, Events, ListenOptions, ReadyList, SendRefusal, Wait,
};
use tidelane_wire::MacAddress;

/// Number of connections of all peers.
const CONNECTIONS: usize = 10_000;
/// Interval at which each context calls `sync` once.
const TICK: Duration = Duration::from_micros(100);
/// Ticks from the transmission of a frame to its arrival.
const DELAY: u64 = 5;
/// Number of requests that the crowd sends in one tick.
const REQUESTS: usize = 5;
/// Number of requests on each connection of the crowd.
const ROUNDS: usize = 2;
/// Number of data buffers of each context.
const BUFFERS: u32 = 4096;
/// Limit of the number of buffers that wait for sending on one descriptor.
const SEND_QUEUE_MAX: usize = 256;
/// Bytes of each bulk transfer: one from the server to the peer that does not read, and one each
/// from the stalled and the lossy peer to the server.
const BULK: usize = 900_000;
const PORT: u16 = 80;

// Indices of the hosts. The last byte of a host's MAC address is the host's index.
const SERVER: usize = 0;
const CROWD: usize = 1;
const BLOCKED: usize = 2;
const STALLED: usize = 3;
const LOSSY: usize = 4;

struct Time(Clock);

impl TimeSource<Nic> for Time {
    fn now(&self) -> Instant {
        self.0.get()
    }

    fn wait(&mut self, _: &mut Nic, _: Option<std::time::Duration>) -> io::Result<()> {
        panic!("no context waits");
    }
}

fn mac(host: usize) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, host as u8])
}

fn ip(host: usize) -> [u8; 4] {
    [10, 0, 0, host as u8 + 1]
}

/// A host: a context, the far end of its NIC in memory, and its ready list (the descriptors with
/// data or events).
struct Host {
    context: DirectContext<Nic>,
    wire: WireEnd,
    list: ReadyList,
    /// Number of free buffers at the start.
    buffers: u32,
}

impl Host {
    fn new(index: usize, hosts: usize, clock: &Clock) -> Self {
        let config = NicConfig {
            rx_frames: 1024,
            tx_frames: 1024,
            user_frames: BUFFERS,
            ..NicConfig::default()
        };
        let (nic, wire) = Nic::new(config, clock);
        let mut options = DirectOptions::new(IpAddress::from_v4(ip(index)), [index as u8; 16]);
        options.stack.mac = mac(index);
        options.send_queue_max = SEND_QUEUE_MAX;
        options.mtu = 1500;
        let opened = DirectContext::open(&options, nic, Time(Rc::clone(clock)));
        let mut context = opened.expect("possible options");
        for host in 0..hosts {
            context.set_neighbour(IpAddress::from_v4(ip(host)), mac(host));
        }
        Self {
            buffers: context.pool().free_count(),
            context,
            wire,
            list: ReadyList::new(),
        }
    }

    fn sync(&mut self) {
        let synced = self.context.sync(&mut self.list, Wait::No);
        synced.expect("a back end");
    }

    fn connect(&mut self) -> Descriptor {
        let to: SocketAddr = (ip(SERVER), PORT).into();
        self.context.connect(to).expect("a free port")
    }

    /// Sends up to `len` bytes, as far as there is room. Returns the number of sent bytes.
    fn fill(&mut self, descriptor: Descriptor, len: usize) -> usize {
        let mut sent = 0;
        while sent < len {
            let mut buffer = self.context.pool().allocate().expect("free");
            let count = buffer.append(&vec![7; (len - sent).min(1400)]);
            if self.context.send(descriptor, buffer).is_err() {
                break;
            }
            sent += count;
        }
        sent
    }

    fn in_use(&self) -> u32 {
        self.buffers - self.context.pool().free_count()
    }
}

/// The server's program, which sends received buffers back. The first byte of a buffer can select
/// another behaviour: `B` requests bulk data, and `S` makes the server pause the connection.
#[derive(Default)]
struct Server {
    /// Received buffers that the server has yet to send back, by connection.
    kept: HashMap<Descriptor, VecDeque<Buffer>>,
    /// Connections whose peer gets bulk data, with the number of bytes to send.
    bulk: HashMap<Descriptor, usize>,
    /// Largest number of the server's buffers that were in use after a call of `serve`.
    peak: u32,
    /// Number of accepted connections.
    accepted: usize,
}

impl Server {
    fn serve(&mut self, host: &mut Host) {
        for at in 0..host.list.len() {
            let entry = host.list.entry(at);
            let descriptor = entry.descriptor;
            self.accepted += usize::from(entry.events.intersects(Events::ACCEPTED));
            while let Some(buffer) = host.list.take_next(at) {
                match buffer.payload()[0] {
                    b'B' => {
                        self.bulk.insert(descriptor, BULK);
                    }
                    b'S' => host.context.pause(descriptor),
                    _ => self.kept.entry(descriptor).or_default().push_back(buffer),
                }
            }
            if let Some(kept) = self.kept.get_mut(&descriptor) {
                while let Some(buffer) = kept.pop_front() {
                    let Err(error) = host.context.send(descriptor, buffer) else {
                        continue;
                    };
                    assert_eq!(error.refusal, SendRefusal::Full);
                    kept.push_front(error.buffer);
                    break;
                }
                match kept.is_empty() {
                    true => host.context.resume(descriptor).expect("a back end"),
                    false => host.context.pause(descriptor),
                }
            }
            if let Some(left) = self.bulk.get_mut(&descriptor) {
                *left -= host.fill(descriptor, *left);
            }
        }
        self.peak = self.peak.max(host.in_use());
    }
}

/// All hosts of a run, the server's program, and the frames on the way.
struct Net {
    clock: Clock,
    tick: u64,
    hosts: Vec<Host>,
    server: Server,
    /// Frames on the way, each with the tick of its arrival.
    frames: VecDeque<(u64, Vec<u8>)>,
    rng: Rng,
    /// Number of lost frames from and to the lossy peer.
    lost: u64,
    /// Number of bytes that the lossy peer has got back.
    lossy_got: usize,
}

impl Net {
    fn new(hosts: usize) -> Self {
        let clock: Clock = Rc::new(Cell::new(Instant::from_secs(1)));
        let all = 0..hosts;
        let mut net = Self {
            hosts: all.map(|index| Host::new(index, hosts, &clock)).collect(),
            clock,
            tick: 0,
            server: Server::default(),
            frames: VecDeque::new(),
            rng: Rng::new(1),
            lost: 0,
            lossy_got: 0,
        };
        let at = (ip(SERVER), PORT).into();
        let listened = net.hosts[SERVER]
            .context
            .listen(at, &ListenOptions::default());
        listened.expect("a free port");
        net
    }

    /// Delivers the frames that are due, runs each context once, and takes the sent frames.
    fn step(&mut self) {
        self.tick += 1;
        self.clock.set(self.clock.get() + TICK);
        while let Some((_, frame)) = self.frames.pop_front_if(|(at, _)| *at <= self.tick) {
            let host = usize::from(frame[5]);
            assert!(self.hosts[host].wire.deliver(&frame), "room at host {host}");
        }
        for index in 0..self.hosts.len() {
            self.hosts[index].sync();
            match index {
                SERVER => self.server.serve(&mut self.hosts[SERVER]),
                LOSSY => {
                    let list = &self.hosts[LOSSY].list;
                    let entries = (0..list.len()).map(|at| list.entry(at).bytes as usize);
                    self.lossy_got += entries.sum::<usize>();
                }
                _ => {}
            }
        }
        for host in &self.hosts {
            for frame in host.wire.take_sent() {
                let is_lossy = [frame[5], frame[11]].contains(&(LOSSY as u8));
                if is_lossy && self.rng.chance_ppm(300_000) {
                    self.lost += 1;
                    continue;
                }
                self.frames.push_back((self.tick + DELAY, frame));
            }
        }
    }

    /// Opens `count` connections of the crowd.
    fn open_crowd(&mut self, count: usize) -> Vec<Descriptor> {
        let mut crowd = Vec::new();
        while crowd.len() < count {
            let batch = (count - crowd.len()).min(50);
            crowd.extend((0..batch).map(|_| self.hosts[CROWD].connect()));
            self.step();
        }
        for _ in 0..200 {
            self.step();
        }
        assert_eq!(self.server.accepted, count);
        crowd
    }

    /// Opens the disturbers: the three connections that could delay the others.
    fn open_disturbers(&mut self) {
        for (index, first) in [(BLOCKED, b"B"), (STALLED, b"S"), (LOSSY, b"E")] {
            let host = &mut self.hosts[index];
            let descriptor = host.connect();
            let mut buffer = host.context.pool().allocate().expect("free");
            buffer.append(first);
            host.context.send(descriptor, buffer).expect("room");
            if index == BLOCKED {
                host.context.pause(descriptor);
            }
        }
    }
}

/// Returns the request of the crowd's connection `at` in a round.
fn request(at: usize, round: usize) -> Vec<u8> {
    let mut text = format!("request {round} of {at}").into_bytes();
    text.resize(64, b'.');
    text
}

/// Runs the crowd, with or without disturbers. Returns the latency in ticks of each request, in the
/// order of the requests, and the state at the end of the run.
fn run(has_disturbers: bool) -> (Vec<u64>, Net) {
    let mut net = Net::new(if has_disturbers { 5 } else { 2 });
    let crowd = net.open_crowd(CONNECTIONS - 3);
    let places: HashMap<Descriptor, usize> = crowd.iter().copied().zip(0..).collect();
    if has_disturbers {
        net.open_disturbers();
        for _ in 0..20 {
            net.step();
        }
    }
    let (mut sent, mut left) = ([BULK; 2], crowd.len() * ROUNDS);
    let mut latencies = vec![0; left];
    let mut next = 0;
    while left > 0 {
        for _ in 0..REQUESTS.min(crowd.len() * ROUNDS - next) {
            let (at, round) = (next % crowd.len(), next / crowd.len());
            let host = &mut net.hosts[CROWD];
            let mut buffer = host.context.pool().allocate().expect("free");
            buffer.append(&request(at, round));
            host.context.send(crowd[at], buffer).expect("room");
            latencies[next] = net.tick;
            next += 1;
        }
        if has_disturbers {
            for (left, index) in sent.iter_mut().zip([STALLED, LOSSY]) {
                // Each of these hosts has one connection, whose descriptor is 0.
                *left -= net.hosts[index].fill(Descriptor(0), *left);
            }
        }
        net.step();
        let list = &mut net.hosts[CROWD].list;
        for entry in 0..list.len() {
            let at = places[&list.entry(entry).descriptor];
            let answer = list.take_next(entry).expect("an answer");
            let round = usize::from(answer.payload()[8] - b'0');
            assert_eq!(answer.payload(), request(at, round));
            let number = round * crowd.len() + at;
            latencies[number] = net.tick - latencies[number];
            left -= 1;
        }
        assert!(net.tick < 20_000, "{left} requests have no answer");
    }
    (latencies, net)
}

#[test]
fn ten_thousand_connections_do_not_wait_for_three_others() {
    let (alone, quiet) = run(false);
    let (beside, net) = run(true);
    assert_eq!(alone.len(), (CONNECTIONS - 3) * ROUNDS);
    // A request takes the delays of both directions, and at most two ticks of processing.
    assert!(alone.iter().all(|ticks| *ticks <= 2 * DELAY + 2));
    assert!(
        alone == beside,
        "the disturbers change the latencies of the crowd"
    );

    // All connections exist, frames were lost, and the lossy and the blocked connection still have
    // data to transfer.
    assert_eq!(net.server.accepted, CONNECTIONS);
    assert!(net.lost > 30, "{} frames lost", net.lost);
    assert!((1..BULK).contains(&net.lossy_got), "{}", net.lossy_got);
    let queued = net.server.bulk.values().next().expect("a blocked peer");
    assert!(*queued > 0, "the blocked peer has all data");

    // Each of the three connections holds at most `SEND_QUEUE_MAX` buffers to send, and the same
    // number of buffers with received data.
    let bound = quiet.server.peak + 3 * 2 * SEND_QUEUE_MAX as u32;
    let peak = net.server.peak;
    assert!(peak <= bound, "{peak} buffers, {} alone", quiet.server.peak);
    assert!(peak > quiet.server.peak + SEND_QUEUE_MAX as u32, "{peak}");
}
