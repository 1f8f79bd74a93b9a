//! Tests of the example `ring-http`, an HTTP server on the ring API (`tidelane-rings`).
//!
//! The server runs on a direct context (`tidelane-direct`): TCP runs in the server's process. The
//! client is a stack of `tidelane-embedded` at the other end of a simulated wire in virtual time.

use std::{cell::Cell, rc::Rc};

use tidelane_direct::DirectOptions;
use tidelane_embedded::{Connection, Endpoint, Stack, StackConfig};
use tidelane_engine::{Duration, Instant, IpAddress};
use tidelane_rings::{Context, ListenOptions, Wait};

use crate::{
    kit::{ADDRESSES, End, options, server},
    nic_unsafe::{Clock, Nic, Quality, Wire, pair},
    server::Server,
};

/// Lengths of the HTTP response bodies (pages) in bytes.
const LENGTHS: [usize; 6] = [0, 1, 1460, 4096, 100_000, 1_000_000];

/// The stack of the client, and the HTTP server with its direct context, on one wire.
struct Site {
    clock: Clock,
    wire: Rc<std::cell::RefCell<Wire>>,
    stack: Stack<Nic>,
    end: End<Nic>,
    server: Server,
}

impl Site {
    fn new(quality: Quality, options: &DirectOptions) -> Self {
        let clock: Clock = Rc::new(Cell::new(Instant::from_secs(1)));
        let (near, far, wire) = pair(&clock, quality);
        let address = IpAddress::from_v4(ADDRESSES[0]);
        let mut end = End::new(options, far, &clock);
        let listened = end.context.listen(server(80), &ListenOptions::default());
        listened.expect("a free port");
        Self {
            stack: Stack::new(StackConfig::new(address, [7; 16]), near),
            clock,
            wire,
            end,
            server: Server::new(),
        }
    }

    fn connect(&mut self) -> Connection {
        let local = Endpoint::new(IpAddress::from_v4(ADDRESSES[0]), 0);
        let peer = Endpoint::new(IpAddress::from_v4(ADDRESSES[1]), 80);
        self.stack.connect(local, peer).expect("a free port")
    }

    /// Runs the stack and the server once. If no packet was sent, advances the clock to the next
    /// timer or to the arrival of the next packet, but at least by 10 microseconds.
    fn step(&mut self) {
        let before = self.wire.borrow().sent;
        self.stack.poll(self.clock.get());
        let served = self.server.cycle(&mut self.end.context, Wait::No);
        served.expect("packet I/O works");
        if self.wire.borrow().sent > before {
            return;
        }
        let timers = [
            self.stack.next_timeout(),
            self.end.context.next_timeout(),
            self.wire.borrow().next_arrival(),
        ];
        let least = self.clock.get() + Duration::from_micros(10);
        let next = timers.into_iter().flatten().min();
        self.clock.set(next.unwrap_or(least).max(least));
    }

    /// Requests a page of `len` bytes on a connection, and asserts that the response is correct.
    fn get(&mut self, connection: Connection, len: usize) {
        self.get_and(connection, len, false);
    }

    /// Requests a page like `get`. If `half_close` is true, the client's FIN follows the request.
    fn get_and(&mut self, connection: Connection, len: usize, half_close: bool) {
        let request = format!("GET /{len} HTTP/1.1\r\nHost: x\r\n\r\n");
        let mut request = request.as_bytes();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n");
        let body = (0..len).map(|at| b'a' + (at % 26) as u8);
        let expected: Vec<u8> = head.into_bytes().into_iter().chain(body).collect();
        let mut got = Vec::new();
        for _ in 0..1_000_000 {
            let written = self.stack.write(connection, request);
            request = &request[written..];
            if half_close && request.is_empty() {
                self.stack.shutdown(connection);
            }
            self.step();
            let mut part = [0; 4096];
            let count = self.stack.read(connection, &mut part);
            got.extend_from_slice(&part[..count]);
            if got.len() >= expected.len() {
                return assert!(got == expected, "{len} bytes");
            }
        }
        panic!("{} of {} bytes", got.len(), expected.len());
    }
}

#[test]
fn pages_arrive_unchanged() {
    for seed in 0..24 {
        let quality = Quality {
            seed,
            loss: seed % 4 * 30,
            reorder: seed % 3 * 100,
            is_shared: seed % 2 == 0,
            ..Quality::default()
        };
        let mut site = Site::new(quality, &options(1));
        let connections: Vec<Connection> = (0..3).map(|_| site.connect()).collect();
        for len in LENGTHS {
            for connection in &connections {
                site.get(*connection, len);
            }
        }
        for connection in connections {
            site.stack.close(connection);
        }
        for _ in 0..100_000 {
            site.step();
            if site.end.context.has_no_connections() {
                break;
            }
        }
        assert!(site.end.context.has_no_connections(), "seed {seed}");
    }
}

#[test]
fn a_client_that_has_sent_its_fin_receives_the_page() {
    for len in LENGTHS {
        let mut site = Site::new(Quality::default(), &options(1));
        let connection = site.connect();
        site.get_and(connection, len, true);
        for _ in 0..100_000 {
            site.step();
        }
        assert!(site.end.context.has_no_connections(), "{len} bytes");
    }
}

/// The context copies neither a request nor a small page. The frame of a request becomes a buffer,
/// and the context's packet interface sends the page directly from a buffer.
#[test]
fn a_small_page_is_not_copied() {
    let mut site = Site::new(Quality::default(), &options(1));
    let connection = site.connect();
    site.get(connection, 64);
    let before = site.end.context.counters();
    for _ in 0..100 {
        site.get(connection, 1024);
    }
    let after = site.end.context.counters();
    assert_eq!((before.rx_copies, before.tx_copies), (0, 0));
    assert_eq!((after.rx_copies, after.tx_copies), (0, 0));
    assert_eq!(after.rx_exchanges - before.rx_exchanges, 100);
    assert_eq!(after.tx_lent - before.tx_lent, 100);
}
