//! A fake service for the tests: the service's side of the memory that a program shares with the
//! service. A test drives the fake service step by step.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use tidelane_abi::{ConnectionIds, ControlEvent, ControlRequest, data_event, data_request};
use tidelane_client::Program;
use tidelane_ring::{
    BufferAllocator, ControlEventProducer, ControlRequestConsumer, DataEventProducer,
    DataRequestConsumer, Layout, ProgramRegion, ServicePageMap, StreamBuffer, sleep,
    words::DataWord,
};

/// The fake service's private state of a connection. A position counts the bytes of one direction
/// from 0, and wraps around. By the request ADVANCE, the program tells the service to read the
/// program's new values in the slot (the record of a connection in shared memory).
pub struct Connection {
    /// Generation of the connection's slot: the number of uses and releases of the slot.
    pub generation: u32,
    /// The send buffer that the last handled ADVANCE request announced.
    tx: Option<StreamBuffer>,
    /// Position up to which the program had written at the last handled ADVANCE request.
    pub tx_head: u32,
    /// Position up to which the written bytes are acknowledged.
    pub tx_acked: u32,
    /// The present receive buffer.
    rx: Option<StreamBuffer>,
    /// Replaced receive buffers that the program may still read.
    rx_old: Vec<StreamBuffer>,
    /// Position up to which bytes were received.
    pub rx_head: u32,
    /// The [`tidelane_abi::service_flags`] that the fake service has set in the slot.
    pub flags: u32,
}

/// A service with one core (polling thread), for a program with one context (the rings of one
/// thread).
pub struct FakeService {
    /// The memory that the program shares with the service.
    pub region: Arc<ProgramRegion>,
    /// The page with the service's routes and the states of its cores.
    pub page: Arc<ServicePageMap>,
    /// Number of times that the program has rung the service's doorbell, which wakes the core.
    pub rung: Arc<AtomicU32>,
    /// The connections that have a slot, by the number of the slot.
    pub connections: HashMap<u32, Connection>,
    // The service's ends of the context's four rings.
    pub data_requests: DataRequestConsumer,
    pub data_events: DataEventProducer,
    pub control_requests: ControlRequestConsumer,
    pub control_events: ControlEventProducer,
    /// Allocator of the receive buffers.
    rx_area: BufferAllocator,
}

impl FakeService {
    pub fn new() -> FakeService {
        FakeService::with_areas(64 << 20, 64 << 20)
    }

    /// Creates a fake service. `rx_len` is the size of the memory area for receive buffers, and
    /// `tx_len` is the size of the memory area for send buffers, both in bytes.
    pub fn with_areas(rx_len: u64, tx_len: u64) -> FakeService {
        let layout = Layout::new(64, rx_len, tx_len).unwrap();
        let region = Arc::new(ProgramRegion::heap(&layout).unwrap());
        FakeService {
            page: Arc::new(ServicePageMap::heap(1).unwrap()),
            rung: Arc::new(AtomicU32::new(0)),
            connections: HashMap::new(),
            data_requests: DataRequestConsumer::new(region.clone(), 0).unwrap(),
            data_events: DataEventProducer::new(region.clone(), 0).unwrap(),
            control_requests: ControlRequestConsumer::new(region.clone(), 0).unwrap(),
            control_events: ControlEventProducer::new(region.clone(), 0).unwrap(),
            rx_area: BufferAllocator::new(layout.rx_area()),
            region,
        }
    }

    pub fn program(&self) -> Program {
        let rung = self.rung.clone();
        Program::in_memory(self.region.clone(), self.page.clone(), move || {
            rung.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Prepares a slot for a new connection. `rx_window` is the limit of the receive window, and
    /// `tx_limit` is the limit of the unacknowledged bytes, both in bytes. Returns the slot's
    /// generation.
    pub fn begin(&mut self, slot: u32, rx_window: u32, tx_limit: u32) -> u32 {
        let view = self.region.slot(slot).unwrap();
        let half = view.service();
        let generation = half.generation.load(Ordering::Relaxed).wrapping_add(1) | 1;
        half.rx_buffer.store(0, Ordering::Relaxed);
        half.tx_buffer_seen.store(0, Ordering::Relaxed);
        for word in [&half.rx_head, &half.tx_acked, &half.flags, &half.cause] {
            word.store(0, Ordering::Relaxed);
        }
        half.rx_window.store(rx_window, Ordering::Relaxed);
        half.tx_limit.store(tx_limit, Ordering::Relaxed);
        half.generation.store(generation, Ordering::Release);
        view.set_ids(&ConnectionIds {
            local_addr: [1; 16],
            peer_addr: [2; 16],
            local_port: 80,
            peer_port: slot as u16,
            mss: 1460,
            connection: u64::from(slot),
            reserved: [0; 2],
        });
        let connection = Connection {
            generation,
            tx: None,
            tx_head: 0,
            tx_acked: 0,
            rx: None,
            rx_old: Vec::new(),
            rx_head: 0,
            flags: 0,
        };
        self.connections.insert(slot, connection);
        generation
    }

    /// Adds `flags` to the service flags in the slot, and sets the cause of the connection's end.
    pub fn set_flags(&mut self, slot: u32, flags: u32, cause: u32) {
        let view = self.region.slot(slot).unwrap();
        let connection = self.connections.get_mut(&slot).unwrap();
        connection.flags |= flags;
        view.service().cause.store(cause, Ordering::Relaxed);
        view.service()
            .flags
            .store(connection.flags, Ordering::Release);
    }

    /// Removes all pending data requests from the ring, and returns the requests.
    pub fn requests(&mut self) -> Vec<DataWord> {
        let mut words = Vec::new();
        while let Some(word) = self.data_requests.pop().unwrap() {
            words.push(DataWord::decode(word));
        }
        self.data_requests.release();
        words
    }

    /// Handles the pending ADVANCE requests and returns their slots. Drops the other pending data
    /// requests.
    pub fn advance(&mut self) -> Vec<u32> {
        let words = self.requests();
        let advanced = words
            .iter()
            .filter(|word| word.kind == data_request::ADVANCE);
        let slots: Vec<u32> = advanced.map(|word| word.slot).collect();
        for &slot in &slots {
            self.adopt(slot);
        }
        slots
    }

    /// Handles an ADVANCE request: checks and adopts the program's values in the slot. Frees the
    /// replaced receive buffers if the program has confirmed the present buffer.
    fn adopt(&mut self, slot: u32) {
        let view = self.region.slot(slot).unwrap();
        let half = view.program();
        let Some(connection) = self.connections.get_mut(&slot) else {
            return;
        };
        assert_eq!(
            half.generation.load(Ordering::Relaxed),
            connection.generation
        );
        let head = half.tx_head.load(Ordering::Acquire);
        let word = half.tx_buffer.load(Ordering::Relaxed);
        connection.tx = StreamBuffer::from_word(word, self.region.layout().tx_area());
        assert!(
            word == 0 || connection.tx.is_some(),
            "invalid send buffer from the client: {word:#x}"
        );
        let unacked = head.wrapping_sub(connection.tx_acked);
        assert!(unacked <= connection.tx.map_or(0, StreamBuffer::len));
        connection.tx_head = head;
        view.service().tx_buffer_seen.store(word, Ordering::Release);
        let seen = half.rx_buffer_seen.load(Ordering::Relaxed);
        if connection.rx.is_some_and(|buffer| buffer.to_word() == seen) {
            for old in connection.rx_old.drain(..) {
                assert!(self.rx_area.free(old));
            }
        }
    }

    /// Returns the bytes that are written and not acknowledged. Reads the bytes from the send
    /// buffer that the last handled ADVANCE request announced.
    pub fn unacked(&self, slot: u32) -> Vec<u8> {
        let connection = &self.connections[&slot];
        let len = connection.tx_head.wrapping_sub(connection.tx_acked) as usize;
        let mut bytes = vec![0; len];
        if len > 0 {
            let buffer = connection.tx.expect("a buffer with the bytes");
            assert!(buffer.read(&self.region, connection.tx_acked, &mut bytes));
        }
        bytes
    }

    /// Acknowledges up to `count` further bytes.
    pub fn acknowledge(&mut self, slot: u32, count: u32) {
        let connection = self.connections.get_mut(&slot).unwrap();
        let unacked = connection.tx_head.wrapping_sub(connection.tx_acked);
        connection.tx_acked = connection.tx_acked.wrapping_add(count.min(unacked));
        let view = self.region.slot(slot).unwrap();
        view.service()
            .tx_acked
            .store(connection.tx_acked, Ordering::Release);
    }

    /// Stores bytes in the receive buffer, as if the peer had sent the bytes. Replaces the buffer
    /// by a larger buffer if the bytes do not fit. Returns false if there is no memory for the
    /// larger buffer.
    pub fn receive(&mut self, slot: u32, bytes: &[u8]) -> bool {
        let view = self.region.slot(slot).unwrap();
        let connection = self.connections.get_mut(&slot).unwrap();
        let read = view.program().rx_read.load(Ordering::Acquire);
        let head = connection.rx_head.wrapping_add(bytes.len() as u32);
        let needed = head.wrapping_sub(read);
        if connection.rx.is_none_or(|buffer| needed > buffer.len()) {
            let log2 = needed.next_power_of_two().ilog2().max(11) as u8;
            let Some(larger) = self.rx_area.alloc(log2) else {
                return false;
            };
            if let Some(old) = connection.rx.replace(larger) {
                assert!(old.relocate(&self.region, larger, read, connection.rx_head));
                connection.rx_old.push(old);
            }
            view.service()
                .rx_buffer
                .store(larger.to_word(), Ordering::Release);
        }
        assert!(
            connection
                .rx
                .unwrap()
                .write(&self.region, connection.rx_head, bytes)
        );
        connection.rx_head = head;
        view.service().rx_head.store(head, Ordering::Release);
        true
    }

    /// Frees the receive buffers of a connection if the program has read all received bytes.
    pub fn idle(&mut self, slot: u32) {
        let view = self.region.slot(slot).unwrap();
        let connection = self.connections.get_mut(&slot).unwrap();
        if view.program().rx_read.load(Ordering::Acquire) == connection.rx_head {
            view.service().rx_buffer.store(0, Ordering::Release);
            for buffer in connection
                .rx
                .take()
                .into_iter()
                .chain(connection.rx_old.drain(..))
            {
                // Overwrite the buffer, so that a stream that wrongly reads it gets wrong bytes.
                assert!(buffer.write(&self.region, 0, &vec![0xdd; buffer.len() as usize]));
                assert!(self.rx_area.free(buffer));
            }
        }
    }

    /// Queues the event READY: the slot has changed.
    pub fn ready(&mut self, slot: u32) {
        self.data_events
            .push(DataWord::new(data_event::READY, slot).encode())
            .unwrap();
    }

    /// Ends the use of a slot, and queues RELEASED, the last event of its connection.
    pub fn release(&mut self, slot: u32) {
        self.connections.remove(&slot);
        let view = self.region.slot(slot).unwrap();
        view.service().generation.fetch_add(1, Ordering::Release);
        self.data_events
            .push(DataWord::new(data_event::RELEASED, slot).encode())
            .unwrap();
    }

    /// Publishes the queued events. Returns true if the program's doorbell has to be rung.
    pub fn publish(&mut self) -> bool {
        self.control_events.publish();
        self.data_events.publish();
        sleep::should_ring(&self.region.ring_set(0).unwrap().head.needs_wakeup)
    }

    pub fn control_request(&mut self) -> Option<ControlRequest> {
        let request = self.control_requests.pop().unwrap();
        self.control_requests.release();
        request
    }

    /// Queues a control event with the cause 4, and with the generation of the slot. If the slot
    /// has no connection, the generation in the event is 0.
    pub fn control_event(&mut self, kind: u32, slot: u32, cookie: u64, listener: u32) {
        let generation = self.connections.get(&slot).map_or(0, |c| c.generation);
        let event = ControlEvent {
            kind,
            slot,
            cookie,
            generation,
            cause: 4,
            listener,
            syn_room: 0,
            reserved: [0; 8],
        };
        self.control_events.push(event).unwrap();
    }
}
