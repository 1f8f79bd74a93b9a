//! The contexts of all programs of a host, in one list that each step looks through.

use std::{collections::VecDeque, sync::Arc};

use tidelane_abi::{ControlEvent, ControlRequest};
use tidelane_ring::{
    ControlEventProducer, ControlRequestConsumer, Corrupt, DataEventProducer, DataRequestConsumer,
    ProgramRegion, PushError, sleep, words::DataWord,
};

use crate::program::ProgramId;

/// Control events that wait for room in a context's ring, or that it will be owed. With so many no
/// request is taken from it, and no connection given to it.
const CONTROL_BACKLOG_MAX: usize = 512;

/// Rings a context's doorbell. The daemon's is an eventfd.
pub trait Bell: Send {
    /// Wakes the sleeping context. False if the program has made that impossible.
    fn ring(&self) -> bool;
}

/// The service's side of one context.
pub struct Context {
    region: Arc<ProgramRegion>,
    /// Of its rings in the region.
    rings: u32,
    data_requests: DataRequestConsumer,
    data_events: DataEventProducer,
    control_requests: ControlRequestConsumer,
    control_events: ControlEventProducer,
    backlog: VecDeque<ControlEvent>,
    /// Requests that were taken and are to be answered later.
    owed: usize,
    bell: Box<dyn Bell>,
    /// Something was pushed since the last [`publish`](Self::publish).
    pushed: bool,
    /// It is in the list of those that are to be published.
    told: bool,
}

impl Context {
    /// The service's side of the rings with number `rings` of the region, which are new. `None` if
    /// there are no such.
    pub fn new(region: Arc<ProgramRegion>, rings: u32, bell: Box<dyn Bell>) -> Option<Self> {
        Some(Self {
            data_requests: DataRequestConsumer::new(region.clone(), rings)?,
            data_events: DataEventProducer::new(region.clone(), rings)?,
            control_requests: ControlRequestConsumer::new(region.clone(), rings)?,
            control_events: ControlEventProducer::new(region.clone(), rings)?,
            region,
            rings,
            backlog: VecDeque::new(),
            owed: 0,
            bell,
            pushed: false,
            told: false,
        })
    }

    /// How many data requests wait, at least; zero only if there are none.
    #[inline]
    pub fn data_waiting(&mut self) -> Result<u32, Corrupt> {
        self.data_requests.known()
    }

    /// Waiting data request `ahead`, copied out and not decoded yet.
    #[inline]
    pub fn data_word(&self, ahead: u32) -> u64 {
        self.data_requests.peek(ahead)
    }

    /// Gives the places of the first `count` waiting data requests back to the program.
    #[inline]
    pub fn drop_data(&mut self, count: u32) {
        self.data_requests.drop_known(count);
    }

    /// Returns true if a control request is to be taken. A program that does not read its events
    /// is not asked for more: what it costs would be the service's memory.
    #[inline]
    pub fn has_control(&self) -> bool {
        !self.control_requests.is_empty() && self.takes_control()
    }

    /// The next control request that is to be taken. Its place is the program's again.
    #[inline]
    pub fn next_control(&mut self) -> Result<Option<ControlRequest>, Corrupt> {
        if !self.takes_control() {
            return Ok(None);
        }
        let request = self.control_requests.pop()?;
        self.control_requests.release();
        Ok(request)
    }

    /// Returns true if requests are to be taken.
    #[inline]
    pub fn has_requests(&self) -> bool {
        !self.data_requests.is_empty() || self.has_control()
    }

    /// A request is answered later: its answer will find room.
    pub fn owe(&mut self) {
        self.owed += 1;
    }

    /// A request that was owed an answer has it, or is owed it anew.
    pub fn settle(&mut self) {
        self.owed = self.owed.saturating_sub(1);
    }

    /// Queues a data event.
    #[inline]
    pub fn push_data(&mut self, kind: u8, slot: u32) -> Result<(), PushError> {
        self.data_events.push(DataWord::new(kind, slot).encode())?;
        self.pushed = true;
        Ok(())
    }

    /// Queues a control event; one that finds the ring full waits in the service. That has room for
    /// the answer to what [`next_control`](Self::next_control) gave, and for what
    /// [`Contexts::takes_control`] was asked for.
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

    /// Returns true if another control event has room, in the ring or in the backlog.
    #[inline]
    fn takes_control(&self) -> bool {
        self.backlog.len() + self.owed < CONTROL_BACKLOG_MAX
    }

    /// Moves waiting control events to the ring. Whether some still wait.
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

    /// Makes queued events visible, and rings the doorbell if the program sleeps. False if that is
    /// impossible.
    #[inline]
    fn publish(&mut self) -> bool {
        if !std::mem::take(&mut self.pushed) {
            return true;
        }
        self.control_events.publish();
        self.data_events.publish();
        let Some(context) = self.region.context(self.rings) else {
            return true;
        };
        !sleep::should_ring(&context.head.needs_wakeup) || self.bell.ring()
    }
}

/// A context, and whose it is.
struct Entry {
    program: ProgramId,
    number: u32,
    context: Context,
}

/// All contexts that are answered: those of programs that are gone are not here.
#[derive(Default)]
pub struct Contexts {
    entries: Vec<Entry>,
    /// By program and then number: the place in `entries`.
    places: Vec<Vec<Option<u32>>>,
    /// Places of contexts that may have been told something.
    told: Vec<u32>,
}

impl Contexts {
    /// Adds a context. False if there is one with that number.
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

    /// Removes all contexts of a program. Places change.
    pub fn remove_all(&mut self, program: ProgramId) {
        self.entries.retain(|entry| entry.program != program);
        self.places.iter_mut().for_each(Vec::clear);
        self.told.clear();
        for (at, entry) in (0..).zip(&self.entries) {
            let places = &mut self.places[entry.program.0 as usize];
            let index = entry.number as usize;
            if places.len() <= index {
                places.resize(index + 1, None);
            }
            places[index] = Some(at);
            if entry.context.told {
                self.told.push(at);
            }
        }
    }

    #[inline]
    fn place(&self, program: ProgramId, number: u32) -> Option<u32> {
        *self.places.get(program.0 as usize)?.get(number as usize)?
    }

    /// Returns true if the program has the context.
    pub fn exists(&self, program: ProgramId, number: u32) -> bool {
        self.place(program, number).is_some()
    }

    /// Returns true if the context can be told of one more connection.
    pub fn takes_control(&self, program: ProgramId, number: u32) -> bool {
        let place = self.place(program, number);
        let place = place.or_else(|| self.place(program, 0));
        let entry = place.and_then(|place| self.entries.get(place as usize));
        entry.is_some_and(|entry| entry.context.takes_control())
    }

    /// Context `number` of a program to tell it something, or its first one if there is none with
    /// that number.
    #[inline]
    pub fn tell(&mut self, program: ProgramId, number: u32) -> Option<&mut Context> {
        let place = self.place(program, number);
        let place = place.or_else(|| self.place(program, 0))?;
        let context = &mut self.entries.get_mut(place as usize)?.context;
        if !context.told {
            context.told = true;
            self.told.push(place);
        }
        Some(context)
    }

    /// The place of the first context with requests to take, from place `from` on.
    #[inline]
    pub fn next_asking(&self, from: usize) -> Option<usize> {
        let entries = self.entries.get(from..)?;
        let found = entries
            .iter()
            .position(|entry| entry.context.has_requests());
        found.map(|ahead| from + ahead)
    }

    /// Whose context is at `place`, its number, and the context.
    #[inline]
    pub fn owned(&mut self, place: usize) -> Option<((ProgramId, u32), &mut Context)> {
        let entry = self.entries.get_mut(place)?;
        Some(((entry.program, entry.number), &mut entry.context))
    }

    /// The context at `place`.
    #[inline]
    pub fn at(&mut self, place: usize) -> Option<&mut Context> {
        Some(&mut self.entries.get_mut(place)?.context)
    }

    /// Returns true if some context has events to publish.
    #[inline]
    pub fn any_told(&self) -> bool {
        !self.told.is_empty()
    }

    /// Makes all that contexts were told visible, and rings those that sleep. Those whose control
    /// events wait for room stay to be published. Returns a program whose doorbell could not be
    /// rung.
    #[inline(never)]
    pub fn publish(&mut self) -> Option<ProgramId> {
        let mut stuck = None;
        let entries = &mut self.entries[..];
        self.told.retain(|place| {
            let Some(entry) = entries.get_mut(*place as usize) else {
                return false;
            };
            entry.context.told = entry.context.push_backlog();
            if !entry.context.publish() {
                stuck = Some(entry.program);
            }
            entry.context.told
        });
        stuck
    }
}
