//! The connections as programs see them: the exchange between the programs' slots and the TCP
//! engine.
//!
//! A *slot* is the record of one connection in the memory that a program shares with the service.
//! The program writes one half of the slot: stream positions, buffers, options, and flags such as
//! CLOSE. The program then sends a request, and [`Sockets::advance`] reads this half. The program
//! may write any value, so each value is checked before use. At the end of each step,
//! [`Sockets::publish`] writes the new state of each changed connection to the other half. A *flow*
//! is a connection in the engine. A *binding* is the host's record of a flow.
//!
//! ```text
//!   program's half ──advance──> engine ──changed flows──> publish ──> service's half, READY event
//! ```

use std::sync::atomic::Ordering::Relaxed;

use tidelane_abi::{program_flags, service_flags};
use tidelane_engine::{FlowId, SocketOptions};
use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;

use crate::{
    ProgramId,
    accounts::Refused,
    bindings::{FormerSlot, SlotUse},
    ids::SlotId,
    io::HostIo,
    options::{FLAG_BITS, options_of, slot_options},
    shared::{Holder, SharedConnections, SlotRecords, Take, TakeError, Taken},
    slots::{self, ProgramView},
    stack::Stack,
};

/// The connections of the programs of one core.
///
/// A *holder* of a connection is a process that has a descriptor of the connection. After a fork, a
/// connection may have several holders. The slot lies in the memory of one program, the *home*.
///
/// Input: [`advance`](Self::advance) processes the program's half of a slot.
/// [`inherit`](Self::inherit), [`take`](Self::take) and [`leave`](Self::leave) process a fork, a
/// move to another holder, and a close by one of several holders.
/// [`end_program`](Self::end_program) processes the end of a process. Output:
/// [`publish`](Self::publish).
pub(crate) struct Sockets {
    /// Connections that several processes hold.
    shared: SharedConnections,
    /// Options of connections whose program sets no options.
    base_options: SocketOptions,
}

/// Returns the records that [`SharedConnections`] updates.
fn records<P: PacketIo>(io: &mut HostIo<P>) -> SlotRecords<'_> {
    SlotRecords {
        programs: &mut io.programs,
        bindings: &mut io.bindings,
    }
}

impl Sockets {
    /// Returns the sockets of a host without programs.
    pub(crate) fn new(base_options: SocketOptions) -> Self {
        Self {
            shared: SharedConnections::default(),
            base_options,
        }
    }

    /// Returns the options of connections whose program sets no options.
    pub(crate) fn base_options(&self) -> &SocketOptions {
        &self.base_options
    }

    /// Returns the connections that several processes hold.
    pub(crate) fn shared(&self) -> &SharedConnections {
        &self.shared
    }

    /// Processes the program's half of a slot.
    #[inline(never)]
    pub(crate) fn advance<P: PacketIo>(&mut self, now: Instant, id: SlotId, stack: &mut Stack<P>) {
        self.advance_inlined(now, id, stack);
    }

    /// Inlined form of [`advance`](Self::advance), for callers in a loop over slots.
    #[inline(always)]
    pub(crate) fn advance_inlined<P: PacketIo>(
        &mut self,
        now: Instant,
        id: SlotId,
        stack: &mut Stack<P>,
    ) {
        match stack.io.programs.slot_use(id) {
            Some(SlotUse::Live(flow)) => {
                let flow = *flow;
                self.advance_flow(now, flow, stack);
            }
            _ => self.advance_without_flow(now, id, stack),
        }
    }

    /// Processes the program's half of a slot with a live flow.
    #[inline(always)]
    fn advance_flow<P: PacketIo>(&mut self, now: Instant, flow: FlowId, stack: &mut Stack<P>) {
        let Some(binding) = stack.io.bindings.get_mut(flow) else {
            return;
        };
        let Some(home_slot) = &binding.home_slot else {
            return;
        };
        let view = slots::read_program(home_slot.view());
        if binding.generation != view.generation || binding.closed_by_program {
            return;
        }
        let only_positions_changed = view.tx_buffer == binding.tx_word
            && binding.rx_old.is_empty()
            && binding.program_flags == view.flags
            && !binding.reports_sent;
        if !only_positions_changed {
            self.advance_buffers_and_flags(now, flow, view, stack);
        } else if !binding.advance(flow, &view, &mut stack.engine) {
            stack.abort_misuse(now, flow);
        } else if stack.io.bindings.is_crowded() {
            let (bindings, programs) = (&mut stack.io.bindings, &mut stack.io.programs);
            bindings.free_empty(flow, &stack.engine, programs);
        }
    }

    /// Processes positions, buffers and flags. Not inlined: most requests change only positions.
    #[inline(never)]
    fn advance_buffers_and_flags<P: PacketIo>(
        &mut self,
        now: Instant,
        flow: FlowId,
        view: ProgramView,
        stack: &mut Stack<P>,
    ) {
        let (bindings, programs) = (&mut stack.io.bindings, &mut stack.io.programs);
        let buffers_valid = bindings.adopt_buffers(flow, &view, programs);
        let Some(binding) = bindings.get_mut(flow) else {
            return;
        };
        if !buffers_valid || !binding.advance(flow, &view, &mut stack.engine) {
            return stack.abort_misuse(now, flow);
        }
        let changed = std::mem::replace(&mut binding.program_flags, view.flags) ^ view.flags;
        if binding.reports_sent {
            // Mark the flow, so that the end of the step publishes the sent position.
            bindings.mark_dirty(flow);
        }
        if changed != 0 {
            self.apply_flags(now, flow, (changed, view.flags), stack);
        }
    }

    /// Processes the CLOSE of a slot whose flow has ended, or whose connection has moved to another
    /// program.
    #[inline(never)]
    fn advance_without_flow<P: PacketIo>(
        &mut self,
        now: Instant,
        id: SlotId,
        stack: &mut Stack<P>,
    ) {
        let Some(program) = stack.io.programs.get_mut(id.program) else {
            return;
        };
        let Some(view) = program.region.slot(id.slot).map(slots::read_program) else {
            return;
        };
        if view.flags & program_flags::CLOSE == 0 {
            return;
        }
        let holder = Holder::Program(id.program);
        match program.slot_use(id.slot) {
            Some(SlotUse::Ended(binding)) if binding.generation == view.generation => {
                if binding.service_flags & service_flags::SHARED == 0 {
                    stack.free_ended(id);
                } else {
                    let connection = binding.connection;
                    self.leave(now, connection, holder, false, stack);
                }
            }
            Some(SlotUse::Former(former)) if former.generation == view.generation => {
                let FormerSlot { connection, .. } = *former;
                let abort = view.flags & program_flags::ABORT != 0;
                self.leave(now, connection, holder, abort, stack);
            }
            _ => {}
        }
    }

    /// Applies the flags in the program's half of a slot. `changed` has the flags that differ from
    /// the previous request. `flags` has the flags that are set.
    fn apply_flags<P: PacketIo>(
        &mut self,
        now: Instant,
        flow: FlowId,
        (changed, flags): (u32, u32),
        stack: &mut Stack<P>,
    ) {
        let set = changed & flags;
        if set & program_flags::OPEN_NOW != 0 {
            stack.engine.release_syn(flow);
        }
        if changed & (FLAG_BITS | program_flags::OPTIONS) != 0 {
            self.apply_options(now, flow, (changed, flags), stack);
        }
        if set & program_flags::CLOSE != 0 {
            if self.close_shared(now, flow, set, stack) || stack.give_back(flow, flags) {
                return;
            }
            if let Some(binding) = stack.io.bindings.get_mut(flow) {
                binding.closed_by_program = true;
            }
            stack.close(now, flow, flags & program_flags::ABORT != 0);
        } else if set & program_flags::ABORT != 0 {
            stack.close(now, flow, true);
        } else if set & program_flags::SHUT_WRITE != 0 {
            stack.engine.shutdown_write(flow);
        }
    }

    /// Applies the socket options in a slot, and the options in the program's flags.
    fn apply_options<P: PacketIo>(
        &mut self,
        now: Instant,
        flow: FlowId,
        (changed, flags): (u32, u32),
        stack: &mut Stack<P>,
    ) {
        let Some(mut options) = stack.engine.options(flow) else {
            return;
        };
        if changed & program_flags::OPTIONS != 0
            && let Some(binding) = stack.io.bindings.get_mut(flow)
            && let Some(program) = stack.io.programs.get(binding.home)
            && let Some(view) = program.region.slot(binding.slot)
        {
            let asked = slot_options(view.options(), self.base_options);
            options = program.congestion.restrict(asked, &self.base_options);
            binding.reports_sent = view.options().tx_reports.load(Relaxed) != 0;
            binding.end_read_urgent(view);
            let urgent = binding.new_urgent_sent(view.options());
            // Publish the receive window, because the options may have changed the window. The
            // window determines when the program announces its reads.
            stack.io.bindings.mark_dirty(flow);
            if let Some(up) = urgent {
                // Ignore the result: if the position is invalid, the engine counts the error, and
                // no data becomes urgent.
                let _ = stack.engine.tx_urgent(now, flow, up, &mut stack.io);
            }
        }
        let options = options_of(flags, options);
        stack.engine.set_options(now, flow, options, &mut stack.io);
    }

    /// Processes the flag CLOSE that the home of a shared connection has set. `flags` has the newly
    /// set program flags. Returns false and changes nothing if `flow` is not shared.
    fn close_shared<P: PacketIo>(
        &mut self,
        now: Instant,
        flow: FlowId,
        flags: u32,
        stack: &mut Stack<P>,
    ) -> bool {
        let Some(binding) = stack.io.bindings.get(flow) else {
            return false;
        };
        if binding.service_flags & service_flags::SHARED == 0 {
            return false;
        }
        let (connection, home) = (binding.connection, binding.home);
        if flags & program_flags::SHUT_WRITE != 0 {
            stack.engine.shutdown_write(flow);
        }
        let abort = flags & program_flags::ABORT != 0;
        self.leave(now, connection, Holder::Program(home), abort, stack);
        true
    }

    /// Removes a holder of a shared connection. If no other process holds the connection, closes
    /// the connection, with a reset if `abort` is true.
    pub(crate) fn leave<P: PacketIo>(
        &mut self,
        now: Instant,
        connection: u64,
        holder: Holder,
        abort: bool,
        stack: &mut Stack<P>,
    ) {
        let records = records(&mut stack.io);
        if let Some(id) = self.shared.drop_holder(connection, holder, records) {
            stack.close_unheld(now, id, abort);
        }
    }

    /// Removes a holder from all its shared connections. Closes the connections that have no other
    /// holder, with a reset if `abort` is true.
    pub(crate) fn leave_all<P: PacketIo>(
        &mut self,
        now: Instant,
        holder: Holder,
        abort: bool,
        stack: &mut Stack<P>,
    ) {
        for connection in self.shared.held_by(holder) {
            self.leave(now, connection, holder, abort, stack);
        }
    }

    /// Makes `child` a holder of all connections that `from` holds, before a fork. After a refusal,
    /// `child` holds no connection.
    pub(crate) fn inherit<P: PacketIo>(
        &mut self,
        now: Instant,
        from: Holder,
        child: u64,
        stack: &mut Stack<P>,
    ) -> Result<(), Refused> {
        let inherited = self.add_child(now, from, Holder::Child(child), stack);
        if inherited.is_err() {
            self.leave_all(now, Holder::Child(child), false, stack);
            // A connection that `add_child` has shared may have one holder again.
            for connection in self.shared.held_by(from) {
                let records = records(&mut stack.io);
                if let Some(id) = self.shared.apply_holders(connection, records) {
                    stack.close_unheld(now, id, false);
                }
            }
        }
        inherited
    }

    fn add_child<P: PacketIo>(
        &mut self,
        now: Instant,
        from: Holder,
        child: Holder,
        stack: &mut Stack<P>,
    ) -> Result<(), Refused> {
        if let Holder::Program(program) = from
            && let Some(entry) = stack.io.programs.get(program)
        {
            let account = entry.account.clone();
            for slot in entry.slots_in_use() {
                // Process the flags first: the program may have accepted or closed the connection
                // since the last step.
                let id = SlotId { program, slot };
                self.advance(now, id, stack);
                let records = records(&mut stack.io);
                self.shared.share(id, &account, records)?;
            }
        }
        self.shared.add_child(from, child)
    }

    /// Replaces the holder `child` by the program `id`, after the child has registered as this
    /// program.
    pub(crate) fn child_registered(&mut self, child: u64, id: ProgramId) {
        self.shared.child_registered(child, id);
    }

    /// Moves a connection to the program `to`, which is a holder of the connection. After an error,
    /// the connection stays at its home.
    pub(crate) fn take<P: PacketIo>(
        &mut self,
        now: Instant,
        to: ProgramId,
        take: Take,
        stack: &mut Stack<P>,
    ) -> Result<Taken, TakeError> {
        let connection = take.connection;
        let from = self.shared.home_elsewhere(connection, to)?;
        stack.begin_move(from, to, take).check_buffer()?;
        let stopped = stack.begin_move(from, to, take).stop_home();
        if stopped.is_ok() {
            self.advance(now, from, stack);
        }
        let mut step = stack.begin_move(from, to, take);
        let new_home = match stopped.and_then(|()| step.prepare()) {
            Ok(new_home) => new_home,
            Err(error) => {
                step.cancel();
                // A thread of the home may have read MIGRATED (the connection moves), and may wait.
                self.announce(from, stack);
                return Err(error);
            }
        };
        let moved = step.finish(&new_home);
        let programs = &mut stack.io.programs;
        if moved.published.is_none() {
            self.shared.notify_other_holders(connection, programs);
        }
        let records = records(&mut stack.io);
        if let Some(id) = self.shared.record_move(connection, from, &moved, records) {
            stack.close_unheld(now, id, false);
        }
        stack.io.programs.remove_unused(from.program);
        Ok(moved.taken)
    }

    /// Ends the connections of a program that has ended or misbehaved. Connections go on if the
    /// program has closed them, if other processes hold them, or if they return to their listener.
    pub(crate) fn end_program<P: PacketIo>(
        &mut self,
        now: Instant,
        program: ProgramId,
        stack: &mut Stack<P>,
    ) {
        let of_program = |slot| SlotId { program, slot };
        let Some(entry) = stack.io.programs.get(program) else {
            return;
        };
        // Process the last requests, because a program that exits in an orderly way closes its
        // connections just before its exit.
        let slots: Vec<u32> = entry.slots().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.advance(now, of_program(slot), stack);
        }
        if let Some(entry) = stack.io.programs.get_mut(program) {
            entry.gone = true;
        }
        stack.io.programs.contexts.remove_all(program);
        self.leave_all(now, Holder::Program(program), true, stack);
        stack.end_connections(now, program);
    }

    /// Gives the events of the slot to another context (the rings of one thread) of the program.
    pub(crate) fn assign<P: PacketIo>(&mut self, id: SlotId, context: u32, stack: &mut Stack<P>) {
        let (programs, bindings) = (&mut stack.io.programs, &mut stack.io.bindings);
        if let Some(SlotUse::Former(former)) = programs.slot_use(id) {
            former.context = context;
        } else if let Some(binding) = bindings.of_slot(id, programs) {
            binding.context = context;
            self.announce(id, stack);
        }
    }

    /// Reports an event of the connection in a slot, although its state may not have changed. If
    /// the flow has ended, publishes its last state, and also notifies the other holders.
    fn announce<P: PacketIo>(&mut self, id: SlotId, stack: &mut Stack<P>) {
        let (programs, bindings) = (&mut stack.io.programs, &mut stack.io.bindings);
        match programs.slot_use(id) {
            Some(SlotUse::Live(flow)) => bindings.announce(*flow),
            Some(SlotUse::Ended(binding)) => {
                let context = binding.context;
                if let Some(connection) = programs.announce_ended(id, context) {
                    self.shared.notify_other_holders(connection, programs);
                }
            }
            _ => {}
        }
    }

    /// Assigns established connections of listeners to programs, publishes changed flows, and ends
    /// the bindings of flows that have ended.
    #[inline(never)]
    pub(crate) fn publish<P: PacketIo>(&mut self, now: Instant, stack: &mut Stack<P>) {
        let Stack { engine, io } = stack;
        if io.journal.has_established() {
            io.journal.enter_established(engine, &io.bindings);
        }
        if let Some(accepted) = io.bindings.take_accepted() {
            for (flow, listener) in accepted {
                stack.hand_out(now, flow, listener);
            }
        }
        // If the event ring is full, the flow stays dirty (to be published) for the next step.
        let Stack { engine, io } = stack;
        let dirty = io.bindings.dirty_len();
        for at in 0..dirty {
            let Some(flow) = io.bindings.dirty_at(at) else {
                break;
            };
            let contexts = &mut io.programs.contexts;
            if io.bindings.publish(flow, engine, contexts) {
                self.shared.note_published(flow, engine, records(io));
            }
        }
        io.bindings.drop_dirty(dirty);
        if let Some(released) = io.bindings.take_released() {
            for flow in released {
                self.end_binding(now, flow, stack);
            }
        }
    }

    /// Ends the binding of `flow`. The slot stays in use until the program closes the slot.
    #[inline(never)]
    fn end_binding<P: PacketIo>(&mut self, now: Instant, flow: FlowId, stack: &mut Stack<P>) {
        if let Some(id) = stack.end_binding(flow) {
            self.announce(id, stack);
            // The program may have closed the slot before the flow ended. The program then sends no
            // further request, so process the CLOSE now.
            self.advance(now, id, stack);
        }
    }
}
