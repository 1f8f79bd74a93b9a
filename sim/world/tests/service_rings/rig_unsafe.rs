//! Two hosts with a program each, and the wire between them.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use tidelane_client::{ListenerHandle, Program};
use tidelane_engine::{EngineConfig, LinkId};
use tidelane_host::{Bell, Host, HostRequest, Interface, Listen, ProgramId, Route, SocketState};
use tidelane_netem::Rng;
use tidelane_packet_io::{BURST_MAX, Burst, MemConfig, MemPort, PacketIo, TxChecksum};
use tidelane_ring::{Layout, ProgramRegion, PublishedRoute, ServicePageMap};
use tidelane_rings::{Cause, Context, Descriptor, Events, ReadyList, Wait};
use tidelane_service_rings::{ServiceContext, ServiceOptions, context_in_memory};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, IpAddress, MacAddress};

/// Number of slots (records of connections in shared memory) of a program, and thus the largest
/// number of its connections.
const SLOTS: u32 = 1024;
/// Length in bytes of each buffer area of a program. A test may choose another length for the area
/// of the server's send buffers.
const AREA_LEN: u64 = 64 << 20;
/// Time between two steps of the hosts while there are frames.
const STEP: Duration = Duration::from_micros(20);
/// Longest time between two steps of the hosts while there are no frames.
const PAUSE_MAX: Duration = Duration::from_millis(2);
/// Port of the server.
pub const PORT: u16 = 80;

/// A doorbell without effect, because no program sleeps here.
struct NoBell;

impl Bell for NoBell {
    fn ring(&self) -> bool {
        true
    }
}

/// A host (the stack of one core of a service) with one program.
struct Machine {
    host: Host<MemPort>,
    /// The far end of the host's NIC in memory.
    far: MemPort,
    program: Program,
    id: ProgramId,
    region: Arc<ProgramRegion>,
    /// Number of threads of the program.
    threads: u32,
}

fn address(number: u8) -> IpAddress {
    IpAddress::from_v4([10, 0, 0, number])
}

fn mac(number: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, number])
}

impl Machine {
    /// Makes a machine whose program has `tx_len` bytes for send buffers. `number` is the last byte
    /// of the machine's addresses.
    fn new(number: u8, tx_len: u64) -> Self {
        let (near, far) = MemPort::pair(MemConfig::default());
        let interface = Interface {
            link: LinkId(1),
            mac: mac(number),
            mtu: 1500,
            addresses: vec![address(number)],
        };
        let config = EngineConfig::default();
        let mut host =
            Host::new(config, [number; 16], interface, vec![near]).expect("there is memory");
        let on_link = Route {
            prefix: IpAddress::from_v4([10, 0, 0, 0]),
            prefix_len: 96 + 24,
            gateway: None,
            source: address(number),
        };
        host.set_routes(Instant(0), vec![address(number)], vec![on_link]);
        let ports: Vec<u16> = (40_000..41_024).collect();
        host.add_ports(Instant(0), address(number), &ports);
        let layout = Layout::new(SLOTS, AREA_LEN, tx_len).expect("a possible layout");
        let region = Arc::new(ProgramRegion::heap(&layout).expect("there is memory"));
        let page = Arc::new(ServicePageMap::heap(1).expect("there is memory"));
        let route = PublishedRoute {
            addr: IpAddress::UNSPECIFIED_V4.0,
            prefix_len: 96,
            handling: tidelane_abi::ROUTE_ACCELERATED,
        };
        page.set_routes(&[route]).expect("a route");
        let program = Program::in_memory(region.clone(), page, || ());
        let id = host.add_program("test".to_owned(), 1, region.clone());
        Self {
            host,
            far,
            program,
            id,
            region,
            threads: 0,
        }
    }

    /// Makes a thread of the program.
    fn thread(&mut self, options: &ServiceOptions) -> Thread {
        let context = self.threads;
        self.threads += 1;
        assert!(self.host.add_context(self.id, context, Box::new(NoBell)));
        // SAFETY: the hosts of this test keep to the rules of the shared memory, and no test writes
        // to the regions.
        let context = unsafe { context_in_memory(self.program.clone(), options) };
        Thread {
            context: context.expect("a context"),
            list: ReadyList::new(),
            seen: HashMap::new(),
        }
    }

    fn step(&mut self, now: Instant) {
        self.host.step(now);
        while let Some(request) = self.host.take_request() {
            if let HostRequest::Resolve { addr } = request {
                let number = addr.as_v4().map_or(0, |v4| v4[3]);
                self.host.set_neighbour(now, addr, Some(mac(number)));
            }
        }
    }

    /// Takes the frames that the host has sent.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut burst = self.far.new_burst();
        let mut frames = Vec::new();
        while self.far.rx_burst(&mut burst, BURST_MAX) > 0 {
            frames.extend(burst.iter().map(<[u8]>::to_vec));
            self.far.rx_release(&mut burst);
        }
        frames
    }

    fn receives(&mut self, frame: &[u8]) {
        // The NIC in memory drops frames for which it has no room, as a real NIC does.
        if let Some(buffer) = self.far.tx_frame() {
            buffer[..frame.len()].copy_from_slice(frame);
            self.far.tx_commit(frame.len(), TxChecksum::Done);
            self.far.tx_flush();
        }
    }
}

/// Events and received bytes of a descriptor. The event ACCEPTED clears the earlier record of the
/// same descriptor.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub events: Events,
    pub cause: Option<Cause>,
    pub listener: Option<Descriptor>,
    pub bytes: Vec<u8>,
}

/// A program's thread.
pub struct Thread {
    pub context: ServiceContext,
    pub list: ReadyList,
    /// Events and received bytes by descriptor.
    pub seen: HashMap<Descriptor, Seen>,
}

impl Thread {
    /// Calls `sync`, and records the events. The ready list keeps the received buffers until the
    /// next call.
    pub fn sync(&mut self) {
        self.context
            .sync(&mut self.list, Wait::No)
            .expect("a service");
        self.record();
    }

    /// Records the events and the bytes of the ready list.
    pub fn record(&mut self) {
        for at in 0..self.list.len() {
            let entry = self.list.entry(at);
            let seen = self.seen.entry(entry.descriptor).or_default();
            if entry.events.intersects(Events::ACCEPTED) {
                *seen = Seen::default();
            }
            seen.events = seen.events.union(entry.events);
            seen.cause = seen.cause.or(entry.cause);
            seen.listener = seen.listener.or(entry.listener);
            for payload in self.list.payloads(at) {
                seen.bytes.extend_from_slice(payload);
            }
        }
    }

    /// Returns the descriptors that have had at least one of `events`, in ascending order.
    pub fn with(&self, events: Events) -> Vec<Descriptor> {
        let seen = self.seen.iter();
        let found = seen.filter(|(_, seen)| seen.events.intersects(events));
        let mut found: Vec<_> = found.map(|(descriptor, _)| *descriptor).collect();
        found.sort();
        found
    }

    /// Writes `data` to buffers of the connection as far as there is room, and sends these buffers.
    /// Returns the number of sent bytes.
    pub fn write(&mut self, descriptor: Descriptor, data: &[u8]) -> usize {
        let mut sent = 0;
        while sent < data.len()
            && let Some(mut buffer) = self.context.allocate(descriptor)
        {
            sent += buffer.append(&data[sent..]);
            self.context
                .send(descriptor, buffer)
                .expect("an own buffer always has room");
        }
        sent
    }
}

/// The two machines: the client's and the server's.
pub struct World {
    machines: [Machine; 2],
    pub now: Instant,
    rng: Rng,
    /// On average, one in `lose_one_in` frames is lost. Zero means no loss.
    pub lose_one_in: u64,
    /// Number of frames on the wire so far.
    pub frames: u64,
    /// Time by which the next step advances the clock.
    pause: Duration,
    /// False once the service of the server has ended.
    pub serves: bool,
}

impl World {
    /// Makes the machines, and a thread on each. The server's program listens at [`PORT`]. Returns
    /// the world, the client's thread, the server's thread, and the listener.
    pub fn new(options: &ServiceOptions) -> (Self, Thread, Thread, Descriptor) {
        Self::with_memory(options, AREA_LEN)
    }

    /// Makes a world as [`World::new`] does, but the server's program has `tx_len` bytes for send
    /// buffers.
    pub fn with_memory(
        options: &ServiceOptions,
        tx_len: u64,
    ) -> (Self, Thread, Thread, Descriptor) {
        let mut machines = [Machine::new(1, AREA_LEN), Machine::new(2, tx_len)];
        let client = machines[0].thread(options);
        let mut server = machines[1].thread(options);
        let [_, machine] = &mut machines;
        let listen = Listen {
            number: 1,
            key: 1,
            local: Endpoint::new(address(2), PORT),
            v6_only: false,
            group: None,
            backlog: 1024,
            within_host: false,
        };
        machine.host.listen(machine.id, &listen).expect("a port");
        let listener = server.context.join_in_memory(ListenerHandle(1));
        let mut world = Self {
            machines,
            now: Instant(1_000_000_000),
            rng: Rng::new(1),
            lose_one_in: 0,
            frames: 0,
            pause: STEP,
            serves: true,
        };
        server.sync();
        world.step();
        (world, client, server, listener)
    }

    /// Runs the hosts for one step, and moves their frames. Consecutive steps without frames become
    /// longer, up to `PAUSE_MAX`.
    pub fn step(&mut self) {
        let before = self.frames;
        self.advance(self.pause);
        self.pause = match self.frames == before {
            true => (self.pause + STEP).min(PAUSE_MAX),
            false => STEP,
        };
    }

    /// Advances the clock by `time`, runs the hosts, and moves their frames.
    pub fn advance(&mut self, time: Duration) {
        self.now += time;
        for at in 0..2 {
            if at == 1 && !self.serves {
                continue;
            }
            self.machines[at].step(self.now);
            for frame in self.machines[at].sent() {
                self.frames += 1;
                if self.lose_one_in == 0 || self.rng.below(self.lose_one_in) > 0 {
                    self.machines[1 - at].receives(&frame);
                }
            }
        }
    }

    /// Makes another thread of the server's program. The thread accepts connections, too.
    pub fn another_thread(&mut self, options: &ServiceOptions) -> Thread {
        let mut thread = self.machines[1].thread(options);
        thread.context.join_in_memory(ListenerHandle(1));
        thread.sync();
        self.step();
        thread
    }

    /// Ends the service of the server, as a kill does.
    pub fn kill_service(&mut self) {
        self.serves = false;
        self.machines[1].program.mark_service_gone();
    }

    /// Returns true if the server's host has connections that are not in TIME-WAIT.
    pub fn has_flows(&self) -> bool {
        let sockets = self.machines[1].host.sockets();
        sockets.iter().any(|socket| match &socket.state {
            SocketState::Listen => false,
            SocketState::Connection(state) => state != "TIME-WAIT",
        })
    }

    /// Returns the number of slots that the connections of the server's program use.
    pub fn used_slots(&self) -> usize {
        let region = &self.machines[1].region;
        let generations = (0..SLOTS).filter_map(|slot| {
            let view = region.slot(slot)?;
            Some(view.service().generation.load(Ordering::Relaxed))
        });
        generations.filter(|generation| generation % 2 == 1).count()
    }

    /// Returns the size in bytes of the send buffers of the server's program.
    pub fn send_buffer_bytes(&self) -> u64 {
        self.machines[1].program.send_buffer_bytes()
    }
}

/// Returns the address of the server.
pub fn server_address() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], PORT))
}

/// Returns `len` bytes of a pattern that depends on `seed`.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) * 31 % 251) as u8).collect()
}

/// Runs the world and both threads until `is_done` returns true.
pub fn run_until(
    world: &mut World,
    client: &mut Thread,
    server: &mut Thread,
    mut is_done: impl FnMut(&mut World, &mut Thread, &mut Thread) -> bool,
) {
    for _ in 0..2_000_000 {
        client.sync();
        server.sync();
        if is_done(world, client, server) {
            return;
        }
        world.step();
    }
    panic!("the end is not reached");
}

/// Opens `count` connections from the client, and sends a message on each. Returns pairs of the
/// client's and the server's descriptor, sorted by the client's descriptor.
pub fn connect(
    world: &mut World,
    client: &mut Thread,
    server: &mut Thread,
    count: usize,
) -> Vec<(Descriptor, Descriptor)> {
    let before = server.with(Events::ACCEPTED);
    let opened: Vec<Descriptor> = (0..count)
        .map(|_| client.context.connect(server_address()).expect("a route"))
        .collect();
    run_until(world, client, server, |_, client, server| {
        let connected = client.with(Events::CONNECTED);
        let is_connected = opened.iter().all(|opened| connected.contains(opened));
        is_connected && server.with(Events::ACCEPTED).len() == before.len() + count
    });
    // The message on a connection is the client's descriptor, so that the server's end can be
    // paired with the client's end.
    for descriptor in &opened {
        let sent = client.write(*descriptor, &descriptor.0.to_be_bytes());
        assert_eq!(sent, 4);
    }
    let accepted: Vec<_> = server.with(Events::ACCEPTED);
    let new = accepted.into_iter().filter(|one| !before.contains(one));
    let new: Vec<Descriptor> = new.collect();
    run_until(world, client, server, |_, _, server| {
        new.iter().all(|one| server.seen[one].bytes.len() == 4)
    });
    let mut pairs: Vec<_> = new
        .into_iter()
        .map(|accepted| {
            let seen = server.seen.get_mut(&accepted).expect("seen");
            let name = std::mem::take(&mut seen.bytes);
            let name: [u8; 4] = name.try_into().expect("four bytes");
            (Descriptor(u32::from_be_bytes(name)), accepted)
        })
        .collect();
    pairs.sort();
    pairs
}
