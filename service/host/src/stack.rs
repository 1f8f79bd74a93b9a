//! The TCP engine of a host (the stack of one core) together with the parts that the engine calls.
//! Also the changes to a connection that concern the engine and these parts: accept, close, and the
//! end of a connection.
//!
//! In this crate, a *flow* is the engine's record of a connection. A *slot* is the record of a
//! connection in the memory of a program. A *context* is the set of rings of one thread of a
//! program. The *binding* of a flow is the host's record of the slot, the buffers and the path.

use std::collections::VecDeque;

use tidelane_abi::{close_cause, service_flags};
use tidelane_engine::{Engine, FlowId, ListenerId};
use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;

use crate::{
    HostRequest, ProgramId,
    accept::{Acceptance, Assignment},
    bindings::{SlotUse, cause_or_finished},
    ids::SlotId,
    io::HostIo,
    listeners::Acceptor,
    shared::{Move, Take},
};

/// The TCP engine, and the parts of the host that the engine calls through its trait
/// [`Driver`](tidelane_engine::Driver).
///
/// Both fields are visible to the crate, because most calls of the engine pass `io`.
pub(crate) struct Stack<P: PacketIo> {
    /// The TCP engine.
    pub(crate) engine: Engine,
    /// The parts that the engine calls.
    pub(crate) io: HostIo<P>,
}

impl<P: PacketIo> Stack<P> {
    /// Closes the connection of a flow, with a reset if `abort` is true.
    pub(crate) fn close(&mut self, now: Instant, flow: FlowId, abort: bool) {
        if abort {
            self.engine.close_with_reset(now, flow, &mut self.io);
        } else {
            self.engine.close(now, flow, &mut self.io);
        }
    }

    /// Resets a connection for a reason of the service. A program that holds the connection learns
    /// of the reset by [`close_cause::ABORTED`], so that the program does not take the received
    /// data for the whole stream.
    pub(crate) fn abort(&mut self, now: Instant, flow: FlowId) {
        if let Some(binding) = self.io.bindings.get_mut(flow)
            && binding.cause == 0
        {
            binding.cause = close_cause::ABORTED;
        }
        self.engine.abort(now, flow, &mut self.io);
    }

    /// Aborts a connection, because its program wrote invalid values to the slot.
    #[cold]
    pub(crate) fn abort_misuse(&mut self, now: Instant, flow: FlowId) {
        self.io.counters.misuses += 1;
        self.abort(now, flow);
    }

    /// Closes the connection in a slot that no process holds any more, with a reset if `abort` is
    /// true. If the flow has already ended, frees the slot.
    pub(crate) fn close_unheld(&mut self, now: Instant, id: SlotId, abort: bool) {
        if let Some(SlotUse::Live(flow)) = self.io.programs.slot_use(id) {
            let flow = *flow;
            self.close(now, flow, abort);
        } else {
            self.free_ended(id);
            self.io.programs.remove_unused(id.program);
        }
    }

    /// Frees a slot whose flow has ended, after the last process that held the connection has
    /// closed the connection or has ended.
    pub(crate) fn free_ended(&mut self, id: SlotId) {
        self.io.programs.free_ended(id);
        self.io.listeners.note_room();
    }

    /// Ends the connections in the slots of a program that is gone. Connections that the program
    /// has closed go on. Connections that the program has not accepted go back to their listener if
    /// [`give_back`](Self::give_back) can return them.
    pub(crate) fn end_connections(&mut self, now: Instant, program: ProgramId) {
        let Some(entry) = self.io.programs.get(program) else {
            return;
        };
        let mut flows: Vec<FlowId> = Vec::new();
        let mut ended: Vec<SlotId> = Vec::new();
        for (slot, slot_use) in entry.slots() {
            match slot_use {
                SlotUse::Free | SlotUse::Former(_) => {}
                SlotUse::Live(flow) => flows.push(*flow),
                // Other processes that hold the connection may still read its data.
                SlotUse::Ended(binding) if binding.closed_by_program => {}
                SlotUse::Ended(_) => ended.push(SlotId { program, slot }),
            }
        }
        ended.into_iter().for_each(|id| self.free_ended(id));
        for flow in flows {
            let binding = self.io.bindings.get(flow);
            let orphan = binding.is_some_and(|binding| binding.closed_by_program);
            let flags = binding.map_or(0, |binding| binding.program_flags);
            if !orphan && !self.give_back(flow, flags) {
                self.abort(now, flow);
            }
        }
    }

    /// Ends the binding of a flow that has ended. If a program that holds the connection still has
    /// to learn of the end and to close the slot, the slot stays in use, and the function returns
    /// the slot. Otherwise, frees the slot, if there is one, and returns `None`.
    pub(crate) fn end_binding(&mut self, flow: FlowId) -> Option<SlotId> {
        let io = &mut self.io;
        let mut binding = io.bindings.remove(flow)?;
        io.local_ports.end(binding.local_port);
        io.journal.clear(flow);
        if let Some((program, endpoint)) = binding.reserved.take() {
            io.local_ports.end_reserved(program, endpoint);
            io.requests
                .push(HostRequest::PortIdle { program, endpoint });
        }
        io.neighbours.leave(&mut binding.path);
        let (id, context) = (binding.slot_id(), binding.context);
        let Some(program) = io.programs.get_mut(id.program) else {
            binding.free_rx(&mut io.staging.of(None).1);
            if let Some(id) = binding.listener.and_then(|of| io.listeners.id_of(of)) {
                self.forget_waiting(flow, id);
            }
            return None;
        };
        let shared = binding.service_flags & service_flags::SHARED != 0;
        if !shared && (binding.closed_by_program || program.gone) {
            binding.free_rx(&mut program.rx);
            io.programs.release_slot(id, context);
            io.programs.remove_unused(id.program);
            io.listeners.note_room();
            return None;
        }
        binding.cause = cause_or_finished(binding.cause);
        binding.service_flags |= service_flags::CLOSED;
        program.set_slot(id.slot, SlotUse::Ended(Box::new(binding)));
        Some(id)
    }

    /// Begins the move of the connection in the slot `from` to the program `to`.
    pub(crate) fn begin_move(&mut self, from: SlotId, to: ProgramId, take: Take) -> Move<'_> {
        Move {
            engine: &self.engine,
            programs: &mut self.io.programs,
            bindings: &mut self.io.bindings,
            listeners: &self.io.listeners,
            from,
            to,
            take,
        }
    }

    fn acceptance(&mut self) -> Acceptance<'_> {
        let io = &mut self.io;
        Acceptance {
            engine: &self.engine,
            listeners: &mut io.listeners,
            bindings: &mut io.bindings,
            programs: &mut io.programs,
            staging: &mut io.staging,
        }
    }

    /// Assigns an established connection to a context of its listener. If other connections already
    /// wait, or if no context has room, appends the connection to the accept queue.
    #[inline(never)]
    pub(crate) fn hand_out(&mut self, now: Instant, flow: FlowId, id: ListenerId) {
        let of = self.io.bindings.get(flow).and_then(|flow| flow.listener);
        let id_now = of.and_then(|of| self.io.listeners.id_of(of));
        let Some(listener) = self.io.listeners.get(id).filter(|_| id_now == Some(id)) else {
            // The listener has ended. The engine may use its id for another listener.
            self.abort(now, flow);
            return;
        };
        let first = listener.waiting.is_empty();
        if !(first && self.assign(now, flow, id)) {
            self.io.listeners.push_waiting(id, flow);
        }
    }

    /// Tries again to assign the connections in the accept queues, oldest first.
    #[cold]
    #[inline(never)]
    pub(crate) fn assign_waiting(&mut self, now: Instant) {
        for id in self.io.listeners.take_unassigned() {
            while let Some(flow) = self.io.listeners.first_waiting(id) {
                if !self.assign(now, flow, id) {
                    self.io.listeners.note_unassigned();
                    break;
                }
                if let Some(listener) = self.io.listeners.get_mut(id) {
                    listener.waiting.pop_front();
                }
            }
        }
    }

    /// Assigns `flow` to a context, or resets the flow. Returns false if the flow has to wait.
    fn assign(&mut self, now: Instant, flow: FlowId, id: ListenerId) -> bool {
        let assignment = self.acceptance().assign(flow, id);
        if assignment == Assignment::Reset {
            self.abort(now, flow);
        }
        assignment != Assignment::Wait
    }

    /// Removes `flow`, which has ended, from the accept queue of listener `id`.
    pub(crate) fn forget_waiting(&mut self, flow: FlowId, id: ListenerId) {
        if let Some(listener) = self.io.listeners.get_mut(id) {
            listener.waiting.retain(|waiting| *waiting != flow);
        }
        self.engine.accept_queue_removed(id, 1);
    }

    /// Puts a connection back into the accept queue of its listener, if its program has not
    /// accepted the connection. `program_flags` has the flags that the program has set. Returns
    /// false and changes nothing if the connection cannot go back, for example because the program
    /// has accepted it.
    pub(crate) fn give_back(&mut self, flow: FlowId, program_flags: u32) -> bool {
        let Some(listener) = self.acceptance().reclaim(flow, program_flags) else {
            return false;
        };
        self.engine.accept_queue_added(listener);
        true
    }

    /// Removes a context from the members (the contexts that accept connections) of the listener
    /// with this number.
    pub(crate) fn leave_listener(&mut self, number: u32, program: ProgramId, context: u32) {
        if let Some((id, listener)) = self.io.listeners.numbered_mut(number) {
            let untaken = listener.leave(program, context);
            self.engine.accept_queue_removed(id, untaken);
        } else if let Some(listener) = self.io.listeners.suspended_mut(number) {
            listener.leave(program, context);
        }
    }

    /// Records that a program accepted `count` connections of the listener with this number.
    pub(crate) fn accept_taken(&mut self, program: ProgramId, number: u32, count: u32) {
        if let Some((id, listener)) = self.io.listeners.numbered_mut(number) {
            let taken = listener.taken(program, count);
            self.engine.accept_queue_removed(id, taken);
        }
    }

    /// Makes a context a member of the listener with this number. The end of the step then assigns
    /// the connections that waited for a member.
    pub(crate) fn join_listener(&mut self, number: u32, acceptor: Acceptor) {
        let io = &mut self.io;
        if let Some((id, waiting)) = io.listeners.join(number, acceptor, &io.programs) {
            for flow in waiting {
                io.bindings.note_accepted(flow, id);
            }
        }
    }

    /// Releases a program's hold of a listener. The listener ends with its last holder.
    pub(crate) fn drop_listener_holder(
        &mut self,
        now: Instant,
        id: ProgramId,
        listener: ListenerId,
    ) {
        let Some(entry) = self.io.listeners.get_mut(listener) else {
            return;
        };
        let (last, untaken) = entry.drop_holder(id);
        self.engine.accept_queue_removed(listener, untaken);
        if !last {
            return;
        }
        let ended = self.io.listeners.remove(listener);
        let waiting = ended.map_or(VecDeque::new(), |entry| entry.waiting);
        self.end_listener(now, listener, waiting);
    }

    /// Ends the engine's listener `id`, and resets the connections that wait in its accept queue.
    pub(crate) fn end_listener(&mut self, now: Instant, id: ListenerId, waiting: VecDeque<FlowId>) {
        self.engine.unlisten(now, id, &mut self.io);
        for flow in waiting {
            self.abort(now, flow);
        }
    }
}
