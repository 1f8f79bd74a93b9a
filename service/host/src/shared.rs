//! Connections that several processes hold.
//!
//! See `docs/design/fork.md`. A *holder* is a process with a descriptor of the connection, for
//! example after a fork. A *program* is a process that has registered with the service. The slot
//! (the connection's record in shared memory) and the buffers of a connection lie in the memory
//! (region) of one program, the *home*. If another holder uses the connection, the connection moves
//! to this holder's memory ([`Host::take`](crate::Host::take)). The old slot of a moved connection
//! stays reserved as long as the slot's program holds the connection. This module has no record of
//! most connections, because their home is their only holder.

use std::{collections::BTreeMap, sync::Arc};

use tidelane_abi::{data_event, program_flags, service_flags};
use tidelane_engine::{Engine, FlowId};

use crate::{
    ProgramId,
    accounts::{Account, Charge, Refused, Resource},
    bindings::{Bindings, FormerSlot, SlotUse},
    ids::SlotId,
    program::Programs,
    slots::{self, Publication},
};

mod moving;

pub(crate) use moving::{Move, Moved};
pub use moving::{Take, TakeError, Taken};

/// A process that holds a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A registered program.
    Program(ProgramId),
    /// A forked child that has not registered yet. The caller of
    /// [`Host::inherit`](crate::Host::inherit) numbers the children.
    Child(u64),
}

/// A connection with several holders, or with one holder that is not the home. Just before a fork,
/// the home may also be the only holder.
#[derive(Debug)]
struct SharedConnection {
    /// The connection's slot in the home's region.
    home: SlotId,
    holders: Vec<Holder>,
    /// Slots that the connection had before it moved, in programs that still hold the connection.
    former_slots: Vec<SlotId>,
    /// The most recent state that the host has published in the slot. `None` before the first
    /// publication.
    published: Option<Publication>,
    /// One unit for each holder, charged to the user of the first home.
    charge: Charge,
}

/// Limit of holds of all users on one core. Each holder of a shared connection counts as one hold,
/// and so does each member of a listener (a thread that accepts the listener's connections).
pub const HOLDS_MAX: u64 = 1 << 22;

impl SharedConnection {
    /// Returns true if the home is a holder.
    fn is_at_home(&self) -> bool {
        self.holders.contains(&Holder::Program(self.home.program))
    }
}

/// The records of the host that change with the holders of a connection.
pub(crate) struct SlotRecords<'a> {
    /// The programs, with their slots.
    pub(crate) programs: &'a mut Programs,
    /// The slots of the flows.
    pub(crate) bindings: &'a mut Bindings,
}

/// All shared connections, by the number of the connection.
///
/// If a function leaves a connection without holders, the function returns the slot of the
/// connection, and the caller closes the connection.
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
    pub(crate) fn held_by(&self, holder: Holder) -> Vec<u64> {
        let held = |(_, shared): &(&u64, &SharedConnection)| shared.holders.contains(&holder);
        let held = self.by_number.iter().filter(held);
        held.map(|(number, _)| *number).collect()
    }

    /// Makes the connection in a program's slot a shared connection, whose only holder is the
    /// program. The caller calls this function before a fork of the program. `payer` is the account
    /// of the program's user. Fails if the user has reached a limit. Changes nothing if the program
    /// has not accepted the connection, if the program has closed the connection, or if the
    /// connection is shared already.
    pub(crate) fn share(
        &mut self,
        id: SlotId,
        payer: &Arc<Account>,
        records: SlotRecords<'_>,
    ) -> Result<(), Refused> {
        let SlotRecords { programs, bindings } = records;
        let Some(binding) = bindings.of_slot(id, programs) else {
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
        let entry = SharedConnection {
            home: id,
            holders: vec![Holder::Program(id.program)],
            former_slots: Vec::new(),
            published: None,
            charge,
        };
        self.by_number.insert(binding.connection, entry);
        programs.add_flags(id, service_flags::SHARED);
        Ok(())
    }

    /// Makes `child` a holder of all shared connections that `from` holds. Stops at the first
    /// refusal of the user's account. The caller then removes `child` from the connections that
    /// already have `child` as a holder.
    pub(crate) fn add_child(&mut self, from: Holder, child: Holder) -> Result<(), Refused> {
        for shared in self.by_number.values_mut() {
            if shared.holders.contains(&from) {
                shared.charge.grow(1)?;
                shared.holders.push(child);
            }
        }
        Ok(())
    }

    /// Replaces the holder `child` by the program `id`, after the child has registered as this
    /// program.
    pub(crate) fn child_registered(&mut self, child: u64, id: ProgramId) {
        for shared in self.by_number.values_mut() {
            for holder in &mut shared.holders {
                if *holder == Holder::Child(child) {
                    *holder = Holder::Program(id);
                }
            }
        }
    }

    /// Removes a holder of a connection.
    #[must_use]
    pub(crate) fn drop_holder(
        &mut self,
        connection: u64,
        holder: Holder,
        records: SlotRecords<'_>,
    ) -> Option<SlotId> {
        let SlotRecords { programs, bindings } = records;
        let shared = self.by_number.get_mut(&connection)?;
        let at = shared.holders.iter().position(|other| *other == holder)?;
        shared.holders.swap_remove(at);
        shared.charge.shrink(1);
        let home = shared.home;
        if let Holder::Program(id) = holder {
            self.release_former_slot(connection, id, programs);
            if id == home.program
                && let Some(binding) = bindings.of_slot(home, programs)
            {
                binding.closed_by_program = true;
            }
        }
        self.apply_holders(connection, SlotRecords { programs, bindings })
    }

    /// Frees the former slot of the connection in program `id`, if there is one.
    fn release_former_slot(&mut self, connection: u64, id: ProgramId, programs: &mut Programs) {
        let Some(shared) = self.by_number.get_mut(&connection) else {
            return;
        };
        let of_program = |former: &SlotId| former.program == id;
        let Some(at) = shared.former_slots.iter().position(of_program) else {
            return;
        };
        let slot = shared.former_slots.swap_remove(at);
        if let Some(SlotUse::Former(former)) = programs.slot_use(slot) {
            let context = former.context;
            programs.release_slot(slot, context);
        }
    }

    /// Applies a change of the holders. If the home is the only holder, ends the sharing. If the
    /// home is not a holder, notifies the other holders.
    #[must_use]
    pub(crate) fn apply_holders(
        &mut self,
        connection: u64,
        records: SlotRecords<'_>,
    ) -> Option<SlotId> {
        let SlotRecords { programs, bindings } = records;
        let shared = self.by_number.get(&connection)?;
        let home = shared.home;
        if shared.holders.is_empty() {
            self.by_number.remove(&connection);
            if let Some(binding) = bindings.of_slot(home, programs) {
                binding.closed_by_program = true;
                binding.service_flags &= !service_flags::SHARED;
                return Some(home);
            }
        } else if shared.holders == [Holder::Program(home.program)] {
            self.by_number.remove(&connection);
            if let Some(binding) = bindings.of_slot(home, programs) {
                binding.service_flags &= !service_flags::SHARED;
            }
            programs.remove_flags(home, service_flags::SHARED);
        } else if !shared.is_at_home() {
            self.notify_other_holders(connection, programs);
        }
        None
    }

    /// Records the published state of a shared connection. If the state has changed, notifies the
    /// other holders. `flow` is the connection's flow.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_published(
        &mut self,
        flow: FlowId,
        engine: &Engine,
        records: SlotRecords<'_>,
    ) {
        let SlotRecords { programs, bindings } = records;
        if let Some((connection, publication)) = bindings.published(flow, engine)
            && let Some(shared) = self.by_number.get_mut(&connection)
            && shared.published.replace(publication) != Some(publication)
        {
            self.notify_other_holders(connection, programs);
        }
    }

    /// Notifies the holders that have a former slot of the connection, because the threads of these
    /// holders may wait for data.
    pub(crate) fn notify_other_holders(&self, connection: u64, programs: &mut Programs) {
        let Some(shared) = self.by_number.get(&connection) else {
            return;
        };
        for id in &shared.former_slots {
            let Some(SlotUse::Former(former)) = programs.slot_use(*id) else {
                continue;
            };
            let context = former.context;
            if std::mem::replace(&mut former.notified, true) {
                continue;
            }
            programs.add_flags(*id, service_flags::EVENT_PENDING);
            if let Some(context) = programs.contexts.for_event(id.program, context) {
                // A full ring does no harm: the program reads the ring later, and then finds the
                // flag.
                let _ = context.push_data(data_event::READY, id.slot);
            }
        }
    }

    /// Returns the slot of a connection, which lies in the memory of another program than `id`.
    /// Returns an error if `id` is the home of the shared connection, or does not hold a shared
    /// connection with this number.
    pub(crate) fn home_elsewhere(
        &self,
        connection: u64,
        id: ProgramId,
    ) -> Result<SlotId, TakeError> {
        let shared = self.by_number.get(&connection);
        let holds = |shared: &&SharedConnection| shared.holders.contains(&Holder::Program(id));
        match shared.filter(holds) {
            Some(shared) if shared.home.program == id => Err(TakeError::AtHome),
            Some(shared) => Ok(shared.home),
            None => Err(TakeError::NotHeld),
        }
    }

    /// Records that a connection has moved away from the slot `old`. The old slot stays reserved if
    /// its program still holds the connection.
    #[must_use]
    pub(crate) fn record_move(
        &mut self,
        connection: u64,
        old: SlotId,
        moved: &Moved,
        records: SlotRecords<'_>,
    ) -> Option<SlotId> {
        let SlotRecords { programs, bindings } = records;
        if let Some(shared) = self.by_number.get_mut(&connection) {
            shared.home = moved.slot;
            // Record the state that the new slot shows, because a move alone need not notify the
            // other holders.
            shared.published = moved.published.or(shared.published);
        }
        // Free the former slot in the new home's program, which may have had the connection before.
        self.release_former_slot(connection, moved.slot.program, programs);
        self.keep_former_slot(connection, old, moved.old_context, programs);
        self.apply_holders(connection, SlotRecords { programs, bindings })
    }

    /// Keeps the old slot reserved if its program still holds the connection. Otherwise, frees the
    /// slot.
    fn keep_former_slot(
        &mut self,
        connection: u64,
        old: SlotId,
        context: u32,
        programs: &mut Programs,
    ) {
        let Some(shared) = self.by_number.get_mut(&connection) else {
            return;
        };
        let Some(program) = programs.get_mut(old.program) else {
            return;
        };
        if !shared.holders.contains(&Holder::Program(old.program)) {
            programs.release_slot(old, context);
            return;
        }
        let Some(view) = program.region.slot(old.slot) else {
            return;
        };
        let former = FormerSlot {
            connection,
            generation: slots::generation(view),
            context,
            notified: false,
        };
        program.set_slot(old.slot, SlotUse::Former(former));
        shared.former_slots.push(old);
    }
}
