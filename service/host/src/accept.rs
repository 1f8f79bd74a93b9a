//! Assigns established connections of a listener to contexts. A *context* has the rings of one
//! thread of a program. The connection gets a slot of the program, and memory of the program for
//! the data that arrived before accept.
//!
//! If the program has no free slot, no memory or no room for the event, the connection waits in the
//! accept queue. The listener's backlog bounds this queue. A reset would lose acknowledged data.
//! The kernel queues connections in the same way.

use tidelane_abi::control_event;
use tidelane_engine::{Engine, FlowId, ListenerId};
use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;

use crate::{
    Host,
    buffer_copy::BufferIn,
    contexts::slot_event,
    io::HostIo,
    listeners::{Acceptor, Member},
    slots,
};

/// Divisor: before accept, the data of one connection may take a quarter of the longest receive
/// buffer of its program. The rest remains for other connections.
const STAGED_SHARE: u32 = 4;

impl<P: PacketIo> Host<P> {
    /// Drains a listener: from now on, the kernel gets the SYNs for the listener. `key` is the
    /// cookie (SO_COOKIE) of the listener's kernel socket.
    pub fn drain_listener(&mut self, key: u64) {
        if let Some(listener) = self.stack.io.listeners.find(key) {
            self.stack.engine.drain_listener(listener);
        }
    }

    /// Returns true if the listener of the kernel socket with cookie `key` has no half-open
    /// connection, no connection that waits for accept, and no SYN cookie that is still valid.
    pub fn is_listener_idle(&self, now: Instant, key: u64) -> bool {
        let listener = self.stack.io.listeners.find(key);
        listener.is_none_or(|id| self.stack.engine.is_listener_idle(now, id))
    }

    /// Assigns an established connection to a context of its listener, or appends the connection to
    /// the accept queue.
    #[inline(never)]
    pub(crate) fn hand_out(&mut self, now: Instant, flow: FlowId, id: ListenerId) {
        let Some(listener) = self.stack.io.listeners.get_mut(id) else {
            self.stack.engine.abort(now, flow, &mut self.stack.io);
            return;
        };
        let first = listener.waiting.is_empty();
        if !(first && self.assign_to_member(now, flow, id))
            && let Some(listener) = self.stack.io.listeners.get_mut(id)
        {
            listener.waiting.push_back(flow);
            self.has_unassigned |= !listener.members.is_empty();
        }
    }

    /// Makes the next sweep due at once if accept queues have connections. The caller has freed a
    /// slot or memory, which a queued connection may need.
    pub(crate) fn note_room(&mut self) {
        if self.has_unassigned {
            self.next_sweep = self.stack.io.now;
        }
    }

    /// Tries again to assign the connections in the accept queues, oldest first.
    #[cold]
    #[inline(never)]
    pub(crate) fn assign_waiting(&mut self, now: Instant) {
        self.has_unassigned = false;
        for id in self.stack.io.listeners.with_waiting() {
            while let Some(flow) = self.stack.io.listeners.first_waiting(id) {
                if !self.assign_to_member(now, flow, id) {
                    self.has_unassigned = true;
                    break;
                }
                if let Some(listener) = self.stack.io.listeners.get_mut(id) {
                    listener.waiting.pop_front();
                }
            }
        }
    }

    /// Removes a reset connection from the accept queue.
    pub(crate) fn forget_waiting(&mut self, flow: FlowId, id: ListenerId) {
        if let Some(listener) = self.stack.io.listeners.get_mut(id) {
            listener.waiting.retain(|waiting| *waiting != flow);
        }
        self.stack.engine.accept_queue_removed(id, 1);
    }

    /// Assigns `flow` to a context, or resets the flow if a program with the listener could never
    /// hold the flow's data. Returns false if the flow has to wait.
    fn assign_to_member(&mut self, now: Instant, flow: FlowId, id: ListenerId) -> bool {
        let Some((acceptor, slot, generation)) = self.find_context(flow, id) else {
            let hopeless = self.stack.io.is_hopeless(flow, id);
            if hopeless {
                self.stack.engine.abort(now, flow, &mut self.stack.io);
            }
            return hopeless;
        };
        let Acceptor {
            program,
            context,
            cookie,
        } = acceptor;
        self.attach(flow, program, context, slot, generation);
        if let Some(binding) = self.stack.io.bindings.get_mut(flow) {
            binding.announce = true;
        }
        self.stack.io.bindings.mark_dirty(flow);
        let Some(listener) = self.stack.io.listeners.get_mut(id) else {
            return true;
        };
        if let Some(member) = listener.member(program, context) {
            member.untaken += 1;
            member.given += 1;
        }
        let mut event = slot_event(control_event::ACCEPTED, slot, generation, cookie);
        event.listener = listener.number;
        let target = self.stack.io.programs.contexts.for_event(program, context);
        if target.is_none_or(|context| context.push_control(event).is_err()) {
            self.stack.engine.abort(now, flow, &mut self.stack.io);
        }
        true
    }

    /// Selects the context that gets `flow`, and takes a slot for the flow. The first candidate is
    /// the context with the fewest connections that were assigned and not accepted. The other
    /// contexts follow.
    fn find_context(&mut self, flow: FlowId, id: ListenerId) -> Option<(Acceptor, u32, u32)> {
        let first = self.stack.io.listeners.get_mut(id)?.choose()?.acceptor;
        if let Some((slot, generation)) =
            self.stack.io.bind_to_slot(&self.stack.engine, flow, &first)
        {
            return Some((first, slot, generation));
        }
        self.find_other_context(flow, id)
    }

    #[cold]
    #[inline(never)]
    fn find_other_context(&mut self, flow: FlowId, id: ListenerId) -> Option<(Acceptor, u32, u32)> {
        let mut members: Vec<&Member> = self.stack.io.listeners.get(id)?.members.iter().collect();
        members.sort_unstable_by_key(|member| member.load());
        let acceptors: Vec<Acceptor> = members.iter().map(|member| member.acceptor).collect();
        acceptors.into_iter().skip(1).find_map(|acceptor| {
            let (slot, generation) =
                self.stack
                    .io
                    .bind_to_slot(&self.stack.engine, flow, &acceptor)?;
            Some((acceptor, slot, generation))
        })
    }
}

impl<P: PacketIo> HostIo<P> {
    /// Takes a slot of the acceptor's program, and moves the data received before accept from the
    /// staging area to the program's region. Returns `None` and changes nothing if there is no
    /// slot, no memory for the data, or no room for the event, because acknowledged data must not
    /// be lost.
    fn bind_to_slot(
        &mut self,
        engine: &Engine,
        flow: FlowId,
        acceptor: &Acceptor,
    ) -> Option<(u32, u32)> {
        let binding = self.bindings.get_mut(flow)?;
        let Acceptor {
            program, context, ..
        } = *acceptor;
        if !self.programs.contexts.has_control_room(program, context) {
            return None;
        }
        let program = self.programs.get_mut(program)?;
        if !program.has_slot() {
            return None;
        }
        if let Some(staged) = binding.rx {
            let buffer = program.rx.alloc_instead(&mut self.staging, staged)?;
            let home = BufferIn::new(program.region.region(), buffer);
            BufferIn::new(self.staging.region(), staged).copy_to(home, engine.received(flow));
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

    /// Implements [`Driver::place`](tidelane_engine::Driver::place) for a flow whose receive buffer
    /// has to be allocated or enlarged, or lies in the staging area before accept. The connection
    /// then holds at most its share: the result of `longest_buffer` divided by `STAGED_SHARE`.
    #[inline(never)]
    pub(crate) fn place_with_room(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        let Some(binding) = self.bindings.get(flow) else {
            return false;
        };
        if binding.is_bound() {
            let programs = &mut self.programs;
            return self.bindings.place_with_room(flow, pos, payload, programs);
        }
        let longest = self
            .listeners
            .longest_buffer(binding.listener, &self.programs);
        let (held_max, staging) = (longest / STAGED_SHARE, &mut self.staging);
        self.bindings
            .place_staged(flow, (pos, payload), held_max, staging)
    }

    /// Returns true if a program with the listener could not hold the flow's data, even if all
    /// receive memory of the program were free.
    fn is_hopeless(&self, flow: FlowId, id: ListenerId) -> bool {
        let staged = self.bindings.get(flow).and_then(|binding| binding.rx);
        let longest = || self.listeners.longest_buffer(Some(id), &self.programs);
        staged.is_some_and(|buffer| buffer.len() > longest())
    }
}
