//! The bindings of all flows. A *flow* is the engine's number of a connection. A *binding* records
//! the program, the slot and the buffers of a flow. A *slot* is the record of a connection in the
//! memory that a program shares with the service.
//!
//! [`Bindings`] also has the lists of flows that the end of a step processes. The order is:
//! accepted flows that need a context (the rings of one thread of a program), changed flows to
//! publish, and released flows.

pub(crate) mod binding;
mod buffered_flows;

use tidelane_abi::{data_event, service_flags};
use tidelane_engine::{Engine, FlowId, ListenerId};
use tidelane_ring::{SlotHandle, StreamBuffer};

pub use self::binding::{Binding, FormerSlot, STAGING, SlotUse, cause_or_finished};
use self::buffered_flows::BufferedFlows;
use crate::{
    contexts::Contexts,
    ids::SlotId,
    memory::{Buffers, Staging},
    program::{Programs, TakenSlot},
    siblings::{ConnectionNumbers, CoreIndex},
    slots::{self, ProgramView, Publication},
};

/// Limit of the flows that one sweep examines for an idle receive buffer.
const SWEEP_MAX: usize = 16_384;
/// Largest capacity in flows that the table of bindings keeps after all flows have ended.
const OVERSIZED: usize = 4096;

/// The bindings of all flows.
#[derive(Default)]
pub struct Bindings {
    /// Bindings, by flow number.
    entries: Vec<Option<Binding>>,
    /// Flows with a receive buffer.
    buffered_flows: BufferedFlows,
    /// Flows with changes to publish to their programs.
    dirty: Vec<FlowId>,
    /// Established connections that the end of the step assigns to a context of their listener.
    accepted: Vec<(FlowId, ListenerId)>,
    /// Flows that ended in this step. The end of the step removes their bindings.
    released: Vec<FlowId>,
    /// The source of the numbers of connections. A connection gets its number with its first slot.
    numbers: ConnectionNumbers,
}

impl Bindings {
    /// Returns the binding of `flow`.
    #[inline(always)]
    pub fn get(&self, flow: FlowId) -> Option<&Binding> {
        self.entries.get(flow.index())?.as_ref()
    }

    /// Returns the binding of `flow`.
    #[inline(always)]
    pub fn get_mut(&mut self, flow: FlowId) -> Option<&mut Binding> {
        self.entries.get_mut(flow.index())?.as_mut()
    }

    /// Returns the binding of the connection in a slot. Returns `None` for a free slot, and for a
    /// slot whose connection has moved to another program.
    pub fn of_slot<'a>(
        &'a mut self,
        id: SlotId,
        programs: &'a mut Programs,
    ) -> Option<&'a mut Binding> {
        match programs.slot_use(id)? {
            SlotUse::Live(flow) => self.get_mut(*flow),
            SlotUse::Ended(binding) => Some(binding),
            SlotUse::Free | SlotUse::Former(_) => None,
        }
    }

    /// Sets the index of this host's core. The index makes the numbers of connections unique in the
    /// service.
    pub fn set_core_index(&mut self, core_index: CoreIndex) {
        self.numbers = ConnectionNumbers::of_core(core_index);
    }

    /// Binds `flow` to a slot of a program, and writes the addresses, ports and limits to the slot.
    pub fn attach(
        &mut self,
        flow: FlowId,
        taken: &TakenSlot,
        engine: &Engine,
        programs: &mut Programs,
    ) {
        let Some(state) = engine.flow(flow) else {
            return;
        };
        let mss = engine.info(flow).map_or(0, |info| info.mss);
        let Some(Some(binding)) = self.entries.get_mut(flow.index()) else {
            return;
        };
        if binding.connection == 0 {
            binding.connection = self.numbers.next();
        }
        let Some(program) = programs.get_mut(taken.id.program) else {
            return;
        };
        let slot = taken.id.slot;
        program.set_slot(slot, SlotUse::Live(flow));
        if let Some(view) = program.region.slot(slot) {
            view.set_ids(&slots::ids_of(&state.key(), binding.connection, mss));
            slots::set_rx_window(view, state.rx_window());
            slots::set_tx_limit(view, engine.autotuned_send_buffer(flow, state));
            binding.begin_urgent(view);
        }
        binding.home = taken.id.program;
        binding.home_slot = SlotHandle::new(program.region.clone(), slot);
        binding.context = taken.context;
        binding.slot = slot;
        binding.generation = taken.generation;
    }

    /// Writes the state of `flow` to its slot. If the program has not closed the slot, also pushes
    /// a READY event for the program. Returns true if several processes hold the connection.
    #[inline(always)]
    pub fn publish(&mut self, flow: FlowId, engine: &Engine, contexts: &mut Contexts) -> bool {
        let Some(Some(binding)) = self.entries.get_mut(flow.index()) else {
            return false;
        };
        binding.dirty = false;
        let Some(home_slot) = &binding.home_slot else {
            return false;
        };
        let Some(state) = engine.flow(flow) else {
            return false;
        };
        binding.rx_head = state.rx_head();
        let publication = Publication {
            rx_head: binding.rx_head,
            tx_acked: state.tx_acked(),
            flags: binding.service_flags,
            cause: binding.cause,
        };
        let rx_window = state.rx_window();
        let tx_sent = binding.reports_sent.then(|| state.tx_sent());
        let limit = engine.autotuned_send_buffer(flow, state);
        let view = home_slot.view();
        slots::set_rx_window(view, rx_window);
        if let Some(tx_sent) = tx_sent {
            slots::set_tx_sent(view, tx_sent);
        }
        slots::set_tx_limit(view, limit);
        slots::publish(view, &publication);
        let slot = binding.slot;
        if !binding.closed_by_program
            && let Some(context) = contexts.for_event(binding.home, binding.context)
            && context.push_data(data_event::READY, slot).is_err()
        {
            // The event ring is full. The next step publishes the flow again.
            self.mark_dirty(flow);
        }
        publication.flags & service_flags::SHARED != 0
    }

    /// Returns the number of the connection of `flow`, and the state that
    /// [`publish`](Self::publish) has written to the slot.
    #[cold]
    pub fn published(&self, flow: FlowId, engine: &Engine) -> Option<(u64, Publication)> {
        let binding = self.get(flow)?;
        let publication = Publication {
            rx_head: binding.rx_head,
            tx_acked: engine.flow(flow)?.tx_acked(),
            flags: binding.service_flags,
            cause: binding.cause,
        };
        Some((binding.connection, publication))
    }

    /// Adopts the send buffer in `view` if the buffer has changed. If the program reads from the
    /// present receive buffer, frees all replaced receive buffers. `view` has the values that the
    /// program wrote to the slot. Returns false if the word of the send buffer (the encoded offset
    /// and size) is invalid.
    #[inline(never)]
    pub fn adopt_buffers(
        &mut self,
        flow: FlowId,
        view: &ProgramView,
        programs: &mut Programs,
    ) -> bool {
        let Some(binding) = self.get_mut(flow) else {
            return true;
        };
        let Some(program) = programs.get_mut(binding.home) else {
            return true;
        };
        if view.tx_buffer != binding.tx_word {
            let area = program.region.layout().tx_area();
            binding.tx = StreamBuffer::from_word(view.tx_buffer, area);
            if binding.tx.is_none() && view.tx_buffer != 0 {
                return false;
            }
            binding.tx_word = view.tx_buffer;
            if let Some(slot) = program.region.slot(binding.slot) {
                slots::set_tx_buffer_seen(slot, view.tx_buffer);
            }
        }
        if !binding.rx_old.is_empty()
            && binding
                .rx
                .is_some_and(|buffer| buffer.to_word() == view.rx_buffer_seen)
        {
            for old in binding.rx_old.drain(..) {
                program.rx.free(old);
            }
        }
        true
    }

    /// Returns all bindings.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Binding> {
        self.entries.iter_mut().flatten()
    }

    /// Returns the length of the table of bindings, which is greater than the number of each flow
    /// that has a binding.
    pub fn bound(&self) -> usize {
        self.entries.len()
    }

    /// Sets the binding of a new flow.
    #[inline]
    pub fn insert(&mut self, flow: FlowId, binding: Binding) -> &mut Binding {
        if self.entries.len() <= flow.index() {
            self.entries.resize_with(flow.index() + 1, || None);
        }
        self.entries[flow.index()].insert(binding)
    }

    /// Removes the binding of a flow that has ended.
    #[inline]
    pub fn remove(&mut self, flow: FlowId) -> Option<Binding> {
        let binding = self.entries.get_mut(flow.index())?.take()?;
        self.buffered_flows.remove(flow);
        Some(binding)
    }

    /// Makes the end of the step push an event for the flow, although the state of the flow may not
    /// have changed.
    pub fn announce(&mut self, flow: FlowId) {
        if let Some(binding) = self.get_mut(flow) {
            binding.announce = true;
            self.mark_dirty(flow);
        }
    }

    /// Puts `flow` on the list of flows to publish (the dirty flows).
    #[inline(always)]
    pub fn mark_dirty(&mut self, flow: FlowId) {
        if let Some(binding) = self.entries.get_mut(flow.index()).and_then(Option::as_mut)
            && !binding.dirty
        {
            binding.dirty = true;
            if self.dirty.len() == self.dirty.capacity() {
                return self.grow_and_mark_dirty(flow);
            }
            self.dirty.push(flow);
        }
    }

    /// Adds `flow` to the list of dirty flows when the list has to grow. Not inlined, so that the
    /// common path of [`mark_dirty`](Self::mark_dirty) saves no registers.
    #[cold]
    #[inline(never)]
    fn grow_and_mark_dirty(&mut self, flow: FlowId) {
        self.dirty.push(flow);
    }

    /// Returns the number of flows to publish.
    #[inline]
    pub fn dirty_len(&self) -> usize {
        self.dirty.len()
    }

    /// Returns the flow at index `at` of the flows to publish.
    #[inline]
    pub fn dirty_at(&self, at: usize) -> Option<FlowId> {
        self.dirty.get(at).copied()
    }

    /// Removes the first `count` flows from the list of flows to publish.
    #[inline]
    pub fn drop_dirty(&mut self, count: usize) {
        if self.dirty.len() == count {
            self.dirty.clear();
        } else {
            self.dirty.drain(..count);
        }
    }

    /// Records that the end of the step has to assign `flow` to a context of `listener`.
    pub fn note_accepted(&mut self, flow: FlowId, listener: ListenerId) {
        self.accepted.push((flow, listener));
    }

    /// Takes the flows that need a context of their listener.
    #[inline]
    pub fn take_accepted(&mut self) -> Option<Vec<(FlowId, ListenerId)>> {
        (!self.accepted.is_empty()).then(|| std::mem::take(&mut self.accepted))
    }

    /// Records that the end of the step has to remove the binding of `flow`.
    pub fn note_released(&mut self, flow: FlowId) {
        self.released.push(flow);
    }

    /// Takes the flows that ended in this step.
    #[inline]
    pub fn take_released(&mut self) -> Option<Vec<FlowId>> {
        (!self.released.is_empty()).then(|| std::mem::take(&mut self.released))
    }

    /// Returns true if the end of the step has work.
    #[inline]
    pub fn has_changes(&self) -> bool {
        !(self.dirty.is_empty() && self.accepted.is_empty() && self.released.is_empty())
    }

    /// Returns true if flows wait for their publication, or for the removal of their bindings.
    pub fn has_unpublished(&self) -> bool {
        !(self.dirty.is_empty() && self.released.is_empty())
    }

    /// Copies `payload` to stream position `pos` of a flow's receive buffer. Returns `None` and
    /// copies nothing if the buffer has to be allocated or enlarged, or if the flow has no slot.
    /// Otherwise returns the result of [`StreamBuffer::write`].
    #[inline(always)]
    pub fn place(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> Option<bool> {
        let binding = self.get_mut(flow)?;
        let buffer = binding.rx_for(pos, payload.len())?;
        let home_slot = binding.home_slot.as_ref()?;
        binding.active = true;
        Some(buffer.write(home_slot.region().region(), pos, payload))
    }

    /// Copies `payload` to the receive buffer of a flow with a program. Allocates or enlarges the
    /// buffer if needed. Returns false if there is no memory.
    #[inline]
    pub fn place_with_room(
        &mut self,
        flow: FlowId,
        pos: u32,
        payload: &[u8],
        programs: &mut Programs,
    ) -> bool {
        let Some(Some(binding)) = self.entries.get_mut(flow.index()) else {
            return false;
        };
        let Some(program) = programs.get_mut(binding.home) else {
            return false;
        };
        self.buffered_flows.add(flow);
        let slot = program.region.slot(binding.slot);
        let region = program.region.region();
        binding.place(region, slot, &mut program.rx, pos, payload)
    }

    /// Copies `payload` to the staging buffer of a flow: its receive buffer in the host's own
    /// memory until a program gets the flow. Returns false if there is no memory, or if the flow
    /// would hold more than `held_max` bytes.
    #[inline]
    pub fn place_staged(
        &mut self,
        flow: FlowId,
        (pos, payload): (u32, &[u8]),
        held_max: u32,
        staging: &mut Staging,
    ) -> bool {
        let Some(Some(binding)) = self.entries.get_mut(flow.index()) else {
            return false;
        };
        self.buffered_flows.add(flow);
        let end = pos.wrapping_add(payload.len() as u32);
        if end.wrapping_sub(binding.rx_read) > held_max {
            return false;
        }
        let charge = binding.charge.as_ref();
        let account = charge.map(|charge| charge.account().clone());
        let (region, mut buffers) = staging.of(account.as_ref());
        binding.place(region, None, &mut buffers, pos, payload)
    }

    /// Returns true if so many flows have receive buffers that the host frees a buffer as soon as
    /// the program has read all data in it.
    #[inline(always)]
    pub fn is_crowded(&self) -> bool {
        self.buffered_flows.is_crowded()
    }

    /// Returns true if a flow has a receive buffer.
    pub fn has_buffers(&self) -> bool {
        !self.buffered_flows.is_empty()
    }

    /// Examines at most `SWEEP_MAX` flows with a receive buffer, in turn. If a flow has received no
    /// data since its previous examination, frees its buffer if the buffer is empty.
    #[inline]
    pub fn free_idle(&mut self, engine: &Engine, programs: &mut Programs) {
        for _ in 0..self.buffered_flows.len().min(SWEEP_MAX) {
            let Some(flow) = self.buffered_flows.next() else {
                break;
            };
            let binding = self.get_mut(flow);
            if !binding.is_some_and(|binding| std::mem::take(&mut binding.active)) {
                self.free_empty(flow, engine, programs);
            }
        }
    }

    /// Frees a flow's receive buffer if the buffer is empty, a program has the flow, and this
    /// program reads no older buffer.
    #[inline(never)]
    pub fn free_empty(&mut self, flow: FlowId, engine: &Engine, programs: &mut Programs) {
        let Some(Some(binding)) = self.entries.get_mut(flow.index()) else {
            return self.buffered_flows.remove(flow);
        };
        let empty = engine.received(flow).all(|range| range.is_empty());
        let stays = !empty || !binding.is_bound() || !binding.rx_old.is_empty();
        if binding.rx.is_some() {
            let program = programs.get_mut(binding.home);
            let Some(program) = program.filter(|_| !stays) else {
                return;
            };
            binding.free_rx(&mut program.rx);
            if let Some(slot) = program.region.slot(binding.slot) {
                slots::set_rx_buffer(slot, binding.rx_word());
            }
        }
        self.buffered_flows.remove(flow);
    }

    /// Returns true if the table has a large capacity. The caller frees the table with
    /// [`shrink`](Self::shrink) after all flows have ended.
    pub fn is_oversized(&self) -> bool {
        self.entries.capacity() > OVERSIZED
    }

    /// Frees the table. The caller has to ensure that no flow exists.
    pub fn shrink(&mut self) {
        self.entries = Vec::new();
    }
}
