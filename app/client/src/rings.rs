//! A context's rings with one core of the service.

use std::sync::{Arc, atomic::Ordering};

use tidelane_abi::{ControlEvent, control_event, data_event, data_request};
use tidelane_ring::{
    ControlEventConsumer, ControlRequestProducer, Corrupt, DataEventConsumer, DataRequestProducer,
    ProgramRegion, PushError, words::DataWord,
};

use crate::{ClientEvent, ListenerHandle, session::Session};

/// What a context remembers of a slot.
pub(crate) mod mark {
    /// Its ADVANCE is among the queued words.
    pub const QUEUED: u8 = 1;
    /// It was submitted since it was last trimmed.
    pub const TOUCHED: u8 = 2;
}

#[derive(Debug)]
pub(crate) struct Rings {
    /// Their number in the region.
    pub(crate) number: u32,
    pub(crate) data_requests: DataRequestProducer,
    pub(crate) data_events: DataEventConsumer,
    pub(crate) control_requests: ControlRequestProducer,
    pub(crate) control_events: ControlEventConsumer,
    /// Words for the data-request ring, in order.
    pub(crate) queued: Vec<u64>,
}

impl Rings {
    /// None if the region has no such rings.
    pub(crate) fn new(region: &Arc<ProgramRegion>, number: u32) -> Option<Self> {
        Some(Self {
            number,
            data_requests: DataRequestProducer::new(region.clone(), number)?,
            data_events: DataEventConsumer::new(region.clone(), number)?,
            control_requests: ControlRequestProducer::new(region.clone(), number)?,
            control_events: ControlEventConsumer::new(region.clone(), number)?,
            queued: Vec::with_capacity(64),
        })
    }

    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        !self.queued.is_empty() || self.control_requests.unpublished() > 0
    }

    /// Whether one more word can be queued as things are.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.queued.len() < self.queued.capacity()
    }

    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.data_events.is_empty() || !self.control_events.is_empty()
    }

    /// Publishes what is queued, as far as there is room, and takes the marks of slots back whose
    /// ADVANCE is on its way. Whether the core has to look.
    #[inline]
    pub(crate) fn flush(&mut self, marks: &mut [u8], session: &Session) -> bool {
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
            let word = DataWord::decode(word);
            if word.kind == data_request::ADVANCE {
                marks[word.slot as usize] &= !mark::QUEUED;
            }
        }
        if taken == self.queued.len() {
            self.queued.clear();
        } else {
            self.queued.drain(..taken);
        }
        // Control first: an ADVANCE may concern what a control request asked for.
        let control = self.control_requests.publish();
        let data = self.data_requests.publish();
        control || data || !self.queued.is_empty()
    }

    /// Reports all events that are there, control events first. Returns their number.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        session: &Session,
        on_event: &mut dyn FnMut(ClientEvent),
    ) -> Result<usize, Corrupt> {
        let mut count = 0;
        if !self.control_events.is_empty() {
            count = self.poll_control(session, on_event)?;
        }
        // What comes in the meantime is there at the next poll.
        for _ in 0..self.data_events.known()? {
            let Some(word) = self.data_events.pop()? else {
                break;
            };
            if let Some(event) = data_event(session, DataWord::decode(word)) {
                on_event(event);
                count += 1;
            }
        }
        self.data_events.release();
        Ok(count)
    }

    #[inline(never)]
    fn poll_control(
        &mut self,
        session: &Session,
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

fn control_event(session: &Session, event: &ControlEvent) -> Option<ClientEvent> {
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
        control_event::CONNECT_KERNEL => Some(ClientEvent::ConnectKernel { cookie }),
        control_event::ACCEPTED if slot_exists => Some(ClientEvent::Accepted {
            cookie,
            listener,
            slot,
            generation,
        }),
        _ => None,
    }
}

#[inline]
fn data_event(session: &Session, word: DataWord) -> Option<ClientEvent> {
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
