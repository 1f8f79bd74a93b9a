//! Moves of a connection from the memory of one program to the memory of another program. The
//! *home* is the program whose memory has the connection.

use std::{ops::Range, sync::Arc};

use tidelane_abi::{BufferWord, program_flags, service_flags};
use tidelane_packet_io::PacketIo;
use tidelane_ring::{ProgramRegion, SlotHandle, StreamBuffer};
use tidelane_time::Instant;

use super::Holder;
use crate::{
    Host, ProgramId,
    bindings::{Binding, FormerSlot, SlotUse},
    buffer_copy::BufferIn,
    memory::Buffers,
    slots::{self, Publication, ResumedState},
};

/// Program flags that move with the connection.
const MOVED_FLAGS: u32 = !(program_flags::CLOSE | program_flags::ABORT);
/// The service flag of a slot whose connection moves, or has moved, to another program.
const MIGRATED: u32 = service_flags::MIGRATED;

/// A program's request to move a connection into its memory. The program must hold the connection.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    /// The connection's number.
    pub connection: u64,
    /// Context of the program that gets the connection's events from now on.
    pub context: u32,
    /// Buffer word of the program's send buffer, which takes the unacknowledged data; 0 for no
    /// buffer.
    pub tx_buffer: BufferWord,
}

/// The place of the connection after the move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Slot of the program that took the connection.
    pub slot: u32,
    /// The slot's generation.
    pub generation: u32,
    /// Cookie (SO_COOKIE) of the kernel socket whose listener accepted the connection. `None` for
    /// an active open, or if the listener no longer exists.
    pub listener: Option<u64>,
}

/// The reason why a connection was not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// The program does not hold the connection, or already is its home.
    NotHeld,
    /// The home is copying data from or to the buffers of the connection. The program has to try
    /// again.
    Busy,
    /// The send buffer is too short for the unacknowledged data. The value is the length of the
    /// data in bytes.
    BufferTooSmall(u32),
    /// The program has no free slot, or no memory for received data.
    Limit,
}

/// Stream positions of the data that moves with a connection.
struct MovedRanges {
    /// Received and unread data, in order and out of order (reassembly queue).
    unread: Vec<Range<u32>>,
    /// Written and unacknowledged data.
    unacked: Range<u32>,
}

/// The resources of a connection at its new home.
struct NewHome {
    slot: u32,
    generation: u32,
    rx: Option<StreamBuffer>,
    tx: Option<StreamBuffer>,
    region: Arc<ProgramRegion>,
}

impl<P: PacketIo> Host<P> {
    /// Moves a connection to the program `id`, which is a holder of the connection. After an error,
    /// the connection stays at its home.
    pub fn take(&mut self, now: Instant, id: ProgramId, take: Take) -> Result<Taken, TakeError> {
        self.stack.io.now = now;
        let shared = self.shared.by_number.get(&take.connection);
        let place = match shared {
            Some(shared) if shared.holders.contains(&Holder::Program(id)) => shared.place,
            _ => return Err(TakeError::NotHeld),
        };
        if place.0 == id {
            return Err(TakeError::NotHeld);
        }
        self.stop_home(now, place)?;
        match self.prepare_home(id, place, take.tx_buffer) {
            Ok(new_home) => Ok(self.move_to(id, place, &take, new_home)),
            Err(error) => {
                self.change_flags(place, 0, MIGRATED);
                Err(error)
            }
        }
    }

    /// Stops reads and writes of the home, and processes earlier reads and writes. Returns
    /// [`TakeError::Busy`] if the home is copying data.
    fn stop_home(&mut self, now: Instant, place: (ProgramId, u32)) -> Result<(), TakeError> {
        self.change_flags(place, MIGRATED, 0);
        let Some(binding) = self.binding_at(place) else {
            return Err(TakeError::NotHeld);
        };
        let left = binding.closed_by_program;
        let program = self.stack.io.programs.get(place.0);
        let held = program.is_some_and(|program| {
            let view = program.region.slot(place.1);
            !left && !program.gone && view.is_some_and(slots::is_copying)
        });
        if held {
            self.change_flags(place, 0, MIGRATED);
            return Err(TakeError::Busy);
        }
        self.advance(now, place.0, place.1);
        Ok(())
    }

    /// Returns the stream positions of the data that moves with a connection.
    fn moved_ranges(&mut self, place: (ProgramId, u32)) -> Result<MovedRanges, TakeError> {
        let program = self.stack.io.programs.get_mut(place.0);
        match program.and_then(|program| program.slot_use(place.1)) {
            Some(SlotUse::Live(flow)) => {
                let flow = *flow;
                // The engine may have ended the flow in this step. The end of the step then
                // publishes the end of the flow, and the program tries again.
                let state = self.stack.engine.flow(flow).ok_or(TakeError::Busy)?;
                let acked = state.tx_acked();
                let binding = self
                    .stack
                    .io
                    .bindings
                    .get_mut(flow)
                    .ok_or(TakeError::Busy)?;
                Ok(MovedRanges {
                    unread: self.stack.engine.received(flow).collect(),
                    unacked: acked..binding.tx_head,
                })
            }
            Some(SlotUse::Ended(binding)) => Ok(MovedRanges {
                unread: std::iter::once(binding.rx_read..binding.rx_head).collect(),
                unacked: binding.tx_head..binding.tx_head,
            }),
            _ => Err(TakeError::NotHeld),
        }
    }

    /// Allocates a slot and a receive buffer at the new home, and copies the data.
    fn prepare_home(
        &mut self,
        id: ProgramId,
        place: (ProgramId, u32),
        tx_buffer: BufferWord,
    ) -> Result<NewHome, TakeError> {
        let MovedRanges { unread, unacked } = self.moved_ranges(place)?;
        let old_region = self.region_of(place.0)?;
        let binding = self.binding_at(place).ok_or(TakeError::NotHeld)?;
        let (old_rx, old_tx) = (binding.rx, binding.tx);
        let program = self
            .stack
            .io
            .programs
            .get_mut(id)
            .ok_or(TakeError::NotHeld)?;
        let region = program.region.clone();
        let unacked_len = unacked.end.wrapping_sub(unacked.start);
        let tx = StreamBuffer::from_word(tx_buffer, region.layout().tx_area());
        if tx.map_or(0, StreamBuffer::len) < unacked_len {
            return Err(TakeError::BufferTooSmall(unacked_len));
        }
        let rx = match old_rx {
            Some(old) => Some(program.rx.alloc(old.log2).ok_or(TakeError::Limit)?),
            None => None,
        };
        let Some((slot, generation)) = program.take_slot() else {
            if let Some(rx) = rx {
                program.rx.free(rx);
            }
            return Err(TakeError::Limit);
        };
        let (from, to) = (old_region.region(), region.region());
        if let (Some(old), Some(new)) = (old_rx, rx) {
            BufferIn::new(from, old).copy_to(BufferIn::new(to, new), unread);
        }
        if let (Some(old), Some(new)) = (old_tx, tx) {
            BufferIn::new(from, old).copy_to(BufferIn::new(to, new), [unacked]);
        }
        Ok(NewHome {
            slot,
            generation,
            rx,
            tx,
            region,
        })
    }

    fn region_of(&self, id: ProgramId) -> Result<Arc<ProgramRegion>, TakeError> {
        let program = self.stack.io.programs.get(id).ok_or(TakeError::NotHeld)?;
        Ok(program.region.clone())
    }

    /// Moves the connection to `new_home`.
    fn move_to(
        &mut self,
        id: ProgramId,
        place: (ProgramId, u32),
        take: &Take,
        new_home: NewHome,
    ) -> Taken {
        let taken = Taken {
            slot: new_home.slot,
            generation: new_home.generation,
            listener: self.listener_key(place),
        };
        let (home, old_slot) = place;
        let old_region = self.region_of(home).ok();
        self.free_old_buffers(place);
        let mut old_context = 0;
        if let Some(binding) = self.binding_at(place) {
            old_context = binding.context;
            let old = old_region.as_ref().and_then(|region| region.slot(old_slot));
            rebind(binding, id, take, &new_home, old.map_or(0, slots::rx_read));
        }
        self.change_slots(id, place, take, &new_home, old_region.as_deref());
        if let Some(shared) = self.shared.by_number.get_mut(&take.connection) {
            shared.place = (id, new_home.slot);
        }
        // Free the former slot of this program, which may have had the connection before.
        self.release_former_slot(take.connection, id);
        self.keep_former_slot(place, take.connection, old_context);
        self.apply_holders(self.stack.io.now, take.connection, false);
        self.stack.io.programs.remove_unused(home);
        taken
    }

    /// Returns the cookie (SO_COOKIE) of the kernel socket whose listener accepted a connection.
    fn listener_key(&mut self, place: (ProgramId, u32)) -> Option<u64> {
        let listener = self.binding_at(place)?.listener?;
        Some(self.stack.io.listeners.get(listener)?.key)
    }

    /// Frees the connection's receive buffers in the region of the old home.
    fn free_old_buffers(&mut self, place: (ProgramId, u32)) {
        let Some(binding) = self.binding_at(place) else {
            return;
        };
        let buffers: Vec<StreamBuffer> = binding
            .rx
            .take()
            .into_iter()
            .chain(binding.rx_old.drain(..))
            .collect();
        if let Some(program) = self.stack.io.programs.get_mut(place.0) {
            for buffer in buffers {
                program.rx.free(buffer);
            }
        }
    }

    /// Detaches the connection from the old slot, and attaches the connection to the new slot.
    fn change_slots(
        &mut self,
        id: ProgramId,
        (home, old_slot): (ProgramId, u32),
        take: &Take,
        new_home: &NewHome,
        old_region: Option<&ProgramRegion>,
    ) {
        let Some(program) = self.stack.io.programs.get_mut(home) else {
            return;
        };
        let Some(old_use) = program.slot_use(old_slot) else {
            return;
        };
        match std::mem::replace(old_use, SlotUse::Free) {
            SlotUse::Live(flow) => {
                self.attach(flow, id, take.context, new_home.slot, new_home.generation);
                let Some(state) = self.stack.engine.flow(flow) else {
                    return;
                };
                let (rx_head, tx_acked) = (state.rx_head(), state.tx_acked());
                if let Some(binding) = self.stack.io.bindings.get_mut(flow) {
                    let publication = publish_at(binding, new_home, rx_head, tx_acked);
                    self.stack.io.bindings.mark_dirty(flow);
                    // Record the state as published, because a move alone need not notify the other
                    // holders.
                    if let Some(shared) = self.shared.by_number.get_mut(&take.connection) {
                        shared.published = Some(publication);
                    }
                }
            }
            SlotUse::Ended(mut binding) => {
                let (rx_head, tx_head) = (binding.rx_head, binding.tx_head);
                publish_at(&mut binding, new_home, rx_head, tx_head);
                let old = old_region.and_then(|region| region.slot(old_slot));
                if let (Some(old), Some(new)) = (old, new_home.region.slot(new_home.slot)) {
                    new.set_ids(&old.ids());
                }
                if let Some(program) = self.stack.io.programs.get_mut(id) {
                    program.set_slot(new_home.slot, SlotUse::Ended(binding));
                }
                self.announce_ended(id, new_home.slot, take.context);
            }
            SlotUse::Free | SlotUse::Former(_) => {}
        }
    }

    /// Keeps the old slot reserved if its program still holds the connection. Otherwise, frees the
    /// slot.
    fn keep_former_slot(&mut self, place: (ProgramId, u32), connection: u64, context: u32) {
        let (home, old_slot) = place;
        let Some(shared) = self.shared.by_number.get_mut(&connection) else {
            return;
        };
        let holds = shared.holders.contains(&Holder::Program(home));
        let Some(program) = self.stack.io.programs.get_mut(home) else {
            return;
        };
        if !holds {
            self.stack.io.programs.release_slot(home, old_slot, context);
            return;
        }
        let Some(view) = program.region.slot(old_slot) else {
            return;
        };
        let former = FormerSlot {
            connection,
            generation: slots::generation(view),
            context,
            notified: false,
        };
        program.set_slot(old_slot, SlotUse::Former(former));
        shared.former_slots.push((home, old_slot));
    }
}

/// Makes `new_home` in program `id` the home of a binding. `old_read` is the program's read
/// position in the old slot.
fn rebind(binding: &mut Binding, id: ProgramId, take: &Take, new_home: &NewHome, old_read: u32) {
    // Check the read position, because no check follows the end of a flow.
    let unread = binding.rx_head.wrapping_sub(binding.rx_read);
    if old_read.wrapping_sub(binding.rx_read) <= unread {
        binding.rx_read = old_read;
    }
    binding.home = id;
    binding.home_slot = SlotHandle::new(new_home.region.clone(), new_home.slot);
    binding.slot = new_home.slot;
    binding.generation = new_home.generation;
    binding.context = take.context;
    binding.rx = new_home.rx;
    binding.tx = new_home.tx;
    binding.tx_word = new_home.tx.map_or(0, StreamBuffer::to_word);
    binding.program_flags &= MOVED_FLAGS;
    binding.closed_by_program = false;
    binding.announce = true;
}

/// Writes the state of the connection to the new slot. Returns the state that [`slots::publish`]
/// has published.
fn publish_at(
    binding: &mut Binding,
    new_home: &NewHome,
    rx_head: u32,
    tx_acked: u32,
) -> Publication {
    let resumption = ResumedState {
        flags: binding.program_flags,
        tx_head: binding.tx_head,
        rx_read: binding.rx_read,
        tx_buffer: binding.tx_word,
        rx_buffer: binding.rx_word(),
    };
    let publication = Publication {
        rx_head,
        tx_acked,
        flags: binding.service_flags,
        cause: binding.cause,
    };
    if let Some(view) = new_home.region.slot(new_home.slot) {
        slots::resume_use(view, &resumption);
        binding.begin_urgent(view);
        slots::set_tx_sent(view, tx_acked);
        slots::publish(view, &publication);
    }
    publication
}
