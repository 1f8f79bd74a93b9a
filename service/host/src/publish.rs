//! Publication of changed flows to programs.
//!
//! At the end of each step, the host writes the new state of each changed flow to the flow's slot,
//! and pushes one READY event for the slot to the program.

use tidelane_abi::{data_event, service_flags};
use tidelane_engine::FlowId;
use tidelane_packet_io::PacketIo;
use tidelane_ring::SlotHandle;
use tidelane_time::Instant;

use crate::{
    Host, HostRequest,
    bindings::{SlotUse, cause_or_finished},
    io::HostIo,
    program::ProgramId,
    slots::{self, Publication},
};

impl<P: PacketIo> Host<P> {
    /// Assigns accepted connections to programs, publishes changed flows, and ends the bindings of
    /// released flows.
    #[inline(never)]
    pub(crate) fn publish(&mut self, now: Instant) {
        if self.stack.io.journal.has_established() {
            let (engine, bindings) = (&self.stack.engine, &self.stack.io.bindings);
            self.stack.io.journal.enter_established(engine, bindings);
        }
        if let Some(accepted) = self.stack.io.bindings.take_accepted() {
            for (flow, listener) in accepted {
                self.hand_out(now, flow, listener);
            }
        }
        // If the event ring for a flow is full, `publish_flow` marks the flow dirty again, for the
        // next step.
        let dirty = self.stack.io.bindings.dirty_len();
        for at in 0..dirty {
            let Some(flow) = self.stack.io.bindings.dirty_at(at) else {
                break;
            };
            self.publish_flow(flow);
        }
        self.stack.io.bindings.drop_dirty(dirty);
        if let Some(released) = self.stack.io.bindings.take_released() {
            for flow in released {
                self.end_binding(flow);
            }
        }
    }

    /// Makes all queued events visible to the programs, and rings the doorbells of sleeping
    /// threads. The caller flushes the frames first, because a woken thread may run at once on the
    /// core's CPU.
    #[inline]
    pub(crate) fn ring_doorbells(&mut self, now: Instant) {
        self.backlogged = false;
        if !self.stack.io.programs.contexts.has_unpublished() {
            return;
        }
        let stuck = self.stack.io.programs.contexts.publish();
        self.backlogged = self.stack.io.programs.contexts.has_unpublished();
        // Disconnect a program whose doorbell cannot be rung, at most one program per step.
        if let Some(id) = stuck {
            self.stack.io.counters.stuck_doorbells += 1;
            self.disconnect_program(now, id);
        }
    }

    /// Binds `flow` to a slot of a program, and writes the addresses, ports and limits to the slot.
    pub(crate) fn attach(
        &mut self,
        flow: FlowId,
        id: ProgramId,
        context: u32,
        slot: u32,
        generation: u32,
    ) {
        let Some(state) = self.stack.engine.flow(flow) else {
            return;
        };
        let key = state.key();
        let mss = self.stack.engine.info(flow).map_or(0, |info| info.mss);
        let HostIo {
            bindings, programs, ..
        } = &mut self.stack.io;
        let Some(binding) = bindings.get_mut(flow) else {
            return;
        };
        if binding.connection == 0 {
            self.connections += 1;
            binding.connection = self.input.core_index().connection(self.connections);
        }
        let ids = slots::ids_of(&key, binding.connection, mss);
        let window = state.rx_window();
        let limit = self.stack.engine.autotuned_send_buffer(flow, state);
        let Some(program) = programs.get_mut(id) else {
            return;
        };
        program.set_slot(slot, SlotUse::Live(flow));
        if let Some(view) = program.region.slot(slot) {
            view.set_ids(&ids);
            slots::set_rx_window(view, window);
            slots::set_tx_limit(view, limit);
            binding.begin_urgent(view);
        }
        binding.home = id;
        binding.home_slot = SlotHandle::new(program.region.clone(), slot);
        binding.context = context;
        binding.slot = slot;
        binding.generation = generation;
    }

    /// Writes the state of `flow` to its slot, and pushes a READY event for the program.
    fn publish_flow(&mut self, flow: FlowId) {
        let Some(binding) = self.stack.io.bindings.get_mut(flow) else {
            return;
        };
        binding.dirty = false;
        let Some(home_slot) = &binding.home_slot else {
            return;
        };
        let Some(state) = self.stack.engine.flow(flow) else {
            return;
        };
        let rx_head = state.rx_head();
        binding.rx_head = rx_head;
        let publication = Publication {
            rx_head,
            tx_acked: state.tx_acked(),
            flags: binding.service_flags,
            cause: binding.cause,
        };
        let rx_window = state.rx_window();
        let tx_sent = binding.reports_sent.then(|| state.tx_sent());
        let limit = self.stack.engine.autotuned_send_buffer(flow, state);
        let view = home_slot.view();
        slots::set_rx_window(view, rx_window);
        if let Some(tx_sent) = tx_sent {
            slots::set_tx_sent(view, tx_sent);
        }
        slots::set_tx_limit(view, limit);
        slots::publish(view, &publication);
        let (slot, connection) = (binding.slot, binding.connection);
        if !binding.closed_by_program
            && let Some(context) = self
                .stack
                .io
                .programs
                .contexts
                .for_event(binding.home, binding.context)
            && context.push_data(data_event::READY, slot).is_err()
        {
            // The event ring is full. The next step publishes the flow again.
            self.stack.io.bindings.mark_dirty(flow);
        }
        if publication.flags & service_flags::SHARED != 0 {
            self.note_published(connection, publication);
        }
    }

    /// Ends the binding of `flow`. The slot stays in use until the program closes the slot.
    #[inline(never)]
    fn end_binding(&mut self, flow: FlowId) {
        let Some(mut binding) = self.stack.io.bindings.remove(flow) else {
            return;
        };
        self.stack.io.local_ports.end(binding.local_port);
        self.stack.io.journal.clear(flow);
        if let Some((program, endpoint)) = binding.reserved.take() {
            self.stack.io.local_ports.end_reserved(program, endpoint);
            self.stack
                .io
                .requests
                .push(HostRequest::PortIdle { program, endpoint });
        }
        self.stack.io.neighbours.leave(&mut binding.path);
        let Some(program) = self.stack.io.programs.get_mut(binding.home) else {
            binding.free_rx(&mut self.stack.io.staging.of(None).1);
            if let Some(listener) = binding.listener {
                self.forget_waiting(flow, listener);
            }
            return;
        };
        let shared = binding.service_flags & service_flags::SHARED != 0;
        if !shared && (binding.closed_by_program || program.gone) {
            binding.free_rx(&mut program.rx);
            let programs = &mut self.stack.io.programs;
            programs.release_slot(binding.home, binding.slot, binding.context);
            programs.remove_unused(binding.home);
            self.note_room();
            return;
        }
        let (home, slot, context) = (binding.home, binding.slot, binding.context);
        binding.cause = cause_or_finished(binding.cause);
        binding.service_flags |= service_flags::CLOSED;
        program.set_slot(slot, SlotUse::Ended(Box::new(binding)));
        self.announce_ended(home, slot, context);
        // The program may have closed the slot before the flow ended. The program then sends no
        // further request, so process the CLOSE now.
        self.advance(self.stack.io.now, home, slot);
    }

    /// Publishes the last state of a slot whose flow has ended, and notifies `context`.
    pub(crate) fn announce_ended(&mut self, home: ProgramId, slot: u32, context: u32) {
        let Some(program) = self.stack.io.programs.get_mut(home) else {
            return;
        };
        let region = program.region.clone();
        let Some(SlotUse::Ended(binding)) = program.slot_use(slot) else {
            return;
        };
        let connection = binding.connection;
        let publication = Publication {
            rx_head: binding.rx_head,
            tx_acked: binding.tx_head,
            flags: binding.service_flags | service_flags::CLOSED,
            cause: binding.cause,
        };
        if let Some(view) = region.slot(slot) {
            slots::publish(view, &publication);
        }
        if let Some(context) = self.stack.io.programs.contexts.for_event(home, context) {
            let _ = context.push_data(data_event::READY, slot);
        }
        self.notify_other_holders(connection);
    }

    /// Frees a slot whose flow has ended, after its last holder has closed the slot.
    pub(crate) fn free_ended(&mut self, home: ProgramId, slot: u32) {
        let Some(program) = self.stack.io.programs.get_mut(home) else {
            return;
        };
        let Some(entry) = program.slot_use(slot) else {
            return;
        };
        let SlotUse::Ended(mut binding) = std::mem::replace(entry, SlotUse::Free) else {
            return;
        };
        binding.free_rx(&mut program.rx);
        let context = binding.context;
        self.stack.io.programs.release_slot(home, slot, context);
        self.note_room();
    }
}
