//! Tests of zero-copy sends, in which the kernel reads the program's buffers. A slow peer gets the
//! right bytes, and a buffer is free only after the kernel has finished reading it.
//!
//! Over loopback, the kernel copies the payload of a zero-copy send, but only when the packet
//! reaches the receiver. Until then, for example while the peer's window is closed, the kernel
//! reads the program's buffers.

mod figures;
mod link;
mod not_copied;
#[path = "../open/mod.rs"]
mod open;
mod xdp_unsafe;

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use rustix::net::sockopt;
use tidelane_kernel::{KernelContext, KernelOptions, ZeroCopy};
use tidelane_rings::{Buffer, Context, Descriptor, Events, Pool, ReadyList, SendRefusal, Wait};

use crate::open::open;

/// Time limit of a read, and of a wait for a condition.
const LIMIT: Duration = Duration::from_secs(30);
/// Time limit of one sync while a test waits for a condition.
const WAIT: Wait = Wait::For(Duration::from_millis(5));
/// Size in bytes of the receive buffer of a peer that does not read. Most of the data that a test
/// sends does not fit into this buffer.
const WINDOW_MIN: usize = 4096;
/// Size in bytes of the receive buffer of a peer that reads slowly.
const WINDOW: usize = 65_536;

/// Returns options with which every send is a zero-copy send.
fn always() -> KernelOptions {
    KernelOptions {
        zero_copy: ZeroCopy::Always { min: 1 },
        ..KernelOptions::default()
    }
}

/// A context (the sockets of one thread) with one connection to a socket of the standard library.
struct Joined {
    context: KernelContext,
    descriptor: Descriptor,
    stream: TcpStream,
    list: ReadyList,
}

impl Joined {
    /// Connects over loopback to a peer with a receive buffer of [`WINDOW_MIN`] bytes.
    fn new(options: &KernelOptions) -> Option<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Self::with(options, &listener, WINDOW_MIN)
    }

    /// Connects over loopback to a peer with a receive buffer of [`WINDOW`] bytes.
    fn to_reader(options: &KernelOptions) -> Option<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Self::with(options, &listener, WINDOW)
    }

    /// Connects to `listener`, whose connections have a receive buffer of `window` bytes.
    fn with(options: &KernelOptions, listener: &TcpListener, window: usize) -> Option<Self> {
        let mut context = open(options)?;
        sockopt::set_socket_recv_buffer_size(listener, window).expect("a socket");
        let address: SocketAddr = listener.local_addr().expect("bound");
        let descriptor = context.connect(address).expect("a socket");
        let mut list = ReadyList::new();
        context.sync(&mut list, Wait::For(LIMIT)).expect("a ring");
        assert!(list.entry(0).events.intersects(Events::CONNECTED));
        let stream = listener.accept().expect("a connection").0;
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        Some(Self {
            context,
            descriptor,
            stream,
            list,
        })
    }

    fn sync(&mut self, wait: Wait) {
        let synced = self.context.sync(&mut self.list, wait);
        synced.expect("a ring");
    }

    fn sync_until(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !is_done(self) {
            assert!(start.elapsed() < LIMIT, "{:?}", self.context.pool());
            self.sync(WAIT);
        }
    }

    /// Frees the buffers of the list. Returns the number of free buffers of the pool.
    fn free(&mut self) -> u32 {
        self.list.clear();
        self.context.pool().free_count()
    }

    /// Returns a buffer with the first bytes of `data`. Returns `None` if no buffer is free.
    fn buffer(&self, data: &[u8]) -> Option<Buffer> {
        let mut buffer = self.context.pool().allocate()?;
        buffer.append(data);
        Some(buffer)
    }

    /// Splits `data` into buffers of the pool, and queues the buffers for sending.
    fn queue(&mut self, data: &[u8]) {
        for part in data.chunks(self.context.pool().buffer_len() as usize) {
            let buffer = self.buffer(part).expect("free");
            self.context.send(self.descriptor, buffer).expect("room");
        }
    }

    /// Queues `data` until the context refuses a buffer or no buffer is free. Returns the number of
    /// queued bytes.
    fn queue_some(&mut self, data: &[u8]) -> usize {
        let mut queued = 0;
        while let Some(buffer) = self.buffer(&data[queued..]).filter(|it| !it.is_empty()) {
            let len = buffer.len();
            if let Err(error) = self.context.send(self.descriptor, buffer) {
                assert_eq!(error.refusal, SendRefusal::Full);
                break;
            }
            queued += len;
        }
        queued
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 65_521 % 251) as u8).collect()
}

/// Reads `len` bytes in parts of changing length, in a new thread.
fn read_slowly(mut stream: TcpStream, len: usize) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let (mut got, mut part) = (Vec::new(), [0; 3000]);
        while got.len() < len {
            let limit = 1 + got.len() * 7 % part.len();
            let count = stream.read(&mut part[..limit]).expect("data");
            assert!(count > 0, "the stream ends after {} bytes", got.len());
            got.extend_from_slice(&part[..count]);
            thread::yield_now();
        }
        got
    })
}

#[test]
fn a_slow_peer_gets_each_byte_once_and_in_order() {
    for (buffer_len, send_queue_max, send_buffer) in [
        (1000, 256, 1),
        (4096, 130, 8192),
        (65_536, 130, 1),
        (7, 5, 1),
    ] {
        let options = KernelOptions {
            buffer_len,
            send_queue_max,
            ..always()
        };
        let Some(mut joined) = Joined::to_reader(&options) else {
            return;
        };
        let free = joined.free();
        let socket = joined.context.socket(joined.descriptor).expect("open");
        sockopt::set_socket_send_buffer_size(socket, send_buffer).expect("a socket");
        let data = pattern(buffer_len.min(4096) as usize * 300);
        let stream = joined.stream.try_clone().expect("a socket");
        let reader = read_slowly(stream, data.len());
        let mut queued = 0;
        joined.sync_until(|joined| {
            queued += joined.queue_some(&data[queued..]);
            queued == data.len()
        });
        joined.sync_until(|_| reader.is_finished());
        assert!(reader.join().expect("the data") == data, "{buffer_len}");
        joined.sync_until(|joined| joined.free() == free);
    }
}

/// Sends `data` to a peer that does not read. Returns the numbers of free buffers before and after
/// the send. The second number is smaller if the kernel still reads sent buffers, or if the socket
/// has no room for all of the data.
fn lend(joined: &mut Joined, data: &[u8]) -> (u32, u32) {
    let free = joined.free();
    joined.queue(data);
    joined.sync(Wait::No);
    (free, joined.free())
}

#[test]
fn a_buffer_is_free_after_its_notification_and_not_before() {
    let Some(mut joined) = Joined::new(&always()) else {
        return;
    };
    let data = pattern(200_000);
    let (free, still_free) = lend(&mut joined, &data);
    assert!(still_free < free, "the kernel does not read the buffers");
    for _ in 0..10 {
        joined.sync(WAIT);
        assert!(joined.free() < free, "free before the peer has read");
    }
    let mut got = vec![0; data.len()];
    joined.stream.read_exact(&mut got).expect("the data");
    assert!(got == data);
    joined.sync_until(|joined| joined.free() == free);
    // A plain send copies to the socket's buffer, so the buffers are free after the sync.
    let options = KernelOptions {
        zero_copy: ZeroCopy::Never,
        ..always()
    };
    let mut plain = Joined::new(&options).expect("an io_uring");
    let (free, still_free) = lend(&mut plain, &data);
    assert_eq!(still_free, free);
}

/// If there is no event, a wait ends before its time limit only with a notification: the kernel has
/// finished reading the buffers of a send. This test has one notification, which ends at most one
/// wait.
#[test]
fn a_notification_ends_one_wait() {
    let Some(mut joined) = Joined::new(&always()) else {
        return;
    };
    // One send has all of the data, so there is one notification.
    let data = pattern(200_000);
    let (free, still_free) = lend(&mut joined, &data);
    assert!(still_free < free);
    let mut stream = joined.stream.try_clone().expect("a socket");
    let reader = thread::spawn(move || {
        stream.read_exact(&mut vec![0; data.len()]).expect("data");
        stream.write_all(b"x").expect("open");
    });
    let mut waits = 0;
    while joined.list.is_empty() {
        waits += 1;
        assert!(waits <= 2, "a wait has ended without a reason");
        joined.sync(Wait::For(LIMIT));
    }
    let answer = joined.list.take_next(0).expect("the answer");
    assert_eq!(answer.payload(), b"x");
    reader.join().expect("no panic");
}

#[test]
fn a_short_send_copies() {
    let options = KernelOptions {
        zero_copy: ZeroCopy::Always { min: 200_000 },
        ..always()
    };
    for (len, is_lent) in [(199_999, false), (200_000, true)] {
        let Some(mut joined) = Joined::new(&options) else {
            return;
        };
        let (free, still_free) = lend(&mut joined, &pattern(len));
        assert_eq!(still_free < free, is_lent, "{len} bytes");
    }
}

#[test]
fn a_close_delivers_buffers_that_the_kernel_reads() {
    let Some(mut joined) = Joined::new(&always()) else {
        return;
    };
    let data = pattern(200_000);
    let (free, _) = lend(&mut joined, &data);
    joined.context.close(joined.descriptor);
    joined.sync(Wait::No);
    assert!(joined.context.socket(joined.descriptor).is_none());
    assert!(joined.free() < free);
    // A new connection does not get the descriptor of a closed connection whose buffers the kernel
    // still reads.
    let other: SocketAddr = "127.0.0.1:9".parse().expect("an address");
    let other = joined.context.connect(other).expect("a socket");
    assert_ne!(other, joined.descriptor);
    let mut got = Vec::new();
    joined.stream.read_to_end(&mut got).expect("the data");
    assert!(got == data);
    joined.sync_until(|joined| joined.free() == free);
}

#[test]
fn an_abort_ends_the_reads_of_the_kernel() {
    let Some(mut joined) = Joined::new(&always()) else {
        return;
    };
    let (free, still_free) = lend(&mut joined, &pattern(1_000_000));
    assert!(still_free < free);
    joined.context.abort(joined.descriptor);
    joined.sync_until(|joined| joined.free() == free);
    let error = std::iter::repeat_with(|| joined.stream.read(&mut [0; 65_536]))
        .find_map(Result::err)
        .expect("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// After a reset by the peer, all buffers become free.
#[test]
fn a_reset_ends_the_reads_of_the_kernel() {
    let Some(mut joined) = Joined::new(&always()) else {
        return;
    };
    let (free, still_free) = lend(&mut joined, &pattern(1_000_000));
    assert!(still_free < free);
    sockopt::set_socket_linger(&joined.stream, Some(Duration::ZERO)).expect("a socket");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    // The assignment drops the old stream, which resets the connection.
    joined.stream = TcpStream::connect(address).expect("a listener");
    joined.sync_until(|joined| joined.free() == free);
}

/// Takes all free buffers of the pool, overwrites their memory, and returns the buffers.
fn overwrite(pool: &Pool) -> Vec<Buffer> {
    let mut taken = Vec::new();
    while let Some(mut buffer) = pool.allocate() {
        buffer.append(&vec![0xee; pool.buffer_len() as usize]);
        taken.push(buffer);
    }
    taken
}

/// The pool does not reuse memory that the kernel reads, even after the end of the context.
#[test]
fn a_dropped_context_leaves_the_memory_to_the_kernel() {
    // Each case: length of a buffer, and size of the socket's send buffer, both in bytes. In the
    // second case, the send buffer has room for only a part of the data. The part ends within a
    // buffer of the pool, and the rest of this buffer stays in the queue.
    for (buffer_len, send_buffer) in [(4096, 500_000), (65_536, 50_000)] {
        let options = KernelOptions {
            buffer_len,
            ..always()
        };
        let Some(mut joined) = Joined::new(&options) else {
            return;
        };
        let socket = joined.context.socket(joined.descriptor).expect("open");
        sockopt::set_socket_send_buffer_size(socket, send_buffer).expect("a socket");
        let data = pattern(200_000);
        lend(&mut joined, &data);
        let pool = joined.context.pool().clone();
        let (start, mut stream) = (Instant::now(), joined.stream);
        drop((joined.context, joined.list));
        assert!(start.elapsed() < Duration::from_millis(900));
        assert!(pool.free_count() < pool.count());
        let taken = overwrite(&pool);
        let mut got = Vec::new();
        stream.read_to_end(&mut got).expect("the data");
        // The context drops data that the socket has not taken.
        assert!(got.len() >= 20_000, "{} bytes", got.len());
        assert_eq!(got.len() < data.len(), send_buffer < data.len());
        assert!(got == data[..got.len()]);
        drop(taken);
    }
}

/// The limit of queued buffers includes the buffers that the kernel reads.
#[test]
fn a_blocked_connection_holds_a_bounded_number_of_buffers() {
    for send_queue_max in [1, 2, 9, 64] {
        let options = KernelOptions {
            buffer_len: 2000,
            send_queue_max,
            ..always()
        };
        let Some(mut joined) = Joined::new(&options) else {
            return;
        };
        let free = joined.free();
        let data = pattern(8 << 20);
        let (mut queued, mut idle) = (0, 0);
        while idle < 10 {
            let more = joined.queue_some(&data[queued..]);
            queued += more;
            idle = if more == 0 { idle + 1 } else { 0 };
            joined.sync(Wait::No);
            let held = free - joined.free();
            assert!(held <= send_queue_max as u32, "{held} of {send_queue_max}");
        }
        assert!(queued < data.len(), "the receiver is not blocked");
        // The event WRITABLE reports room when the peer has read.
        let reader = read_slowly(joined.stream.try_clone().expect("a socket"), queued);
        joined.sync_until(|joined| {
            (0..joined.list.len()).any(|at| joined.list.entry(at).events == Events::WRITABLE)
        });
        joined.sync_until(|_| reader.is_finished());
        assert!(reader.join().expect("the data") == data[..queued]);
        joined.sync_until(|joined| joined.free() == free);
    }
}

/// Sends one byte, and syncs until the notification has arrived, which reports whether the kernel
/// has copied the byte.
fn learn(joined: &mut Joined) {
    let free = joined.free();
    joined.queue(b"x");
    joined.sync(Wait::No);
    joined.stream.read_exact(&mut [0; 1]).expect("the byte");
    joined.sync_until(|joined| joined.free() == free);
}

#[test]
fn a_report_of_a_copy_ends_the_zero_copy_sends_of_the_connection() {
    let learning = ZeroCopy::WhereItPays { min: 1 };
    for (zero_copy, is_lent) in [(learning, false), (ZeroCopy::Always { min: 1 }, true)] {
        let options = KernelOptions {
            zero_copy,
            ..always()
        };
        let Some(mut joined) = Joined::new(&options) else {
            return;
        };
        learn(&mut joined);
        let data = pattern(200_000);
        let (free, still_free) = lend(&mut joined, &data);
        assert_eq!(still_free < free, is_lent, "{zero_copy:?}");
        let mut got = vec![0; data.len()];
        joined.stream.read_exact(&mut got).expect("the data");
        assert!(got == data);
    }
}

/// A zero-copy send needs one system call, as a plain send does: the kernel answers the request
/// during its submission.
#[test]
fn a_sync_with_zero_copy_sends_is_one_system_call() {
    let Some(mut joined) = Joined::new(&always()) else {
        return;
    };
    for _ in 0..100 {
        joined.stream.write_all(b"request").expect("open");
        joined.list.clear();
        joined.sync_until(|joined| !joined.list.is_empty());
        let request = joined.list.take_next(0).expect("a request");
        let sent = joined.context.send(joined.descriptor, request);
        sent.expect("room");
        let before = joined.context.system_calls();
        joined.context.tx_sync().expect("a ring");
        assert_eq!(joined.context.system_calls() - before, 1);
        let mut answer = [0; 7];
        joined.stream.read_exact(&mut answer).expect("the answer");
        assert_eq!(&answer, b"request");
    }
}
