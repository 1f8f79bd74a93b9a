//! The contexts of all programs of a host, in one list that the host scans in each step.
//!
//! A *context* is a set of rings with a doorbell. A thread of a program and the service exchange
//! requests and events through the rings. The doorbell wakes the thread. A data request or a data
//! event is one word about a slot (the shared record of a connection) or a listener. A control
//! request or a control event is a larger entry, for example a request to open a connection.

use std::{collections::VecDeque, sync::Arc};

use tidelane_abi::{ControlEvent, ControlRequest, control_event};
use tidelane_ring::{
    ControlEventProducer, ControlRequestConsumer, Corrupt, DataEventProducer, DataRequestConsumer,
    ProgramRegion, PushError, sleep, words::DataWord,
};

use crate::ids::ProgramId;

/// Limit of a sum for each context: the control events of the context that wait for room in the
/// ring, and the answers that the service still owes to the context. At the limit, the service
/// reads no control request of the context, and assigns no connection to the context.
const CONTROL_BACKLOG_MAX: usize = 512;

/// The doorbell of a context or of a core. The daemon's doorbells are eventfds.
pub trait Bell: Send {
    /// Wakes the sleeping thread. Returns false if the program has made the wake-up impossible.
    fn ring(&self) -> bool;
}

/// The service's side of one context.
pub struct Context {
    region: Arc<ProgramRegion>,
    /// Index of the context's ring set in the region.
    rings: u32,
    data_requests: DataRequestConsumer,
    data_events: DataEventProducer,
    control_requests: ControlRequestConsumer,
    control_events: ControlEventProducer,
    /// Control events that wait for room in the ring, oldest first.
    backlog: VecDeque<ControlEvent>,
    /// Number of requests that the service has read and will answer later.
    reserved_answers: usize,
    bell: Box<dyn Bell>,
    /// True if an event was pushed since the last [`publish`](Self::publish).
    pushed: bool,
    /// True if the context is in the list `Contexts::unpublished`.
    has_events: bool,
}

impl Context {
    /// Returns the service's side of the new ring set with index `rings` in the region. Returns
    /// `None` if the region has no ring set with this index.
    pub fn new(region: Arc<ProgramRegion>, rings: u32, bell: Box<dyn Bell>) -> Option<Self> {
        Some(Self {
            data_requests: DataRequestConsumer::new(region.clone(), rings)?,
            data_events: DataEventProducer::new(region.clone(), rings)?,
            control_requests: ControlRequestConsumer::new(region.clone(), rings)?,
            control_events: ControlEventProducer::new(region.clone(), rings)?,
            region,
            rings,
            backlog: VecDeque::new(),
            reserved_answers: 0,
            bell,
            pushed: false,
            has_events: false,
        })
    }

    /// Returns the number of waiting data requests that this side of the ring knows. More requests
    /// may wait, but zero means that no request waits.
    #[inline]
    pub fn data_waiting(&mut self) -> Result<u32, Corrupt> {
        self.data_requests.known()
    }

    /// Returns a copy of the waiting data request at index `ahead`, not decoded.
    #[inline]
    pub fn data_word(&self, ahead: u32) -> u64 {
        self.data_requests.peek(ahead)
    }

    /// Frees the ring entries of the first `count` waiting data requests.
    #[inline]
    pub fn drop_data(&mut self, count: u32) {
        self.data_requests.drop_known(count);
    }

    /// Returns true if the service may read a control request now. The service reads no control
    /// request from a program that does not read its events, because the answers would take the
    /// service's memory.
    #[inline]
    pub fn has_control(&self) -> bool {
        !self.control_requests.is_empty() && self.has_control_room()
    }

    /// Reads the next control request, and frees its ring entry. Returns `None` if no request
    /// waits, or if the backlog has no room for an answer.
    #[inline]
    pub fn next_control(&mut self) -> Result<Option<ControlRequest>, Corrupt> {
        if !self.has_control_room() {
            return Ok(None);
        }
        let request = self.control_requests.pop()?;
        self.control_requests.release();
        Ok(request)
    }

    /// Returns true if the service may read a data request or a control request now.
    #[inline]
    pub fn has_requests(&self) -> bool {
        !self.data_requests.is_empty() || self.has_control()
    }

    /// Queues a data event.
    #[inline]
    pub fn push_data(&mut self, kind: u8, slot: u32) -> Result<(), PushError> {
        self.data_events.push(DataWord::new(kind, slot).encode())?;
        self.pushed = true;
        Ok(())
    }

    /// Queues a control event. If the ring is full, the event waits in the backlog. The backlog
    /// always has room for the answer to a request that [`next_control`](Self::next_control)
    /// returned, and for one event after [`Contexts::has_control_room`] returned true.
    pub fn push_control(&mut self, event: ControlEvent) -> Result<(), PushError> {
        if self.backlog.is_empty() {
            match self.control_events.push(event) {
                Ok(()) => {
                    self.pushed = true;
                    return Ok(());
                }
                Err(PushError::Corrupt) => return Err(PushError::Corrupt),
                Err(PushError::Full) => {}
            }
        }
        if self.backlog.len() > CONTROL_BACKLOG_MAX {
            return Err(PushError::Full);
        }
        self.backlog.push_back(event);
        Ok(())
    }

    /// Returns true if the backlog has room for another control event in addition to the reserved
    /// answers.
    #[inline]
    fn has_control_room(&self) -> bool {
        self.backlog.len() + self.reserved_answers < CONTROL_BACKLOG_MAX
    }

    /// Moves control events from the backlog to the ring. Returns true if events still wait.
    #[inline]
    fn push_backlog(&mut self) -> bool {
        !self.backlog.is_empty() && self.push_waiting()
    }

    #[inline(never)]
    fn push_waiting(&mut self) -> bool {
        while let Some(event) = self.backlog.front() {
            if self.control_events.push(*event).is_err() {
                break;
            }
            self.pushed = true;
            self.backlog.pop_front();
        }
        !self.backlog.is_empty()
    }

    /// Makes queued events visible, and rings the doorbell if the program sleeps. Returns false if
    /// the doorbell cannot be rung.
    #[inline]
    fn publish(&mut self) -> bool {
        if !std::mem::take(&mut self.pushed) {
            return true;
        }
        self.control_events.publish();
        self.data_events.publish();
        let Some(context) = self.region.ring_set(self.rings) else {
            return true;
        };
        !sleep::should_ring(&context.head.needs_wakeup) || self.bell.ring()
    }
}

/// A context, with its program and its number in the program.
struct Entry {
    program: ProgramId,
    number: u32,
    context: Context,
}

/// The contexts of all registered programs.
#[derive(Default)]
pub struct Contexts {
    entries: Vec<Entry>,
    /// Index in `entries` of each context, by program and by number.
    places: Vec<Vec<Option<u32>>>,
    /// Indices in `entries` of the contexts that may have events to publish.
    unpublished: Vec<u32>,
}

impl Contexts {
    /// Adds a context. Returns false if the number is in use.
    pub fn insert(&mut self, program: ProgramId, number: u32, context: Context) -> bool {
        let (owner, index) = (program.0 as usize, number as usize);
        if self.places.len() <= owner {
            self.places.resize_with(owner + 1, Vec::new);
        }
        let places = &mut self.places[owner];
        if places.len() <= index {
            places.resize(index + 1, None);
        }
        if places[index].is_some() {
            return false;
        }
        places[index] = Some(self.entries.len() as u32);
        self.entries.push(Entry {
            program,
            number,
            context,
        });
        true
    }

    /// Removes all contexts of a program. The indices of other contexts change.
    pub fn remove_all(&mut self, program: ProgramId) {
        self.entries.retain(|entry| entry.program != program);
        self.places.iter_mut().for_each(Vec::clear);
        self.unpublished.clear();
        for (at, entry) in (0..).zip(&self.entries) {
            let places = &mut self.places[entry.program.0 as usize];
            let index = entry.number as usize;
            if places.len() <= index {
                places.resize(index + 1, None);
            }
            places[index] = Some(at);
            if entry.context.has_events {
                self.unpublished.push(at);
            }
        }
    }

    #[inline]
    fn place(&self, program: ProgramId, number: u32) -> Option<u32> {
        *self.places.get(program.0 as usize)?.get(number as usize)?
    }

    /// Returns true if the program has the context.
    fn exists(&self, program: ProgramId, number: u32) -> bool {
        self.place(program, number).is_some()
    }

    /// Returns true if context `number` of a program has room for the event of one more connection.
    /// If the program has no context with this number, the program's first context (number 0)
    /// counts instead.
    pub fn has_control_room(&self, program: ProgramId, number: u32) -> bool {
        let place = self.place(program, number);
        let place = place.or_else(|| self.place(program, 0));
        let entry = place.and_then(|place| self.entries.get(place as usize));
        entry.is_some_and(|entry| entry.context.has_control_room())
    }

    /// Returns context `number` of a program for an event. Returns the program's first context if
    /// the program has no context with this number.
    #[inline]
    pub fn for_event(&mut self, program: ProgramId, number: u32) -> Option<&mut Context> {
        let place = self.place(program, number);
        let place = place.or_else(|| self.place(program, 0))?;
        let context = &mut self.entries.get_mut(place as usize)?.context;
        if !context.has_events {
            context.has_events = true;
            self.unpublished.push(place);
        }
        Some(context)
    }

    /// Returns context `number` of a program for the answer to a request of the context. Returns
    /// `None` if the program has no context with this number.
    fn for_answer(&mut self, program: ProgramId, number: u32) -> Option<&mut Context> {
        self.exists(program, number)
            .then(|| self.for_event(program, number))?
    }

    /// Sends the answer to a request of a context, if the context exists.
    pub fn answer(&mut self, program: ProgramId, number: u32, answer: ControlEvent) {
        if let Some(context) = self.for_answer(program, number) {
            let _ = context.push_control(answer);
        }
    }

    /// Reserves room in a context for a later answer.
    pub fn reserve_answer(&mut self, program: ProgramId, number: u32) {
        if let Some(context) = self.for_answer(program, number) {
            context.reserved_answers += 1;
        }
    }

    /// Releases the room that [`reserve_answer`](Self::reserve_answer) reserved.
    pub fn release_answer(&mut self, program: ProgramId, number: u32) {
        if let Some(context) = self.for_answer(program, number) {
            context.reserved_answers = context.reserved_answers.saturating_sub(1);
        }
    }

    /// Returns the index of the first context that has requests to read. The search begins at index
    /// `from`.
    #[inline]
    pub fn next_with_requests(&self, from: usize) -> Option<usize> {
        let entries = self.entries.get(from..)?;
        let found = entries
            .iter()
            .position(|entry| entry.context.has_requests());
        found.map(|ahead| from + ahead)
    }

    /// Returns program, number and context at index `place`.
    #[inline]
    pub fn owned(&mut self, place: usize) -> Option<((ProgramId, u32), &mut Context)> {
        let entry = self.entries.get_mut(place)?;
        Some(((entry.program, entry.number), &mut entry.context))
    }

    /// Returns the context at index `place`.
    #[inline]
    pub fn at(&mut self, place: usize) -> Option<&mut Context> {
        Some(&mut self.entries.get_mut(place)?.context)
    }

    /// Returns true if a context may have events to publish.
    #[inline]
    pub fn has_unpublished(&self) -> bool {
        !self.unpublished.is_empty()
    }

    /// Makes all queued events visible to the programs, and rings the doorbells of sleeping
    /// threads. Contexts whose control events still wait for room stay in the list of unpublished
    /// contexts. If doorbells could not be rung, returns the program of one of them.
    #[inline(never)]
    pub fn publish(&mut self) -> Option<ProgramId> {
        let (mut stuck, mut kept) = (None, 0);
        for at in 0..self.unpublished.len() {
            let place = self.unpublished[at];
            let Some(entry) = self.entries.get_mut(place as usize) else {
                continue;
            };
            entry.context.has_events = entry.context.push_backlog();
            if !entry.context.publish() {
                stuck = Some(entry.program);
            }
            if entry.context.has_events {
                self.unpublished[kept] = place;
                kept += 1;
            }
        }
        self.unpublished.truncate(kept);
        stuck
    }
}

/// Returns a control event about a slot.
pub fn slot_event(kind: u32, slot: u32, generation: u32, cookie: u64) -> ControlEvent {
    ControlEvent {
        kind,
        slot,
        cookie,
        generation,
        cause: 0,
        listener: 0,
        syn_room: 0,
        reserved: [0; 8],
    }
}

/// Returns the control event of a failed active open. `cause` is a `close_cause`.
pub fn failed_event(cookie: u64, cause: u32) -> ControlEvent {
    ControlEvent {
        cause,
        ..slot_event(control_event::CONNECT_FAILED, 0, 0, cookie)
    }
}

/// Returns the control event of an active open that the program has to make through the kernel.
/// `reason` is a reason of `not_accelerated`.
pub fn kernel_event(cookie: u64, reason: u32) -> ControlEvent {
    ControlEvent {
        cause: reason,
        ..slot_event(control_event::CONNECT_KERNEL, 0, 0, cookie)
    }
}
