//! The programs of a host (the TCP/IP stack of one core), with their regions and slots. A *program*
//! is a process that has registered with the service. The *region* of a program is the memory that
//! the program shares with the service. A *slot* is the record of one connection in a region. A
//! *context* is the set of rings of one thread of a program. The *driver* of a host is the daemon
//! or the simulator, which calls [`Host::step`](crate::Host::step) in a loop.

use std::{collections::VecDeque, sync::Arc};

use tidelane_abi::{data_event, service_flags};
use tidelane_ring::{BufferAllocator, CoreShare, ProgramRegion};

use crate::{
    accounts::Account,
    bindings::binding::SlotUse,
    congestion::AllowedCongestion,
    contexts::Contexts,
    credentials::Credentials,
    ids::{ProgramId, SlotId},
    memory::{RxBuffers, StreamMemory},
    slots::{self, Publication},
};

/// A slot that the host has taken for a connection.
#[derive(Clone, Copy, Debug)]
pub struct TakenSlot {
    /// The slot.
    pub id: SlotId,
    /// Generation of the slot: a counter that changes when a use of the slot begins or ends. The
    /// generation is odd while the slot is in use.
    pub generation: u32,
    /// Number of the program's context that gets the events of the connection.
    pub context: u32,
}

/// One registered program.
pub struct Program {
    /// Name of the process, for listings.
    pub name: String,
    /// Process id, for listings.
    pub pid: u32,
    /// Credentials of the program, for the operator's rules.
    pub credentials: Arc<Credentials>,
    /// The account of the program's user on this core.
    pub account: Arc<Account>,
    /// The memory that the program shares with the service.
    pub region: Arc<ProgramRegion>,
    /// The part of the region that belongs to this core.
    pub share: CoreShare,
    /// Receive buffers in the region.
    pub rx: RxBuffers,
    /// Use of each slot that was ever in use, in the order of the slots. The first entry is for the
    /// first slot of `share`.
    slots: Vec<SlotUse>,
    /// Free slots that were in use before, in the order in which they became free.
    free_slots: VecDeque<u32>,
    /// Number of slots in use. The slot of an ended flow is in use, and so is a slot that is
    /// reserved for a connection whose data is in the memory of another program. The region stays
    /// mapped while a slot is in use.
    pub slots_used: u32,
    /// True once the process has ended or misbehaved. The host then stops reading the program's
    /// rings.
    pub gone: bool,
    /// True until the driver has removed the program with
    /// [`Host::remove_program`](crate::Host::remove_program). The program's number stays in use at
    /// least until then.
    pub registered: bool,
    /// Congestion control algorithms that the program may choose.
    pub congestion: AllowedCongestion,
    /// True if the service may accelerate the program's connections over loopback, and its
    /// connections to addresses of other interfaces of the machine. The program is then in the
    /// service's network namespace.
    pub within_host: bool,
}

impl Program {
    /// Makes a program that has just registered. `share` is the part of `region` for this core.
    pub fn new(
        (name, pid): (String, u32),
        account: Arc<Account>,
        region: Arc<ProgramRegion>,
        share: CoreShare,
        memory: StreamMemory,
    ) -> Self {
        let allocator = BufferAllocator::new(share.rx_area.clone());
        let rx = RxBuffers::new(allocator, &account, memory);
        Self {
            name,
            pid,
            credentials: Arc::default(),
            account,
            region,
            share,
            rx,
            slots: Vec::new(),
            free_slots: VecDeque::new(),
            slots_used: 0,
            gone: false,
            registered: true,
            congestion: AllowedCongestion::ALL,
            within_host: false,
        }
    }

    /// Returns the use of `slot`. Returns `None` for a slot of another core, or a slot that was
    /// never in use.
    #[inline]
    pub fn slot_use(&mut self, slot: u32) -> Option<&mut SlotUse> {
        self.slots
            .get_mut(slot.wrapping_sub(self.share.slots.start) as usize)
    }

    /// Returns true if there is a free slot.
    pub fn has_slot(&self) -> bool {
        let next = self.share.slots.start + self.slots.len() as u32;
        !self.free_slots.is_empty() || next < self.share.slots.end
    }

    /// Takes a free slot. Returns the slot and its new generation, or `None` if no slot is free.
    /// The generation is odd while the slot is in use.
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

    /// Sets the use of `slot`.
    pub fn set_slot(&mut self, slot: u32, slot_use: SlotUse) {
        if let Some(entry) = self.slot_use(slot) {
            *entry = slot_use;
        }
    }

    /// Frees a slot. Returns false if the program has no slot with this number.
    fn release_slot(&mut self, slot: u32) -> bool {
        let Some(entry) = self.slot_use(slot) else {
            return false;
        };
        *entry = SlotUse::Free;
        self.slots_used -= 1;
        if let Some(view) = self.region.slot(slot) {
            slots::end_use(view);
        }
        self.free_slots.push_back(slot);
        true
    }

    /// Returns the slots that have the data of a connection. A slot whose connection has moved to
    /// another program does not count.
    pub fn slots_in_use(&self) -> Vec<u32> {
        let in_use = |slot_use: &SlotUse| matches!(slot_use, SlotUse::Live(_) | SlotUse::Ended(_));
        let slots = self.slots().filter(|(_, slot_use)| in_use(slot_use));
        slots.map(|(slot, _)| slot).collect()
    }

    /// Returns all slots that were ever in use, with their uses.
    pub fn slots(&self) -> impl Iterator<Item = (u32, &SlotUse)> {
        (self.share.slots.start..).zip(&self.slots)
    }
}

/// All programs of a host.
#[derive(Default)]
pub struct Programs {
    /// The programs, by number minus one.
    entries: Vec<Option<Program>>,
    /// Contexts of all programs that have not ended.
    pub contexts: Contexts,
}

impl Programs {
    /// Adds a program. Returns the program's number, which is at least 1.
    pub fn insert(&mut self, program: Program) -> ProgramId {
        let free = self.entries.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[index] = Some(program);
        ProgramId(index as u32 + 1)
    }

    /// Returns the use of a slot. Returns `None` for a slot of another core, or a slot that was
    /// never in use.
    #[inline]
    pub fn slot_use(&mut self, id: SlotId) -> Option<&mut SlotUse> {
        self.get_mut(id.program)?.slot_use(id.slot)
    }

    /// Takes a free slot of a program for a connection. `context` is the number of the context that
    /// gets the connection's events. Returns `None` if the program has no free slot.
    pub fn take_slot(&mut self, program: ProgramId, context: u32) -> Option<TakenSlot> {
        let (slot, generation) = self.get_mut(program)?.take_slot()?;
        Some(TakenSlot {
            id: SlotId { program, slot },
            generation,
            context,
        })
    }

    /// Frees a slot, and pushes a RELEASED event to `context`, or to the program's first context if
    /// `context` does not exist.
    pub fn release_slot(&mut self, id: SlotId, context: u32) {
        let program = self.get_mut(id.program);
        if program.is_some_and(|program| program.release_slot(id.slot))
            && let Some(context) = self.contexts.for_event(id.program, context)
        {
            let _ = context.push_data(data_event::RELEASED, id.slot);
        }
    }

    /// Frees a slot whose flow has ended. The caller calls this function when no process holds the
    /// connection.
    pub fn free_ended(&mut self, id: SlotId) {
        let Some(program) = self.get_mut(id.program) else {
            return;
        };
        let Some(entry) = program.slot_use(id.slot) else {
            return;
        };
        let SlotUse::Ended(mut binding) = std::mem::replace(entry, SlotUse::Free) else {
            return;
        };
        binding.free_rx(&mut program.rx);
        self.release_slot(id, binding.context);
    }

    /// Publishes the final state of a connection whose flow has ended, and notifies `context`.
    /// Returns the number of the connection. Returns `None` if the slot has no ended flow.
    pub fn announce_ended(&mut self, id: SlotId, context: u32) -> Option<u64> {
        let program = self.get_mut(id.program)?;
        let region = program.region.clone();
        let Some(SlotUse::Ended(binding)) = program.slot_use(id.slot) else {
            return None;
        };
        let connection = binding.connection;
        let publication = Publication {
            rx_head: binding.rx_head,
            tx_acked: binding.tx_head,
            flags: binding.service_flags | service_flags::CLOSED,
            cause: binding.cause,
        };
        if let Some(view) = region.slot(id.slot) {
            slots::publish(view, &publication);
        }
        if let Some(context) = self.contexts.for_event(id.program, context) {
            let _ = context.push_data(data_event::READY, id.slot);
        }
        Some(connection)
    }

    /// Sets service flags of a slot immediately, and not only at the end of the host's step.
    pub fn add_flags(&self, id: SlotId, bits: u32) {
        let program = self.get(id.program);
        if let Some(view) = program.and_then(|program| program.region.slot(id.slot)) {
            slots::add_flags(view, bits);
        }
    }

    /// Clears service flags of a slot immediately, and not only at the end of the host's step.
    pub fn remove_flags(&self, id: SlotId, bits: u32) {
        let program = self.get(id.program);
        if let Some(view) = program.and_then(|program| program.region.slot(id.slot)) {
            slots::remove_flags(view, bits);
        }
    }

    /// Returns the program `id`.
    #[inline]
    pub fn get_mut(&mut self, id: ProgramId) -> Option<&mut Program> {
        self.entries
            .get_mut((id.0 as usize).wrapping_sub(1))?
            .as_mut()
    }

    /// Returns the program `id`.
    pub fn get(&self, id: ProgramId) -> Option<&Program> {
        self.entries.get((id.0 as usize).wrapping_sub(1))?.as_ref()
    }

    /// Returns name and pid of the program `id`, for listings.
    pub fn name_and_pid(&self, id: ProgramId) -> Option<(String, u32)> {
        let program = self.get(id)?;
        Some((program.name.clone(), program.pid))
    }

    /// Removes a program that has ended or misbehaved, and releases its region. Does nothing while
    /// a slot of the program is in use, or while the driver has not removed the program. A number
    /// that the driver uses therefore never refers to another program.
    pub fn remove_unused(&mut self, id: ProgramId) {
        if let Some(entry) = self.entries.get_mut((id.0 as usize).wrapping_sub(1))
            && entry.as_ref().is_some_and(|program| {
                program.gone && !program.registered && program.slots_used == 0
            })
        {
            *entry = None;
        }
    }

    /// Returns all programs, mutably.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ProgramId, &mut Program)> {
        let numbered = |(index, entry)| (ProgramId(index as u32 + 1), entry);
        let entries = self.entries.iter_mut().enumerate();
        entries.filter_map(move |(index, entry)| Some(numbered((index, entry.as_mut()?))))
    }

    /// Returns all programs.
    pub fn iter(&self) -> impl Iterator<Item = (ProgramId, &Program)> {
        let numbered = |(index, entry)| (ProgramId(index as u32 + 1), entry);
        self.entries
            .iter()
            .enumerate()
            .filter_map(move |(index, entry)| Some(numbered((index, entry.as_ref()?))))
    }
}
