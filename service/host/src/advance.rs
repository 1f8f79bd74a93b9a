//! Processes the program's half of a slot: the positions, buffers and flags that the program wrote.
//! A *slot* is the record of one connection in the memory that a program shares with the service.
//! The program may write any value, so the host checks each value before use.

use tidelane_abi::program_flags;
use tidelane_engine::{Advance, Engine, FlowId, Misuse};
use tidelane_packet_io::PacketIo;
use tidelane_ring::StreamBuffer;
use tidelane_time::Instant;

use crate::{
    Host,
    bindings::{Binding, SlotUse},
    memory::Buffers,
    program::ProgramId,
    slots::{self, ProgramView},
};

impl<P: PacketIo> Host<P> {
    /// Processes the program's half of a slot, for any [`SlotUse`].
    #[inline(never)]
    pub(crate) fn advance(&mut self, now: Instant, id: ProgramId, slot: u32) {
        self.advance_slot(now, id, slot);
    }

    /// Inlined form of [`advance`](Self::advance), for callers in a loop over slots.
    #[inline(always)]
    pub(crate) fn advance_slot(&mut self, now: Instant, id: ProgramId, slot: u32) {
        let Some(program) = self.stack.io.programs.get_mut(id) else {
            return;
        };
        match program.slot_use(slot) {
            Some(SlotUse::Live(flow)) => {
                let flow = *flow;
                self.advance_flow(now, flow);
            }
            _ => self.advance_without_flow(now, id, slot),
        }
    }

    /// Processes the CLOSE of a slot whose flow has ended, or whose connection has moved to another
    /// program.
    #[inline(never)]
    fn advance_without_flow(&mut self, now: Instant, id: ProgramId, slot: u32) {
        let Some(program) = self.stack.io.programs.get_mut(id) else {
            return;
        };
        let Some(view) = program.region.slot(slot).map(slots::read_program) else {
            return;
        };
        match program.slot_use(slot) {
            Some(SlotUse::Ended(binding)) => {
                let current = binding.generation == view.generation;
                if current && view.flags & program_flags::CLOSE != 0 {
                    self.close_ended(now, id, slot);
                }
            }
            Some(SlotUse::Former(former)) => {
                let former = *former;
                let current = former.generation == view.generation;
                if current && view.flags & program_flags::CLOSE != 0 {
                    self.close_former_slot(now, id, former, view.flags);
                }
            }
            _ => {}
        }
    }

    /// Processes the program's half of a slot with a live flow.
    #[inline(always)]
    fn advance_flow(&mut self, now: Instant, flow: FlowId) {
        let Some(binding) = self.stack.io.bindings.get_mut(flow) else {
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
            self.advance_buffers_and_flags(now, flow, view);
        } else if !advance_positions(&mut self.stack.engine, flow, binding, &view) {
            self.abort_misuse(now, flow);
        } else if self.stack.io.bindings.is_crowded() {
            let (bindings, programs) = (&mut self.stack.io.bindings, &mut self.stack.io.programs);
            bindings.free_empty(flow, &self.stack.engine, programs);
        }
    }

    /// Processes the positions, and also new buffers and flags. Not inlined, because most requests
    /// change only positions.
    #[inline(never)]
    fn advance_buffers_and_flags(&mut self, now: Instant, flow: FlowId, view: ProgramView) {
        let buffers_valid = self.adopt_buffers(flow, &view);
        let Some(binding) = self.stack.io.bindings.get_mut(flow) else {
            return;
        };
        if !buffers_valid || !advance_positions(&mut self.stack.engine, flow, binding, &view) {
            return self.abort_misuse(now, flow);
        }
        let changed = std::mem::replace(&mut binding.program_flags, view.flags) ^ view.flags;
        if binding.reports_sent {
            // Mark the flow, so that the end of the step publishes the sent position.
            self.stack.io.bindings.mark_dirty(flow);
        }
        if changed != 0 {
            self.apply_flags(now, flow, changed, view.flags);
        }
    }

    /// Aborts the connection, because the program wrote invalid values.
    #[cold]
    fn abort_misuse(&mut self, now: Instant, flow: FlowId) {
        self.stack.io.counters.misuses += 1;
        self.stack.engine.abort(now, flow, &mut self.stack.io);
    }

    /// Adopts a new send buffer, and frees receive buffers that the program no longer reads.
    /// Returns false if the word of the send buffer is invalid.
    #[inline(never)]
    fn adopt_buffers(&mut self, flow: FlowId, view: &ProgramView) -> bool {
        let Some(binding) = self.stack.io.bindings.get_mut(flow) else {
            return true;
        };
        let Some(program) = self.stack.io.programs.get_mut(binding.home) else {
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
}

/// Passes the program's read and write positions to the engine. Returns false if a position is
/// invalid. A flow that has ended counts as valid.
#[inline(always)]
fn advance_positions(
    engine: &mut Engine,
    flow: FlowId,
    binding: &mut Binding,
    view: &ProgramView,
) -> bool {
    let to = Advance {
        rx_read: view.rx_read,
        tx_head: view.tx_head,
        tx_room: binding.tx.map_or(0, StreamBuffer::len),
    };
    match engine.advance(flow, &to) {
        Ok(()) => {
            binding.tx_head = view.tx_head;
            binding.rx_read = view.rx_read;
            true
        }
        Err(misuse) => misuse == Misuse::NoFlow,
    }
}
