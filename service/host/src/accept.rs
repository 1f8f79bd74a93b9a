//! Assigns established connections of a listener to contexts. A *context* has the rings of one
//! thread of a program. The connection gets a slot (the record of a connection in the memory that
//! the program shares with the service). The connection also gets memory of the program for the
//! data that arrived before the assignment.
//!
//! A context can get the connection if the context has room for the event, and if its program has a
//! free slot and enough memory. If no context of the listener can get the connection, the
//! connection waits in the accept queue. The listener's backlog limits the length of this queue.
//! The kernel queues connections in the same way. A reset instead would lose acknowledged data.
//! [`Assignment::Reset`] lists the cases in which the host resets the connection nevertheless.

use tidelane_abi::{control_event, program_flags};
use tidelane_engine::{Engine, FlowId, FlowState, ListenerId};

use crate::{
    bindings::{Binding, Bindings, STAGING},
    buffer_copy::BufferIn,
    contexts::slot_event,
    listeners::{Acceptor, Listeners, Member},
    memory::{Buffers, Staging},
    program::{Programs, TakenSlot},
    slots,
};

/// The parts of the host that move an established connection from the accept queue of its listener
/// to a context of a program. The same parts move the connection back if the program ends without
/// an accept.
pub(crate) struct Acceptance<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) listeners: &'a mut Listeners,
    pub(crate) bindings: &'a mut Bindings,
    pub(crate) programs: &'a mut Programs,
    /// The staging area: receive buffers in the memory of the host, for connections before accept.
    pub(crate) staging: &'a mut Staging,
}

/// The outcome of the attempt to assign a connection to a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assignment {
    /// A context has the connection, or the connection has ended.
    Done,
    /// The connection has to wait in the accept queue.
    Wait,
    /// The caller has to reset the connection, for one of two reasons. The first reason: no context
    /// has room now, and at least one program with the listener could not hold the connection's
    /// data even with all its receive memory free. The second reason: the event could not be pushed
    /// to the selected context.
    Reset,
}

impl Acceptance<'_> {
    /// Assigns `flow` to a context of the listener `id`. Does nothing if the flow has ended,
    /// because the end of the step then removes the flow's binding (the host's record of the flow).
    pub(crate) fn assign(&mut self, flow: FlowId, id: ListenerId) -> Assignment {
        if self.engine.flow(flow).is_none() {
            return Assignment::Done;
        }
        let Some((acceptor, taken)) = self.find_context(flow, id) else {
            return match self.is_hopeless(flow, id) {
                true => Assignment::Reset,
                false => Assignment::Wait,
            };
        };
        let Acceptor {
            program,
            context,
            cookie,
        } = acceptor;
        self.bindings
            .attach(flow, &taken, self.engine, self.programs);
        if let Some(binding) = self.bindings.get_mut(flow) {
            binding.announce = true;
        }
        self.bindings.mark_dirty(flow);
        let Some(listener) = self.listeners.get_mut(id) else {
            return Assignment::Done;
        };
        if let Some(member) = listener.member(program, context) {
            member.untaken += 1;
            member.given += 1;
        }
        let TakenSlot { id, generation, .. } = taken;
        let mut event = slot_event(control_event::ACCEPTED, id.slot, generation, cookie);
        event.listener = listener.number;
        let target = self.programs.contexts.for_event(program, context);
        match target.is_none_or(|context| context.push_control(event).is_err()) {
            true => Assignment::Reset,
            false => Assignment::Done,
        }
    }

    /// Selects the context that gets `flow`, and takes a slot for the flow. The first candidate is
    /// the context with the fewest connections that the host has assigned and the program has not
    /// accepted. The other contexts follow in the order of this number.
    fn find_context(&mut self, flow: FlowId, id: ListenerId) -> Option<(Acceptor, TakenSlot)> {
        let first = self.listeners.get_mut(id)?.choose()?.acceptor;
        if let Some(taken) = self.bind_to_slot(flow, &first) {
            return Some((first, taken));
        }
        self.find_other_context(flow, id)
    }

    #[cold]
    #[inline(never)]
    fn find_other_context(
        &mut self,
        flow: FlowId,
        id: ListenerId,
    ) -> Option<(Acceptor, TakenSlot)> {
        let mut members: Vec<&Member> = self.listeners.get(id)?.members.iter().collect();
        members.sort_unstable_by_key(|member| member.load());
        let acceptors: Vec<Acceptor> = members.iter().map(|member| member.acceptor).collect();
        acceptors.into_iter().skip(1).find_map(|acceptor| {
            let taken = self.bind_to_slot(flow, &acceptor)?;
            Some((acceptor, taken))
        })
    }

    /// Takes a slot of the acceptor's program, and moves the data received before accept from the
    /// staging area to the program's region (the memory that the program shares with the service).
    /// Returns `None` if there is no slot, no memory for the data, or no room for the event. In
    /// this case, nothing has changed, and the staging area still has the acknowledged data.
    fn bind_to_slot(&mut self, flow: FlowId, acceptor: &Acceptor) -> Option<TakenSlot> {
        let binding = self.bindings.get_mut(flow)?;
        let Acceptor {
            program, context, ..
        } = *acceptor;
        if !self.programs.contexts.has_control_room(program, context) {
            return None;
        }
        let entry = self.programs.get_mut(program)?;
        if !entry.has_slot() {
            return None;
        }
        if let Some(staged) = binding.rx {
            let buffer = entry.rx.alloc_instead(self.staging, staged)?;
            let home = BufferIn::new(entry.region.region(), buffer);
            let received = self.engine.received(flow);
            BufferIn::new(self.staging.region(), staged).copy_to(home, received);
            binding.rx = Some(buffer);
        }
        let taken = self.programs.take_slot(program, context)?;
        if let Some(buffer) = binding.rx
            && let Some(entry) = self.programs.get(program)
            && let Some(view) = entry.region.slot(taken.id.slot)
        {
            slots::set_rx_buffer(view, buffer.to_word());
        }
        Some(taken)
    }

    /// Returns true if at least one program with the listener could not allocate a receive buffer
    /// as large as the flow's staging buffer, even if all receive memory of that program were free.
    fn is_hopeless(&self, flow: FlowId, id: ListenerId) -> bool {
        let staged = self.bindings.get(flow).and_then(|binding| binding.rx);
        let longest = || self.listeners.longest_buffer(Some(id), self.programs);
        staged.is_some_and(|buffer| buffer.len() > longest())
    }

    /// Takes `flow` back from a program that ends, or that closes the slot before accept. Returns
    /// the flow's listener. The end of the step assigns the flow again. In the kernel, the accept
    /// queue belongs to the listener in the same way: when a worker process ends, no connection of
    /// the queue is lost. `program_flags` has the flags that the program has set in the slot.
    ///
    /// Returns `None` and changes nothing in these cases:
    ///
    /// - The program has accepted the connection, or has read or written data.
    /// - The program is the only program with the listener.
    /// - The connection has no listener, or the connection or its listener has ended.
    /// - The staging area has no memory for the data.
    pub(crate) fn reclaim(&mut self, flow: FlowId, program_flags: u32) -> Option<ListenerId> {
        let binding = self.bindings.get_mut(flow)?;
        let (reference, home) = (binding.listener?, binding.home);
        let listener = self.listeners.id_of(reference)?;
        let untaken = program_flags & program_flags::TAKEN == 0 && binding.cause == 0;
        // Another program would miss the data that this program has read. The data that this
        // program has written is only in the memory of this program.
        let unused = |state: &FlowState| state.rx_read() == 0 && state.tx_head() == 0;
        let untaken = untaken && self.engine.flow(flow).is_some_and(unused);
        let holders = &self.listeners.get(listener)?.holders;
        if !untaken || holders.iter().all(|holder| *holder == home) {
            return None;
        }
        let account = self.listeners.account(listener, self.programs).cloned();
        let program = self.programs.get_mut(home)?;
        let (region, mut buffers) = self.staging.of(account.as_ref());
        let staged = match binding.rx {
            Some(buffer) => {
                let staged = buffers.alloc(buffer.log2)?;
                let received = self.engine.received(flow);
                BufferIn::new(program.region.region(), buffer)
                    .copy_to(BufferIn::new(region, staged), received);
                Some(staged)
            }
            None => None,
        };
        binding.free_rx(&mut program.rx);
        self.programs
            .release_slot(binding.slot_id(), binding.context);
        *binding = Binding {
            listener: Some(reference),
            rx: staged,
            rx_head: binding.rx_head,
            service_flags: binding.service_flags,
            urgent: binding.urgent,
            charge: binding.charge.take(),
            owner: binding.owner.take(),
            ..Binding::new(binding.path, binding.local_port)
        };
        debug_assert_eq!(binding.home, STAGING);
        self.bindings.note_accepted(flow, listener);
        Some(listener)
    }
}
