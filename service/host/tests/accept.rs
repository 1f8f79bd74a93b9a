//! Connections between their handshake and accept: what was acknowledged is kept until a program
//! has room for it, and what ends before is forgotten.

mod stage;

use std::sync::{
    Arc,
    atomic::Ordering::{Acquire, Release},
};

use stage::{Stage, listen, segment, stranger};
use tidelane_abi::{
    ControlEvent, ControlRequest, OpenOptions, close_cause, control_event, control_request,
    data_request, program_flags,
};
use tidelane_host::{Bell, ProgramId};
use tidelane_ring::{
    ControlEventConsumer, ControlRequestProducer, DataRequestProducer, ProgramRegion, StreamBuffer,
    words::DataWord,
};
use tidelane_wire::{SegmentHeader, TcpFlags};

/// Each connection's text.
const TEXT: [u8; 10] = *b"0123456789";

type Program = (ProgramId, Arc<ProgramRegion>);

/// A host, and a program that listens.
fn stage(rx_len: u64) -> (Stage, Program) {
    let mut stage = Stage::new();
    let program = listen(&mut stage.host, rx_len);
    (stage, program)
}

struct Deaf;

impl Bell for Deaf {
    fn ring(&self) -> bool {
        true
    }
}

/// The program's only thread.
struct Acceptor {
    region: Arc<ProgramRegion>,
    requests: DataRequestProducer,
    events: ControlEventConsumer,
}

impl Acceptor {
    /// Joins the listener.
    fn join(stage: &mut Stage, program: &Program) -> Self {
        let (id, region) = program.clone();
        assert!(stage.host.add_context(id, 0, Box::new(Deaf)));
        let mut control = ControlRequestProducer::new(region.clone(), 0).expect("a context");
        let join = ControlRequest {
            kind: control_request::LISTENER_JOIN,
            flags: 0,
            cookie: 1,
            peer_addr: [0; 16],
            local_addr: [0; 16],
            peer_port: 0,
            local_port: 0,
            listener: 1,
            fast_open: 0,
            reserved_word: 0,
            options: OpenOptions::default(),
            reserved: [0; 3],
        };
        control.push(join).expect("room");
        control.publish();
        stage.run();
        Self {
            requests: DataRequestProducer::new(region.clone(), 0).expect("a context"),
            events: ControlEventConsumer::new(region.clone(), 0).expect("a context"),
            region,
        }
    }

    /// Connections that were handed out since the last call: the peer's port, and the event.
    fn accepted(&mut self) -> Vec<(u16, ControlEvent)> {
        let popped = std::iter::from_fn(|| self.events.pop().expect("a sound ring"));
        let events: Vec<ControlEvent> = popped.collect();
        self.events.release();
        let named = events.into_iter().map(|event| {
            assert_eq!(event.kind, control_event::ACCEPTED);
            let slot = self.region.slot(event.slot).expect("a slot");
            (slot.names().peer_port, event)
        });
        named.collect()
    }

    fn ports(&mut self) -> Vec<u16> {
        self.accepted().into_iter().map(|(port, _)| port).collect()
    }

    /// What the connection of `event` has received.
    fn text(&self, event: &ControlEvent) -> Vec<u8> {
        let slot = self.region.slot(event.slot).expect("a slot");
        let word = slot.service().rx_buffer.load(Acquire);
        let len = slot.service().rx_head.load(Acquire);
        let buffer = StreamBuffer::from_word(word, self.region.layout().rx_area());
        let mut text = vec![0; len as usize];
        let buffer = buffer.expect("a receive buffer");
        assert!(buffer.read(self.region.region(), 0, &mut text));
        text
    }

    /// Resets the connection of `event`.
    fn abort(&mut self, stage: &mut Stage, event: &ControlEvent) {
        let half = self.region.slot(event.slot).expect("a slot").program();
        let flags = program_flags::CLOSE | program_flags::ABORT | program_flags::TAKEN;
        half.generation.store(event.generation, Release);
        half.flags.store(flags, Release);
        let word = DataWord::new(data_request::ADVANCE, event.slot);
        self.requests.push(word.encode()).expect("room");
        let word = DataWord::with_arg(data_request::ACCEPT_TAKEN, 1, 1);
        self.requests.push(word.encode()).expect("room");
        self.requests.publish();
        stage.run();
        let due = stage.host.next_timeout();
        if due.is_some_and(|due| due <= stage.now) {
            stage.run();
        }
    }
}

impl Stage {
    /// A connection from `port`, which sends `text` with the end of its handshake. What answers it.
    fn connect(&mut self, port: u16, text: &[u8]) -> TcpFlags {
        self.shake(port, text);
        self.run();
        let answers = self.answers(stranger(1));
        let acknowledged = |ack: u32| answers.iter().all(|answer| answer.ack.to_u32() == ack);
        assert!(acknowledged(8 + text.len() as u32), "{answers:?}");
        let flags = answers.iter().map(|answer| answer.flags.0);
        TcpFlags(flags.fold(0, |all, flags| all | flags))
    }

    /// As far as the last segment of the handshake, which waits in the host's port.
    fn shake(&mut self, port: u16, text: &[u8]) -> SegmentHeader {
        let mut syn = segment(TcpFlags::SYN, 7, 0);
        syn.src_port = port;
        let answers = self.exchange(stranger(1), syn);
        assert_eq!(answers.len(), 1, "the SYN from {port} is answered");
        let mut ack = segment(TcpFlags::ACK, 8, answers[0].seq.to_u32().wrapping_add(1));
        ack.src_port = port;
        self.send(stranger(1), ack, text);
        ack
    }

    /// The peer resets the connection from `port`, of which it has sent so much.
    fn reset(&mut self, port: u16, sent: usize) {
        let mut reset = segment(TcpFlags::RST, 8 + sent as u32, 0);
        reset.src_port = port;
        self.send(stranger(1), reset, &[]);
        self.run();
    }
}

/// A reset would lose bytes that were acknowledged; the kernel keeps such a connection, too.
#[test]
fn a_connection_for_whose_bytes_there_is_no_memory_waits() {
    let (mut stage, program) = stage(16 << 10);
    let mut acceptor = Acceptor::join(&mut stage, &program);
    let ports = 5001..=5006;
    for port in ports.clone() {
        let flags = stage.connect(port, &TEXT);
        assert!(!flags.contains(TcpFlags::RST), "{port}");
    }
    let mut expected = ports;
    let first = acceptor.accepted();
    assert_eq!(first.len(), 4);
    let mut open = Vec::from_iter(first);
    for _ in 0..6 {
        let (port, event) = open.remove(0);
        assert_eq!(Some(port), expected.next());
        assert_eq!(acceptor.text(&event), TEXT);
        acceptor.abort(&mut stage, &event);
        // What was freed is found at once.
        open.extend(acceptor.accepted());
    }
    assert!(open.is_empty());
    assert_eq!(stage.host.usage(), (1, 0, 0));
}

/// As with accept in the kernel, which says EMFILE and leaves the connection where it was.
#[test]
fn a_connection_for_which_there_is_no_slot_waits() {
    let (mut stage, program) = stage(1 << 20);
    let mut acceptor = Acceptor::join(&mut stage, &program);
    for port in 5001..=5017 {
        assert!(!stage.connect(port, &[]).contains(TcpFlags::RST));
    }
    let accepted = acceptor.accepted();
    assert_eq!(accepted.len(), 16);
    acceptor.abort(&mut stage, &accepted[7].1);
    assert_eq!(acceptor.ports(), [5017]);
}

/// Before accept a connection takes no more than its program could ever have room for.
#[test]
fn what_waits_for_accept_fits_into_the_memory_of_its_program() {
    let (mut stage, program) = stage(16 << 10);
    let mut ack = stage.shake(5001, &[0; 1000]);
    for number in 1..6 {
        ack.seq = ack.seq.add(1000);
        stage.send(stranger(1), ack, &[number; 1000]);
    }
    stage.run();
    let answers = stage.answers(stranger(1)).into_iter();
    let acknowledged = answers.map(|answer| answer.ack.to_u32());
    assert_eq!(acknowledged.max(), Some(8 + 4000));
    assert!(stage.counter("drop_rx_buffer_full") > 0);
    let mut acceptor = Acceptor::join(&mut stage, &program);
    let accepted = acceptor.accepted();
    let text = acceptor.text(&accepted[0].1);
    assert!(text.chunks(1000).map(|part| part[0]).eq(0..4));
}

/// As in the kernel: accept gives it out, and reading says how it ended.
#[test]
fn a_connection_that_ends_while_it_waits_is_handed_out() {
    let (mut stage, program) = stage(1 << 20);
    stage.connect(5001, &TEXT);
    stage.reset(5001, TEXT.len());
    stage.connect(5002, &[]);
    let mut acceptor = Acceptor::join(&mut stage, &program);
    let accepted = acceptor.accepted();
    assert!(accepted.iter().map(|(port, _)| *port).eq([5001, 5002]));
    let ended = &accepted[0].1;
    assert_eq!(acceptor.text(ended), TEXT);
    let half = program.1.slot(ended.slot).expect("a slot").service();
    assert_eq!(half.cause.load(Acquire), close_cause::RESET);
}

/// What none of those that hold the listener could ever take must not block it for good.
#[test]
fn a_connection_that_fits_nowhere_is_reset_and_keeps_no_place() {
    let (mut stage, program) = stage(1 << 20);
    for port in 5001..=5017 {
        let mut ack = stage.shake(port, &[0; 1400]);
        for _ in 1..20 {
            ack.seq = ack.seq.add(1400);
            stage.send(stranger(1), ack, &[0; 1400]);
        }
        stage.run();
        assert!(stage.counter("drop_rx_buffer_full") == 0);
        stage.answers(stranger(1));
    }
    let heir = listen(&mut stage.host, 16 << 10);
    stage.host.remove_program(stage.now, program.0);
    let mut acceptor = Acceptor::join(&mut stage, &heir);
    stage.run();
    assert!(acceptor.ports().is_empty());
    assert_eq!(stage.host.usage(), (1, 0, 0));
    let answers = stage.answers(stranger(1)).into_iter();
    let resets = answers.filter(|answer| answer.flags.contains(TcpFlags::RST));
    assert_eq!(resets.count(), 17);
    stage.connect(6000, &TEXT);
    assert_eq!(acceptor.ports(), [6000]);
}
