//! Tests of the key-value server over TCP, on a link in memory and in virtual time.
//!
//! The server runs on a direct context (`tidelane-direct`), the back end of the ring API
//! (`tidelane-rings`) that runs TCP in the server's process. The clients are connections of a stack
//! of `tidelane-embedded` at the other end of the link.

use std::{cell::Cell, io, rc::Rc, time};

use tidelane_direct::{DirectContext, DirectOptions, TimeSource};
use tidelane_embedded::{
    Connection, Duration, Endpoint, Instant, IpAddress, MacAddress, MemConfig, MemPort, Stack,
    StackConfig,
};
use tidelane_kv::{ConnectionCounts, Kv, MEMORY_MIN, Server};
use tidelane_rings::{Context, ListenOptions};

/// IPv4 address that all clients share, and IPv4 address of the server.
const ADDRESSES: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
/// MAC addresses of the clients' stack and of the server.
const LINK_ADDRESSES: [MacAddress; 2] = [
    MacAddress([2, 0, 0, 0, 0, 1]),
    MacAddress([2, 0, 0, 0, 0, 2]),
];
const PORT: u16 = 11_211;
/// Unix time at the zero of the virtual clock.
const START: time::Duration = time::Duration::from_secs(1_700_000_000);
/// Number of buffers in the pool of the server's context.
const BUFFERS: u32 = 1024;
/// Largest number of connections of the server.
const CONNECTIONS: u64 = 64;
/// Number of cycles after which a test fails if an answer has not arrived, or if a connection has
/// not ended.
const CYCLES_MAX: usize = 200_000;

/// A virtual clock. Each wait advances the clock by the time limit of the wait.
struct VirtualClock(Rc<Cell<Instant>>);

impl<P> TimeSource<P> for VirtualClock {
    fn now(&self) -> Instant {
        self.0.get()
    }

    fn wait(&mut self, _port: &mut P, limit: Option<time::Duration>) -> io::Result<()> {
        let span = limit.unwrap_or_default();
        let span = Duration::from_nanos(span.as_nanos() as u64);
        self.0.set(self.0.get() + span);
        Ok(())
    }
}

/// A server, and the stack of the clients, on one link.
struct Site {
    clock: Rc<Cell<Instant>>,
    stack: Stack<MemPort>,
    context: DirectContext<MemPort>,
    server: Server,
}

impl Site {
    fn new() -> Self {
        let clock = Rc::new(Cell::new(Instant::from_secs(1)));
        let (near, far) = MemPort::pair(MemConfig::default());
        let addresses = ADDRESSES.map(IpAddress::from_v4);
        let mut client = StackConfig::new(addresses[0], [1; 16]);
        client.mac = LINK_ADDRESSES[0];
        client.gateway = LINK_ADDRESSES[1];
        let mut options = DirectOptions::new(addresses[1], [2; 16]);
        options.stack.mac = LINK_ADDRESSES[1];
        options.buffers = BUFFERS;
        let send_queue_max = Server::send_queue_max(BUFFERS, CONNECTIONS);
        options.send_queue_max = send_queue_max.expect("enough buffers");
        let time = VirtualClock(Rc::clone(&clock));
        let mut context = DirectContext::open(&options, far, time).expect("possible options");
        let local = (ADDRESSES[1], PORT).into();
        let listened = context.listen(local, &ListenOptions::default());
        listened.expect("a free port");
        let mut kv = Kv::new(START.as_secs(), MEMORY_MIN, [7; 16]);
        kv.connections = ConnectionCounts {
            limit: CONNECTIONS,
            ..ConnectionCounts::default()
        };
        Self {
            clock,
            stack: Stack::new(client, near),
            server: Server::new(kv, &context),
            context,
        }
    }

    fn connect(&mut self) -> Connection {
        let [local, peer] = ADDRESSES.map(IpAddress::from_v4);
        let (local, peer) = (Endpoint::new(local, 0), Endpoint::new(peer, PORT));
        self.stack.connect(local, peer).expect("a free port")
    }

    /// Runs the stack and the server for one cycle of at most 100 us.
    fn step(&mut self) {
        self.step_for(time::Duration::from_micros(100));
    }

    /// Runs the stack and the server for one cycle. The server waits for events for at most
    /// `limit`.
    fn step_for(&mut self, limit: time::Duration) {
        self.stack.poll(self.clock.get());
        let unix = START + time::Duration::from_nanos(self.clock.get().0);
        let served = self.server.cycle(&mut self.context, limit, || unix);
        served.expect("a link");
    }

    /// Sends a command, and asserts that the answer is `answer`.
    fn ask(&mut self, client: Connection, command: &[u8], answer: &[u8]) {
        let mut rest = command;
        let mut got = Vec::new();
        for _ in 0..CYCLES_MAX {
            rest = &rest[self.stack.write(client, rest)..];
            self.step();
            let mut part = [0; 16_384];
            let count = self.stack.read(client, &mut part);
            got.extend_from_slice(&part[..count]);
            if got.len() >= answer.len() && rest.is_empty() {
                return assert!(got == answer, "{} of {} bytes", got.len(), answer.len());
            }
        }
        panic!("{} of {} bytes", got.len(), answer.len());
    }

    /// Runs until the server has no connection. The server may keep a connection with long answers
    /// for up to 30 seconds after the client has closed the connection.
    fn await_end(&mut self) {
        for _ in 0..CYCLES_MAX {
            self.step_for(time::Duration::from_millis(10));
            if self.context.has_no_connections() {
                return;
            }
        }
        panic!("a connection stays");
    }
}

/// Returns a value of `len` bytes, and the answer to `get` if `key` has this value. Different seeds
/// give different values.
fn value(key: &str, len: usize, seed: usize) -> (Vec<u8>, Vec<u8>) {
    let value: Vec<u8> = (0..len).map(|at| ((at * 31 + seed) % 251) as u8).collect();
    let head = format!("VALUE {key} 0 {len}\r\n");
    let answer = [head.as_bytes(), &value, b"\r\nEND\r\n"].concat();
    (value, answer)
}

/// Values from one byte to nearly the longest value arrive unchanged. The lengths around 4096 are
/// near the size of a buffer, and the longer values take several buffers.
#[test]
fn values_of_all_lengths_are_stored_and_returned() {
    let mut site = Site::new();
    let clients: Vec<Connection> = (0..4).map(|_| site.connect()).collect();
    for (seed, len) in [1, 100, 1024, 4000, 4096, 4097, 65_536, 300_000, 1_000_000]
        .into_iter()
        .enumerate()
    {
        let (bytes, answer) = value("k", len, seed);
        let head = format!("set k 0 0 {len}\r\n");
        let set = [head.as_bytes(), &bytes, b"\r\n"].concat();
        site.ask(clients[seed % 4], &set, b"STORED\r\n");
        for client in &clients {
            site.ask(*client, b"get k\r\n", &answer);
        }
    }
    for client in clients {
        site.stack.close(client);
    }
    site.await_end();
    assert_eq!(site.context.pool().free_count(), BUFFERS);
}

/// Each command gets one answer, both if many commands arrive together and if a command arrives in
/// pieces.
#[test]
fn commands_arrive_in_any_pieces() {
    let mut site = Site::new();
    let client = site.connect();
    site.ask(client, b"set a 5 0 3\r\nabc\r\n", b"STORED\r\n");
    let commands = b"get a\r\nincr n 1\r\nmg a v f\r\n".repeat(200);
    let answers = b"VALUE a 5 3\r\nabc\r\nEND\r\nNOT_FOUND\r\nVA 3 f5\r\nabc\r\n".repeat(200);
    site.ask(client, &commands, &answers);
    for byte in b"set b 0 0 1\r\nx\r" {
        site.ask(client, &[*byte], b"");
        site.step();
    }
    site.ask(client, b"\n", b"STORED\r\n");
    site.ask(client, b"get b\r\n", b"VALUE b 0 1\r\nx\r\nEND\r\n");
    site.stack.close(client);
    site.await_end();
}

/// A client that does not read its answers is blocked. Another client still gets its answers, even
/// if the answers to the blocked clients exceed the memory of all buffers. One of the blocked
/// clients reads later, and gets every byte.
#[test]
fn blocked_clients_hurt_themselves_only() {
    let mut site = Site::new();
    let prompt = site.connect();
    let (bytes, answer) = value("big", 100_000, 1);
    let set = [b"set big 0 0 100000\r\n".as_slice(), &bytes, b"\r\n"].concat();
    site.ask(prompt, &set, b"STORED\r\n");
    let count = 60;
    let blocked: Vec<Connection> = (0..20).map(|_| site.connect()).collect();
    for client in &blocked {
        site.ask(*client, b"mn\r\n", b"MN\r\n");
        let command = b"get big\r\n".repeat(count);
        assert_eq!(site.stack.write(*client, &command), command.len());
    }
    for _ in 0..2000 {
        site.step();
    }
    for _ in 0..50 {
        site.ask(prompt, b"get none\r\n", b"END\r\n");
    }
    site.ask(prompt, b"get big\r\n", &answer);
    let answers = answer.repeat(count);
    site.ask(blocked[7], b"", &answers);
    for client in blocked {
        site.stack.abort(client);
    }
    site.stack.close(prompt);
    site.await_end();
    assert_eq!(site.context.pool().free_count(), BUFFERS);
}
