//! Connections that several processes hold, and how they move between them.
//!
//! See `docs/design/fork.md`. A connection is in the memory of one program, its *home*. Who else
//! holds it is noted here, and takes it by [`Host::take`]; an *heir* is a child process that has
//! not registered yet. A slot that a connection left is a *stub* as long as its program holds the
//! connection. Most connections have one holder and are unknown here.

use std::{collections::BTreeMap, sync::Arc};

use tidelane_abi::{data_event, program_flags, service_flags};
use tidelane_engine::FlowId;
use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;

use crate::{
    Host, ProgramId,
    accounts::{Account, Charge, Refused, Resource},
    binding::{Binding, SlotUse, Stub},
    slots::Publication,
};

mod moving;

pub use moving::{Take, TakeError, Taken};

/// A process that holds a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A registered program.
    Program(ProgramId),
    /// A child that has not registered (yet): the driver's number for it.
    Heir(u64),
}

/// A connection with several holders, or with one that does not have it.
#[derive(Debug)]
struct Shared {
    /// The home and the slot there.
    place: (ProgramId, u32),
    holders: Vec<Holder>,
    /// Slots of holders that had it before.
    stubs: Vec<(ProgramId, u32)>,
    /// The last state that the home was told.
    published: Option<Publication>,
    /// A unit for each holder, which the user of the first home pays.
    charge: Charge,
}

/// Holders of shared connections of all users, members of listeners among them.
pub const HOLDS_MAX: u64 = 1 << 22;

impl Shared {
    /// True if the home is a holder.
    fn is_at_home(&self) -> bool {
        self.holders.contains(&Holder::Program(self.place.0))
    }
}

/// All of them, by the connections' numbers.
#[derive(Debug, Default)]
pub struct SharedConnections {
    by_number: BTreeMap<u64, Shared>,
}

impl SharedConnections {
    /// The programs that hold `connection`, if it is shared.
    pub fn programs(&self, connection: u64) -> impl Iterator<Item = ProgramId> {
        let holders = self.by_number.get(&connection);
        let holders = holders.into_iter().flat_map(|shared| &shared.holders);
        holders.filter_map(|holder| match holder {
            Holder::Program(id) => Some(*id),
            Holder::Heir(_) => None,
        })
    }

    /// The connections that `holder` holds.
    fn held_by(&self, holder: Holder) -> Vec<u64> {
        let held = |(_, shared): &(&u64, &Shared)| shared.holders.contains(&holder);
        let held = self.by_number.iter().filter(held);
        held.map(|(number, _)| *number).collect()
    }
}

impl<P: PacketIo> Host<P> {
    /// `from` is about to fork: `heir` will hold what `from` holds. Refused, it holds nothing.
    pub fn inherit(&mut self, now: Instant, from: Holder, heir: u64) -> Result<(), Refused> {
        self.io.now = now;
        let inherited = self.make_heir(now, from, Holder::Heir(heir));
        if inherited.is_err() {
            self.leave_all(now, Holder::Heir(heir), false);
            // A connection that was prepared for sharing may have one holder again.
            for connection in self.shared.held_by(from) {
                self.settle(now, connection, false);
            }
        }
        inherited
    }

    fn make_heir(&mut self, now: Instant, from: Holder, heir: Holder) -> Result<(), Refused> {
        if let Holder::Program(id) = from {
            self.share_all(now, id)?;
        }
        for shared in self.shared.by_number.values_mut() {
            if shared.holders.contains(&from) {
                shared.charge.grow(1)?;
                shared.holders.push(heir);
            }
        }
        Ok(())
    }

    /// The heir is a program now.
    pub fn heir_registered(&mut self, heir: u64, id: ProgramId) {
        for shared in self.shared.by_number.values_mut() {
            for holder in &mut shared.holders {
                if *holder == Holder::Heir(heir) {
                    *holder = Holder::Program(id);
                }
            }
        }
    }

    /// `holder` ended: it holds nothing any more. With `abort`, what nobody else holds is reset.
    pub fn leave_all(&mut self, now: Instant, holder: Holder, abort: bool) {
        self.io.now = now;
        for connection in self.shared.held_by(holder) {
            self.drop_holder(now, connection, holder, abort);
        }
    }

    /// `holder` closed a connection that it has no slot for.
    pub fn disown(&mut self, now: Instant, holder: Holder, connection: u64) {
        self.io.now = now;
        self.drop_holder(now, connection, holder, false);
    }

    fn share_all(&mut self, now: Instant, id: ProgramId) -> Result<(), Refused> {
        let Some(program) = self.io.programs.get_mut(id) else {
            return Ok(());
        };
        let account = program.account.clone();
        let in_use = program
            .slots()
            .filter(|(_, slot_use)| matches!(slot_use, SlotUse::Live(_) | SlotUse::Ended(_)));
        let slots: Vec<u32> = in_use.map(|(slot, _)| slot).collect();
        for slot in slots {
            // The program may have accepted or closed the connection a moment ago.
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
        let entry = Shared {
            place: (id, slot),
            holders: vec![Holder::Program(id)],
            stubs: Vec::new(),
            published: None,
            charge,
        };
        self.shared.by_number.insert(connection, entry);
        self.change_flags((id, slot), service_flags::SHARED, 0);
        Ok(())
    }

    /// The binding of the connection to its place.
    fn binding_at(&mut self, (id, slot): (ProgramId, u32)) -> Option<&mut Binding> {
        let flow = match self.io.programs.get_mut(id)?.slot_use(slot)? {
            SlotUse::Live(flow) => *flow,
            SlotUse::Ended(_) => {
                return match self.io.programs.get_mut(id)?.slot_use(slot)? {
                    SlotUse::Ended(binding) => Some(binding),
                    _ => None,
                };
            }
            SlotUse::Free | SlotUse::Elsewhere(_) => return None,
        };
        self.io.binding(flow)
    }

    /// Sets and clears flags of a slot without waiting for the end of the step.
    fn change_flags(&mut self, (id, slot): (ProgramId, u32), set: u32, clear: u32) {
        let program = self.io.programs.get(id);
        if let Some(view) = program.and_then(|program| program.region.slot(slot)) {
            crate::slots::add_flags(view, set);
            crate::slots::remove_flags(view, clear);
        }
    }

    /// The program that has `flow` set `flags`, CLOSE among them. False: it is not shared.
    pub(crate) fn close_shared(&mut self, now: Instant, flow: FlowId, flags: u32) -> bool {
        let Some(binding) = self.io.binding(flow) else {
            return false;
        };
        if binding.service_flags & service_flags::SHARED == 0 {
            return false;
        }
        let (connection, home) = (binding.connection, binding.home);
        if flags & program_flags::SHUT_WRITE != 0 {
            self.engine.shutdown_write(flow);
        }
        let abort = flags & program_flags::ABORT != 0;
        self.drop_holder(now, connection, Holder::Program(home), abort);
        true
    }

    /// The program closed a slot whose flow is over.
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

    /// The program closed a connection that another one has.
    pub(crate) fn close_stub(&mut self, now: Instant, id: ProgramId, stub: Stub, flags: u32) {
        let abort = flags & program_flags::ABORT != 0;
        self.drop_holder(now, stub.connection, Holder::Program(id), abort);
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
            self.release_stub(connection, id);
            if id == place.0
                && let Some(binding) = self.binding_at(place)
            {
                binding.closed_by_program = true;
            }
        }
        self.settle(now, connection, abort);
    }

    /// Frees the slot in which `id` had the connection before.
    fn release_stub(&mut self, connection: u64, id: ProgramId) {
        let Some(shared) = self.shared.by_number.get_mut(&connection) else {
            return;
        };
        let Some(at) = shared.stubs.iter().position(|(owner, _)| *owner == id) else {
            return;
        };
        let (_, slot) = shared.stubs.swap_remove(at);
        let Some(program) = self.io.programs.get_mut(id) else {
            return;
        };
        if let Some(SlotUse::Elsewhere(stub)) = program.slot_use(slot) {
            let context = stub.context;
            self.io.programs.release_slot(id, slot, context);
        }
    }

    /// The holders changed: the connection is closed, or is one holder's alone, or is offered to
    /// those that are left.
    fn settle(&mut self, now: Instant, connection: u64, abort: bool) {
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
            self.tell_stubs(connection);
        }
    }

    /// The home of a shared connection is told this: if it is new, the stubs are told so.
    pub(crate) fn note_published(&mut self, connection: u64, publication: Publication) {
        if let Some(shared) = self.shared.by_number.get_mut(&connection)
            && shared.published.replace(publication) != Some(publication)
        {
            self.tell_stubs(connection);
        }
    }

    /// Something happened to a shared connection: holders that do not have it may wait for that.
    pub(crate) fn tell_stubs(&mut self, connection: u64) {
        let Some(shared) = self.shared.by_number.get(&connection) else {
            return;
        };
        for (id, slot) in shared.stubs.clone() {
            let Some(program) = self.io.programs.get_mut(id) else {
                continue;
            };
            let Some(SlotUse::Elsewhere(stub)) = program.slot_use(slot) else {
                continue;
            };
            let context = stub.context;
            if std::mem::replace(&mut stub.told, true) {
                continue;
            }
            self.change_flags((id, slot), service_flags::NEWS, 0);
            if let Some(context) = self.io.programs.contexts.tell(id, context) {
                // A full ring is looked at anyway.
                let _ = context.push_data(data_event::READY, slot);
            }
        }
    }

    /// Nobody holds the connection any more.
    fn end_shared(&mut self, now: Instant, place: (ProgramId, u32), abort: bool) {
        let Some(binding) = self.binding_at(place) else {
            return;
        };
        binding.closed_by_program = true;
        binding.service_flags &= !service_flags::SHARED;
        let (id, slot) = place;
        let flow = match self.io.programs.get_mut(id).and_then(|p| p.slot_use(slot)) {
            Some(SlotUse::Live(flow)) => *flow,
            _ => {
                self.free_ended(id, slot);
                self.io.programs.remove_unused(id);
                return;
            }
        };
        if abort {
            self.engine.close_with_reset(now, flow, &mut self.io);
        } else {
            self.engine.close(now, flow, &mut self.io);
        }
    }
}
