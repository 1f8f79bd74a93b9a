//! A server serves many connections while the peer of another connection does not read. There are
//! ten thousand connections, or fewer if the limit of descriptors is too low. The limit applies to
//! the whole process, so this test has a process of its own.

mod open;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use rustix::{
    net::getsockname,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use tidelane_kernel::{KernelContext, KernelOptions};
use tidelane_rings::{Context, Descriptor, Events, ListenOptions, ReadyList, SendRefusal, Wait};

use crate::open::open;

/// Number of connections, if the limit of descriptors allows this number.
const CONNECTIONS_MAX: u64 = 10_000;
/// Largest number of connections that the clients open before the server accepts them.
const BATCH: usize = 500;
/// Number of requests in a round. The clients send all of them before the server's next sync.
const REQUESTS: usize = 50;
/// Number of rounds of a run. Each round has [`REQUESTS`] requests.
const ROUNDS: usize = 40;
/// Number of descriptors that the process has besides the connections.
const OTHER_DESCRIPTORS: u64 = 100;
/// Number of additional syncs that the run with a blocked receiver may need, because the kernel may
/// deliver the requests of a round in two parts.
const NOISE: usize = ROUNDS / 10;
/// Time limit of a read, and of the wait of a sync.
const LIMIT: Duration = Duration::from_secs(30);

/// An echo server, which counts its syncs.
struct Server {
    context: KernelContext,
    list: ReadyList,
    address: SocketAddr,
    syncs: usize,
    /// Accepted connections, oldest first.
    accepted: Vec<Descriptor>,
}

/// Measurements of a run.
#[derive(Debug, PartialEq, Eq)]
struct Figures {
    /// Number of syncs of all rounds, after the connections were open.
    syncs: usize,
    /// Largest number of buffers that were not free after a round. The number includes the buffers
    /// that the kernel holds to receive data.
    buffers: u32,
}

impl Server {
    fn new(options: &KernelOptions) -> Option<Self> {
        let mut context = open(options)?;
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let listened = context.listen(any, &ListenOptions::default());
        let socket = context.socket(listened.expect("a free port"));
        let address = getsockname(socket.expect("a socket")).expect("bound");
        Some(Self {
            context,
            list: ReadyList::new(),
            address: address.try_into().expect("an address"),
            syncs: 0,
            accepted: Vec::new(),
        })
    }

    /// Sends the answers that the previous sync has queued, receives requests, and queues their
    /// answers for the next sync. Returns the number of received requests.
    fn sync(&mut self, wait: Wait) -> usize {
        self.syncs += 1;
        self.context.sync(&mut self.list, wait).expect("a ring");
        let mut requests = 0;
        for at in 0..self.list.len() {
            let entry = self.list.entry(at);
            if entry.events.intersects(Events::ACCEPTED) {
                self.accepted.push(entry.descriptor);
            }
            while let Some(buffer) = self.list.take_next(at) {
                requests += 1;
                let sent = self.context.send(entry.descriptor, buffer);
                sent.expect("room for an answer");
            }
        }
        requests
    }

    /// Opens `count` connections, and waits until the server has accepted them.
    fn connect(&mut self, count: usize) -> Vec<TcpStream> {
        let mut streams = Vec::new();
        let before = self.accepted.len();
        while streams.len() < count {
            let batch = BATCH.min(count - streams.len());
            let connect = |_| TcpStream::connect(self.address).expect("a server");
            streams.extend((0..batch).map(connect));
            while self.accepted.len() - before < streams.len() {
                self.sync(Wait::For(LIMIT));
            }
        }
        for stream in &streams {
            stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        }
        streams
    }

    /// Queues data for a peer that does not read, until the context refuses a buffer.
    fn block(&mut self, descriptor: Descriptor) {
        let mut is_full = false;
        while !is_full {
            while let Some(mut buffer) = self.context.pool().allocate() {
                let len = buffer.capacity() as usize;
                buffer.append(&vec![1; len]);
                if let Err(error) = self.context.send(descriptor, buffer) {
                    assert_eq!(error.refusal, SendRefusal::Full);
                    break;
                }
            }
            // The socket is full if even a sync makes no room for another buffer.
            self.sync(Wait::No);
            let buffer = self.context.pool().allocate().expect("free");
            is_full = self.context.send(descriptor, buffer).is_err();
        }
    }

    /// Frees the buffers of the list. Returns the number of buffers that are not free.
    fn in_use(&mut self, options: &KernelOptions) -> u32 {
        self.list.clear();
        options.buffers - self.context.pool().free_count()
    }
}

fn request(round: usize, at: usize) -> Vec<u8> {
    format!("request {round:03} of connection {at:05}").into_bytes()
}

/// Opens `count` connections, and serves the requests of all but the first connection. If
/// `has_blocked` is true, the first connection has a full send queue and a peer that does not read.
/// Returns `None` if the system has no io_uring.
fn run(options: &KernelOptions, count: usize, has_blocked: bool) -> Option<Figures> {
    let mut server = Server::new(options)?;
    let blocked = server.connect(1);
    if has_blocked {
        server.block(server.accepted[0]);
    }
    let mut streams = server.connect(count - 1);
    let before = server.syncs;
    let mut buffers = 0;
    for round in 0..ROUNDS {
        let places = (0..REQUESTS).map(|at| (round * 7919 + at * 613) % streams.len());
        let places: Vec<usize> = places.collect();
        for at in &places {
            let sent = streams[*at].write_all(&request(round, *at));
            sent.expect("open");
        }
        let mut received = 0;
        while received < REQUESTS {
            let count = server.sync(Wait::For(LIMIT));
            assert!(count > 0, "a sync of round {round} got no request");
            received += count;
        }
        // One sync sends all answers.
        server.sync(Wait::No);
        for at in &places {
            let mut answer = vec![0; request(round, *at).len()];
            let read = streams[*at].read_exact(&mut answer);
            read.unwrap_or_else(|error| panic!("round {round}, connection {at}: {error}"));
            assert_eq!(answer, request(round, *at), "connection {at}");
        }
        buffers = buffers.max(server.in_use(options));
    }
    drop(blocked);
    Some(Figures {
        syncs: server.syncs - before,
        buffers,
    })
}

#[test]
fn a_blocked_receiver_costs_a_crowd_no_sync_and_holds_a_bounded_queue() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
    raised.expect("a limit up to the maximum");
    let descriptors = limit.maximum.unwrap_or(u64::MAX) - OTHER_DESCRIPTORS;
    let count = (descriptors / 2).min(CONNECTIONS_MAX) as usize;
    eprintln!("{count} connections");
    let options = KernelOptions::default();
    let Some(alone) = run(&options, count, false) else {
        return;
    };
    let beside = run(&options, count, true).expect("an io_uring");
    assert!(
        beside.syncs <= alone.syncs + NOISE,
        "{beside:?} beside a blocked receiver, {alone:?} without it"
    );
    // The additional buffers are the send queue to the blocked receiver, and one partly sent
    // buffer.
    let queue_max = options.send_queue_max as u32;
    assert!(
        beside.buffers <= alone.buffers + queue_max + 1,
        "{beside:?} beside a blocked receiver, {alone:?} without it"
    );
    assert!(
        beside.buffers >= alone.buffers + queue_max - 1,
        "the receiver is not blocked: {beside:?}, {alone:?} without it"
    );
}
