//! Tests of a stream, which is the program's access to one connection: buffers, limits, flags, and
//! impossible values from the service.
//!
//! The program writes the word of its send buffer (the buffer's offset and size, packed into one
//! integer) to the slot, the record of the connection. The service writes the word of the send
//! buffer that the service uses to another field of the slot: the echo.

use std::{
    io::{IoSlice, IoSliceMut},
    sync::atomic::Ordering,
};

use proptest::prelude::*;
use tidelane_abi::{close_cause, program_flags, service_flags};
use tidelane_client::{Context, Program, Stream};

use crate::fake_service::FakeService;

const SLOT: u32 = 5;

/// A stream of a program, and the fake service at the other end of the shared memory.
struct Setup {
    service: FakeService,
    program: Program,
    context: Context,
    stream: Stream,
}

fn setup(tx_limit: u32) -> Setup {
    let mut service = FakeService::new();
    let program = service.program();
    let context = program.new_context().unwrap();
    let generation = service.begin(SLOT, 1 << 16, tx_limit);
    let stream = program.stream(SLOT, generation, 0).unwrap();
    Setup {
        service,
        program,
        context,
        stream,
    }
}

impl Setup {
    /// Submits the stream and lets the service handle the change.
    fn exchange(&mut self) {
        self.context.submit(&mut self.stream);
        self.context.flush();
        self.service.advance();
    }
}

/// Returns the test byte at position `pos` of the byte stream with the number `stream`. The bytes
/// repeat only after 2^21 positions, more than a buffer of the tests can hold.
fn byte(stream: u32, pos: u32) -> u8 {
    (pos.wrapping_mul(2_654_435_761) >> 13) as u8 ^ stream as u8
}

fn bytes(stream: u32, from: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|n| byte(stream, from.wrapping_add(n)))
        .collect()
}

#[test]
fn written_bytes_reach_the_service_and_an_idle_stream_holds_no_buffer() {
    let mut s = setup(1 << 16);
    assert_eq!(s.program.send_buffer_bytes(), 0);
    assert_eq!(s.stream.ids().peer_port, SLOT as u16);
    assert_eq!(s.stream.writable(), 1 << 16);
    assert_eq!(s.stream.write(b"hello"), 5);
    assert_eq!(s.program.send_buffer_bytes(), 4096);
    assert!(s.stream.submit_due());
    s.exchange();
    assert!(!s.stream.submit_due());
    assert_eq!(s.service.unacked(SLOT), b"hello");
    assert_eq!(s.stream.unacked(), 5);
    assert!(!s.stream.trim(), "not acknowledged");
    s.service.acknowledge(SLOT, 5);
    assert_eq!(s.stream.unacked(), 0);
    let mut trimmed = 0;
    s.context.trim(&mut |slot| {
        assert_eq!(slot, SLOT);
        trimmed += 1;
        s.stream.trim()
    });
    s.context.trim(&mut |_| panic!("trimmed before"));
    assert_eq!((trimmed, s.program.send_buffer_bytes()), (1, 0));
    assert_eq!(s.stream.write(b"again"), 5);
    s.exchange();
    assert_eq!(s.service.unacked(SLOT), b"again");
}

#[test]
fn a_growing_buffer_keeps_wrapped_bytes_and_its_predecessor() {
    let mut s = setup(1 << 20);
    // Begin in the middle of the buffer, so that the bytes wrap around.
    assert_eq!(s.stream.write(&bytes(1, 0, 3000)), 3000);
    s.exchange();
    s.service.acknowledge(SLOT, 3000);
    assert_eq!(s.stream.write(&bytes(1, 3000, 4000)), 4000);
    assert_eq!(s.program.send_buffer_bytes(), 4096);
    s.exchange();
    assert_eq!(s.service.unacked(SLOT), bytes(1, 3000, 4000));
    // The buffer grows twice, and the service has seen neither change.
    assert_eq!(s.stream.write(&bytes(1, 7000, 1000)), 1000);
    assert_eq!(s.stream.write(&bytes(1, 8000, 9000)), 9000);
    assert_eq!(s.program.send_buffer_bytes(), 4096 + 8192 + 16384);
    assert_eq!(
        s.service.unacked(SLOT),
        bytes(1, 3000, 4000),
        "the old buffer is intact"
    );
    s.exchange();
    assert_eq!(s.service.unacked(SLOT), bytes(1, 3000, 14000));
    s.stream.unacked();
    assert_eq!(
        s.program.send_buffer_bytes(),
        16384,
        "the echo of the new buffer frees the old buffers"
    );
}

#[test]
fn an_echo_of_an_earlier_use_of_the_buffer_frees_no_unacknowledged_bytes() {
    let mut s = setup(1 << 20);
    // The service sees an 8 KiB buffer, which the stream then frees.
    assert_eq!(s.stream.write(&bytes(1, 0, 8000)), 8000);
    s.exchange();
    s.service.acknowledge(SLOT, 8000);
    assert!(s.stream.trim());
    // The same 8 KiB buffer then replaces a 4 KiB buffer that still holds unacknowledged bytes.
    assert_eq!(s.stream.write(&bytes(1, 8000, 100)), 100);
    assert_eq!(s.stream.write(&bytes(1, 8100, 5000)), 5000);
    s.stream.unacked();
    assert_eq!(s.program.send_buffer_bytes(), 4096 + 8192);
    // The echoes of both uses are equal. The stream therefore keeps the 4 KiB buffer until its
    // bytes are acknowledged.
    s.exchange();
    s.service.acknowledge(SLOT, 50);
    s.stream.unacked();
    assert_eq!(s.program.send_buffer_bytes(), 4096 + 8192);
    s.service.acknowledge(SLOT, 50);
    s.stream.unacked();
    assert_eq!(s.program.send_buffer_bytes(), 8192);
    assert_eq!(s.service.unacked(SLOT), bytes(1, 8100, 5000));
}

#[test]
fn writes_stop_at_the_limit_and_at_the_end_of_memory() {
    let mut s = setup(10_000);
    assert_eq!(s.stream.write(&bytes(1, 0, 20_000)), 10_000);
    assert_eq!(s.stream.write(b"x"), 0);
    assert_eq!(s.stream.writable(), 0);
    s.exchange();
    s.service.acknowledge(SLOT, 1000);
    assert_eq!(s.stream.writable(), 1000);
    assert_eq!(s.stream.write(&bytes(1, 10_000, 5000)), 1000);
    s.exchange();
    assert_eq!(s.service.unacked(SLOT), bytes(1, 1000, 10_000));

    let mut service = FakeService::with_areas(1 << 20, 24 << 10);
    let program = service.program();
    let generation = service.begin(1, 1 << 16, 1 << 20);
    let mut stream = program.stream(1, generation, 0).unwrap();
    let taken = stream.write(&vec![1; 1 << 20]);
    assert_eq!(taken, 16 << 10, "the largest buffer that fits");
    assert_eq!(stream.write(b"x"), 0);
    let generation = service.begin(2, 1 << 16, 1 << 20);
    let mut other = program.stream(2, generation, 0).unwrap();
    assert_eq!(other.write(&[2; 9000]), 8 << 10);
    assert_eq!(other.write(b"x"), 0);
    drop(stream);
}

#[test]
fn vectored_calls_are_one_write_and_one_read() {
    let mut s = setup(10_000);
    let parts = [
        bytes(1, 0, 100),
        Vec::new(),
        bytes(1, 100, 6000),
        bytes(1, 6100, 6000),
    ];
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    assert_eq!(s.stream.write_vectored(&slices), 10_000);
    assert_eq!(s.program.send_buffer_bytes(), 16384, "grown once");
    s.exchange();
    assert_eq!(s.service.unacked(SLOT), bytes(1, 0, 10_000));
    assert_eq!(s.stream.write_vectored(&[]), 0);

    assert!(s.service.receive(SLOT, &bytes(2, 0, 150)));
    let (mut first, mut second, mut third) = ([0; 100], [0; 0], [0; 100]);
    let into = &mut [&mut first[..], &mut second[..], &mut third[..]].map(IoSliceMut::new);
    assert_eq!(s.stream.read_vectored(into), 150);
    assert_eq!([&first[..], &third[..50]].concat(), bytes(2, 0, 150));
    assert_eq!(s.stream.readable(), 0);
}

#[test]
fn received_bytes_are_peeked_read_and_discarded() {
    let mut s = setup(10_000);
    assert_eq!((s.stream.readable(), s.stream.read(&mut [0; 9])), (0, 0));
    assert!(s.service.receive(SLOT, b"hello world"));
    assert_eq!(s.stream.readable(), 11);
    let mut into = [0; 5];
    assert_eq!(s.stream.peek(&mut into), 5);
    assert_eq!(s.stream.read(&mut into), 5);
    assert_eq!(&into, b"hello");
    assert_eq!(s.stream.discard(1), 1);
    let mut rest = [0; 100];
    assert_eq!(s.stream.read(&mut rest), 5);
    assert_eq!(&rest[..5], b"world");
    assert_eq!(s.stream.discard(100), 0);
    let region = s.service.region.clone();
    let view = region.slot(SLOT).unwrap();
    assert_eq!(view.program().rx_read.load(Ordering::Relaxed), 11);
    s.service.idle(SLOT);
    assert_eq!(s.stream.readable(), 0);
    assert_eq!(view.program().rx_buffer_seen.load(Ordering::Relaxed), 0);
    assert!(s.service.receive(SLOT, b"again"));
    assert_eq!(s.stream.read(&mut rest), 5);
    assert_eq!(&rest[..5], b"again");
}

#[test]
fn reads_are_announced_when_a_quarter_of_the_window_was_read() {
    let mut s = setup(10_000);
    assert!(s.service.receive(SLOT, &[0; 1 << 16]));
    let quarter = 1 << 14;
    assert_eq!(s.stream.discard(quarter - 1), quarter - 1);
    assert!(!s.stream.submit_due());
    assert_eq!(s.stream.discard(1), 1);
    assert!(s.stream.submit_due());
    s.exchange();
    assert_eq!(s.stream.discard(quarter - 1), quarter - 1);
    assert!(!s.stream.submit_due());
    // A write also announces the read position.
    assert_eq!(s.stream.write(b"x"), 1);
    s.exchange();
    assert_eq!(s.stream.discard(1), 1);
    assert!(!s.stream.submit_due());
}

#[test]
fn the_end_of_the_stream_is_after_its_last_byte() {
    let mut s = setup(10_000);
    assert!(!s.stream.established());
    s.service.set_flags(SLOT, service_flags::ESTABLISHED, 0);
    assert!(s.stream.established() && !s.stream.peer_closed() && !s.stream.at_end());
    assert!(s.service.receive(SLOT, b"last"));
    s.service.set_flags(SLOT, service_flags::FIN_RECEIVED, 0);
    assert!(s.stream.peer_closed() && !s.stream.at_end());
    assert_eq!(s.stream.read(&mut [0; 10]), 4);
    assert!(s.stream.at_end());
    assert_eq!(s.stream.closed(), None);
    assert_eq!(s.stream.write(b"half-closed"), 11);
    s.service
        .set_flags(SLOT, service_flags::CLOSED, close_cause::RESET);
    assert_eq!(s.stream.closed(), Some(close_cause::RESET));
    assert_eq!(s.stream.write(&[0; 5000]), 0);
}

#[test]
fn changed_flags_are_submitted() {
    let mut s = setup(10_000);
    let region = s.service.region.clone();
    let shared = || {
        region
            .slot(SLOT)
            .unwrap()
            .program()
            .flags
            .load(Ordering::Relaxed)
    };
    s.stream
        .set_flag(program_flags::NODELAY | program_flags::CORK);
    assert_eq!(shared(), program_flags::NODELAY | program_flags::CORK);
    s.exchange();
    s.stream.set_flag(program_flags::NODELAY);
    assert!(!s.stream.submit_due());
    s.stream.clear_flag(program_flags::CORK);
    assert!(s.stream.submit_due());
    s.stream.shutdown_write();
    s.stream.shutdown_read();
    let expected = program_flags::NODELAY | program_flags::SHUT_WRITE | program_flags::SHUT_READ;
    assert_eq!((shared(), s.stream.flags()), (expected, expected));
    assert_eq!((s.stream.write(b"x"), s.stream.writable()), (0, 0));
    assert!(!s.stream.fin_acked());
    s.service.set_flags(
        SLOT,
        service_flags::FIN_ACKED | service_flags::LOCAL_PATH,
        0,
    );
    assert!(s.stream.fin_acked() && s.stream.local_path());
}

#[test]
fn a_closed_stream_s_bytes_stay_until_the_slot_is_released() {
    let mut s = setup(1 << 20);
    assert_eq!(s.stream.write(&bytes(1, 0, 3000)), 3000);
    s.exchange();
    assert_eq!(s.stream.write(&bytes(1, 3000, 3000)), 3000);
    s.stream.close(false, Some(5));
    let region = s.service.region.clone();
    let view = region.slot(SLOT).unwrap();
    assert_eq!(view.program().linger.load(Ordering::Relaxed), 6);
    assert_eq!(
        view.program().flags.load(Ordering::Relaxed),
        program_flags::CLOSE
    );
    s.exchange();
    drop(s.stream);
    assert_eq!(s.program.send_buffer_bytes(), 4096 + 8192);
    assert_eq!(s.service.unacked(SLOT), bytes(1, 0, 6000));
    s.service.release(SLOT);
    s.service.publish();
    assert_eq!(s.context.poll(&mut |_| ()), 1);
    assert_eq!(s.program.send_buffer_bytes(), 0);
}

#[test]
fn a_dropped_stream_is_aborted_and_a_lost_release_leaks_nothing() {
    let mut s = setup(1 << 20);
    assert_eq!(s.stream.write(&[1; 3000]), 3000);
    drop(s.stream);
    let region = s.service.region.clone();
    let view = region.slot(SLOT).unwrap();
    let abort = program_flags::CLOSE | program_flags::ABORT;
    assert_eq!(view.program().flags.load(Ordering::Relaxed), abort);
    // Reuse the slot without the event RELEASED.
    let generation = s.service.begin(SLOT, 1 << 16, 1 << 16);
    let mut stream = s.program.stream(SLOT, generation, 0).unwrap();
    assert_eq!(stream.write(&[2; 100]), 100);
    drop(stream);
    assert_eq!(s.program.send_buffer_bytes(), 4096);
}

#[test]
fn without_a_service_streams_are_closed() {
    let mut s = setup(10_000);
    assert!(s.service.receive(SLOT, b"left"));
    s.program.mark_service_gone();
    assert_eq!(s.stream.closed(), Some(close_cause::ABORTED));
    assert_eq!(s.stream.read(&mut [0; 10]), 4);
    assert!(s.stream.at_end());
    assert_eq!(s.stream.write(b"x"), 0);
    assert!(s.program.stream(64, 1, 0).is_none());
}

proptest! {
    #[test]
    fn impossible_values_of_the_service_do_no_harm(
        values in prop::collection::vec((any::<u64>(), 0..10usize), 1..60),
    ) {
        let mut s = setup(10_000);
        s.stream.write(&[1; 100]);
        assert!(s.service.receive(SLOT, &[2; 3000]));
        let region = s.service.region.clone();
        let view = region.slot(SLOT).unwrap();
        let half = view.service();
        let mut into = vec![0; 20_000];
        for (value, field) in values {
            let small = value as u32 % 100_000;
            match field {
                0 => half.rx_buffer.store(value, Ordering::Relaxed),
                1 => half.rx_buffer.store(value >> 40, Ordering::Relaxed),
                2 => half.tx_buffer_seen.store(value, Ordering::Relaxed),
                3 => half.rx_head.store(value as u32, Ordering::Relaxed),
                4 => half.rx_head.store(small, Ordering::Relaxed),
                5 => half.tx_acked.store(value as u32, Ordering::Relaxed),
                6 => half.tx_acked.store(small, Ordering::Relaxed),
                7 => half.rx_window.store(value as u32, Ordering::Relaxed),
                8 => half.tx_limit.store(value as u32, Ordering::Relaxed),
                _ => half.flags.store(value as u32 & 2, Ordering::Relaxed),
            }
            let len = small as usize % into.len();
            prop_assert!(s.stream.read(&mut into[..len]) <= len);
            prop_assert!(s.stream.write(&into[..len]) <= len);
            prop_assert!(s.stream.unacked() <= 8 << 20);
            prop_assert!(s.stream.readable() <= 8 << 20);
            s.stream.trim();
        }
    }

    #[test]
    fn byte_streams_stay_intact(
        limits in (1u32..200_000, 1u32..200_000),
        steps in prop::collection::vec((0..2u32, 0..11u8, 0..20_000usize), 1..300),
    ) {
        let mut world = World::new([limits.0, limits.1]);
        for (side, kind, amount) in steps {
            world.step(side as usize, kind, amount)?;
        }
        world.finish()?;
    }
}

/// Two streams with buffers in the same memory areas, and the expected positions of each stream.
struct World {
    service: FakeService,
    program: Program,
    context: Context,
    streams: Vec<Stream>,
    /// For each stream, the number of bytes written, received and read so far.
    written: [u32; 2],
    received: [u32; 2],
    read: [u32; 2],
}

impl World {
    fn new(tx_limits: [u32; 2]) -> World {
        let mut service = FakeService::new();
        let program = service.program();
        let context = program.new_context().unwrap();
        let streams = (0..2)
            .map(|n| {
                let generation = service.begin(n, 1 << 16, tx_limits[n as usize]);
                program.stream(n, generation, 0).unwrap()
            })
            .collect();
        let zero = [0; 2];
        let (written, received, read) = (zero, zero, zero);
        World {
            service,
            program,
            context,
            streams,
            written,
            received,
            read,
        }
    }

    fn step(&mut self, n: usize, kind: u8, amount: usize) -> Result<(), TestCaseError> {
        let slot = n as u32;
        let stream = &mut self.streams[n];
        match kind {
            0..=2 => {
                // Most writes are small.
                let len = if kind == 2 { amount } else { amount % 700 };
                let room = stream.writable();
                let data = bytes(slot, self.written[n], len);
                let taken = stream.write(&data);
                prop_assert_eq!(taken, len.min(room));
                self.written[n] += taken as u32;
            }
            3 => self.context.submit(stream),
            4 => self.context.flush(),
            5 => {
                self.service.advance();
            }
            6 => self.service.acknowledge(slot, amount as u32),
            7 => {
                let len = amount % 9000;
                if self.received[n] - self.read[n] < 100_000 {
                    let data = bytes(slot + 2, self.received[n], len);
                    prop_assert!(self.service.receive(slot, &data));
                    self.received[n] += len as u32;
                }
            }
            8 | 9 => self.read(n, amount, kind == 9)?,
            _ => {
                stream.trim();
                self.service.idle(slot);
            }
        }
        self.check(n)
    }

    fn read(&mut self, n: usize, amount: usize, peek: bool) -> Result<(), TestCaseError> {
        let mut into = vec![0; amount];
        let stream = &mut self.streams[n];
        let count = if peek {
            stream.peek(&mut into)
        } else {
            stream.read(&mut into)
        };
        prop_assert_eq!(
            count,
            amount.min((self.received[n] - self.read[n]) as usize)
        );
        prop_assert!(into[..count] == bytes(n as u32 + 2, self.read[n], count));
        if !peek {
            self.read[n] += count as u32;
        }
        Ok(())
    }

    /// Asserts that the service sees the correct unacknowledged bytes of stream `n`.
    fn check(&self, n: usize) -> Result<(), TestCaseError> {
        let unacked = self.service.unacked(n as u32);
        let acked = self.service.connections[&(n as u32)].tx_acked;
        prop_assert!(unacked == bytes(n as u32, acked, unacked.len()));
        Ok(())
    }

    fn finish(mut self) -> Result<(), TestCaseError> {
        for n in 0..2 {
            self.read(n, 1 << 20, false)?;
            prop_assert_eq!(self.read[n], self.received[n]);
            self.context.submit(&mut self.streams[n]);
        }
        self.context.flush();
        self.service.advance();
        for n in 0..2 {
            self.check(n)?;
            let head = self.service.connections[&(n as u32)].tx_head;
            prop_assert_eq!(head, self.written[n]);
        }
        self.streams.clear();
        for slot in 0..2 {
            self.service.release(slot);
        }
        self.service.publish();
        self.context.poll(&mut |_| ());
        prop_assert_eq!(self.program.send_buffer_bytes(), 0);
        Ok(())
    }
}
