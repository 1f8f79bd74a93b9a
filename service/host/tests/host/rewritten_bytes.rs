//! Tests of a program that changes bytes after it has published them to the host, the stack of one
//! core of the service.
//!
//! A program publishes bytes in two steps: it writes the bytes to a send buffer in shared memory,
//! and then advances its write position in the stream. Until the peer has acknowledged the bytes, a
//! retransmission may carry the new contents. The host never sends acknowledged bytes again, and no
//! program reaches the bytes of another program.

use std::sync::{
    Arc,
    atomic::Ordering::{Acquire, Release},
};

use tidelane_abi::{ControlEvent, ProgramHalf};
use tidelane_packet_io::MemConfig;
use tidelane_ring::{ProgramRegion, StreamBuffer};
use tidelane_time::Duration;
use tidelane_wire::{SegmentHeader, SeqNumber, TcpFlags, checksum, parse_frame, parse_tcp};

use crate::{
    acceptor::{Acceptor, send_buffer},
    rig::Core,
    stage::{LOCAL, Stage, listen, stranger},
};

/// Port of the peer.
const PEER_PORT: u16 = 5001;
/// Number of bytes that the program publishes: more than two segments.
const LEN: usize = 3000;
/// Protocol number of TCP.
const TCP: u8 = 6;

/// A segment that the host has sent: the stream position of its payload, and the payload.
type Sent = (u32, Vec<u8>);

/// A connection of a hostile program, for which the test writes to the shared memory directly.
struct Hostile {
    stage: Stage,
    acceptor: Acceptor,
    /// The memory that the program shares with the host.
    region: Arc<ProgramRegion>,
    /// The event with which the host announced the connection to the program.
    event: ControlEvent,
    /// The program's send buffer.
    buffer: StreamBuffer,
    /// Header of the most recent segment that the peer has sent.
    last: SegmentHeader,
    /// Sequence number of the first byte that the program sends.
    first: SeqNumber,
    /// True once the host has sent a RST.
    is_reset: bool,
}

impl Hostile {
    fn new() -> Self {
        // Without checksum offload, the host computes the complete checksums.
        let mut stage = Stage::with_core(Core::with_port(MemConfig {
            partial_checksums: false,
            ..MemConfig::default()
        }));
        let program = listen(&mut stage.core.host, 1 << 20);
        let mut acceptor = Acceptor::join(&mut stage, &program);
        let mut last = stage.shake(PEER_PORT, b"x");
        stage.run();
        stage.answers(stranger(1));
        let (_, event) = acceptor.accepted().pop().expect("a connection");
        let (_, region) = program;
        let slot = region.slot(event.slot).expect("a slot");
        slot.program().generation.store(event.generation, Release);
        acceptor.accept(&mut stage, &event);
        last.seq = last.seq.add(1);
        last.wnd = 20_000;
        stage.send(stranger(1), last, &[]);
        stage.run();
        Self {
            first: last.ack,
            buffer: send_buffer(&region),
            stage,
            acceptor,
            region,
            event,
            last,
            is_reset: false,
        }
    }

    /// Returns the program's half of the connection's slot, the record of the connection in shared
    /// memory. The program may write any value to this half at any time.
    fn half(&self) -> &ProgramHalf {
        let slot = self.region.slot(self.event.slot).expect("a slot");
        slot.program()
    }

    /// Fills the whole send buffer with `byte`.
    fn scribble(&self, byte: u8) {
        let bytes = vec![byte; self.buffer.len() as usize];
        assert!(self.buffer.write(self.region.region(), 0, &bytes));
    }

    /// Publishes the first [`LEN`] bytes. Returns the result of [`sent`](Self::sent).
    fn publish(&mut self) -> Vec<Sent> {
        self.half().tx_buffer.store(self.buffer.to_word(), Release);
        self.half().tx_head.store(LEN as u32, Release);
        self.advance()
    }

    /// Makes the host read the slot. Returns the result of [`sent`](Self::sent).
    fn advance(&mut self) -> Vec<Sent> {
        self.acceptor.advance(&mut self.stage, &self.event);
        self.sent()
    }

    /// Acknowledges the first `count` bytes. Returns the result of [`sent`](Self::sent).
    fn acknowledge(&mut self, count: u32) -> Vec<Sent> {
        self.last.ack = self.first.add(count);
        self.stage.send(stranger(1), self.last, &[]);
        self.stage.run();
        self.sent()
    }

    /// Advances the time by `seconds`, and runs the timers. Returns the segments with payload that
    /// the host has sent.
    fn wait(&mut self, seconds: u64) -> Vec<Sent> {
        let mut all = Vec::new();
        for _ in 0..seconds * 10 {
            self.stage.now += Duration::from_millis(100);
            self.stage.run();
            all.extend(self.sent());
        }
        all
    }

    /// Returns the segments with payload that the host has sent since the last call. Panics if the
    /// checksum of a segment is wrong.
    fn sent(&mut self) -> Vec<Sent> {
        let frames = self.stage.core.sent();
        let mut all = Vec::new();
        for frame in &frames {
            let packet = parse_frame(frame).expect("a packet");
            let len = packet.payload.len() as u32;
            let pseudo = checksum::pseudo_header(LOCAL, packet.dst, TCP, len);
            let sum = pseudo.plus(checksum::sum(packet.payload));
            assert!(sum.is_valid(), "a wrong checksum");
            let segment = parse_tcp(packet.payload).expect("a segment");
            self.is_reset |= segment.flags.contains(TcpFlags::RST);
            let position = segment.seq.to_u32().wrapping_sub(self.first.to_u32());
            if !segment.payload.is_empty() {
                all.push((position, segment.payload.to_vec()));
            }
        }
        all
    }
}

/// Checks that each segment lies within the published bytes, at or after position `from`. Also
/// checks that each payload byte is one of `contents`.
fn check(sent: &[Sent], from: u32, contents: &[u8]) {
    for (position, payload) in sent {
        let end = *position as usize + payload.len();
        assert!(
            *position >= from && end <= LEN,
            "positions {position} to {end}"
        );
        assert!(
            payload.iter().all(|byte| contents.contains(byte)),
            "foreign bytes at {position}"
        );
    }
}

/// Returns the number of payload bytes.
fn bytes(sent: &[Sent]) -> usize {
    sent.iter().map(|(_, payload)| payload.len()).sum()
}

/// A retransmission carries the present contents of the program's own bytes, with a right checksum.
#[test]
fn rewritten_bytes_stay_within_their_own_stream() {
    let mut hostile = Hostile::new();
    hostile.scribble(b'a');
    let sent = hostile.publish();
    check(&sent, 0, b"a");
    assert_eq!(bytes(&sent), LEN);
    hostile.scribble(b'b');
    let again = hostile.wait(3);
    assert!(bytes(&again) > 0, "nothing was sent again");
    check(&again, 0, b"b");
    hostile.acknowledge(LEN as u32);
    assert_eq!(bytes(&hostile.wait(30)), 0);
    assert!(!hostile.is_reset);
}

/// Acknowledged bytes are not sent again, even if the program changes them.
#[test]
fn acknowledged_bytes_are_never_sent_again() {
    let mut hostile = Hostile::new();
    hostile.scribble(b'a');
    assert_eq!(bytes(&hostile.publish()), LEN);
    for (count, byte) in [(1000, b'b'), (1001, b'c'), (2900, b'd')] {
        let answered = hostile.acknowledge(count);
        check(&answered, count, b"abcd");
        hostile.scribble(byte);
        let again = hostile.wait(300);
        assert!(bytes(&again) > 0, "nothing was sent again after {count}");
        check(&again, count, &[byte]);
    }
    hostile.acknowledge(LEN as u32);
    hostile.scribble(b'e');
    hostile.advance();
    assert_eq!(bytes(&hostile.wait(100)), 0);
    assert!(!hostile.is_reset);
}

/// If a program moves its write position back to acknowledged bytes, or too far ahead, the host
/// resets the connection. No byte is sent again.
#[test]
fn a_write_position_never_moves_back() {
    let len = LEN as u32;
    for position in [0, 1, 1000, len - 1, len.wrapping_add(1 << 31), u32::MAX] {
        let mut hostile = Hostile::new();
        hostile.scribble(b'a');
        assert_eq!(bytes(&hostile.publish()), LEN);
        hostile.acknowledge(len);
        hostile.scribble(b'b');
        hostile.half().tx_head.store(position, Release);
        let sent = hostile.advance();
        assert_eq!(bytes(&sent), 0, "position {position}");
        assert_eq!(bytes(&hostile.wait(20)), 0, "position {position}");
        assert!(hostile.is_reset, "position {position}");
    }
}

/// The program writes an arbitrary value to the word that tells the host where its send buffer is.
/// All bytes that the host then sends lie in the program's own send area (the part of the shared
/// memory for send buffers). The host does not panic, and does not send acknowledged bytes again.
#[test]
fn any_buffer_word_is_harmless() {
    let mut numbers = 1_u64;
    for round in 0..500 {
        let mut hostile = Hostile::new();
        let region = hostile.region.clone();
        let area = region.layout().tx_area();
        let own = vec![b'o'; (area.end - area.start) as usize];
        assert!(region.copy_in(area.start, &own));
        assert_eq!(bytes(&hostile.publish()), LEN);
        hostile.acknowledge(1000);
        // A linear congruential generator makes arbitrary words, and words near the right word.
        numbers = numbers
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let word = match round % 4 {
            0 => numbers,
            1 => numbers >> (numbers % 64),
            2 => hostile.buffer.to_word().wrapping_add((numbers % 1024) << 8),
            _ => hostile.buffer.to_word() & !0xff | (numbers % 32),
        };
        hostile.half().tx_buffer.store(word, Release);
        let mut sent = hostile.advance();
        sent.extend(hostile.wait(3));
        check(&sent, 1000, b"o");
    }
}

/// If the program aborts a connection without closing it, the slot and its buffers stay with the
/// program until the program closes the connection.
#[test]
fn a_reset_keeps_the_buffers_until_the_close() {
    use tidelane_abi::{program_flags, service_flags};
    let mut hostile = Hostile::new();
    let slot = hostile.region.slot(hostile.event.slot).expect("a slot");
    let generation = slot.service().generation.load(Acquire);
    let flags = program_flags::ABORT | program_flags::TAKEN;
    hostile.half().flags.store(flags, Release);
    hostile.advance();
    assert!(hostile.is_reset);
    let region = hostile.region.clone();
    let slot = region.slot(hostile.event.slot).expect("a slot");
    let state = slot.service().flags.load(Acquire);
    assert!(state & service_flags::CLOSED != 0);
    assert_eq!(slot.service().generation.load(Acquire), generation);
    assert_eq!(crate::acceptor::text_in(&region, hostile.event.slot), b"x");
    hostile
        .half()
        .flags
        .store(flags | program_flags::CLOSE, Release);
    hostile.advance();
    let after = slot.service().generation.load(Acquire);
    assert_eq!(after, generation.wrapping_add(1), "the slot was not freed");
}
