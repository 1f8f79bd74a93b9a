//! A context's rings, and connections carried over them by hand.

use std::{
    os::fd::BorrowedFd,
    sync::{Arc, atomic::Ordering},
};

use tidelane_abi::{
    ControlEvent, ControlRequest, buffer_word, control_event, control_request, data_event,
    data_request, program_flags, service_flags,
};
use tidelane_ring::{
    ControlEventConsumer, ControlRequestProducer, DataEventConsumer, DataRequestProducer, Doorbell,
    ProgramRegion, StreamBuffer, new_control_request, words::DataWord,
};

/// Logarithm of the size of the send buffer that each slot has by its number.
const TX_LOG2: u8 = 12;

/// One context's rings with every core.
#[derive(Debug)]
pub struct Rings {
    region: Arc<ProgramRegion>,
    cores: Vec<CoreRings>,
    bell: Option<Doorbell>,
}

/// One context's rings with one core.
#[derive(Debug)]
pub struct CoreRings {
    /// Program to service.
    pub data_requests: DataRequestProducer,
    /// Service to program.
    pub data_events: DataEventConsumer,
    /// Program to service.
    pub control_requests: ControlRequestProducer,
    /// Service to program.
    pub control_events: ControlEventConsumer,
}

/// A connection by its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The slot.
    pub slot: u32,
    /// Its generation.
    pub generation: u32,
    core: usize,
}

/// The service's messages.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A connection for a listener.
    Accepted(Connection),
    /// A connection that was asked for; its SYN is on its way.
    Started(Connection),
    /// There will be no such connection.
    Failed,
    /// Something changed in a slot.
    Ready(u32),
}

impl Rings {
    /// The rings of context `number` with each of `cores` cores.
    pub fn new(region: &Arc<ProgramRegion>, number: u32, cores: u32) -> Option<Rings> {
        let of_core = |core| {
            let number = region.layout().share(core, cores).rings(number)?;
            Some(CoreRings {
                data_requests: DataRequestProducer::new(region.clone(), number)?,
                data_events: DataEventConsumer::new(region.clone(), number)?,
                control_requests: ControlRequestProducer::new(region.clone(), number)?,
                control_events: ControlEventConsumer::new(region.clone(), number)?,
            })
        };
        Some(Rings {
            region: region.clone(),
            cores: (0..cores).map(of_core).collect::<Option<_>>()?,
            bell: None,
        })
    }

    /// Keeps the doorbell that the service was told of.
    pub fn with_bell(mut self, bell: Doorbell) -> Rings {
        self.bell = Some(bell);
        self
    }

    /// The doorbell.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(Doorbell::fd)
    }

    /// By core.
    pub fn cores(&mut self) -> &mut [CoreRings] {
        &mut self.cores
    }

    /// Asks every core for connections of `listener`.
    pub fn join(&mut self, listener: u32) {
        for core in &mut self.cores {
            core.request(ControlRequest {
                listener,
                ..new_control_request(control_request::LISTENER_JOIN)
            });
        }
    }

    /// Asks the first core for a connection.
    pub fn connect(&mut self, peer_addr: [u8; 16], peer_port: u16, local_port: u16) {
        self.cores[0].request(ControlRequest {
            peer_addr,
            peer_port,
            local_port,
            ..new_control_request(control_request::CONNECT)
        });
    }

    /// Everything that the service said since the last call. A ring that makes no sense is empty.
    pub fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for (number, core) in self.cores.iter_mut().enumerate() {
            while let Ok(Some(event)) = core.control_events.pop() {
                events.extend(of_control(&event, number));
            }
            core.control_events.release();
            while let Ok(Some(word)) = core.data_events.pop() {
                let word = DataWord::decode(word);
                if word.kind == data_event::READY {
                    events.push(Event::Ready(word.slot));
                }
            }
            core.data_events.release();
        }
        events
    }

    /// Takes a connection from the accept queue.
    pub fn accept(&mut self, connection: Connection, listener: u32) {
        self.write_flags(connection, program_flags::TAKEN);
        let word = DataWord::with_arg(data_request::ACCEPT_TAKEN, 1, listener);
        self.advance(connection);
        self.tell(connection.core, word);
    }

    /// Bytes that have come in all, and whether the peer has finished.
    pub fn received(&self, connection: Connection) -> Option<(u32, bool)> {
        let service = self.region.slot(connection.slot)?.service();
        let over = service_flags::FIN_RECEIVED | service_flags::CLOSED;
        let head = service.rx_head.load(Ordering::Acquire);
        Some((head, service.flags.load(Ordering::Acquire) & over != 0))
    }

    /// Copies bytes that have come from stream position `pos` on. False if they do not lie in a
    /// buffer of the service.
    pub fn read(&self, connection: Connection, pos: u32, into: &mut [u8]) -> bool {
        let Some(slot) = self.region.slot(connection.slot) else {
            return false;
        };
        let word = slot.service().rx_buffer.load(Ordering::Acquire) & !buffer_word::MARKED;
        let buffer = StreamBuffer::from_word(word, self.region.layout().rx_area());
        buffer.is_some_and(|buffer| buffer.read(&self.region, pos, into))
    }

    /// Marks all bytes as read that have come.
    pub fn read_all(&mut self, connection: Connection) {
        let Some(slot) = self.region.slot(connection.slot) else {
            return;
        };
        let head = slot.service().rx_head.load(Ordering::Acquire);
        let buffer = slot.service().rx_buffer.load(Ordering::Acquire);
        slot.program()
            .rx_buffer_seen
            .store(buffer, Ordering::Release);
        slot.program().rx_read.store(head, Ordering::Release);
        self.advance(connection);
    }

    /// Sends `bytes` at stream position `pos`, no more than a buffer holds. Every connection has
    /// one buffer; what was written before `pos` and is not acknowledged must still fit.
    pub fn send(&mut self, connection: Connection, pos: u32, bytes: &[u8]) {
        let area = self.region.layout().tx_area();
        let offset = area.start + (u64::from(connection.slot) << TX_LOG2);
        let buffer = StreamBuffer {
            offset,
            log2: TX_LOG2,
        };
        let bytes = &bytes[..bytes.len().min(buffer.len() as usize)];
        if !buffer.write(&self.region, pos, bytes) {
            return;
        }
        if let Some(slot) = self.region.slot(connection.slot) {
            let program = slot.program();
            let head = pos.wrapping_add(bytes.len() as u32);
            program
                .generation
                .store(connection.generation, Ordering::Relaxed);
            program.tx_buffer.store(buffer.to_word(), Ordering::Release);
            program.tx_head.store(head, Ordering::Release);
        }
        self.advance(connection);
    }

    /// Closes a connection.
    pub fn close(&mut self, connection: Connection) {
        let flags = program_flags::TAKEN | program_flags::SHUT_WRITE | program_flags::CLOSE;
        self.write_flags(connection, flags);
        self.advance(connection);
    }

    fn write_flags(&self, connection: Connection, flags: u32) {
        if let Some(slot) = self.region.slot(connection.slot) {
            let program = slot.program();
            program
                .generation
                .store(connection.generation, Ordering::Relaxed);
            program.flags.store(flags, Ordering::Release);
        }
    }

    fn advance(&mut self, connection: Connection) {
        let word = DataWord::new(data_request::ADVANCE, connection.slot);
        self.tell(connection.core, word);
    }

    fn tell(&mut self, core: usize, word: DataWord) {
        let Some(core) = self.cores.get_mut(core) else {
            return;
        };
        // A full ring loses the word: an attacker does not care.
        let _ = core.data_requests.push(word.encode());
        core.data_requests.publish();
    }
}

impl CoreRings {
    fn request(&mut self, request: ControlRequest) {
        let _ = self.control_requests.push(request);
        self.control_requests.publish();
    }
}

fn of_control(event: &ControlEvent, core: usize) -> Option<Event> {
    let connection = Connection {
        slot: event.slot,
        generation: event.generation,
        core,
    };
    match event.kind {
        control_event::ACCEPTED => Some(Event::Accepted(connection)),
        control_event::CONNECT_STARTED => Some(Event::Started(connection)),
        control_event::CONNECT_FAILED | control_event::CONNECT_KERNEL => Some(Event::Failed),
        _ => None,
    }
}
