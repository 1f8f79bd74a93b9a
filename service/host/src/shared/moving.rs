//! Moves of a connection from the memory of one program to the memory of another program. A
//! *program* is a process that has registered with the service. The *home* of a connection is the
//! program whose memory has the *slot* (the connection's record) and the buffers of the connection.
//! The home shares this memory with the service.

use std::{ops::Range, sync::Arc};

use tidelane_abi::{BufferWord, program_flags, service_flags};
use tidelane_engine::Engine;
use tidelane_ring::{ProgramRegion, SlotHandle, StreamBuffer};

use crate::{
    ProgramId,
    bindings::{Binding, Bindings, SlotUse},
    buffer_copy::BufferIn,
    ids::SlotId,
    listeners::Listeners,
    memory::Buffers,
    program::{Programs, TakenSlot},
    slots::{self, Publication, ResumedState},
};

/// Program flags that move with the connection.
const MOVED_FLAGS: u32 = !(program_flags::CLOSE | program_flags::ABORT);
/// The service flag of a slot whose connection moves, or has moved, to another program.
const MIGRATED: u32 = service_flags::MIGRATED;

/// A request of a program to move a connection into the program's memory. The program must hold the
/// connection, which several processes share after a fork.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    /// The connection's number.
    pub connection: u64,
    /// Number of a context (the rings of one thread) of the requesting program. The context gets
    /// the connection's events after the move.
    pub context: u32,
    /// Buffer word (the encoded offset and size) of the program's send buffer, which takes the
    /// unacknowledged data. The word is 0 for no buffer.
    pub tx_buffer: BufferWord,
}

/// The slot of the connection after the move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Number of the slot, in the memory of the program that took the connection.
    pub slot: u32,
    /// The slot's generation, a counter that changes when a use of the slot begins or ends.
    pub generation: u32,
    /// Cookie (SO_COOKIE) of the kernel socket whose listener accepted the connection. `None` for
    /// an active open, or if the host has no active listener of this socket.
    pub listener: Option<u64>,
}

/// The reason why a connection was not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// The connection does not exist or is not shared, or the program does not hold the connection.
    NotHeld,
    /// The program already is the home of the shared connection.
    AtHome,
    /// The home is copying data from or to the buffers of the connection, or the service is about
    /// to publish the end of the flow. The program has to try again.
    Busy,
    /// The program's send buffer is too small for the unacknowledged data. The value is the number
    /// of bytes of this data.
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
pub(crate) struct NewHome {
    slot: TakenSlot,
    /// Receive buffer.
    rx: Option<StreamBuffer>,
    /// Send buffer.
    tx: Option<StreamBuffer>,
    /// The program's memory, in which the slot and the buffers lie.
    region: Arc<ProgramRegion>,
}

/// A connection that has moved to its new home.
pub(crate) struct Moved {
    /// The slot at the new home.
    pub(crate) slot: SlotId,
    /// Number of the context that got the connection's events at the old home.
    pub(crate) old_context: u32,
    /// The state that the new slot shows. `None` if the flow has ended.
    pub(crate) published: Option<Publication>,
    /// The answer for the program.
    pub(crate) taken: Taken,
}

/// The move of a connection from its home to another program. The stages are
/// [`stop_home`](Self::stop_home), [`prepare`](Self::prepare) and [`finish`](Self::finish). Until
/// `finish`, [`cancel`](Self::cancel) leaves the connection at its home.
pub(crate) struct Move<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) programs: &'a mut Programs,
    pub(crate) bindings: &'a mut Bindings,
    pub(crate) listeners: &'a Listeners,
    /// The slot at the home.
    pub(crate) from: SlotId,
    /// The program that takes the connection.
    pub(crate) to: ProgramId,
    /// The program's request.
    pub(crate) take: Take,
}

impl Move<'_> {
    /// Returns [`TakeError::BufferTooSmall`] if the program's send buffer is too small for the
    /// unacknowledged data of which the host knows. The home may have written more data.
    pub(crate) fn check_buffer(&mut self) -> Result<(), TakeError> {
        let unacked = self.moved_ranges()?.unacked;
        self.tx_buffer(unacked.end.wrapping_sub(unacked.start))?;
        Ok(())
    }

    /// Returns the program's send buffer, or `None` if the request has no valid buffer. Fails if
    /// the buffer has no room for `len` bytes. A missing buffer has room for 0 bytes.
    fn tx_buffer(&self, len: u32) -> Result<Option<StreamBuffer>, TakeError> {
        let area = self.region_of(self.to)?.layout().tx_area();
        let tx = StreamBuffer::from_word(self.take.tx_buffer, area);
        match tx.map_or(0, StreamBuffer::len) < len {
            true => Err(TakeError::BufferTooSmall(len)),
            false => Ok(tx),
        }
    }

    /// Stops reads and writes of the home. Returns [`TakeError::Busy`] if the home is copying data.
    /// After a success, the caller processes the home's earlier reads and writes. After an error,
    /// the caller calls [`cancel`](Self::cancel).
    pub(crate) fn stop_home(&mut self) -> Result<(), TakeError> {
        self.programs.add_flags(self.from, MIGRATED);
        let Some(binding) = self.bindings.of_slot(self.from, self.programs) else {
            return Err(TakeError::NotHeld);
        };
        let left = binding.closed_by_program;
        let program = self.programs.get(self.from.program);
        let is_copying = program.is_some_and(|program| {
            let view = program.region.slot(self.from.slot);
            !left && !program.gone && view.is_some_and(slots::is_copying)
        });
        match is_copying {
            true => Err(TakeError::Busy),
            false => Ok(()),
        }
    }

    /// Lets the home read and write again.
    pub(crate) fn cancel(&mut self) {
        self.programs.remove_flags(self.from, MIGRATED);
    }

    /// Returns the stream positions of the data that moves with the connection.
    fn moved_ranges(&mut self) -> Result<MovedRanges, TakeError> {
        match self.programs.slot_use(self.from) {
            Some(SlotUse::Live(flow)) => {
                // The engine may have ended the flow in the current step of the core. The core
                // publishes the end of the flow at the end of the step. Until then, the program has
                // to try again.
                let state = self.engine.flow(*flow).ok_or(TakeError::Busy)?;
                let binding = self.bindings.get(*flow).ok_or(TakeError::Busy)?;
                Ok(MovedRanges {
                    unread: self.engine.received(*flow).collect(),
                    unacked: state.tx_acked()..binding.tx_head,
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
    pub(crate) fn prepare(&mut self) -> Result<NewHome, TakeError> {
        let MovedRanges { unread, unacked } = self.moved_ranges()?;
        let old_region = self.region_of(self.from.program)?;
        let binding = self.bindings.of_slot(self.from, self.programs);
        let binding = binding.ok_or(TakeError::NotHeld)?;
        let (old_rx, old_tx) = (binding.rx, binding.tx);
        let region = self.region_of(self.to)?;
        let tx = self.tx_buffer(unacked.end.wrapping_sub(unacked.start))?;
        let (slot, rx) = self.allocate(old_rx)?;
        let (from, to) = (old_region.region(), region.region());
        if let (Some(old), Some(new)) = (old_rx, rx) {
            BufferIn::new(from, old).copy_to(BufferIn::new(to, new), unread);
        }
        if let (Some(old), Some(new)) = (old_tx, tx) {
            BufferIn::new(from, old).copy_to(BufferIn::new(to, new), [unacked]);
        }
        Ok(NewHome {
            slot,
            rx,
            tx,
            region,
        })
    }

    /// Allocates a slot, and a receive buffer with the same capacity as `old_rx`.
    fn allocate(
        &mut self,
        old_rx: Option<StreamBuffer>,
    ) -> Result<(TakenSlot, Option<StreamBuffer>), TakeError> {
        let program = self.programs.get_mut(self.to).ok_or(TakeError::NotHeld)?;
        let rx = match old_rx {
            Some(old) => Some(program.rx.alloc(old.log2).ok_or(TakeError::Limit)?),
            None => None,
        };
        let slot = self.programs.take_slot(self.to, self.take.context);
        if slot.is_none()
            && let Some(rx) = rx
            && let Some(program) = self.programs.get_mut(self.to)
        {
            program.rx.free(rx);
        }
        Ok((slot.ok_or(TakeError::Limit)?, rx))
    }

    fn region_of(&self, id: ProgramId) -> Result<Arc<ProgramRegion>, TakeError> {
        let program = self.programs.get(id).ok_or(TakeError::NotHeld)?;
        Ok(program.region.clone())
    }

    /// Moves the connection to `new_home`.
    pub(crate) fn finish(mut self, new_home: &NewHome) -> Moved {
        let taken = Taken {
            slot: new_home.slot.id.slot,
            generation: new_home.slot.generation,
            listener: self.listener_key(),
        };
        let old_region = self.region_of(self.from.program).ok();
        self.free_old_buffers();
        let mut old_context = 0;
        if let Some(binding) = self.bindings.of_slot(self.from, self.programs) {
            old_context = binding.context;
            let old = old_region.as_ref();
            let old = old.and_then(|region| region.slot(self.from.slot));
            rebind(binding, new_home, old.map_or(0, slots::rx_read));
        }
        let published = self.change_slots(new_home, old_region.as_deref());
        Moved {
            slot: new_home.slot.id,
            old_context,
            published,
            taken,
        }
    }

    /// Returns the cookie (SO_COOKIE) of the kernel socket whose listener accepted the connection.
    fn listener_key(&mut self) -> Option<u64> {
        let listener = self.bindings.of_slot(self.from, self.programs)?.listener?;
        Some(self.listeners.get(self.listeners.id_of(listener)?)?.key)
    }

    /// Frees the connection's receive buffers in the region of the old home.
    fn free_old_buffers(&mut self) {
        let Some(binding) = self.bindings.of_slot(self.from, self.programs) else {
            return;
        };
        let buffers: Vec<StreamBuffer> = binding
            .rx
            .take()
            .into_iter()
            .chain(binding.rx_old.drain(..))
            .collect();
        if let Some(program) = self.programs.get_mut(self.from.program) {
            for buffer in buffers {
                program.rx.free(buffer);
            }
        }
    }

    /// Detaches the connection from the old slot, and attaches the connection to the new slot.
    /// Returns the state that the new slot shows for a live flow.
    fn change_slots(
        &mut self,
        new_home: &NewHome,
        old_region: Option<&ProgramRegion>,
    ) -> Option<Publication> {
        let old_use = self.programs.slot_use(self.from)?;
        match std::mem::replace(old_use, SlotUse::Free) {
            SlotUse::Live(flow) => {
                let engine = self.engine;
                self.bindings
                    .attach(flow, &new_home.slot, engine, self.programs);
                let state = engine.flow(flow)?;
                let binding = self.bindings.get_mut(flow)?;
                let publication = publish_at(binding, new_home, state.rx_head(), state.tx_acked());
                self.bindings.mark_dirty(flow);
                Some(publication)
            }
            SlotUse::Ended(mut binding) => {
                let (rx_head, tx_head) = (binding.rx_head, binding.tx_head);
                publish_at(&mut binding, new_home, rx_head, tx_head);
                let new = new_home.slot.id;
                let old = old_region.and_then(|region| region.slot(self.from.slot));
                if let (Some(old), Some(view)) = (old, new_home.region.slot(new.slot)) {
                    view.set_ids(&old.ids());
                }
                if let Some(slot_use) = self.programs.slot_use(new) {
                    *slot_use = SlotUse::Ended(binding);
                }
                self.programs.announce_ended(new, new_home.slot.context);
                None
            }
            SlotUse::Free | SlotUse::Former(_) => None,
        }
    }
}

/// Makes `new_home` the home of a binding (the host's record of a connection's slot and buffers).
/// `old_read` is the read position that the old home wrote to the old slot.
fn rebind(binding: &mut Binding, new_home: &NewHome, old_read: u32) {
    let TakenSlot {
        id,
        generation,
        context,
    } = new_home.slot;
    // Check the read position, which the old home may have falsified. If the flow has ended, no
    // later code checks the position.
    let unread = binding.rx_head.wrapping_sub(binding.rx_read);
    if old_read.wrapping_sub(binding.rx_read) <= unread {
        binding.rx_read = old_read;
    }
    binding.home = id.program;
    binding.home_slot = SlotHandle::new(new_home.region.clone(), id.slot);
    binding.slot = id.slot;
    binding.generation = generation;
    binding.context = context;
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
    if let Some(view) = new_home.region.slot(new_home.slot.id.slot) {
        slots::resume_use(view, &resumption);
        binding.begin_urgent(view);
        slots::set_tx_sent(view, tx_acked);
        slots::publish(view, &publication);
    }
    publication
}
