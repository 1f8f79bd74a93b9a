//! Tests of a context (the sockets of one thread) on the kernel's TCP through io_uring. The peers
//! are sockets of the standard library, connected over loopback.

mod open;

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use rustix::net::sockopt;
use tidelane_kernel::{KernelContext, KernelOptions, ZeroCopy};
use tidelane_rings::{
    Buffer, Cause, Context, Descriptor, Events, ListenOptions, ReadyList, SendRefusal, Wait,
};

use crate::open::open;

/// Time limit of each wait of a test.
const LIMIT: Duration = Duration::from_secs(30);

/// Returns `options` twice: first with sends that copy, then with zero-copy sends (the kernel reads
/// the program's buffers).
fn with_and_without_copies(options: KernelOptions) -> [KernelOptions; 2] {
    [ZeroCopy::Never, ZeroCopy::Always { min: 1 }].map(|zero_copy| KernelOptions {
        zero_copy,
        ..options
    })
}

/// Returns a loopback address with port zero, for which the kernel selects a free port.
fn any() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

/// An echo server on a context. The server keeps the buffers that the context refuses.
struct Echo {
    context: KernelContext,
    list: ReadyList,
    address: SocketAddr,
    /// Refused buffers and their descriptors, to send later.
    kept: Vec<(Descriptor, Buffer)>,
    /// Number of open connections.
    connections: usize,
    /// Cause of the end of each closed connection. `None` if the peer has ended the stream.
    closed: Vec<Option<Cause>>,
}

impl Echo {
    fn new(options: &KernelOptions) -> Option<Self> {
        let mut context = open(options)?;
        let listener = context
            .listen(any(), &ListenOptions::default())
            .expect("a free port");
        let socket = context.socket(listener).expect("a socket");
        let address = rustix::net::getsockname(socket).expect("bound");
        Some(Self {
            context,
            list: ReadyList::new(),
            address: address.try_into().expect("an address"),
            kept: Vec::new(),
            connections: 0,
            closed: Vec::new(),
        })
    }

    fn send(&mut self, descriptor: Descriptor, buffer: Buffer) {
        if self.kept.iter().any(|(kept, _)| *kept == descriptor) {
            return self.kept.push((descriptor, buffer));
        }
        if let Err(error) = self.context.send(descriptor, buffer)
            && error.refusal == SendRefusal::Full
        {
            self.kept.push((descriptor, error.buffer));
        }
    }

    fn cycle(&mut self, wait: Wait) {
        self.context.sync(&mut self.list, wait).expect("a ring");
        for at in 0..self.list.len() {
            let entry = self.list.entry(at);
            if entry.events.intersects(Events::ACCEPTED) {
                self.connections += 1;
            }
            if entry.events.intersects(Events::WRITABLE) {
                let kept = std::mem::take(&mut self.kept);
                for (descriptor, buffer) in kept {
                    self.send(descriptor, buffer);
                }
            }
            while let Some(buffer) = self.list.take_next(at) {
                self.send(entry.descriptor, buffer);
            }
            let is_over = entry.events.intersects(Events::END.union(Events::CLOSED));
            let has_kept = self.kept.iter().any(|(kept, _)| *kept == entry.descriptor);
            if is_over && !has_kept {
                self.closed.push(entry.cause);
                self.connections -= 1;
                self.context.close(entry.descriptor);
            }
        }
    }

    fn run_until(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !is_done(self) {
            assert!(start.elapsed() < LIMIT, "{} connections", self.connections);
            self.cycle(Wait::For(Duration::from_millis(20)));
        }
    }

    /// Frees the buffers of the list. Returns true if at least half of all buffers are free. The
    /// kernel may hold the other half, to receive data.
    fn has_all_buffers(&mut self, options: &KernelOptions) -> bool {
        self.list.clear();
        self.context.pool().free_count() >= options.buffers / 2
    }
}

/// Returns `len` bytes that depend on their position and on `seed`.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) * 31 % 251) as u8).collect()
}

/// In a new thread, opens `count` connections, writes `data_len` bytes on each connection, reads
/// the echo, and closes the connections.
fn clients(address: SocketAddr, count: usize, data_len: usize) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut streams: Vec<TcpStream> = (0..count)
            .map(|_| TcpStream::connect(address).expect("a server"))
            .collect();
        for (seed, stream) in streams.iter_mut().enumerate() {
            stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
            stream.write_all(&pattern(data_len, seed)).expect("open");
        }
        for (seed, stream) in streams.iter_mut().enumerate() {
            let mut got = vec![0; data_len];
            stream.read_exact(&mut got).expect("the echo");
            assert!(got == pattern(data_len, seed), "connection {seed}");
            stream.shutdown(Shutdown::Write).expect("open");
            assert_eq!(stream.read(&mut [0; 1]).expect("the end"), 0);
        }
    })
}

#[test]
fn many_connections_get_their_own_bytes() {
    for options in with_and_without_copies(KernelOptions::default()) {
        let Some(mut echo) = Echo::new(&options) else {
            return;
        };
        for (count, len) in [(1, 1), (1, 100_000), (200, 20_000)] {
            let clients = clients(echo.address, count, len);
            echo.run_until(|_| clients.is_finished());
            clients.join().expect("the clients succeed");
            echo.run_until(|echo| echo.connections == 0);
            assert!(echo.closed.iter().all(Option::is_none), "{:?}", echo.closed);
        }
        echo.run_until(|echo| echo.has_all_buffers(&options));
    }
}

/// If the pool has few buffers, connections wait for free buffers, and no data is lost.
#[test]
fn a_lack_of_buffers_delays_and_loses_nothing() {
    let options = KernelOptions {
        buffers: 16,
        buffer_len: 1000,
        send_queue_max: 2,
        ..KernelOptions::default()
    };
    for options in with_and_without_copies(options) {
        let Some(mut echo) = Echo::new(&options) else {
            return;
        };
        let clients = clients(echo.address, 20, 20_000);
        echo.run_until(|_| clients.is_finished());
        clients.join().expect("the clients succeed");
        echo.run_until(|echo| echo.connections == 0);
        echo.run_until(|echo| echo.has_all_buffers(&options));
    }
}

/// Rounds of requests and answers on 50 connections take at most one system call per round on
/// average.
#[test]
fn a_sync_is_one_system_call() {
    for options in with_and_without_copies(KernelOptions::default()) {
        let Some(mut echo) = Echo::new(&options) else {
            return;
        };
        let connect = || TcpStream::connect(echo.address).expect("a server");
        let mut streams: Vec<TcpStream> = (0..50).map(|_| connect()).collect();
        echo.run_until(|echo| echo.connections == 50);
        echo.cycle(Wait::For(Duration::from_millis(10)));
        const ROUNDS: u64 = 100;
        let before = echo.context.system_calls();
        for _ in 0..ROUNDS {
            for stream in &mut streams {
                stream.write_all(b"request").expect("open");
            }
            // This call receives all requests and queues the answers. The next round's call sends
            // the answers.
            echo.cycle(Wait::Forever);
            assert_eq!(echo.list.len(), 50, "the list lacks requests");
        }
        assert!(echo.context.system_calls() - before <= ROUNDS);
        echo.cycle(Wait::No);
        for stream in &mut streams {
            let mut got = vec![0; 7 * ROUNDS as usize];
            stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
            stream.read_exact(&mut got).expect("the answers");
            assert_eq!(got, b"request".repeat(ROUNDS as usize));
        }
    }
}

/// A peer that does not read blocks only its own connection.
#[test]
fn a_blocked_receiver_delays_nobody_else() {
    let options = KernelOptions::default();
    let Some(mut echo) = Echo::new(&options) else {
        return;
    };
    let mut blocked = TcpStream::connect(echo.address).expect("a server");
    blocked.set_nonblocking(true).expect("a socket");
    let mut other = TcpStream::connect(echo.address).expect("a server");
    other.set_read_timeout(Some(LIMIT)).expect("a timeout");
    echo.run_until(|echo| echo.connections == 2);
    let data = [7; 65_536];
    let mut idle = 0;
    while idle < 20 {
        match blocked.write(&data) {
            Ok(_) => idle = 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => idle += 1,
            Err(error) => panic!("{error}"),
        }
        echo.cycle(Wait::For(Duration::from_millis(5)));
        // More than 1,000 refused buffers wait in the server, so the connection is blocked.
        if echo.kept.len() > 1000 {
            break;
        }
    }
    assert!(!echo.kept.is_empty(), "the receiver is not blocked");
    for _ in 0..50 {
        other.write_all(b"ping").expect("open");
        let (before, mut cycles) = (echo.context.system_calls(), 0);
        let mut got = [0; 4];
        other.set_nonblocking(true).expect("a socket");
        loop {
            echo.cycle(Wait::For(Duration::from_millis(50)));
            cycles += 1;
            match other.read(&mut got) {
                Ok(len) => break assert_eq!(len, 4),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            assert!(cycles < 10, "the answer is delayed");
        }
        assert!(echo.context.system_calls() - before <= cycles);
        other.set_nonblocking(false).expect("a socket");
        assert_eq!(&got, b"ping");
    }
}

#[test]
fn ends_have_their_causes() {
    let Some(mut echo) = Echo::new(&KernelOptions::default()) else {
        return;
    };
    // The peer resets the connection.
    let peer = TcpStream::connect(echo.address).expect("a server");
    echo.run_until(|echo| echo.connections == 1);
    sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).expect("a socket");
    drop(peer);
    echo.run_until(|echo| echo.connections == 0);
    assert_eq!(echo.closed, [Some(Cause::Reset)]);
    // The peer refuses the connection.
    let free = TcpListener::bind(any()).expect("a free port");
    let address = free.local_addr().expect("bound");
    drop(free);
    let refused = echo.context.connect(address).expect("a socket");
    echo.connections += 1;
    echo.run_until(|echo| echo.connections == 0);
    assert_eq!(echo.closed, [Some(Cause::Reset), Some(Cause::Refused)]);
    let buffer = echo.context.pool().allocate().expect("free");
    let error = echo
        .context
        .send(refused, buffer)
        .expect_err("not connected");
    assert_eq!(error.refusal, SendRefusal::NotConnected);
}

/// The program connects, and then sends and closes before the connection is established. The peer
/// gets all data, and then the end of the stream.
#[test]
fn a_close_sends_what_is_queued() {
    for options in with_and_without_copies(KernelOptions::default()) {
        let Some(mut context) = open(&options) else {
            return;
        };
        let listener = TcpListener::bind(any()).expect("a free port");
        let peer = context
            .connect(listener.local_addr().expect("bound"))
            .expect("a socket");
        let data = pattern(100_000, 3);
        for part in data.chunks(4096) {
            let mut buffer = context.pool().allocate().expect("free");
            assert_eq!(buffer.append(part), part.len());
            context.send(peer, buffer).expect("there is room");
        }
        context.close(peer);
        let reader = thread::spawn(move || -> io::Result<Vec<u8>> {
            let mut got = Vec::new();
            listener.accept()?.0.read_to_end(&mut got)?;
            Ok(got)
        });
        let (start, mut list) = (Instant::now(), ReadyList::new());
        while !reader.is_finished() {
            assert!(start.elapsed() < LIMIT, "no end");
            context
                .sync(&mut list, Wait::For(Duration::from_millis(10)))
                .expect("a ring");
            assert!(list.is_empty(), "a closed descriptor has an event");
        }
        assert!(reader.join().expect("no panic").expect("the data") == data);
        assert!(context.socket(peer).is_none());
    }
}

/// The drop of a context closes its connections.
#[test]
fn a_dropped_context_closes_its_sockets() {
    let Some(mut echo) = Echo::new(&KernelOptions::default()) else {
        return;
    };
    let mut streams: Vec<TcpStream> = (0..10)
        .map(|_| TcpStream::connect(echo.address).expect("a server"))
        .collect();
    echo.run_until(|echo| echo.connections == 10);
    let held = echo.context.pool().allocate().expect("free");
    drop(echo);
    for stream in &mut streams {
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        assert_eq!(stream.read(&mut [0; 1]).expect("the end"), 0);
    }
    // A buffer may outlive its context.
    assert!(held.is_empty());
}

/// Opens a context with one connection to a listener of the standard library.
fn connected(options: &KernelOptions) -> Option<(KernelContext, Descriptor, TcpStream)> {
    let mut context = open(options)?;
    let listener = TcpListener::bind(any()).expect("a free port");
    let peer = context
        .connect(listener.local_addr().expect("bound"))
        .expect("a socket");
    let mut list = ReadyList::new();
    context
        .sync(&mut list, Wait::For(LIMIT))
        .expect("a connection");
    assert!(list.entry(0).events.intersects(Events::CONNECTED));
    let stream = listener.accept().expect("a connection").0;
    stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
    Some((context, peer, stream))
}

/// Splits `data` into buffers of the pool, and queues the buffers for sending.
fn queue(context: &mut KernelContext, descriptor: Descriptor, data: &[u8]) {
    for part in data.chunks(context.pool().buffer_len() as usize) {
        let mut buffer = context.pool().allocate().expect("free");
        assert_eq!(buffer.append(part), part.len());
        context.send(descriptor, buffer).expect("there is room");
    }
}

/// In a new thread, reads from `stream` until all of `data` has arrived, and then answers with one
/// byte.
fn answer_to(mut stream: TcpStream, data: Vec<u8>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut got = vec![0; data.len()];
        stream.read_exact(&mut got).expect("the data");
        assert!(got == data);
        stream.write_all(b"x").expect("open");
        let _ = stream.read(&mut [0; 1]);
    })
}

/// A sync that waits for events still sends all queued data, even if the data needs several
/// `sendmsg` calls or exceeds the socket's send buffer. No wait lasts until its time limit.
#[test]
fn a_wait_does_not_hold_data_back() {
    // Each case: length of a buffer in bytes, length of the data in bytes, and limit of the number
    // of syncs until the answer has arrived.
    for (buffer_len, len, rounds_max) in [(100, 20_000, 2), (4096, 1_000_000, 100)] {
        let options = KernelOptions {
            buffer_len,
            ..KernelOptions::default()
        };
        for options in with_and_without_copies(options) {
            // A wait may also end with a notification (the kernel has finished reading the buffers
            // of a zero-copy send). A send has at most 64 buffers.
            let notifications = match options.zero_copy {
                ZeroCopy::Never => 0,
                _ => usize::div_ceil(len, 64 * buffer_len as usize),
            };
            let rounds_max = rounds_max + notifications;
            let Some((mut context, peer, stream)) = connected(&options) else {
                return;
            };
            let data = pattern(len, 1);
            queue(&mut context, peer, &data);
            let answer = answer_to(stream, data);
            let (mut list, mut rounds, start) = (ReadyList::new(), 0, Instant::now());
            while list.is_empty() {
                rounds += 1;
                context.sync(&mut list, Wait::For(LIMIT)).expect("a ring");
                let report = (buffer_len, options.zero_copy);
                assert!(rounds <= rounds_max, "no answer: {report:?}");
            }
            assert!(start.elapsed() < LIMIT, "a wait lasted until its limit");
            assert_eq!(list.take_next(0).expect("the answer").payload(), b"x");
            drop(context);
            answer.join().expect("the peer succeeds");
        }
    }
}

/// If the program has closed or shut down a connection with queued data, the next sync sends the
/// data, and then closes or shuts down the socket. Only then does the sync wait for events.
#[test]
fn a_wait_does_not_hold_a_close_back() {
    for closes in [true, false] {
        let Some((mut context, peer, mut stream)) = connected(&KernelOptions::default()) else {
            return;
        };
        queue(&mut context, peer, b"answer");
        if closes {
            context.close(peer);
            assert!(!context.is_open(peer) && context.socket(peer).is_none());
        } else {
            context.shutdown(peer);
        }
        let reader = thread::spawn(move || {
            let (start, mut got) = (Instant::now(), Vec::new());
            stream.read_to_end(&mut got).expect("the data");
            assert_eq!(got, b"answer");
            start.elapsed()
        });
        let (start, mut list) = (Instant::now(), ReadyList::new());
        let wait = Wait::For(Duration::from_secs(1));
        while !reader.is_finished() || (closes && start.elapsed() < Duration::from_secs(1)) {
            context.sync(&mut list, wait).expect("a ring");
        }
        let duration = reader.join().expect("the peer succeeds");
        assert!(duration < Duration::from_millis(900), "{duration:?}");
    }
}

/// `tx_sync` only sends and `rx_sync` only receives. A mix of both calls loses no data and no
/// event.
#[test]
fn tx_sync_and_rx_sync_together_lose_no_event() {
    let Some((mut context, peer, mut stream)) = connected(&KernelOptions::default()) else {
        return;
    };
    let mut list = ReadyList::new();
    let calls = context.system_calls();
    context.tx_sync().expect("a ring");
    assert_eq!(context.system_calls(), calls, "a call without data to send");
    // Three sends on one connection, without a receive between them.
    for part in [b"ab", b"cd", b"ef"] {
        queue(&mut context, peer, part);
        context.tx_sync().expect("a ring");
    }
    assert_eq!(context.system_calls(), calls + 3);
    let mut got = [0; 6];
    stream.read_exact(&mut got).expect("the data");
    assert_eq!(&got, b"abcdef");
    // `rx_sync` sends no data.
    queue(&mut context, peer, b"gh");
    stream.write_all(b"1").expect("open");
    context
        .rx_sync(&mut list, Wait::For(LIMIT))
        .expect("a ring");
    assert!(context.system_calls() <= calls + 4);
    assert_eq!(list.take_next(0).expect("data").payload(), b"1");
    stream.set_nonblocking(true).expect("a socket");
    let error = stream.read(&mut got).expect_err("nothing was sent");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    // Events that arrive during `tx_sync` are in the next list, exactly once.
    stream.write_all(b"23").expect("open");
    stream.shutdown(Shutdown::Write).expect("open");
    context.tx_sync().expect("a ring");
    context.tx_sync().expect("a ring");
    assert_eq!(stream.read(&mut got).expect("the data"), 2);
    context
        .rx_sync(&mut list, Wait::For(LIMIT))
        .expect("a ring");
    let entry = list.entry(0);
    let expected = Events::READABLE.union(Events::END);
    assert_eq!((entry.events, entry.bytes), (expected, 2));
    context.sync(&mut list, Wait::No).expect("a ring");
    assert!(list.is_empty());
}

/// If `tx_sync` finds that a send has failed, the next list reports the failure.
#[test]
fn the_failure_of_a_send_is_in_the_next_list() {
    for options in with_and_without_copies(KernelOptions::default()) {
        let Some((mut context, peer, stream)) = connected(&options) else {
            return;
        };
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("a socket");
        drop(stream);
        for _ in 0..3 {
            queue(&mut context, peer, b"x");
            context.tx_sync().expect("a ring");
        }
        let mut list = ReadyList::new();
        context
            .rx_sync(&mut list, Wait::For(LIMIT))
            .expect("a ring");
        assert!(list.entry(0).events.intersects(Events::CLOSED));
        assert_eq!(list.entry(0).cause, Some(Cause::Reset));
        context.rx_sync(&mut list, Wait::No).expect("a ring");
        assert!(list.is_empty(), "the end is reported twice");
        context.close(peer);
        context.tx_sync().expect("a ring");
        context.rx_sync(&mut list, Wait::No).expect("a ring");
        assert!(list.is_empty() && context.socket(peer).is_none());
    }
}

/// An abort resets a connection whose peer does not read, and frees the buffers of the connection.
#[test]
fn an_abort_resets_and_frees_buffers() {
    let options = KernelOptions {
        buffer_len: 65_536,
        buffers: 256,
        send_queue_max: 128,
        ..KernelOptions::default()
    };
    for options in with_and_without_copies(options) {
        let Some((mut context, peer, mut stream)) = connected(&options) else {
            return;
        };
        let mut list = ReadyList::new();
        let free = context.pool().free_count();
        queue(&mut context, peer, &vec![7; 100 * 65_536]);
        context.sync(&mut list, Wait::No).expect("a ring");
        assert!(context.pool().free_count() < free, "the socket took all");
        context.abort(peer);
        assert!(!context.is_open(peer));
        let buffer = context.pool().allocate().expect("free");
        let error = context.send(peer, buffer).expect_err("closed");
        assert_eq!(error.refusal, SendRefusal::NotConnected);
        drop(error);
        context.sync(&mut list, Wait::No).expect("a ring");
        // The buffers of zero-copy sends are free only after their notifications, which may arrive
        // after the reset.
        let start = Instant::now();
        while options.zero_copy != ZeroCopy::Never && context.pool().free_count() < free {
            assert!(start.elapsed() < LIMIT, "buffers are lost");
            let wait = Wait::For(Duration::from_millis(5));
            context.sync(&mut list, wait).expect("a ring");
        }
        assert_eq!(context.pool().free_count(), free);
        let error = std::iter::repeat_with(|| stream.read(&mut [0; 65_536]))
            .find_map(Result::err)
            .expect("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        // The drop of a context does not wait for a connection attempt that the program has
        // aborted.
        let opening = context
            .connect("192.0.2.1:9".parse().expect("an address"))
            .expect("a socket");
        context.sync(&mut list, Wait::No).expect("a ring");
        context.abort(opening);
        let start = Instant::now();
        drop(context);
        assert!(start.elapsed() < Duration::from_millis(900));
    }
}

/// A paused connection receives no data, so its peer is blocked. No data is lost or repeated.
#[test]
fn a_pause_blocks_the_peer() {
    let Some((mut context, peer, mut stream)) = connected(&KernelOptions::default()) else {
        return;
    };
    let mut list = ReadyList::new();
    context.pause(peer);
    context.pause(peer);
    // The peer has sent no data before the pause, so the list is empty.
    context.sync(&mut list, Wait::No).expect("a ring");
    assert!(list.is_empty());
    let data = pattern(50_000_000, 1);
    stream.set_nonblocking(true).expect("a socket");
    let (mut sent, mut blocked) = (0, 0);
    while blocked < 20 {
        match stream.write(&data[sent..]) {
            Ok(count) => (sent, blocked) = (sent + count, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                blocked += 1;
            }
        }
        let wait = Wait::For(Duration::from_millis(10));
        context.sync(&mut list, wait).expect("a ring");
        assert!(list.is_empty(), "received while paused");
    }
    assert!(sent < data.len(), "the peer is not blocked");
    stream.set_nonblocking(false).expect("a socket");
    let rest = data[sent..].to_vec();
    let writer = thread::spawn(move || {
        stream.write_all(&rest).expect("open");
        stream.shutdown(Shutdown::Write).expect("open");
        stream
    });
    // In some cycles, the program also pauses and resumes the connection before the sync, or pauses
    // the connection after the sync.
    let (mut got, mut ends, mut cycle) = (Vec::new(), 0, 0);
    while ends == 0 {
        cycle += 1;
        context.resume(peer).expect("a ring");
        if cycle % 3 == 0 {
            context.pause(peer);
            context.resume(peer).expect("a ring");
        }
        context.sync(&mut list, Wait::For(LIMIT)).expect("a ring");
        if cycle % 2 == 0 {
            context.pause(peer);
        }
        for at in 0..list.len() {
            ends += usize::from(list.entry(at).events.intersects(Events::END));
            while let Some(buffer) = list.take_next(at) {
                got.extend_from_slice(buffer.payload());
            }
        }
    }
    assert!(got == data, "{} of {} bytes", got.len(), data.len());
    // END is reported once, and a paused descriptor can be closed.
    context.resume(peer).expect("a ring");
    context.sync(&mut list, Wait::No).expect("a ring");
    context.pause(peer);
    context.resume(peer).expect("a ring");
    context.sync(&mut list, Wait::No).expect("a ring");
    assert!(list.is_empty());
    context.pause(peer);
    context.close(peer);
    context.resume(peer).expect("a ring");
    context.sync(&mut list, Wait::No).expect("a ring");
    let mut stream = writer.join().expect("the peer succeeds");
    assert_eq!(stream.read(&mut [0; 1]).expect("the end"), 0);
}

/// A paused listener accepts no connection. The connections wait in the accept queue.
#[test]
fn a_paused_listener_accepts_later() {
    let Some(mut context) = open(&KernelOptions::default()) else {
        return;
    };
    let listener = context
        .listen(any(), &ListenOptions::default())
        .expect("a free port");
    let socket = context.socket(listener).expect("a socket");
    let address: SocketAddr = rustix::net::getsockname(socket)
        .expect("bound")
        .try_into()
        .expect("an address");
    let mut list = ReadyList::new();
    context.sync(&mut list, Wait::No).expect("a ring");
    context.pause(listener);
    context.sync(&mut list, Wait::No).expect("a ring");
    let _stream = TcpStream::connect(address).expect("a backlog");
    for _ in 0..5 {
        let wait = Wait::For(Duration::from_millis(10));
        context.sync(&mut list, wait).expect("a ring");
        assert!(list.is_empty());
    }
    context.resume(listener).expect("a ring");
    context.sync(&mut list, Wait::For(LIMIT)).expect("a ring");
    assert!(list.entry(0).events.intersects(Events::ACCEPTED));
}
