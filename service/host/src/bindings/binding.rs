//! The binding of a flow (a connection of the engine) to its program: slot, buffers, and path of
//! the frames.

mod urgent;

use std::sync::Arc;

use tidelane_abi::{BufferWord, close_cause, service_flags};
use tidelane_engine::{Advance, CloseCause, Engine, FlowId, Misuse};
use tidelane_ring::{Region, SlotHandle, SlotView, StreamBuffer};
use tidelane_wire::Endpoint;

use self::urgent::Urgent;
use crate::{
    accounts::Charge,
    credentials::Credentials,
    ids::{ListenerOfFlow, ProgramId, SlotId},
    memory::Buffers,
    neighbours::Path,
    slots::{self, ProgramView},
};

/// The home of a connection that no program has yet. The *home* is the program whose memory holds
/// the connection. This number stands for no program, but for the staging area, which is the host's
/// own region (memory for buffers).
pub const STAGING: ProgramId = ProgramId(0);
/// Binary logarithm of the smallest receive buffer in bytes: 4 KiB.
const RX_LOG2_FIRST: u8 = 12;

/// The host's record of a flow: its slot, its buffers, its path, and the program whose memory holds
/// the connection.
pub struct Binding {
    /// The program that has the slot and the buffers; [`STAGING`] until a program gets the
    /// connection.
    pub home: ProgramId,
    /// Number of the connection, unique in the service; 0 until a program has the connection.
    pub connection: u64,
    /// Number of the slot (the connection's record in shared memory) in the home's region;
    /// `u32::MAX` in staging.
    pub slot: u32,
    /// The same slot as a handle, which saves a look-up of the region. `None` in staging.
    pub home_slot: Option<SlotHandle>,
    /// The slot's generation: a counter that is odd while the slot is in use. 0 in staging.
    pub generation: u32,
    /// Number of the home's context (the rings of one thread) on which the events of the connection
    /// go to the program.
    pub context: u32,
    /// Listener of a passive open. `None` for an active open, and until the engine reports that the
    /// passive open is complete.
    pub listener: Option<ListenerOfFlow>,
    /// Path of the flow's frames to the peer.
    pub path: Path,
    /// Local port.
    pub local_port: u16,
    /// The program that reserved the local port, and the reserved endpoint. At the end of the flow,
    /// the host reports the program and the endpoint to the daemon. `None` if no program reserved
    /// the port.
    pub reserved: Option<(ProgramId, Endpoint)>,
    /// Buffer for received data.
    pub rx: Option<StreamBuffer>,
    /// Replaced receive buffers from which the program may still read.
    pub rx_old: Vec<StreamBuffer>,
    /// Validated stream position up to which the program has read.
    pub rx_read: u32,
    /// `rx_head` as published most recently: the stream position after the received data.
    pub rx_head: u32,
    /// Validated send buffer of the program.
    pub tx: Option<StreamBuffer>,
    /// The buffer word from which `tx` was made.
    pub tx_word: BufferWord,
    /// `tx_head` as passed to the engine most recently: the stream position after the written data.
    pub tx_head: u32,
    /// Bits of [`tidelane_abi::program_flags`] that the host processed most recently.
    pub program_flags: u32,
    /// Bits of [`service_flags`] to publish. The flag CLOSED is set when the flow has ended.
    pub service_flags: u32,
    /// Close cause of a flow that has ended or is being aborted. Otherwise 0.
    pub cause: u32,
    /// Value of [`tidelane_abi::ServiceHalf::soft_error`]: the number of errors that did not end
    /// the connection, and the most recent of these errors.
    pub soft_error: u32,
    /// Urgent data in both directions.
    pub urgent: Urgent,
    /// True if the flow is in the host's list of flows to publish.
    pub dirty: bool,
    /// True if the program needs an event, even if no field of the slot has changed.
    pub announce: bool,
    /// True once the program has closed the slot.
    pub closed_by_program: bool,
    /// True if the program asked for the sent position (TCP_NOTSENT_LOWAT).
    pub reports_sent: bool,
    /// True if data was received since the last sweep for idle buffers that examined the flow.
    pub active: bool,
    /// Credentials of the program that listened or connected, for checks when the rules change.
    pub owner: Option<Arc<Credentials>>,
    /// The charge to the user for the connection; `None` for connections without a user.
    pub charge: Option<Charge>,
    /// The charge for the connection's place in a SYN queue. `None` if the connection has no place.
    pub half_open: Option<Charge>,
}

impl Binding {
    /// Returns the binding of a new flow, without a program.
    pub fn new(path: Path, local_port: u16) -> Self {
        let service_flags = match path {
            Path::Local => service_flags::LOCAL_PATH,
            Path::Port { .. } | Path::Waiting { .. } | Path::Mux { .. } | Path::Nowhere => 0,
        };
        Self {
            home: STAGING,
            connection: 0,
            slot: u32::MAX,
            home_slot: None,
            generation: 0,
            context: 0,
            listener: None,
            path,
            local_port,
            reserved: None,
            rx: None,
            rx_old: Vec::new(),
            rx_read: 0,
            rx_head: 0,
            tx: None,
            tx_word: 0,
            tx_head: 0,
            program_flags: 0,
            service_flags,
            cause: 0,
            soft_error: 0,
            urgent: Urgent::default(),
            dirty: false,
            announce: false,
            closed_by_program: false,
            reports_sent: false,
            active: false,
            owner: None,
            charge: None,
            half_open: None,
        }
    }

    /// Returns the slot of the connection.
    pub fn slot_id(&self) -> SlotId {
        SlotId {
            program: self.home,
            slot: self.slot,
        }
    }

    /// Returns true if a program has the connection.
    pub fn is_bound(&self) -> bool {
        self.home != STAGING
    }

    /// Copies `payload` to stream position `pos` of the receive buffer. Allocates or enlarges the
    /// buffer if needed. Returns false if there is no memory.
    pub fn place(
        &mut self,
        region: &Region,
        slot: Option<SlotView<'_>>,
        allocator: &mut impl Buffers,
        pos: u32,
        payload: &[u8],
    ) -> bool {
        let end = pos.wrapping_add(payload.len() as u32);
        if !self.rx_holds(end) {
            self.catch_up_reads(slot);
            if !self.rx_holds(end) && !self.enlarge(region, slot, allocator, end) {
                return false;
            }
        }
        let Some(buffer) = self.rx else { return false };
        self.active = true;
        buffer.write(region, pos, payload)
    }

    /// Passes the program's read and write positions to the engine. Returns false if a position is
    /// invalid. Also returns true if the flow has ended.
    #[inline(always)]
    pub fn advance(&mut self, flow: FlowId, view: &ProgramView, engine: &mut Engine) -> bool {
        let to = Advance {
            rx_read: view.rx_read,
            tx_head: view.tx_head,
            tx_room: self.tx.map_or(0, StreamBuffer::len),
        };
        match engine.advance(flow, &to) {
            Ok(()) => {
                self.tx_head = view.tx_head;
                self.rx_read = view.rx_read;
                true
            }
            Err(misuse) => misuse == Misuse::NoFlow,
        }
    }

    /// Returns the receive buffer if its present size has room for `len` bytes at stream position
    /// `pos`.
    #[inline(always)]
    pub fn rx_for(&self, pos: u32, len: usize) -> Option<StreamBuffer> {
        let end = pos.wrapping_add(len as u32);
        let fits = |buffer: &StreamBuffer| end.wrapping_sub(self.rx_read) <= buffer.len();
        self.rx.filter(fits)
    }

    /// Returns true if the receive buffer has room for the unread data up to stream position `end`.
    fn rx_holds(&self, end: u32) -> bool {
        self.rx
            .is_some_and(|buffer| end.wrapping_sub(self.rx_read) <= buffer.len())
    }

    /// Updates `rx_read` from the slot, because the program may have read more since its last
    /// request. Ignores a position that is not between `rx_read` and `rx_head`.
    fn catch_up_reads(&mut self, slot: Option<SlotView<'_>>) {
        let Some(slot) = slot else { return };
        let read = slots::rx_read(slot);
        if read.wrapping_sub(self.rx_read) <= self.rx_head.wrapping_sub(self.rx_read) {
            self.rx_read = read;
        }
    }

    /// Allocates a receive buffer with room up to stream position `end`, and copies the data of the
    /// present buffer, if there is one, to the new buffer. Returns false if there is no memory.
    fn enlarge(
        &mut self,
        region: &Region,
        slot: Option<SlotView<'_>>,
        allocator: &mut impl Buffers,
        end: u32,
    ) -> bool {
        let needed = end.wrapping_sub(self.rx_read).max(1 << RX_LOG2_FIRST);
        let log2 = needed.next_power_of_two().trailing_zeros() as u8;
        let Some(larger) = allocator.alloc(log2) else {
            return false;
        };
        if let Some(old) = self.rx.replace(larger) {
            let last = self.rx_read.wrapping_add(old.len());
            old.relocate(region, larger, self.rx_read, last);
            match slot {
                Some(_) => self.rx_old.push(old),
                None => {
                    allocator.free(old);
                }
            }
        }
        if let Some(slot) = slot {
            slots::set_rx_buffer(slot, self.rx_word());
        }
        true
    }

    /// Records a soft error (RFC 9293 §3.9.2.2), which does not end the flow. If no program has the
    /// flow yet, no program learns of the error.
    pub fn note_soft_error(&mut self, cause: CloseCause) {
        self.soft_error = (self.soft_error & !0xff).wrapping_add(1 << 8) | cause.to_u32();
        if let Some(home_slot) = &self.home_slot {
            slots::set_soft_error(home_slot.view(), self.soft_error);
            self.service_flags |= service_flags::SOFT_ERROR;
        }
    }

    /// Frees all receive buffers.
    pub fn free_rx(&mut self, allocator: &mut impl Buffers) {
        for buffer in self.rx.take().into_iter().chain(self.rx_old.drain(..)) {
            allocator.free(buffer);
        }
    }
}

/// The old slot of a connection that has moved to another program after a fork. The slot's program
/// still shares the connection, and may move the connection back into its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormerSlot {
    /// Number of the connection.
    pub connection: u64,
    /// The slot's generation.
    pub generation: u32,
    /// Number of the program's context that gets the notification of a change.
    pub context: u32,
    /// True if the program was notified of a change and has not taken the connection since.
    pub notified: bool,
}

/// The use of a slot of a program.
pub enum SlotUse {
    /// The slot is free.
    Free,
    /// The slot belongs to a flow of the engine.
    Live(FlowId),
    /// The flow has ended, and the program has not closed the slot yet.
    Ended(Box<Binding>),
    /// The slot is reserved for a shared connection that is at present in another program's memory.
    Former(FormerSlot),
}

/// Returns the close cause to publish for a flow that has ended. `cause` is the cause that the
/// engine reported. If both sides have closed the connection by FIN, the engine reports no cause,
/// and `cause` is 0.
pub fn cause_or_finished(cause: u32) -> u32 {
    if cause == 0 {
        close_cause::FINISHED
    } else {
        cause
    }
}
