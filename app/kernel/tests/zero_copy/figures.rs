//! Measures the throughput and the CPU time of sends with copies, and of zero-copy sends (the
//! kernel reads the program's buffers). The command of the measurement:
//!
//! ```text
//! cargo test -p tidelane-kernel --test zero_copy -- --ignored --nocapture figures
//! ```

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use tidelane_kernel::{KernelContext, KernelOptions, ZeroCopy};
use tidelane_rings::{Context, Descriptor, ReadyList, Wait};

use crate::{link::VethPair, open::open};

/// Bytes that a measurement sends.
const TOTAL: usize = 256 << 20;
/// Number of measurements for each link, message length and kind of send. The result is the
/// measurement in which sender and receiver together used the least CPU time.
const RUNS: usize = 5;

/// Result of one measurement.
#[derive(Clone, Copy)]
struct Figures {
    /// Elapsed time.
    elapsed: Duration,
    /// CPU time of the sender's thread.
    sender: Duration,
    /// CPU time of the process: the threads of sender and receiver.
    both: Duration,
}

fn cpu_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// In a new thread, accepts a connection and answers each message of `len` bytes by one byte.
fn answer(listener: TcpListener, len: usize) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut stream = listener.accept().expect("a connection").0;
        let mut data = vec![0; len];
        while stream.read_exact(&mut data).is_ok() {
            stream.write_all(b"x").expect("open");
        }
    })
}

/// Sends messages of `len` bytes in buffers of 4 KiB at most. At most two messages are without an
/// answer at a time.
fn exchange(context: &mut KernelContext, peer: Descriptor, len: usize) -> Figures {
    let mut list = ReadyList::new();
    let data = vec![7; 4096.min(len)];
    let (mut sent, mut answered) = (0, 0);
    let (start, sender, both) = (
        Instant::now(),
        cpu_time(ClockId::ThreadCPUTime),
        cpu_time(ClockId::ProcessCPUTime),
    );
    while answered < TOTAL / len {
        while sent < TOTAL / len && sent < answered + 2 {
            for _ in 0..len / data.len() {
                let mut buffer = context.pool().allocate().expect("free");
                buffer.set_payload(0..data.len() as u32);
                context.send(peer, buffer).expect("room");
            }
            sent += 1;
            context.tx_sync().expect("a ring");
        }
        context.sync(&mut list, Wait::Forever).expect("a ring");
        for at in 0..list.len() {
            while let Some(buffer) = list.take_next(at) {
                answered += buffer.len();
            }
        }
    }
    Figures {
        elapsed: start.elapsed(),
        sender: cpu_time(ClockId::ThreadCPUTime) - sender,
        both: cpu_time(ClockId::ProcessCPUTime) - both,
    }
}

/// Writes to all free buffers, so that each buffer has pages of its own before the measurement.
fn touch(context: &KernelContext) {
    let mut touched = Vec::new();
    while let Some(mut buffer) = context.pool().allocate() {
        buffer.append(&[7; 4096]);
        touched.push(buffer);
    }
}

/// Measures messages of `len` bytes to `listener`. Returns `None` if the system forbids io_uring,
/// or if the kernel lacks a required feature of io_uring.
fn measure(listener: TcpListener, len: usize, zero_copy: ZeroCopy) -> Option<Figures> {
    let mut context = open(&KernelOptions {
        zero_copy,
        ..KernelOptions::default()
    })?;
    let address = listener.local_addr().expect("bound");
    let peer = context.connect(address).expect("a socket");
    let mut list = ReadyList::new();
    context.sync(&mut list, Wait::Forever).expect("a ring");
    touch(&context);
    let receiver = answer(listener, len);
    let figures = exchange(&mut context, peer, len);
    context.close(peer);
    context.tx_sync().expect("a ring");
    drop(context);
    receiver.join().expect("no panic");
    Some(figures)
}

/// The kinds of sends that are compared, with their names. With `learning`, the sends of a
/// connection copy after the kernel has reported a copy of a zero-copy send.
const KINDS: [(&str, ZeroCopy); 3] = [
    ("copy", ZeroCopy::Never),
    ("zero-copy", ZeroCopy::Always { min: 1 }),
    ("learning", ZeroCopy::WhereItPays { min: 1 }),
];

/// Measures the kinds of sends in turn for several message lengths. Prints the best measurement of
/// each length and kind.
fn compare(link: &str, mut listen: impl FnMut() -> TcpListener) {
    for len in [16 << 10, 64 << 10, 256 << 10] {
        let mut best: [Option<Figures>; KINDS.len()] = [None; KINDS.len()];
        for _ in 0..RUNS {
            for (best, (_, zero_copy)) in best.iter_mut().zip(KINDS) {
                let figures = measure(listen(), len, zero_copy);
                let both = best.iter().copied().chain(figures);
                *best = both.min_by_key(|figures| figures.both);
            }
        }
        let per_byte = |time: Duration| time.as_secs_f64() * 1e9 / TOTAL as f64;
        for (best, (kind, _)) in best.into_iter().flatten().zip(KINDS) {
            println!(
                "{link:9} {:4} KiB {kind:9} {:5.2} GB/s, CPU: sender {:.3} ns/byte, both {:.3}",
                len >> 10,
                1.0 / per_byte(best.elapsed),
                per_byte(best.sender),
                per_byte(best.both),
            );
        }
    }
}

#[test]
#[ignore = "measures for minutes"]
fn figures() {
    compare("loopback", || {
        TcpListener::bind("127.0.0.1:0").expect("a free port")
    });
    let Some(pair) = VethPair::new() else {
        return;
    };
    compare("veth", || pair.listen());
    let _program = pair.attach();
    compare("veth XDP", || pair.listen());
}
