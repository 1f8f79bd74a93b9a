//! The binding of a flow to its program: slot, buffers, next hop.

use std::sync::Arc;

use tidelane_abi::{BufferWord, close_cause, service_flags};
use tidelane_engine::{FlowId, ListenerId};
use tidelane_ring::{Region, SlotHandle, SlotView, StreamBuffer};
use tidelane_wire::{Endpoint, HeaderTemplate};

use crate::{
    accounts::Charge, hops::HopId, memory::Buffers, program::ProgramId, rules::Credentials, slots,
    urgent::Urgent,
};

/// Buffers of a connection whose program does not have it yet lie in the host's own region, under
/// this number.
pub const STAGING: ProgramId = ProgramId(0);
/// A receive buffer starts with this size (4 KiB) unless the first segment needs more.
const RX_LOG2_FIRST: u8 = 12;

/// How frames of a flow reach the peer.
#[derive(Clone, Copy, Debug)]
pub enum Path {
    /// Over the memory wire.
    Memory,
    /// Through a port, to a neighbour.
    Port {
        /// The neighbour, which is held. `None` before a passive open from the link is complete:
        /// what is sent goes back where the SYN came from.
        hop: Option<HopId>,
        /// Ethernet and IP header with the link address known last.
        template: HeaderTemplate,
    },
    /// Through a port as soon as the kernel has resolved the neighbour: nothing is sent before.
    Waiting {
        /// The neighbour, which is held. `None` without a route, and with too many neighbours.
        hop: Option<HopId>,
        /// Ethernet and IP header without a link address.
        template: HeaderTemplate,
    },
    /// Nowhere: a rule drops what the program sends to open the connection.
    Nowhere,
}

impl Path {
    /// The headers of a path over a port.
    pub fn template_mut(&mut self) -> Option<&mut HeaderTemplate> {
        match self {
            Self::Memory | Self::Nowhere => None,
            Self::Port { template, .. } | Self::Waiting { template, .. } => Some(template),
        }
    }

    /// The neighbour that the path holds.
    pub fn hop_mut(&mut self) -> Option<&mut HopId> {
        match self {
            Self::Memory | Self::Nowhere => None,
            Self::Port { hop, .. } | Self::Waiting { hop, .. } => hop.as_mut(),
        }
    }
}

/// A flow's tie to a program.
pub struct Binding {
    /// The program that has the buffers; [`STAGING`] until one accepts the connection.
    pub home: ProgramId,
    /// Number of the connection, unique in this host; 0 until a program has it.
    pub connection: u64,
    /// Slot in the home's region (none in staging).
    pub slot: u32,
    /// The same, to look at without a search. None in staging.
    pub seat: Option<SlotHandle>,
    /// The slot's generation.
    pub generation: u32,
    /// Context of the home that gets the events.
    pub context: u32,
    /// Listener that it came from.
    pub listener: Option<ListenerId>,
    /// How frames leave.
    pub path: Path,
    /// Its local port.
    pub local_port: u16,
    /// A local end that a program reserved, and which program: told to the driver at the end.
    pub reserved: Option<(ProgramId, Endpoint)>,
    /// Where received bytes are placed.
    pub rx: Option<StreamBuffer>,
    /// Replaced receive buffers that the program may still be reading.
    pub rx_old: Vec<StreamBuffer>,
    /// Bytes before this were read by the program, and checked.
    pub rx_read: u32,
    /// `rx_head` as last published.
    pub rx_head: u32,
    /// Where bytes to send lie, as validated.
    pub tx: Option<StreamBuffer>,
    /// The word that `tx` was made from.
    pub tx_word: BufferWord,
    /// `tx_head` as last passed to the engine.
    pub tx_head: u32,
    /// Program flags as last acted upon.
    pub program_flags: u32,
    /// Service flags to publish; CLOSED since there is a cause.
    pub service_flags: u32,
    /// Close cause, once there is one.
    pub cause: u32,
    /// The last error that did not end it, as the slot has it.
    pub soft_error: u32,
    /// Urgent data, both ways.
    pub urgent: Urgent,
    /// It is in the host's list of flows to publish.
    pub dirty: bool,
    /// The program must be told even if no field changed.
    pub announce: bool,
    /// The program closed the slot.
    pub closed_by_program: bool,
    /// The program wants to know when bytes were sent (TCP_NOTSENT_LOWAT).
    pub reports_sent: bool,
    /// Something was received since the last sweep for idle buffers.
    pub active: bool,
    /// Whose the program is that listened or connected: for rules that come later.
    pub owner: Option<Arc<Credentials>>,
    /// The charge of its user for the connection; none for connections of nobody.
    pub charge: Option<Charge>,
    /// And for its place in a SYN queue, as long as it has one.
    pub half_open: Option<Charge>,
}

impl Binding {
    /// A new flow's tie, at home nowhere yet.
    pub fn new(path: Path, local_port: u16) -> Self {
        let service_flags = match path {
            Path::Memory => service_flags::MEMORY_WIRE,
            Path::Port { .. } | Path::Waiting { .. } | Path::Nowhere => 0,
        };
        Self {
            home: STAGING,
            connection: 0,
            slot: u32::MAX,
            seat: None,
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

    /// Returns true if a program has the connection.
    pub fn is_bound(&self) -> bool {
        self.home != STAGING
    }

    /// Copies `payload` to stream position `pos` of the receive buffer, which is made or enlarged
    /// as needed. False if there is no memory.
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

    /// The receive buffer, if it has room for `len` bytes at `pos` as it is.
    #[inline(always)]
    pub fn rx_for(&self, pos: u32, len: usize) -> Option<StreamBuffer> {
        let end = pos.wrapping_add(len as u32);
        let fits = |buffer: &StreamBuffer| end.wrapping_sub(self.rx_read) <= buffer.len();
        self.rx.filter(fits)
    }

    fn rx_holds(&self, end: u32) -> bool {
        self.rx
            .is_some_and(|buffer| end.wrapping_sub(self.rx_read) <= buffer.len())
    }

    /// Looks how far the program has read since its last announcement.
    fn catch_up_reads(&mut self, slot: Option<SlotView<'_>>) {
        let Some(slot) = slot else { return };
        let read = slots::rx_read(slot);
        if read.wrapping_sub(self.rx_read) <= self.rx_head.wrapping_sub(self.rx_read) {
            self.rx_read = read;
        }
    }

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

    /// Gives all receive buffers back.
    pub fn free_rx(&mut self, allocator: &mut impl Buffers) {
        for buffer in self.rx.take().into_iter().chain(self.rx_old.drain(..)) {
            allocator.free(buffer);
        }
    }
}

/// The rest of a connection in the slot of a program that holds it while another program has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stub {
    /// Number of the connection.
    pub connection: u64,
    /// The slot's generation.
    pub generation: u32,
    /// Context that waits for it.
    pub context: u32,
    /// The program was told of news, and has not taken the connection since.
    pub told: bool,
}

/// A slot that a program has: with a live flow, or with what is left of one.
pub enum SlotUse {
    /// No one has it.
    Free,
    /// A flow of the engine has it.
    Live(FlowId),
    /// The flow is over; the program has not closed the slot yet.
    Ended(Box<Binding>),
    /// A shared connection that another program has at present.
    Elsewhere(Stub),
}

/// The cause to publish for a binding that ends without one.
pub fn cause_or_finished(cause: u32) -> u32 {
    if cause == 0 {
        close_cause::FINISHED
    } else {
        cause
    }
}
