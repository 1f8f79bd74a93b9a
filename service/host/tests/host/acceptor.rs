//! A program that accepts connections of the host (the stack of one core of the service). A slot is
//! the record of one connection in the memory that the program shares with the host.

use std::sync::{
    Arc,
    atomic::Ordering::{Acquire, Release},
};

use tidelane_abi::{
    ControlEvent, ControlRequest, control_event, control_request, data_request, program_flags,
};
use tidelane_host::ProgramId;
use tidelane_ring::{
    BufferAllocator, ControlEventConsumer, ControlRequestProducer, DataRequestProducer,
    ProgramRegion, StreamBuffer, new_control_request, words::DataWord,
};

use crate::{rig::Count, stage::Stage};

/// A program's number, and the memory that the program shares with the host.
pub type Program = (ProgramId, Arc<ProgramRegion>);

/// The single thread of a program, which accepts connections.
pub struct Acceptor {
    region: Arc<ProgramRegion>,
    requests: DataRequestProducer,
    events: ControlEventConsumer,
}

impl Acceptor {
    /// Joins the only listener: the host then assigns the listener's connections to this thread.
    pub fn join(stage: &mut Stage, program: &Program) -> Self {
        Self::join_listener(stage, program, 1)
    }

    /// Joins the listener with number `listener`.
    pub fn join_listener(stage: &mut Stage, program: &Program, listener: u32) -> Self {
        let (id, region) = program.clone();
        assert!(
            stage
                .core
                .host
                .add_context(id, 0, Box::new(Count(Arc::default())))
        );
        let mut control = ControlRequestProducer::new(region.clone(), 0).expect("a context");
        let join = ControlRequest {
            cookie: 1,
            listener,
            ..new_control_request(control_request::LISTENER_JOIN)
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

    /// Returns the connections that the host has assigned since the last call: for each, the peer's
    /// port and the event.
    pub fn accepted(&mut self) -> Vec<(u16, ControlEvent)> {
        let popped = std::iter::from_fn(|| self.events.pop().expect("a sound ring"));
        let events: Vec<ControlEvent> = popped.collect();
        self.events.release();
        let named = events.into_iter().map(|event| {
            assert_eq!(event.kind, control_event::ACCEPTED);
            let slot = self.region.slot(event.slot).expect("a slot");
            (slot.ids().peer_port, event)
        });
        named.collect()
    }

    /// Returns the peers' ports of the connections assigned since the last call.
    pub fn ports(&mut self) -> Vec<u16> {
        self.accepted().into_iter().map(|(port, _)| port).collect()
    }

    /// Returns the data that the connection of `event` has received.
    pub fn text(&self, event: &ControlEvent) -> Vec<u8> {
        text_in(&self.region, event.slot)
    }

    /// Marks the connection of `event` as accepted.
    pub fn accept(&mut self, stage: &mut Stage, event: &ControlEvent) {
        let half = self.region.slot(event.slot).expect("a slot").program();
        half.flags.fetch_or(program_flags::TAKEN, Release);
        self.advance(stage, event);
    }

    /// Reads `len` bytes, without accepting the connection.
    pub fn read(&mut self, stage: &mut Stage, event: &ControlEvent, len: u32) {
        let half = self.region.slot(event.slot).expect("a slot").program();
        half.rx_read.fetch_add(len, Release);
        self.advance(stage, event);
    }

    /// Writes `text` as the first data of the connection, without accepting the connection.
    pub fn write(&mut self, stage: &mut Stage, event: &ControlEvent, text: &[u8]) {
        let buffer = send_buffer(&self.region);
        assert!(buffer.write(self.region.region(), 0, text));
        let half = self.region.slot(event.slot).expect("a slot").program();
        half.tx_buffer.store(buffer.to_word(), Release);
        half.tx_head.store(text.len() as u32, Release);
        self.advance(stage, event);
    }

    /// Makes the host read the program's half of the connection's slot.
    pub fn advance(&mut self, stage: &mut Stage, event: &ControlEvent) {
        let word = DataWord::new(data_request::ADVANCE, event.slot);
        self.requests.push(word.encode()).expect("room");
        self.requests.publish();
        stage.run();
    }

    /// Accepts, resets and closes the connection of `event`. The host then frees the slot.
    pub fn abort(&mut self, stage: &mut Stage, event: &ControlEvent) {
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
        // If a connection waits for the freed slot and memory, the host is due again immediately,
        // to assign this connection.
        let due = stage.core.host.next_timeout();
        if due.is_some_and(|due| due <= stage.now) {
            stage.run();
        }
    }
}

/// Returns the first send buffer of a program. The buffer has 4096 bytes.
pub fn send_buffer(region: &ProgramRegion) -> StreamBuffer {
    let mut allocator = BufferAllocator::new(region.layout().tx_area());
    allocator.alloc(12).expect("an empty area")
}

/// Returns all data that the connection in `slot` has received.
pub fn text_in(region: &ProgramRegion, slot: u32) -> Vec<u8> {
    let slot = region.slot(slot).expect("a slot");
    let word = slot.service().rx_buffer.load(Acquire);
    let len = slot.service().rx_head.load(Acquire);
    let buffer = StreamBuffer::from_word(word, region.layout().rx_area());
    let mut text = vec![0; len as usize];
    let buffer = buffer.expect("a receive buffer");
    assert!(buffer.read(region.region(), 0, &mut text));
    text
}
