//! Connections that are established get a home: a slot of a member of their listener, and memory of
//! its program for what arrived before accept.
//!
//! As in the kernel, a connection whose bytes were acknowledged is not given up because its program
//! has no descriptor or no memory for it at present: it waits in the accept queue, and the backlog
//! bounds how many do.

use tidelane_abi::control_event;
use tidelane_engine::{Engine, FlowId, ListenerId};
use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;

use crate::{
    Host,
    carry::Lying,
    io::{HostIo, slot_event},
    listeners::{Member, Seat},
    slots,
};

/// A connection that nobody has accepted may take one part in so many of its program's receive
/// memory: other connections wait, too.
const STAGED_SHARE: u32 = 4;

impl<P: PacketIo> Host<P> {
    /// The kernel gets the SYNs of a kernel socket's listener from now on.
    pub fn leave_syns(&mut self, key: u64) {
        if let Some(listener) = self.io.listeners.find(key) {
            self.engine.leave_syns(listener);
        }
    }

    /// Returns true if no connection is on its way to the programs of a kernel socket's listener.
    pub fn is_listener_idle(&self, now: Instant, key: u64) -> bool {
        let listener = self.io.listeners.find(key);
        listener.is_none_or(|id| self.engine.is_listener_idle(now, id))
    }

    /// Gives an established connection to a member of its listener, or lets it wait for one.
    #[inline(never)]
    pub(crate) fn hand_out(&mut self, now: Instant, flow: FlowId, id: ListenerId) {
        let Some(listener) = self.io.listeners.get_mut(id) else {
            self.engine.abort(now, flow, &mut self.io);
            return;
        };
        let first = listener.waiting.is_empty();
        if !(first && self.house(now, flow, id))
            && let Some(listener) = self.io.listeners.get_mut(id)
        {
            listener.waiting.push_back(flow);
            self.unhoused |= !listener.members.is_empty();
        }
    }

    /// A connection has left a slot and its memory: those that wait may look at once.
    pub(crate) fn note_room(&mut self) {
        if self.unhoused {
            self.next_sweep = self.io.now;
        }
    }

    /// Tries again to give a home to those that wait for one, in their order.
    #[cold]
    #[inline(never)]
    pub(crate) fn house_waiting(&mut self, now: Instant) {
        self.unhoused = false;
        for id in self.io.listeners.with_waiting() {
            while let Some(flow) = self.io.listeners.first_waiting(id) {
                if !self.house(now, flow, id) {
                    self.unhoused = true;
                    break;
                }
                if let Some(listener) = self.io.listeners.get_mut(id) {
                    listener.waiting.pop_front();
                }
            }
        }
    }

    /// A connection that no program ever had was reset: nobody will take it.
    pub(crate) fn forget_waiting(&mut self, flow: FlowId, id: ListenerId) {
        if let Some(listener) = self.io.listeners.get_mut(id) {
            listener.waiting.retain(|waiting| *waiting != flow);
        }
        self.engine.accept_taken(id, 1);
    }

    /// Gives `flow` to a member, or resets it if none could ever have it. False if it has to wait.
    fn house(&mut self, now: Instant, flow: FlowId, id: ListenerId) -> bool {
        let Some((seat, slot, generation)) = self.find_home(flow, id) else {
            let hopeless = self.io.is_hopeless(flow, id);
            if hopeless {
                self.engine.abort(now, flow, &mut self.io);
            }
            return hopeless;
        };
        let Seat {
            program,
            context,
            cookie,
        } = seat;
        self.attach(flow, program, context, slot, generation);
        if let Some(binding) = self.io.binding(flow) {
            binding.announce = true;
        }
        self.io.mark(flow);
        let Some(listener) = self.io.listeners.get_mut(id) else {
            return true;
        };
        if let Some(member) = listener.member(program, context) {
            member.untaken += 1;
            member.given += 1;
        }
        let mut event = slot_event(control_event::ACCEPTED, slot, generation, cookie);
        event.listener = listener.number;
        let target = self.io.programs.contexts.tell(program, context);
        if target.is_none_or(|context| context.push_control(event).is_err()) {
            self.engine.abort(now, flow, &mut self.io);
        }
        true
    }

    /// The member that gets `flow`, with a slot that it has from now on: the one with the fewest
    /// untaken connections, or the next that has room.
    fn find_home(&mut self, flow: FlowId, id: ListenerId) -> Option<(Seat, u32, u32)> {
        let first = self.io.listeners.get_mut(id)?.choose()?.seat;
        if let Some((slot, generation)) = self.io.move_in(&self.engine, flow, &first) {
            return Some((first, slot, generation));
        }
        self.find_other_home(flow, id)
    }

    #[cold]
    #[inline(never)]
    fn find_other_home(&mut self, flow: FlowId, id: ListenerId) -> Option<(Seat, u32, u32)> {
        let mut members: Vec<&Member> = self.io.listeners.get(id)?.members.iter().collect();
        members.sort_unstable_by_key(|member| member.load());
        let seats: Vec<Seat> = members.iter().map(|member| member.seat).collect();
        seats.into_iter().skip(1).find_map(|seat| {
            let (slot, generation) = self.io.move_in(&self.engine, flow, &seat)?;
            Some((seat, slot, generation))
        })
    }
}

impl<P: PacketIo> HostIo<P> {
    /// Takes a slot of a member's program, and moves what was received before accept from the
    /// staging area to its region. None, and nothing changed, if there is no slot, no memory for
    /// these bytes, or no way to tell the member: what is acknowledged must not get lost.
    fn move_in(&mut self, engine: &Engine, flow: FlowId, seat: &Seat) -> Option<(u32, u32)> {
        let binding = self.bindings.get_mut(flow.index())?.as_mut()?;
        let Seat {
            program, context, ..
        } = *seat;
        if !self.programs.contexts.takes_control(program, context) {
            return None;
        }
        let program = self.programs.get_mut(program)?;
        if !program.has_slot() {
            return None;
        }
        if let Some(staged) = binding.rx {
            let buffer = program.rx.alloc_instead(&mut self.staging, staged)?;
            let home = Lying::new(program.region.region(), buffer);
            Lying::new(&self.staging.region, staged).carry(home, engine.received(flow));
            binding.rx = Some(buffer);
        }
        let (slot, generation) = program.take_slot()?;
        if let Some(buffer) = binding.rx
            && let Some(view) = program.region.slot(slot)
        {
            slots::set_rx_buffer(view, buffer.to_word());
        }
        Some((slot, generation))
    }

    /// [`Env::place`](tidelane_engine::Env::place) before accept. No more than each program which
    /// may get the connection can have room for.
    pub(crate) fn place_staged(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        let Some(Some(binding)) = self.bindings.get(flow.index()) else {
            return false;
        };
        let end = pos.wrapping_add(payload.len() as u32);
        let held = end.wrapping_sub(binding.rx_read);
        if held > self.longest_buffer(binding.listener) / STAGED_SHARE {
            return false;
        }
        let charge = binding.charge.as_ref();
        let account = charge.map(|charge| charge.account().clone());
        let (region, mut buffers) = self.staging.of(account.as_ref());
        let binding = self.bindings.get_mut(flow.index()).and_then(Option::as_mut);
        binding.is_some_and(|binding| binding.place(region, None, &mut buffers, pos, payload))
    }

    /// Returns true if some program would have no room for `flow` even with all of its memory free.
    fn is_hopeless(&self, flow: FlowId, id: ListenerId) -> bool {
        let binding = self.bindings.get(flow.index()).and_then(Option::as_ref);
        let staged = binding.and_then(|binding| binding.rx);
        staged.is_some_and(|buffer| buffer.len() > self.longest_buffer(Some(id)))
    }

    /// The longest receive buffer that every holder of `listener` could ever have.
    fn longest_buffer(&self, listener: Option<ListenerId>) -> u32 {
        let listener = listener.and_then(|id| self.listeners.get(id));
        let holders = listener.map_or(&[][..], |listener| &listener.holders);
        let programs = holders.iter().filter_map(|id| self.programs.get(*id));
        let lengths = programs.map(|program| program.rx.longest());
        lengths.min().unwrap_or(u32::MAX)
    }
}
