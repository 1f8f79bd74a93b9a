//! A context's rings with one core of the service.

use std::sync::{Arc, atomic::Ordering};

use tidelane_abi::{ControlEvent, control_event, data_event};
use tidelane_ring::{
    ControlEventConsumer, ControlRequestProducer, Corrupt, DataEventConsumer, DataRequestProducer,
    ProgramRegion, PushError, words::DataWord,
};

use crate::{ClientEvent, ListenerHandle, session::Session};

/// What a context remembers of a slot.
pub(crate) mod mark {
    /// It was submitted since it was last trimmed.
    pub const TOUCHED: u64 = 1 << 63;
    /// The number of the flush before which its ADVANCE was queued last.
    pub const ROUND: u64 = TOUCHED - 1;
}

#[derive(Debug)]
pub(crate) struct Rings {
    /// Their number in the region.
    pub(crate) number: u32,
    pub(crate) data_requests: DataRequestProducer,
    pub(crate) data_events: DataEventConsumer,
    pub(crate) control_requests: ControlRequestProducer,
    pub(crate) control_events: ControlEventConsumer,
    /// Words that found the data-request ring full, in order.
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
            queued: Vec::new(),
        })
    }

    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        let unpublished = self.control_requests.unpublished() + self.data_requests.unpublished();
        !self.queued.is_empty() || unpublished > 0
    }

    /// Puts a word into the data-request ring, behind those that wait for room.
    #[inline]
    pub(crate) fn queue(&mut self, word: u64) {
        if !self.queued.is_empty() || self.data_requests.push(word).is_err() {
            self.queue_for_room(word);
        }
    }

    /// Full or corrupt: `flush` will find out.
    #[cold]
    #[inline(never)]
    fn queue_for_room(&mut self, word: u64) {
        self.queued.push(word);
    }

    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.data_events.is_empty() || !self.control_events.is_empty()
    }

    /// Publishes what is queued, as far as there is room. Whether the core has to look.
    #[inline(always)]
    pub(crate) fn flush(&mut self, session: &Session) -> bool {
        if !self.queued.is_empty() {
            self.push_queued(session);
        }
        // Control first: an ADVANCE may concern what a control request asked for.
        let control = self.control_requests.publish();
        let data = self.data_requests.publish();
        control || data || !self.queued.is_empty()
    }

    #[cold]
    #[inline(never)]
    fn push_queued(&mut self, session: &Session) {
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

    /// Reports all events that are there, control events first. Returns their number.
    #[inline(always)]
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
