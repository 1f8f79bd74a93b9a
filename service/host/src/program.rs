//! The programs of a host: their regions, contexts and slots.

use std::{collections::VecDeque, sync::Arc};

use tidelane_abi::{ControlEvent, ControlRequest, data_event};
use tidelane_ring::{
    BufferAllocator, ControlEventProducer, ControlRequestConsumer, Corrupt, DataEventProducer,
    DataRequestConsumer, ProgramRegion, PushError, Share, sleep, words::DataWord,
};

use crate::{binding::SlotUse, slots};

/// Number of a program within a host. Zero is the host's own staging area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramId(pub u32);

/// Control events that wait for room in a context's ring.
const CONTROL_BACKLOG_MAX: usize = 65_536;

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
    bell: Box<dyn Bell>,
    /// Something was pushed since the last [`publish`](Self::publish).
    pushed: bool,
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
            bell,
            pushed: false,
        })
    }

    /// Copies the next data requests out, not decoded yet, and gives their places back to the
    /// program. Returns how many.
    #[inline]
    pub fn next_data_words(&mut self, words: &mut [u64]) -> Result<usize, Corrupt> {
        self.data_requests.take(words)
    }

    /// Whether a control request waits.
    #[inline]
    pub fn has_control(&self) -> bool {
        !self.control_requests.is_empty()
    }

    /// The next control request. Its place is the program's again.
    #[inline]
    pub fn next_control(&mut self) -> Result<Option<ControlRequest>, Corrupt> {
        let request = self.control_requests.pop()?;
        self.control_requests.release();
        Ok(request)
    }

    /// Whether requests wait.
    #[inline]
    pub fn has_requests(&self) -> bool {
        !self.data_requests.is_empty() || !self.control_requests.is_empty()
    }

    /// Queues a data event.
    #[inline]
    pub fn push_data(&mut self, kind: u8, slot: u32) -> Result<(), PushError> {
        self.data_events.push(DataWord::new(kind, slot).encode())?;
        self.pushed = true;
        Ok(())
    }

    /// Queues a control event; one that finds the ring full waits in the service.
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
        if self.backlog.len() >= CONTROL_BACKLOG_MAX {
            return Err(PushError::Full);
        }
        self.backlog.push_back(event);
        Ok(())
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

/// What became of [`Programs::publish`].
#[derive(Clone, Copy, Default)]
pub struct Published {
    /// Control events still wait for room: the next step is to publish again.
    pub backlogged: bool,
    /// A program whose doorbell could not be rung.
    pub stuck: Option<ProgramId>,
}

/// One registered program.
pub struct Program {
    /// For listings.
    pub name: String,
    /// For listings.
    pub pid: u32,
    /// Its memory.
    pub region: Arc<ProgramRegion>,
    /// What this core has of it.
    pub share: Share,
    /// Receive buffers in it.
    pub rx: BufferAllocator,
    /// Its contexts, by number. Who tells one something takes it from
    /// [`context_mut`](Self::context_mut).
    pub contexts: Vec<Option<Context>>,
    /// A context may have been told something: [`Programs::publish`] is to look.
    told: bool,
    /// From the first slot of the share on.
    slots: Vec<SlotUse>,
    free_slots: VecDeque<u32>,
    /// Slots in use, orphans included: the region lives until there are none.
    pub slots_used: u32,
    /// The process is gone, or misbehaved: nothing is read from the region's rings any more.
    pub gone: bool,
    /// The driver has not removed it yet: its number stays in use.
    pub registered: bool,
}

impl Program {
    /// A program that has just registered, of whose region `share` is this core's.
    pub fn new(name: String, pid: u32, region: Arc<ProgramRegion>, share: Share) -> Self {
        let rx = BufferAllocator::new(share.rx_area.clone());
        Self {
            name,
            pid,
            region,
            share,
            rx,
            contexts: Vec::new(),
            told: false,
            slots: Vec::new(),
            free_slots: VecDeque::new(),
            slots_used: 0,
            gone: false,
            registered: true,
        }
    }

    /// What uses `slot`; none of other cores.
    #[inline]
    pub fn slot_use(&mut self, slot: u32) -> Option<&mut SlotUse> {
        self.slots
            .get_mut(slot.wrapping_sub(self.share.slots.start) as usize)
    }

    /// Takes a free slot; its generation becomes odd.
    pub fn take_slot(&mut self) -> Option<(u32, u32)> {
        let slot = match self.free_slots.pop_front() {
            Some(slot) => slot,
            None => {
                let next = self.share.slots.start + self.slots.len() as u32;
                if next >= self.share.slots.end {
                    return None;
                }
                self.slots.push(SlotUse::Free);
                next
            }
        };
        let generation = slots::begin_use(self.region.slot(slot)?);
        self.slots_used += 1;
        Some((slot, generation))
    }

    /// Sets what uses `slot`.
    pub fn set_slot(&mut self, slot: u32, slot_use: SlotUse) {
        if let Some(entry) = self.slot_use(slot) {
            *entry = slot_use;
        }
    }

    /// The slot is free again: tells `context`.
    pub fn release_slot(&mut self, slot: u32, context: u32) {
        let Some(entry) = self.slot_use(slot) else {
            return;
        };
        *entry = SlotUse::Free;
        self.slots_used -= 1;
        if let Some(view) = self.region.slot(slot) {
            slots::end_use(view);
        }
        self.free_slots.push_back(slot);
        if let Some(context) = self.context_mut(context) {
            let _ = context.push_data(data_event::RELEASED, slot);
        }
    }

    /// Context `number` to tell it something, or the first one if it does not exist.
    #[inline]
    pub fn context_mut(&mut self, number: u32) -> Option<&mut Context> {
        self.told = true;
        let exists = matches!(self.contexts.get(number as usize), Some(Some(_)));
        let number = if exists { number as usize } else { 0 };
        self.contexts.get_mut(number)?.as_mut()
    }

    /// Whether there may be something to publish.
    #[inline]
    fn is_told(&self) -> bool {
        self.told && !self.gone
    }

    /// All slots with their uses.
    pub fn slots(&self) -> impl Iterator<Item = (u32, &SlotUse)> {
        (self.share.slots.start..).zip(&self.slots)
    }
}

/// All programs of a host.
#[derive(Default)]
pub struct Programs {
    entries: Vec<Option<Program>>,
}

impl Programs {
    /// Adds a program; numbers start at 1.
    pub fn insert(&mut self, program: Program) -> ProgramId {
        let free = self.entries.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[index] = Some(program);
        ProgramId(index as u32 + 1)
    }

    /// The first context with requests to take, from context `from` of the program with that index
    /// on, in the order of numbers.
    #[inline]
    pub fn next_asking(&self, from: (usize, usize)) -> Option<(ProgramId, u32)> {
        let (first, mut number) = from;
        for index in first..self.entries.len() {
            let contexts = match &self.entries[index] {
                Some(program) if !program.gone => &program.contexts[..],
                _ => &[],
            };
            while let Some(context) = contexts.get(number) {
                if context.as_ref().is_some_and(Context::has_requests) {
                    return Some((ProgramId(index as u32 + 1), number as u32));
                }
                number += 1;
            }
            number = 0;
        }
        None
    }

    /// A context whose requests are taken.
    #[inline]
    pub fn asking(&mut self, id: ProgramId, number: u32) -> Option<&mut Context> {
        let contexts = &mut self.get_mut(id)?.contexts;
        contexts.get_mut(number as usize)?.as_mut()
    }

    /// The program `id`.
    #[inline]
    pub fn get_mut(&mut self, id: ProgramId) -> Option<&mut Program> {
        self.entries
            .get_mut((id.0 as usize).wrapping_sub(1))?
            .as_mut()
    }

    /// The program `id`.
    pub fn get(&self, id: ProgramId) -> Option<&Program> {
        self.entries.get((id.0 as usize).wrapping_sub(1))?.as_ref()
    }

    /// Forgets a program that is gone, if no connection needs its region any more: it is unmapped.
    /// One that misbehaved keeps its number until the driver has removed it too: it must not mean
    /// another program by then.
    pub fn remove_unused(&mut self, id: ProgramId) {
        if let Some(entry) = self.entries.get_mut((id.0 as usize).wrapping_sub(1))
            && entry.as_ref().is_some_and(|program| {
                program.gone && !program.registered && program.slots_used == 0
            })
        {
            *entry = None;
        }
    }

    /// All programs.
    pub fn iter(&self) -> impl Iterator<Item = (ProgramId, &Program)> {
        let numbered = |(index, entry)| (ProgramId(index as u32 + 1), entry);
        self.entries
            .iter()
            .enumerate()
            .filter_map(move |(index, entry)| Some(numbered((index, entry.as_ref()?))))
    }

    /// Whether there may be something to publish to any program.
    #[inline]
    pub fn any_told(&self) -> bool {
        self.entries.iter().flatten().any(Program::is_told)
    }

    /// Makes all that contexts were told visible, and rings those that sleep.
    #[inline(never)]
    pub fn publish(&mut self) -> Published {
        let mut published = Published::default();
        for (index, program) in self.entries.iter_mut().enumerate() {
            let Some(program) = program.as_mut().filter(|program| program.is_told()) else {
                continue;
            };
            program.told = false;
            for context in program.contexts.iter_mut().flatten() {
                if context.push_backlog() {
                    (program.told, published.backlogged) = (true, true);
                }
                if !context.publish() {
                    published.stuck = Some(ProgramId(index as u32 + 1));
                }
            }
        }
        published
    }
}
