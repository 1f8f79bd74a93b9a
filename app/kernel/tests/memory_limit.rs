//! Zero-copy sends (the kernel pins and reads the program's buffers) of a program that is not
//! permitted to pin all pages of the sent data. The limit of locked memory (RLIMIT_MEMLOCK) applies
//! to the process, so this test has a process of its own.

mod open;

use std::{
    io::Read,
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CapabilitySet, capabilities, set_capabilities},
};
use tidelane_kernel::{KernelOptions, ZeroCopy};
use tidelane_rings::{Context, Events, ReadyList, Wait};

use crate::open::open;

/// Limit of locked memory in bytes while the context (the sockets of this thread) sends.
const LOCKED_MAX: u64 = 128 << 10;
/// Length in bytes of the sent data, whose pages exceed the limit.
const LEN: usize = 200_000;
/// Time limit of the test.
const LIMIT: Duration = Duration::from_secs(30);

/// Gives up the capability CAP_IPC_LOCK, so that the kernel applies the limit of locked memory to
/// the contexts that this thread opens.
fn give_up_privilege() {
    let mut sets = capabilities(None).expect("the thread has capabilities");
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).expect("fewer capabilities");
}

/// The kernel refuses a zero-copy send beyond the limit. The connection stays open, and all data
/// arrives.
#[test]
fn data_beyond_the_limit_of_locked_memory_is_copied() {
    give_up_privilege();
    let options = KernelOptions {
        zero_copy: ZeroCopy::Always { min: 1 },
        ..KernelOptions::default()
    };
    let Some(mut context) = open(&options) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let peer = context.connect(address).expect("a socket");
    let mut list = ReadyList::new();
    context.sync(&mut list, Wait::For(LIMIT)).expect("a ring");
    let before = getrlimit(Resource::Memlock);
    let current = Some(LOCKED_MAX);
    setrlimit(Resource::Memlock, Rlimit { current, ..before }).expect("a lower limit");

    let free = context.pool().free_count();
    let data: Vec<u8> = (0..LEN).map(|at| (at * 31 % 251) as u8).collect();
    for part in data.chunks(4096) {
        let mut buffer = context.pool().allocate().expect("free");
        buffer.append(part);
        context.send(peer, buffer).expect("room");
    }
    context.close(peer);
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        let mut stream = listener.accept().expect("a connection").0;
        stream.read_to_end(&mut got).expect("the data");
        got
    });
    let (start, wait) = (Instant::now(), Wait::For(Duration::from_millis(5)));
    while !reader.is_finished() || context.pool().free_count() < free {
        assert!(start.elapsed() < LIMIT, "{:?}", context.pool());
        context.sync(&mut list, wait).expect("a ring");
        let is_closed = (0..list.len()).any(|at| list.entry(at).events.intersects(Events::CLOSED));
        assert!(!is_closed, "the refusal failed the connection");
    }
    assert!(reader.join().expect("the data") == data);
}
