//! The rings between a context of the program and one core (polling thread) of the service, the
//! process `tidelaned`. A `Context` has one set of rings per core.

use std::sync::{Arc, atomic::Ordering};

use tidelane_abi::{ControlEvent, control_event, data_event};
use tidelane_ring::{
    ControlEventConsumer, ControlRequestProducer, Corrupt, DataEventConsumer, DataRequestProducer,
    ProgramRegion, PushError, words::DataWord,
};

use crate::{client_event::ClientEvent, listener_handle::ListenerHandle, session::ClientSession};

/// The format of the words in the table `Context::submitted`, which has one word per slot (the
/// record of a connection in shared memory).
pub(crate) mod submitted_bits {
    /// Bit that is set when a changed stream of the slot is submitted, and cleared when
    /// `Context::trim` has freed the stream's send buffer.
    pub const UNTRIMMED: u64 = 1 << 63;
    /// Bits of the number of the flush for which the slot's ADVANCE request was last queued. The
    /// request makes the service read the program's changes of the slot.
    pub const FLUSH: u64 = UNTRIMMED - 1;
}

/// The four rings of a context with one core of the service.
#[derive(Debug)]
pub(crate) struct Rings {
    /// Number of this set of four rings in the memory that program and service share.
    pub(crate) number: u32,
    /// Requests about slots, in one word each.
    pub(crate) data_requests: DataRequestProducer,
    /// Events of slots, in one word each: the slot has changed, or was released.
    pub(crate) data_events: DataEventConsumer,
    /// Requests to open a connection, and to join or leave a listener.
    pub(crate) control_requests: ControlRequestProducer,
    /// Events of new connections: the results of opens, and accepted connections.
    pub(crate) control_events: ControlEventConsumer,
    /// Data requests that wait for room in the ring `data_requests`, oldest first.
    pub(crate) queued: Vec<u64>,
}

impl Rings {
    /// Creates the program's ends of the rings with this number. Returns `None` if there are no
    /// rings with this number.
    pub(crate) fn new(region: &Arc<ProgramRegion>, number: u32) -> Option<Self> {
        Some(Self {
            number,
            data_requests: DataRequestProducer::new(region.clone(), number)?,
            data_events: DataEventConsumer::new(region.clone(), number)?,
            control_requests: ControlRequestProducer::new(region.clone(), number)?,
            control_events: ControlEventConsumer::new(region.clone(), number)?,
            queued: Vec::new(),
        })
    }

    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        let unpublished = self.control_requests.unpublished() + self.data_requests.unpublished();
        !self.queued.is_empty() || unpublished > 0
    }

    /// Queues a request in the data-request ring, after the requests that wait for room.
    #[inline]
    pub(crate) fn queue(&mut self, word: u64) {
        if !self.queued.is_empty() || self.data_requests.push(word).is_err() {
            self.queue_for_room(word);
        }
    }

    /// Keeps a request while the ring is full or corrupt. The next `flush` distinguishes the two
    /// cases.
    #[cold]
    #[inline(never)]
    fn queue_for_room(&mut self, word: u64) {
        self.queued.push(word);
    }

    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.data_events.is_empty() || !self.control_events.is_empty()
    }

    /// Publishes queued requests as long as the rings have room. Returns true if the core has to
    /// check its rings.
    #[inline(always)]
    pub(crate) fn flush(&mut self, session: &ClientSession) -> bool {
        if !self.queued.is_empty() {
            self.push_queued(session);
        }
        // Publish control requests first, because an ADVANCE may concern a connection that a
        // control request opens.
        let control = self.control_requests.publish();
        let data = self.data_requests.publish();
        control || data || !self.queued.is_empty()
    }

    /// Moves waiting requests into the ring until the ring is full. A corrupt ring counts as the
    /// death of the service.
    #[cold]
    #[inline(never)]
    fn push_queued(&mut self, session: &ClientSession) {
        let mut taken = 0;
        for &word in &self.queued {
            match self.data_requests.push(word) {
                Ok(()) => taken += 1,
                Err(PushError::Full) => break,
                Err(PushError::Corrupt) => {
                    session.set_gone();
                    break;
                }
            }
        }
        self.queued.drain(..taken);
    }

    /// Reports all pending events except impossible events, control events first. Returns the
    /// number of reported events.
    #[inline(always)]
    pub(crate) fn poll(
        &mut self,
        session: &ClientSession,
        on_event: &mut dyn FnMut(ClientEvent),
    ) -> Result<usize, Corrupt> {
        let mut count = 0;
        if !self.control_events.is_empty() {
            count = self.poll_control(session, on_event)?;
        }
        // The next poll reports the events that arrive after this load.
        let known = self.data_events.known()?;
        for ahead in 0..known {
            let word = DataWord::decode(self.data_events.peek(ahead));
            if let Some(event) = data_event(session, word) {
                on_event(event);
                count += 1;
            }
        }
        self.data_events.drop_known(known);
        Ok(count)
    }

    #[inline(never)]
    fn poll_control(
        &mut self,
        session: &ClientSession,
        on_event: &mut dyn FnMut(ClientEvent),
    ) -> Result<usize, Corrupt> {
        let mut count = 0;
        while let Some(event) = self.control_events.pop()? {
            if let Some(event) = control_event(session, &event) {
                on_event(event);
                count += 1;
            }
        }
        self.control_events.release();
        Ok(count)
    }
}

/// Validates a control event. Returns `None` if the event is impossible.
fn control_event(session: &ClientSession, event: &ControlEvent) -> Option<ClientEvent> {
    let &ControlEvent {
        slot,
        cookie,
        generation,
        cause,
        ..
    } = event;
    let listener = ListenerHandle(event.listener);
    let slot_exists = slot < session.region.layout().slots_max();
    match event.kind {
        control_event::CONNECT_STARTED if slot_exists => Some(ClientEvent::ConnectStarted {
            cookie,
            slot,
            generation,
            syn_room: event.syn_room,
        }),
        control_event::CONNECT_FAILED => Some(ClientEvent::ConnectFailed { cookie, cause }),
        control_event::CONNECT_KERNEL => Some(ClientEvent::ConnectKernel {
            cookie,
            reason: cause,
        }),
        control_event::ACCEPTED if slot_exists => Some(ClientEvent::Accepted {
            cookie,
            listener,
            slot,
            generation,
        }),
        _ => None,
    }
}

/// Validates a data event, and frees the buffers of a released slot. Returns `None` if the event is
/// impossible.
#[inline]
fn data_event(session: &ClientSession, word: DataWord) -> Option<ClientEvent> {
    let slot = word.slot;
    if slot >= session.region.layout().slots_max() {
        return None;
    }
    match word.kind {
        data_event::READY => Some(ClientEvent::Ready { slot }),
        data_event::RELEASED => {
            let view = session.region.slot(slot)?;
            let generation = view.service().generation.load(Ordering::Acquire);
            session.buffers().released(slot, generation);
            Some(ClientEvent::Released { slot })
        }
        _ => None,
    }
}
