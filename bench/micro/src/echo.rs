//! The loads `port` and `local`: an echo server and its client exchange 64-byte requests and
//! replies. In the load `port`, the two programs are on two hosts. In the load `local`, the two
//! programs are on one host. A host is the TCP/IP stack of one polling thread of the Tidelane
//! service. The programs use the host through the client library.
//!
//! A turn of a load is one request on each connection. After the warm-up turns, the measured work
//! runs in the functions `tidelane_micro_*`, because callgrind counts the instructions only within
//! these functions.

use tidelane_abi::program_flags;
use tidelane_client::{ClientEvent, Connect, Context, Program, Stream};
use tidelane_engine::{Duration, Instant};
use tidelane_packet_io::{MemConfig, MemPort};
use tidelane_wire::Endpoint;

use crate::{
    Load, Tally, allocations_unsafe,
    rig::{Machine, address},
};

/// Length of a request, and of a reply, in bytes.
const LEN: usize = 64;
/// TCP port of the echo server.
const PORT: u16 = 7;
/// Virtual time of each advance of the clock.
const STEP: Duration = Duration::from_micros(5);
/// Number of steps of each host before the first turn. All connections must be established after
/// these steps.
const SETUP_STEPS_MAX: u32 = 2_000;

/// A program that uses the client library: the echo server or its client.
pub struct EchoProgram {
    program: Program,
    context: Context,
    /// Connections, indexed by the number of the connection's slot (its record in shared memory).
    streams: Vec<Option<Stream>>,
    /// Events of the current wake-up, kept here so that their memory is reused.
    events: Vec<ClientEvent>,
    /// Bytes read on all connections.
    read: u64,
    /// True for the server, which writes back the bytes that it reads.
    answers: bool,
}

impl EchoProgram {
    fn new((program, context): (Program, Context), answers: bool) -> Self {
        Self {
            program,
            context,
            streams: Vec::new(),
            events: Vec::with_capacity(1024),
            read: 0,
            answers,
        }
    }

    /// Handles one wake-up of the program: polls events, reads, writes, and publishes the library's
    /// requests to the service.
    pub fn handle_wakeup(&mut self) {
        let events = &mut self.events;
        self.context.poll(&mut |event| events.push(event));
        for at in 0..self.events.len() {
            match self.events[at] {
                ClientEvent::Ready { slot } => self.ready(slot),
                other => self.arrived(other),
            }
        }
        self.events.clear();
        self.context.flush();
    }

    /// Reads from a ready connection. The server writes the bytes back.
    fn ready(&mut self, slot: u32) {
        let Some(Some(stream)) = self.streams.get_mut(slot as usize) else {
            return;
        };
        let mut bytes = [0; LEN];
        let got = stream.read(&mut bytes);
        self.read += got as u64;
        if self.answers && got > 0 {
            let taken = stream.write(&bytes[..got]);
            assert_eq!(taken, got);
        }
        self.context.submit(stream);
    }

    /// Adds the stream of a new connection.
    #[cold]
    fn arrived(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::ConnectStarted {
                slot, generation, ..
            }
            | ClientEvent::Accepted {
                slot, generation, ..
            } => {
                let nodelay = program_flags::NODELAY;
                let stream = self.program.stream(slot, generation, nodelay);
                if self.streams.len() <= slot as usize {
                    self.streams.resize_with(slot as usize + 1, || None);
                }
                self.streams[slot as usize] = stream;
            }
            other => panic!("unexpected: {other:?}"),
        }
    }

    /// Writes one request on each connection.
    pub fn write_requests(&mut self) {
        for stream in self.streams.iter_mut().flatten() {
            assert_eq!(stream.write(&[0x77; LEN]), LEN);
            self.context.submit(stream);
        }
        self.context.flush();
    }

    /// Returns the number of established connections.
    fn established(&self) -> usize {
        let open = |stream: &&Stream| stream.established();
        self.streams.iter().flatten().filter(open).count()
    }

    /// Starts `count` connections to `to`.
    fn connect(&mut self, to: Endpoint, count: u32) {
        for cookie in 0..count {
            let request = Connect {
                cookie: u64::from(cookie),
                peer_addr: to.addr.0,
                peer_port: to.port,
                ..Connect::default()
            };
            self.context.connect(&request).expect("the ring has room");
        }
        self.context.flush();
    }
}

/// Runs one step of a host, the TCP/IP stack of one polling thread of the Tidelane service.
#[unsafe(no_mangle)]
#[inline(never)]
fn tidelane_micro_service(machine: &mut Machine, now: Instant) {
    machine.host.step(now);
}

/// Handles one wake-up of a program with the client library.
#[unsafe(no_mangle)]
#[inline(never)]
fn tidelane_micro_library(program: &mut EchoProgram) {
    program.handle_wakeup();
}

/// Writes one request of the client on each connection.
#[unsafe(no_mangle)]
#[inline(never)]
fn tidelane_micro_write_requests(program: &mut EchoProgram) {
    program.write_requests();
}

/// The virtual clock and the counters of a load.
struct Meter {
    now: Instant,
    /// True in the turns after the warm-up turns.
    counting: bool,
    tally: Tally,
}

impl Meter {
    /// Runs one step of a host. After the warm-up, counts the instructions and allocations of the
    /// step, and does not answer the requests that the host sends to the control plane.
    fn service(&mut self, machine: &mut Machine) {
        self.now += STEP;
        if self.counting {
            let before = allocations_unsafe::count();
            tidelane_micro_service(machine, self.now);
            self.tally.allocations += allocations_unsafe::count() - before;
        } else {
            machine.step(self.now);
        }
    }

    /// Handles one wake-up of a program. After the warm-up, counts the instructions and allocations
    /// of the wake-up.
    fn library(&mut self, program: &mut EchoProgram) {
        if self.counting {
            let before = allocations_unsafe::count();
            tidelane_micro_library(program);
            self.tally.allocations += allocations_unsafe::count() - before;
        } else {
            program.handle_wakeup();
        }
    }
}

/// Runs the load `port`: the two programs are on two hosts, whose NICs are the two ends of a link
/// in memory. Counts the instructions of the server program and of the server's host.
pub fn two_hosts(load: Load) -> Tally {
    let (near, far) = MemPort::pair(MemConfig::default());
    let mut here = Machine::new(1, near);
    let mut there = Machine::new(2, far);
    let at = Endpoint::new(address(1), PORT);
    let mut server = EchoProgram::new(here.program(Some(at)), true);
    let mut client = EchoProgram::new(there.program(None), false);
    let mut meter = new_meter();
    client.connect(at, load.connections);
    for _ in 0..SETUP_STEPS_MAX {
        meter.now += STEP;
        here.step(meter.now);
        there.step(meter.now);
        server.handle_wakeup();
        client.handle_wakeup();
    }
    let connections = load.connections as usize;
    assert_eq!(
        (server.established(), client.established()),
        (connections, connections)
    );
    for turn in 0..load.warmup + load.count {
        meter.counting = turn >= load.warmup;
        let expected = client.read + (LEN * connections) as u64;
        client.write_requests();
        there.step(meter.now);
        meter.service(&mut here);
        meter.library(&mut server);
        meter.service(&mut here);
        meter.now += STEP;
        there.step(meter.now);
        client.handle_wakeup();
        assert_eq!(client.read, expected, "every request has its reply");
    }
    meter.finish(load)
}

/// Runs the load `local`: the two programs are on one host. The host's local path carries the
/// segments between the two programs in memory, without frames. Counts the instructions of the host
/// and of the two programs.
pub fn one_host(load: Load) -> Tally {
    let mut here = Machine::new(1, MemPort::loopback(MemConfig::default()));
    let at = Endpoint::new(address(1), PORT);
    let mut server = EchoProgram::new(here.program(Some(at)), true);
    let mut client = EchoProgram::new(here.program(None), false);
    let mut meter = new_meter();
    client.connect(at, load.connections);
    for _ in 0..SETUP_STEPS_MAX {
        meter.now += STEP;
        here.step(meter.now);
        server.handle_wakeup();
        client.handle_wakeup();
    }
    let connections = load.connections as usize;
    assert_eq!(
        (server.established(), client.established()),
        (connections, connections)
    );
    for turn in 0..load.warmup + load.count {
        meter.counting = turn >= load.warmup;
        let expected = client.read + (LEN * connections) as u64;
        meter.write_requests(&mut client);
        // Each direction takes two steps of the host. The first step sends the bytes, and the
        // second step delivers the bytes.
        meter.service(&mut here);
        meter.service(&mut here);
        meter.library(&mut server);
        meter.service(&mut here);
        meter.service(&mut here);
        meter.library(&mut client);
        assert_eq!(client.read, expected, "every request has its reply");
    }
    meter.finish(load)
}

fn new_meter() -> Meter {
    Meter {
        now: Instant::from_secs(100),
        counting: false,
        tally: Tally::default(),
    }
}

impl Meter {
    /// Writes the requests of a turn. After the warm-up, counts the instructions and allocations of
    /// the writes.
    fn write_requests(&mut self, client: &mut EchoProgram) {
        if self.counting {
            let before = allocations_unsafe::count();
            tidelane_micro_write_requests(client);
            self.tally.allocations += allocations_unsafe::count() - before;
        } else {
            client.write_requests();
        }
    }

    /// Sets `tally.count` to the number of requests of the counted turns, and returns the tally.
    fn finish(mut self, load: Load) -> Tally {
        self.tally.count = u64::from(load.count) * u64::from(load.connections);
        self.tally
    }
}
