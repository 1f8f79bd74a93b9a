//! Tools of the tests: two direct contexts at the ends of a wire in virtual time, an echo server,
//! and clients.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    net::SocketAddr,
    rc::Rc,
    time,
};

use tidelane_direct::{DirectContext, DirectOptions, TimeSource};
use tidelane_engine::{Duration, Instant, IpAddress};
use tidelane_packet_io::PacketIo;
use tidelane_rings::{
    Buffer, Cause, Context, Descriptor, Events, ListenOptions, ReadyList, SendRefusal, Wait,
};

use crate::nic_unsafe::{Clock, Nic, Quality, Wire, pair};

/// Addresses of the client and of the server.
pub const ADDRESSES: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];

/// Returns the server's address with the port `port`.
pub fn server(port: u16) -> SocketAddr {
    (ADDRESSES[1], port).into()
}

/// Returns the options of the context at one end: 0 is the client, and 1 is the server.
pub fn options(end: usize) -> DirectOptions {
    DirectOptions::new(IpAddress::from_v4(ADDRESSES[end]), [end as u8 + 1; 16])
}

/// A virtual clock. Each wait advances the clock by the time limit of the wait.
pub struct VirtualClock(pub Clock);

impl<P> TimeSource<P> for VirtualClock {
    fn now(&self) -> Instant {
        self.0.get()
    }

    fn wait(&mut self, _port: &mut P, limit: Option<time::Duration>) -> io::Result<()> {
        let limit = limit.expect("a test does not wait without a limit");
        let span = Duration::from_nanos(limit.as_nanos() as u64);
        self.0.set(self.0.get() + span);
        Ok(())
    }
}

/// A context with its ready list, in which each sync reports its events.
pub struct End<P: PacketIo> {
    pub context: DirectContext<P>,
    pub list: ReadyList,
}

impl<P: PacketIo> End<P> {
    pub fn new(options: &DirectOptions, port: P, clock: &Clock) -> Self {
        let time = VirtualClock(Rc::clone(clock));
        Self {
            context: DirectContext::open(options, port, time).expect("possible options"),
            list: ReadyList::new(),
        }
    }

    pub fn sync(&mut self) {
        let synced = self.context.sync(&mut self.list, Wait::No);
        synced.expect("packet I/O works");
    }

    /// Returns the union of all events of a descriptor in the present ready list.
    pub fn events(&self, descriptor: Descriptor) -> Events {
        let entries = (0..self.list.len()).map(|at| self.list.entry(at));
        let of = entries.filter(|entry| entry.descriptor == descriptor);
        of.fold(Events::default(), |all, entry| all.union(entry.events))
    }

    /// Returns the descriptor of the first accepted connection in the present ready list.
    pub fn accepted(&self) -> Option<Descriptor> {
        let mut entries = (0..self.list.len()).map(|at| self.list.entry(at));
        let accepted = entries.find(|entry| entry.events.intersects(Events::ACCEPTED));
        accepted.map(|entry| entry.descriptor)
    }

    /// Takes the data of a descriptor from the present ready list.
    pub fn data(&mut self, descriptor: Descriptor) -> Vec<u8> {
        let mut data = Vec::new();
        for at in 0..self.list.len() {
            if self.list.entry(at).descriptor == descriptor {
                while let Some(buffer) = self.list.take_next(at) {
                    data.extend_from_slice(buffer.payload());
                }
            }
        }
        data
    }

    /// Queues `data` for sending, in buffers of the pool.
    pub fn queue(&mut self, descriptor: Descriptor, data: &[u8]) {
        for part in data.chunks(self.context.pool().payload_len_max() as usize) {
            let mut buffer = self.context.pool().allocate().expect("free");
            assert_eq!(buffer.append(part), part.len());
            self.context.send(descriptor, buffer).expect("room");
        }
    }

    /// Clears the ready list. Returns the number of buffers in use. `count` is the number of free
    /// buffers at the start.
    pub fn owned(&mut self, count: u32) -> u32 {
        self.list.clear();
        count - self.context.pool().free_count()
    }
}

/// Two contexts on one wire.
pub struct Pair {
    pub clock: Clock,
    pub wire: Rc<RefCell<Wire>>,
    pub client: End<Nic>,
    pub server: End<Nic>,
    /// Number of free buffers in each pool at the start.
    pub buffers: u32,
}

impl Pair {
    pub fn new(quality: Quality) -> Self {
        Self::with_options(quality, &[options(0), options(1)])
    }

    pub fn with_options(quality: Quality, options: &[DirectOptions; 2]) -> Self {
        let clock: Clock = Rc::new(Cell::new(Instant::from_secs(1)));
        let (client, server, wire) = pair(&clock, quality);
        let client = End::new(&options[0], client, &clock);
        let server = End::new(&options[1], server, &clock);
        Self {
            buffers: client.context.pool().free_count(),
            clock,
            wire,
            client,
            server,
        }
    }

    /// Advances the clock to the arrival of the next packet or to the next timer, but at least by
    /// 10 microseconds.
    pub fn advance(&mut self) {
        let timers = [
            self.client.context.next_timeout(),
            self.server.context.next_timeout(),
            self.wire.borrow().next_arrival(),
        ];
        let now = self.clock.get();
        let next = timers.into_iter().flatten().min();
        let least = now + Duration::from_micros(10);
        self.clock.set(next.map_or(least, |next| next.max(least)));
    }

    /// Runs both contexts once. If neither context reports an event, advances the clock.
    pub fn step(&mut self) {
        self.client.sync();
        self.server.sync();
        if self.client.list.is_empty() && self.server.list.is_empty() {
            self.advance();
        }
    }

    /// Runs both contexts until `is_done` returns true. Panics with the text `what` after 20,000
    /// steps.
    pub fn run_until(&mut self, what: &str, mut is_done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..20_000 {
            self.step();
            if is_done(self) {
                return;
            }
        }
        let drops = [&self.client, &self.server].map(|end| {
            let drops = end.context.drops().iter().enumerate();
            let some = drops.filter(|(_, count)| **count > 0);
            some.map(|(reason, count)| (reason, *count))
                .collect::<Vec<_>>()
        });
        panic!("{what} does not happen; dropped: {drops:?}");
    }

    /// Runs both contexts for a time.
    pub fn run_for(&mut self, span: Duration) {
        let end = self.clock.get() + span;
        while self.clock.get() < end {
            self.step();
        }
    }

    /// Opens a listener and a connection to it. Returns the descriptors of the listener, of the
    /// client's end and of the server's end.
    pub fn connected(&mut self, port: u16) -> (Descriptor, Descriptor, Descriptor) {
        let options = ListenOptions::default();
        let listener = self.server.context.listen(server(port), &options);
        let listener = listener.expect("a free port");
        let (client, accepted) = self.connect(port);
        (listener, client, accepted)
    }

    /// Opens a connection to a listener. Returns the descriptors of the two ends.
    pub fn connect(&mut self, port: u16) -> (Descriptor, Descriptor) {
        let client = self.client.context.connect(server(port)).expect("a port");
        let (mut accepted, mut connected) = (None, false);
        self.run_until("the connection", |pair| {
            connected |= pair.client.events(client).intersects(Events::CONNECTED);
            accepted = accepted.or(pair.server.accepted());
            connected && accepted.is_some()
        });
        (client, accepted.expect("accepted"))
    }

    /// Waits for the end of all connections, and asserts that all buffers are then free.
    pub fn assert_clean(&mut self) {
        self.run_until("the end of all connections", |pair| {
            let ends = [&pair.client, &pair.server];
            ends.iter().all(|end| end.context.has_no_connections())
        });
        self.run_for(Duration::from_millis(100));
        self.step();
        let owned = [&mut self.client, &mut self.server].map(|end| end.owned(self.buffers));
        assert_eq!(owned, [0, 0], "buffers with owners");
    }
}

/// Returns the test pattern's byte at a stream position.
pub fn byte(seed: u32, pos: usize) -> u8 {
    ((pos as u32)
        .wrapping_add(seed.wrapping_mul(7919))
        .wrapping_mul(2_654_435_761)
        >> 24) as u8
}

pub fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len).map(|pos| byte(seed, pos)).collect()
}

/// An echo server. If the context refuses a buffer, the server keeps the buffer and sends it later.
#[derive(Default)]
pub struct Echo {
    /// Refused buffers by connection, in the order of their data.
    kept: BTreeMap<Descriptor, Vec<Buffer>>,
    /// Connections whose peer has sent a FIN. Each is closed once its refused buffers are sent.
    ended: Vec<Descriptor>,
    /// Number of open connections.
    pub connections: usize,
    /// Causes of the failed connections.
    pub causes: Vec<Cause>,
}

impl Echo {
    pub fn serve(&mut self, context: &mut dyn Context, list: &mut ReadyList) {
        for at in 0..list.len() {
            let entry = list.entry(at);
            let descriptor = entry.descriptor;
            self.connections += usize::from(entry.events.intersects(Events::ACCEPTED));
            let mut buffers = self.kept.remove(&descriptor).unwrap_or_default();
            buffers.extend(std::iter::from_fn(|| list.take_next(at)));
            let mut buffers = buffers.into_iter();
            for buffer in buffers.by_ref() {
                if let Err(error) = context.send(descriptor, buffer) {
                    if error.refusal == SendRefusal::Full {
                        let kept = self.kept.entry(descriptor).or_default();
                        kept.push(error.buffer);
                        kept.extend(buffers.by_ref());
                        context.pause(descriptor);
                    }
                    break;
                }
            }
            if entry.events.intersects(Events::WRITABLE) && !self.kept.contains_key(&descriptor) {
                context.resume(descriptor).expect("packet I/O works");
            }
            if entry.events.intersects(Events::END) {
                self.ended.push(descriptor);
            }
            if entry.events.intersects(Events::CLOSED) {
                self.causes.extend(entry.cause);
                self.kept.remove(&descriptor);
                self.ended.retain(|ended| *ended != descriptor);
                self.connections -= 1;
                context.close(descriptor);
            }
        }
        let kept = &self.kept;
        let over = self.ended.extract_if(.., |ended| !kept.contains_key(ended));
        for descriptor in over {
            self.connections -= 1;
            context.close(descriptor);
        }
    }
}

/// The client's end of one connection.
struct Stream {
    seed: u32,
    /// Number of bytes to send.
    len: usize,
    /// Length of one message in bytes.
    message_len: usize,
    sent: usize,
    received: usize,
    has_shut_down: bool,
}

/// Clients that send a pattern, and verify the echo.
#[derive(Default)]
pub struct Clients {
    streams: BTreeMap<Descriptor, Stream>,
    /// Number of connections that have received the whole echo and the end of the stream.
    pub finished: usize,
    /// Causes of the failed connections.
    pub causes: Vec<Cause>,
    /// Hash over all events and bytes, in order.
    pub digest: u64,
}

impl Clients {
    /// Opens a connection that sends `len` bytes in messages of `message_len` bytes.
    pub fn open(&mut self, context: &mut dyn Context, seed: u32, len: usize, message_len: usize) {
        let descriptor = context.connect(server(80)).expect("a port");
        let stream = Stream {
            seed,
            len,
            message_len,
            sent: 0,
            received: 0,
            has_shut_down: false,
        };
        self.streams.insert(descriptor, stream);
    }

    pub fn open_count(&self) -> usize {
        self.streams.len()
    }

    fn note(&mut self, value: u64) {
        self.digest = (self.digest ^ value).wrapping_mul(0x0100_0000_01b3);
    }

    pub fn cycle(&mut self, context: &mut dyn Context, list: &mut ReadyList) {
        for at in 0..list.len() {
            let entry = list.entry(at);
            self.note(u64::from(entry.descriptor.0) << 32 | u64::from(entry.events.bits()));
            let Some(mut stream) = self.streams.remove(&entry.descriptor) else {
                panic!("an event of no connection: {entry:?}");
            };
            while let Some(buffer) = list.take_next(at) {
                for byte_got in buffer.payload() {
                    assert_eq!(*byte_got, byte(stream.seed, stream.received));
                    stream.received += 1;
                    self.note(u64::from(*byte_got));
                }
            }
            if entry.events.intersects(Events::END) {
                assert_eq!(stream.received, stream.len, "seed {}", stream.seed);
                assert!(stream.has_shut_down);
                context.close(entry.descriptor);
                self.finished += 1;
            } else if entry.events.intersects(Events::CLOSED) {
                self.causes.extend(entry.cause);
                context.close(entry.descriptor);
            } else {
                self.streams.insert(entry.descriptor, stream);
            }
        }
        for (descriptor, stream) in &mut self.streams {
            stream.send(context, *descriptor);
        }
    }
}

impl Stream {
    fn send(&mut self, context: &mut dyn Context, descriptor: Descriptor) {
        // Half of the buffers stay free for the echo.
        let half = context.pool().count() / 2;
        while self.sent < self.len
            && context.pool().free_count() > half
            && let Some(mut buffer) = context.pool().allocate()
        {
            let end = self.len.min(self.sent + self.message_len);
            let message: Vec<u8> = (self.sent..end).map(|at| byte(self.seed, at)).collect();
            let count = buffer.append(&message);
            if context.send(descriptor, buffer).is_err() {
                return;
            }
            self.sent += count;
        }
        if self.sent == self.len && !std::mem::replace(&mut self.has_shut_down, true) {
            context.shutdown(descriptor);
        }
    }
}
