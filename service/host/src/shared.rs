//! Connections that several processes hold, and their moves between these processes.
//!
//! See `docs/design/fork.md`. A *holder* is a process with a descriptor of the connection, for
//! example after a fork. The slot and the buffers of a connection lie in the memory of one program,
//! the *home*. Another holder moves the connection to its own memory with [`Host::take`]. The old
//! slot of a moved connection stays reserved as long as its program holds the connection. Most
//! connections have one holder, and no record in this module.

use std::{collections::BTreeMap, sync::Arc};

use tidelane_abi::{data_event, program_flags, service_flags};
use tidelane_engine::FlowId;
use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;

use crate::{
    Host, ProgramId,
    accounts::{Account, Charge, Refused, Resource},
    bindings::{Binding, FormerSlot, SlotUse},
    slots::Publication,
};

mod moving;

pub use moving::{Take, TakeError, Taken};

/// A process that holds a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A registered program.
    Program(ProgramId),
    /// A forked child that has not registered yet. The driver gives each child a number.
    Child(u64),
}

/// A connection with several holders, or with one holder that is not the home.
#[derive(Debug)]
struct SharedConnection {
    /// The home, and the connection's slot in the home's region.
    place: (ProgramId, u32),
    holders: Vec<Holder>,
    /// Former slots of the connection, whose programs still hold the connection. Each entry has the
    /// program and the slot.
    former_slots: Vec<(ProgramId, u32)>,
    /// The state that was last published in the slot.
    published: Option<Publication>,
    /// One unit for each holder, charged to the user of the first home.
    charge: Charge,
}

/// Limit of holds of all users: the holders of shared connections, and the members of listeners.
pub const HOLDS_MAX: u64 = 1 << 22;

impl SharedConnection {
    /// Returns true if the home is a holder.
    fn is_at_home(&self) -> bool {
        self.holders.contains(&Holder::Program(self.place.0))
    }
}

/// All shared connections, by the number of the connection.
#[derive(Debug, Default)]
pub struct SharedConnections {
    by_number: BTreeMap<u64, SharedConnection>,
}

impl SharedConnections {
    /// Returns the programs that hold `connection`. Returns no program if the connection is not
    /// shared.
    pub fn programs(&self, connection: u64) -> impl Iterator<Item = ProgramId> {
        let holders = self.by_number.get(&connection);
        let holders = holders.into_iter().flat_map(|shared| &shared.holders);
        holders.filter_map(|holder| match holder {
            Holder::Program(id) => Some(*id),
            Holder::Child(_) => None,
        })
    }

    /// Returns the connections that `holder` holds.
    fn held_by(&self, holder: Holder) -> Vec<u64> {
        let held = |(_, shared): &(&u64, &SharedConnection)| shared.holders.contains(&holder);
        let held = self.by_number.iter().filter(held);
        held.map(|(number, _)| *number).collect()
    }
}

impl<P: PacketIo> Host<P> {
    /// Makes `child` a holder of all connections that `from` holds, before a fork. After a refusal,
    /// `child` holds no connection.
    pub fn inherit(&mut self, now: Instant, from: Holder, child: u64) -> Result<(), Refused> {
        self.stack.io.now = now;
        let inherited = self.add_child(now, from, Holder::Child(child));
        if inherited.is_err() {
            self.leave_all(now, Holder::Child(child), false);
            // A connection that `add_child` has shared may have one holder again.
            for connection in self.shared.held_by(from) {
                self.apply_holders(now, connection, false);
            }
        }
        inherited
    }

    fn add_child(&mut self, now: Instant, from: Holder, child: Holder) -> Result<(), Refused> {
        if let Holder::Program(id) = from {
            self.share_all(now, id)?;
        }
        for shared in self.shared.by_number.values_mut() {
            if shared.holders.contains(&from) {
                shared.charge.grow(1)?;
                shared.holders.push(child);
            }
        }
        Ok(())
    }

    /// Replaces the holder `child` by the program `id`, after the child has registered as this
    /// program.
    pub fn child_registered(&mut self, child: u64, id: ProgramId) {
        for shared in self.shared.by_number.values_mut() {
            for holder in &mut shared.holders {
                if *holder == Holder::Child(child) {
                    *holder = Holder::Program(id);
                }
            }
        }
    }

    /// Removes a holder that has ended. If `abort` is true, resets the connections that have no
    /// other holder.
    pub fn leave_all(&mut self, now: Instant, holder: Holder, abort: bool) {
        self.stack.io.now = now;
        for connection in self.shared.held_by(holder) {
            self.drop_holder(now, connection, holder, abort);
        }
    }

    /// Removes the hold of `holder`, which has closed a connection without ever having a slot for
    /// the connection.
    pub fn release_connection(&mut self, now: Instant, holder: Holder, connection: u64) {
        self.stack.io.now = now;
        self.drop_holder(now, connection, holder, false);
    }

    fn share_all(&mut self, now: Instant, id: ProgramId) -> Result<(), Refused> {
        let Some(program) = self.stack.io.programs.get_mut(id) else {
            return Ok(());
        };
        let account = program.account.clone();
        let in_use = program
            .slots()
            .filter(|(_, slot_use)| matches!(slot_use, SlotUse::Live(_) | SlotUse::Ended(_)));
        let slots: Vec<u32> = in_use.map(|(slot, _)| slot).collect();
        for slot in slots {
            // Process the flags first: the program may have accepted or closed the connection since
            // the last step.
            self.advance(now, id, slot);
            self.share(id, slot, &account)?;
        }
        Ok(())
    }

    fn share(&mut self, id: ProgramId, slot: u32, payer: &Arc<Account>) -> Result<(), Refused> {
        let Some(binding) = self.binding_at((id, slot)) else {
            return Ok(());
        };
        let untaken =
            binding.listener.is_some() && binding.program_flags & program_flags::TAKEN == 0;
        let shared = binding.service_flags & service_flags::SHARED != 0;
        if untaken || shared || binding.closed_by_program {
            return Ok(());
        }
        let charge = payer.charge(Resource::Holds, 1)?;
        binding.service_flags |= service_flags::SHARED;
        let connection = binding.connection;
        let entry = SharedConnection {
            place: (id, slot),
            holders: vec![Holder::Program(id)],
            former_slots: Vec::new(),
            published: None,
            charge,
        };
        self.shared.by_number.insert(connection, entry);
        self.change_flags((id, slot), service_flags::SHARED, 0);
        Ok(())
    }

    /// Returns the binding of the connection in a program's slot.
    fn binding_at(&mut self, (id, slot): (ProgramId, u32)) -> Option<&mut Binding> {
        let flow = match self.stack.io.programs.get_mut(id)?.slot_use(slot)? {
            SlotUse::Live(flow) => *flow,
            SlotUse::Ended(_) => {
                return match self.stack.io.programs.get_mut(id)?.slot_use(slot)? {
                    SlotUse::Ended(binding) => Some(binding),
                    _ => None,
                };
            }
            SlotUse::Free | SlotUse::Former(_) => return None,
        };
        self.stack.io.bindings.get_mut(flow)
    }

    /// Sets and clears flags of a slot now, instead of at the end of the step.
    fn change_flags(&mut self, (id, slot): (ProgramId, u32), set: u32, clear: u32) {
        let program = self.stack.io.programs.get(id);
        if let Some(view) = program.and_then(|program| program.region.slot(slot)) {
            crate::slots::add_flags(view, set);
            crate::slots::remove_flags(view, clear);
        }
    }

    /// Processes the CLOSE flag of the home. `flags` has the program flags that the home has newly
    /// set. Returns false and changes nothing if `flow` is not shared.
    pub(crate) fn close_shared(&mut self, now: Instant, flow: FlowId, flags: u32) -> bool {
        let Some(binding) = self.stack.io.bindings.get_mut(flow) else {
            return false;
        };
        if binding.service_flags & service_flags::SHARED == 0 {
            return false;
        }
        let (connection, home) = (binding.connection, binding.home);
        if flags & program_flags::SHUT_WRITE != 0 {
            self.stack.engine.shutdown_write(flow);
        }
        let abort = flags & program_flags::ABORT != 0;
        self.drop_holder(now, connection, Holder::Program(home), abort);
        true
    }

    /// Processes the CLOSE flag in a slot whose flow has ended.
    pub(crate) fn close_ended(&mut self, now: Instant, id: ProgramId, slot: u32) {
        let Some(binding) = self.binding_at((id, slot)) else {
            return;
        };
        if binding.service_flags & service_flags::SHARED == 0 {
            self.free_ended(id, slot);
            return;
        }
        let connection = binding.connection;
        self.drop_holder(now, connection, Holder::Program(id), false);
    }

    /// Processes the CLOSE flag of program `id` in a former slot, whose connection has moved to
    /// another program.
    pub(crate) fn close_former_slot(
        &mut self,
        now: Instant,
        id: ProgramId,
        former: FormerSlot,
        flags: u32,
    ) {
        let abort = flags & program_flags::ABORT != 0;
        self.drop_holder(now, former.connection, Holder::Program(id), abort);
    }

    fn drop_holder(&mut self, now: Instant, connection: u64, holder: Holder, abort: bool) {
        let Some(shared) = self.shared.by_number.get_mut(&connection) else {
            return;
        };
        let Some(at) = shared.holders.iter().position(|other| *other == holder) else {
            return;
        };
        shared.holders.swap_remove(at);
        shared.charge.shrink(1);
        let place = shared.place;
        if let Holder::Program(id) = holder {
            self.release_former_slot(connection, id);
            if id == place.0
                && let Some(binding) = self.binding_at(place)
            {
                binding.closed_by_program = true;
            }
        }
        self.apply_holders(now, connection, abort);
    }

    /// Frees the former slot of the connection in program `id`.
    fn release_former_slot(&mut self, connection: u64, id: ProgramId) {
        let Some(shared) = self.shared.by_number.get_mut(&connection) else {
            return;
        };
        let Some(at) = shared
            .former_slots
            .iter()
            .position(|(owner, _)| *owner == id)
        else {
            return;
        };
        let (_, slot) = shared.former_slots.swap_remove(at);
        let Some(program) = self.stack.io.programs.get_mut(id) else {
            return;
        };
        if let Some(SlotUse::Former(former)) = program.slot_use(slot) {
            let context = former.context;
            self.stack.io.programs.release_slot(id, slot, context);
        }
    }

    /// Applies a change of the holders. Closes a connection without holders. Ends the sharing if
    /// the home is the only holder. Notifies the other holders if the home is not a holder.
    fn apply_holders(&mut self, now: Instant, connection: u64, abort: bool) {
        let Some(shared) = self.shared.by_number.get(&connection) else {
            return;
        };
        let place = shared.place;
        if shared.holders.is_empty() {
            self.shared.by_number.remove(&connection);
            self.end_shared(now, place, abort);
        } else if shared.holders == [Holder::Program(place.0)] {
            self.shared.by_number.remove(&connection);
            if let Some(binding) = self.binding_at(place) {
                binding.service_flags &= !service_flags::SHARED;
            }
            self.change_flags(place, 0, service_flags::SHARED);
        } else if !shared.is_at_home() {
            self.notify_other_holders(connection);
        }
    }

    /// Records the published state of a shared connection, and notifies the other holders if the
    /// state has changed.
    pub(crate) fn note_published(&mut self, connection: u64, publication: Publication) {
        if let Some(shared) = self.shared.by_number.get_mut(&connection)
            && shared.published.replace(publication) != Some(publication)
        {
            self.notify_other_holders(connection);
        }
    }

    /// Notifies the holders with a former slot of the connection, because their threads may wait
    /// for data.
    pub(crate) fn notify_other_holders(&mut self, connection: u64) {
        let Some(shared) = self.shared.by_number.get(&connection) else {
            return;
        };
        for (id, slot) in shared.former_slots.clone() {
            let Some(program) = self.stack.io.programs.get_mut(id) else {
                continue;
            };
            let Some(SlotUse::Former(former)) = program.slot_use(slot) else {
                continue;
            };
            let context = former.context;
            if std::mem::replace(&mut former.notified, true) {
                continue;
            }
            self.change_flags((id, slot), service_flags::EVENT_PENDING, 0);
            if let Some(context) = self.stack.io.programs.contexts.for_event(id, context) {
                // A full ring does no harm: the program reads the ring later, and then finds the
                // flag.
                let _ = context.push_data(data_event::READY, slot);
            }
        }
    }

    /// Closes a connection without holders.
    fn end_shared(&mut self, now: Instant, place: (ProgramId, u32), abort: bool) {
        let Some(binding) = self.binding_at(place) else {
            return;
        };
        binding.closed_by_program = true;
        binding.service_flags &= !service_flags::SHARED;
        let (id, slot) = place;
        let flow = match self
            .stack
            .io
            .programs
            .get_mut(id)
            .and_then(|p| p.slot_use(slot))
        {
            Some(SlotUse::Live(flow)) => *flow,
            _ => {
                self.free_ended(id, slot);
                self.stack.io.programs.remove_unused(id);
                return;
            }
        };
        if abort {
            self.stack
                .engine
                .close_with_reset(now, flow, &mut self.stack.io);
        } else {
            self.stack.engine.close(now, flow, &mut self.stack.io);
        }
    }
}
