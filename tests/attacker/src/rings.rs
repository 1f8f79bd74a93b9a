//! The rings of a context, and the use of connections over them without the preload library.
//!
//! A context is a set of rings (queues in shared memory) between one thread of a program and the
//! service (`tidelaned`). A core is a polling thread of the service, and a doorbell is an eventfd
//! that wakes a sleeping core or program. The region is the memory that the program and the service
//! share. A slot is the part of the region that has the state of one connection. The program writes
//! one half of the slot, and the service writes the other half.

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

/// Binary logarithm of the size of a send buffer in bytes. Each slot has one send buffer, and the
/// buffers lie in the order of the slots.
const TX_LOG2: u8 = 12;

/// The rings between one context and all cores, with the context's doorbell.
#[derive(Debug)]
pub struct Rings {
    region: Arc<ProgramRegion>,
    cores: Vec<CoreRings>,
    bell: Option<Doorbell>,
}

/// The four rings between one context and one core.
#[derive(Debug)]
pub struct CoreRings {
    /// Requests about slots, from the program to the service.
    pub data_requests: DataRequestProducer,
    /// Events of slots, from the service to the program.
    pub data_events: DataEventConsumer,
    /// Requests to open connections and to use listeners, from the program to the service.
    pub control_requests: ControlRequestProducer,
    /// New connections and failures, from the service to the program.
    pub control_events: ControlEventConsumer,
}

/// Identifies a connection by its slot and its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Index of the slot.
    pub slot: u32,
    /// Generation of the slot: a counter that changes with each use of the slot by a connection.
    pub generation: u32,
    /// Index of the core that serves the connection.
    core: usize,
}

/// An event from the service.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A connection of a listener is established.
    Accepted(Connection),
    /// The service has sent the SYN of a requested connection.
    Started(Connection),
    /// The service cannot open a requested connection, or leaves the connection to the kernel.
    Failed,
    /// The service has changed its half of the slot with this index.
    Ready(u32),
}

impl Rings {
    /// Returns the rings between context `number` and each of `cores` cores. Returns `None` if the
    /// region has no such context.
    pub fn new(region: &Arc<ProgramRegion>, number: u32, cores: u32) -> Option<Rings> {
        let of_core = |core| {
            let number = region.layout().share(core, cores).ring_set(number)?;
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

    /// Keeps the doorbell that the message CONTEXT has passed to the service.
    pub fn with_bell(mut self, bell: Doorbell) -> Rings {
        self.bell = Some(bell);
        self
    }

    /// Returns the context's doorbell. Returns `None` before [`Self::with_bell`].
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(Doorbell::fd)
    }

    /// Returns the rings of all cores, in the order of the cores.
    pub fn cores(&mut self) -> &mut [CoreRings] {
        &mut self.cores
    }

    /// Asks every core for connections of `listener` (LISTENER_JOIN).
    pub fn join(&mut self, listener: u32) {
        for core in &mut self.cores {
            core.request(ControlRequest {
                listener,
                ..new_control_request(control_request::LISTENER_JOIN)
            });
        }
    }

    /// Asks the first core to open a connection to the peer (CONNECT). If `local_port` is 0, the
    /// service chooses the local port.
    pub fn connect(&mut self, peer_addr: [u8; 16], peer_port: u16, local_port: u16) {
        self.cores[0].request(ControlRequest {
            peer_addr,
            peer_port,
            local_port,
            ..new_control_request(control_request::CONNECT)
        });
    }

    /// Returns the events that have arrived since the previous call. Drops events of kinds that
    /// [`Event`] lacks. Treats a ring with invalid indices as empty.
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

    /// Takes a connection of `listener` from the accept queue.
    pub fn accept(&mut self, connection: Connection, listener: u32) {
        self.write_flags(connection, program_flags::TAKEN);
        let word = DataWord::with_arg(data_request::ACCEPT_TAKEN, 1, listener);
        self.advance(connection);
        self.push_request(connection.core, word);
    }

    /// Returns the stream position up to which bytes have been received, and true if no more bytes
    /// will follow (FIN or end of the connection). Returns `None` if there is no such slot.
    pub fn received(&self, connection: Connection) -> Option<(u32, bool)> {
        let service = self.region.slot(connection.slot)?.service();
        let over = service_flags::FIN_RECEIVED | service_flags::CLOSED;
        let head = service.rx_head.load(Ordering::Acquire);
        Some((head, service.flags.load(Ordering::Acquire) & over != 0))
    }

    /// Fills `into` with bytes of the receive buffer, beginning at stream position `pos`. Returns
    /// false if the slot has no valid receive buffer, or if `into` is longer than the buffer.
    pub fn read(&self, connection: Connection, pos: u32, into: &mut [u8]) -> bool {
        let Some(slot) = self.region.slot(connection.slot) else {
            return false;
        };
        let word = slot.service().rx_buffer.load(Ordering::Acquire) & !buffer_word::URGENT;
        let buffer = StreamBuffer::from_word(word, self.region.layout().rx_area());
        buffer.is_some_and(|buffer| buffer.read(&self.region, pos, into))
    }

    /// Marks all received bytes as read.
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

    /// Sends `bytes`, beginning at stream position `pos`. Drops bytes beyond the size of the send
    /// buffer. The buffer must have room for the sent bytes and for the unacknowledged bytes before
    /// `pos`.
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

    /// Closes a connection: sets CLOSE in the program's half of the slot.
    pub fn close(&mut self, connection: Connection) {
        let flags = program_flags::TAKEN | program_flags::SHUT_WRITE | program_flags::CLOSE;
        self.write_flags(connection, flags);
        self.advance(connection);
    }

    /// Writes `flags` to the program's half of the slot.
    fn write_flags(&self, connection: Connection, flags: u32) {
        if let Some(slot) = self.region.slot(connection.slot) {
            let program = slot.program();
            program
                .generation
                .store(connection.generation, Ordering::Relaxed);
            program.flags.store(flags, Ordering::Release);
        }
    }

    /// Tells the core that the program's half of the slot has changed (ADVANCE).
    fn advance(&mut self, connection: Connection) {
        let word = DataWord::new(data_request::ADVANCE, connection.slot);
        self.push_request(connection.core, word);
    }

    fn push_request(&mut self, core: usize, word: DataWord) {
        let Some(core) = self.cores.get_mut(core) else {
            return;
        };
        // A request is lost if the ring is full. No attack depends on a single request.
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

/// Converts an entry of the control-event ring of core `core`. Returns `None` for an entry that no
/// attack uses.
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
