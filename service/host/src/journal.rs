//! The journal of connections: the state from which another process resets the connections of a
//! killed service.
//!
//! When a process is killed, the kernel ends the kernel connections of the process. The kernel does
//! not know the connections of a killed service, so their peers could wait for ever. The process
//! `tdl-restorer` outlives the service, and shares the memory of the journal with the service.
//! After a kill, `tdl-restorer` sends the peer of each entry an ACK. The peer's answer makes the
//! kernel reset the connection.
//!
//! ```text
//!   a core's area:   | header |  page  |  page  |  page  | ...
//!                               64 entries of 64 bytes, by number of the flow
//! ```
//!
//! The header is a page that contains `bound`: the index after the highest entry that was ever in
//! use. A page takes no memory before its first entry.
//!
//! The host writes an entry when a connection is established, and clears the entry when the flow
//! ends. The sweep (periodic work, `sweep.rs`) updates the sequence numbers at intervals. A peer
//! that only waits for data sends nothing. Its connection is idle: the sequence numbers do not
//! change, and the next update makes the entry exact. The host returns pages without entries to the
//! system.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{Ordering, compiler_fence},
    },
};

use tidelane_engine::{Engine, Event, FlowId};
use tidelane_ring::Region;
use tidelane_wire::{Endpoint, FlowKey, IpAddress, SeqNumber};

use crate::{bindings::Bindings, neighbours::Path};

/// Size of an entry in bytes.
const ENTRY: u64 = 64;
/// Size in bytes of a page, and of the header of an area.
const PAGE: u64 = 4096;
/// Number of entries in a page.
const ENTRIES_OF_PAGE: u32 = (PAGE / ENTRY) as u32;
/// Offset of the state word in an entry. The host writes this word last.
const STATE_AT: usize = 48;
/// Offset of the sequence numbers in an entry.
const NUMBERS_AT: usize = 36;
/// Limit of flows whose entries one sweep updates.
const PART_MAX: usize = 4096;
/// Bit of the state word: the entry belongs to a connection.
const USED: u32 = 1;
/// Bit of the state word: the connection uses timestamps.
const TIMESTAMPS: u32 = 1 << 1;

/// A connection in the journal, for the process that outlives the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// The 4-tuple.
    pub key: FlowKey,
    /// SND.UNA, or an earlier value.
    pub snd_una: SeqNumber,
    /// RCV.NXT, or an earlier value.
    pub rcv_nxt: SeqNumber,
    /// TSval minus the timestamp clock, which counts milliseconds. `None` if the connection uses no
    /// timestamps (RFC 7323).
    pub timestamp_offset: Option<u32>,
}

impl JournalEntry {
    fn to_bytes(self) -> [u8; STATE_AT] {
        let mut bytes = [0; STATE_AT];
        let ports = [self.key.local.port, self.key.peer.port];
        bytes[..16].copy_from_slice(&self.key.local.addr.0);
        bytes[16..32].copy_from_slice(&self.key.peer.addr.0);
        bytes[32..34].copy_from_slice(&ports[0].to_ne_bytes());
        bytes[34..36].copy_from_slice(&ports[1].to_ne_bytes());
        bytes[NUMBERS_AT..44].copy_from_slice(&numbers(self.snd_una, self.rcv_nxt));
        let offset = self.timestamp_offset.unwrap_or(0);
        bytes[44..].copy_from_slice(&offset.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; ENTRY as usize]) -> Option<Self> {
        let word = |at: usize| {
            let word = bytes[at..].first_chunk().copied();
            u32::from_ne_bytes(word.unwrap_or_default())
        };
        let end = |addr: usize, port: usize| {
            let addr = bytes[addr..].first_chunk().copied().unwrap_or_default();
            let port = bytes[port..].first_chunk().copied().unwrap_or_default();
            Endpoint::new(IpAddress(addr), u16::from_ne_bytes(port))
        };
        let state = word(STATE_AT);
        (state & USED != 0).then(|| Self {
            key: FlowKey {
                local: end(0, 32),
                peer: end(16, 34),
            },
            snd_una: SeqNumber(word(NUMBERS_AT)),
            rcv_nxt: SeqNumber(word(NUMBERS_AT + 4)),
            timestamp_offset: (state & TIMESTAMPS != 0).then(|| word(44)),
        })
    }
}

/// Encodes the sequence numbers of an entry in host byte order.
fn numbers(snd_una: SeqNumber, rcv_nxt: SeqNumber) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&snd_una.to_u32().to_ne_bytes());
    bytes[4..].copy_from_slice(&rcv_nxt.to_u32().to_ne_bytes());
    bytes
}

/// The memory of a journal: an area for each core.
#[derive(Clone, Debug)]
pub struct JournalMemory {
    region: Arc<Region>,
    /// Number of entries in the area of a core.
    flows_max: u32,
}

impl JournalMemory {
    /// Allocates the memory for `cores` cores with `flows_max` flows each. Child processes share
    /// the memory.
    pub fn create(cores: u32, flows_max: u32) -> io::Result<Self> {
        Self::with_file(cores, flows_max).map(|(memory, _)| memory)
    }

    fn with_file(cores: u32, flows_max: u32) -> io::Result<(Self, OwnedFd)> {
        let len = u64::from(cores) * area_len(flows_max);
        let (region, file) = Region::create("tidelane-journal", len)?;
        let region = Arc::new(region);
        Ok((Self { region, flows_max }, file))
    }

    /// Returns the journal of a core.
    ///
    /// # Panics
    ///
    /// Panics if the journal has no area for `core`.
    pub fn of_core(&self, core: u32) -> FlowJournal {
        let start = u64::from(core) * area_len(self.flows_max);
        assert!(start < self.region.len(), "no area for this core");
        FlowJournal {
            region: self.region.clone(),
            start,
            flows_max: self.flows_max,
            bound: 0,
            used: 0,
            pages: Vec::new(),
            emptied: Vec::new(),
            idle: Vec::new(),
        }
    }

    /// Returns the entries of all cores. The caller first waits for the end of the service, because
    /// a running service changes the entries.
    pub fn entries(&self) -> impl Iterator<Item = JournalEntry> + '_ {
        let area = area_len(self.flows_max);
        let starts = (0..self.region.len() / area).map(move |core| core * area);
        starts.flat_map(move |start| {
            let mut bound = [0; 4];
            self.region.copy_out(start, &mut bound);
            let bound = u32::from_ne_bytes(bound).min(self.flows_max);
            (0..bound).filter_map(move |index| {
                let mut bytes = [0; ENTRY as usize];
                self.region.copy_out(start + offset(index), &mut bytes);
                JournalEntry::from_bytes(&bytes)
            })
        })
    }
}

/// Returns the size of a core's area in bytes, rounded up to whole pages.
fn area_len(flows_max: u32) -> u64 {
    PAGE + (u64::from(flows_max) * ENTRY).next_multiple_of(PAGE)
}

/// Returns the offset of entry `index` in its area.
fn offset(index: u32) -> u64 {
    PAGE + u64::from(index) * ENTRY
}

/// The writer's record of a page of entries.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// Number of entries in use.
    used: u8,
    /// True if the page is in `emptied` or `idle`.
    listed: bool,
    /// True if an entry was written since the page was put on the list `idle`.
    touched: bool,
}

/// The journal of one core, through which the core's host writes entries.
#[derive(Debug)]
pub struct FlowJournal {
    region: Arc<Region>,
    /// Offset of the core's area in the region.
    start: u64,
    /// Number of entries in the core's area.
    flows_max: u32,
    /// Index after the highest entry that was ever in use.
    bound: u32,
    /// Number of entries in use.
    used: u32,
    /// Record of each page, up to the highest page that was ever in use.
    pages: Vec<Page>,
    /// Pages that became empty since the last call of `give_back`.
    emptied: Vec<u32>,
    /// Pages that the last call of `give_back` moved from `emptied` to this list.
    idle: Vec<u32>,
}

impl FlowJournal {
    /// Writes the entry of flow `index`, which is established. Does nothing if the flow already has
    /// an entry, or if the area has no entry `index`.
    pub fn enter(&mut self, index: u32, entry: &JournalEntry) {
        if index >= self.flows_max || self.is_used(index) {
            return;
        }
        let at = self.start + offset(index);
        self.region.copy_in(at, &entry.to_bytes());
        // Write the state word last: the process may be killed at any instruction, and the reader
        // must see whole entries.
        compiler_fence(Ordering::Release);
        let timestamps = entry.timestamp_offset.map_or(0, |_| TIMESTAMPS);
        self.set_state(index, USED | timestamps);
        if index >= self.bound {
            self.bound = index + 1;
            self.region.copy_in(self.start, &self.bound.to_ne_bytes());
        }
        let number = (index / ENTRIES_OF_PAGE) as usize;
        if self.pages.len() <= number {
            self.pages.resize(number + 1, Page::default());
        }
        let page = &mut self.pages[number];
        page.used += 1;
        self.used += 1;
        page.touched = true;
    }

    /// Clears the entry of flow `index`, which has ended. A flow that was never established has no
    /// entry.
    pub fn clear(&mut self, index: u32) {
        if !self.is_used(index) {
            return;
        }
        self.set_state(index, 0);
        let number = index / ENTRIES_OF_PAGE;
        let Some(page) = self.pages.get_mut(number as usize) else {
            return;
        };
        page.used -= 1;
        self.used -= 1;
        if page.used == 0 && !page.listed {
            page.listed = true;
            self.emptied.push(number);
        }
    }

    /// Updates the sequence numbers in the entry of flow `index`, if the flow has an entry.
    pub fn update(&mut self, index: u32, snd_una: SeqNumber, rcv_nxt: SeqNumber) {
        if !self.is_used(index) {
            return;
        }
        let at = self.start + offset(index) + NUMBERS_AT as u64;
        let (mut before, now) = ([0; 8], numbers(snd_una, rcv_nxt));
        self.region.copy_out(at, &mut before);
        if before != now {
            self.region.copy_in(at, &now);
        }
    }

    /// Returns to the system the pages in `idle` that are empty and got no entry since the last
    /// call. Then moves the pages in `emptied` to `idle`.
    pub fn give_back(&mut self) {
        for number in std::mem::take(&mut self.idle) {
            let page = &mut self.pages[number as usize];
            page.listed = page.used == 0 && page.touched;
            if page.listed {
                self.emptied.push(number);
            } else if page.used == 0 {
                let at = self.start + offset(number * ENTRIES_OF_PAGE);
                // If the system call fails, the empty page stays in memory.
                let _ = self.region.punch_hole(at, PAGE);
            }
        }
        self.idle = std::mem::take(&mut self.emptied);
        for number in &self.idle {
            self.pages[*number as usize].touched = false;
        }
    }

    /// Returns true if a later [`give_back`](Self::give_back) may have pages to return.
    pub fn has_empty_pages(&self) -> bool {
        !(self.emptied.is_empty() && self.idle.is_empty())
    }

    fn is_used(&self, index: u32) -> bool {
        let mut state = [0; 4];
        let at = self.start + offset(index) + STATE_AT as u64;
        index < self.bound && self.region.copy_out(at, &mut state) && state != [0; 4]
    }

    fn set_state(&self, index: u32, state: u32) {
        let at = self.start + offset(index) + STATE_AT as u64;
        self.region.copy_in(at, &state.to_ne_bytes());
    }
}

/// The progress of a round of updates. The sweeps of a round together update the entries of all
/// flows.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// Index of the most recently updated flow.
    at: usize,
    /// Number of flows that this round has still to update.
    left: usize,
    /// Number of frames that the host had received at the start of the round.
    in_frames: u64,
}

/// The journal of a host, if the host has one, and the progress of its updates.
#[derive(Debug, Default)]
pub(crate) struct JournalWriter {
    journal: Option<FlowJournal>,
    /// Flows that were established in this step.
    established: Vec<FlowId>,
    round: Round,
}

impl JournalWriter {
    /// Sets the journal of a new host.
    pub fn set(&mut self, journal: FlowJournal) {
        self.journal = Some(journal);
    }

    /// Records `flow` if `event` establishes the flow. The end of the step writes the flow's entry
    /// if the connection uses a NIC.
    pub(crate) fn note(&mut self, flow: FlowId, event: Event) {
        if self.journal.is_some() && matches!(event, Event::Connected | Event::Accepted(_)) {
            self.established.push(flow);
        }
    }

    /// Returns true if [`note`](Self::note) recorded a flow in this step.
    pub(crate) fn has_established(&self) -> bool {
        !self.established.is_empty()
    }

    /// Clears the entry of a flow that has ended.
    pub(crate) fn clear(&mut self, flow: FlowId) {
        if let Some(journal) = &mut self.journal {
            journal.clear(flow.index() as u32);
        }
    }

    /// Writes the entries of the connections over a NIC that were established in this step. Other
    /// connections get no entry.
    #[inline(never)]
    pub(crate) fn enter_established(&mut self, engine: &Engine, bindings: &Bindings) {
        for flow in std::mem::take(&mut self.established) {
            let (Some(state), Some(binding)) = (engine.flow(flow), bindings.get(flow)) else {
                continue;
            };
            if !matches!(binding.path, Path::Port { .. } | Path::Waiting { .. }) {
                continue;
            }
            let entry = JournalEntry {
                key: state.key(),
                snd_una: state.snd_una,
                rcv_nxt: state.rcv_nxt,
                timestamp_offset: state.timestamp_offset(),
            };
            if let Some(journal) = &mut self.journal {
                journal.enter(flow.index() as u32, &entry);
            }
        }
    }

    /// Updates the entries of at most `PART_MAX` flows, and returns empty pages to the system. All
    /// flow numbers are below `flows`, and the host has received `in_frames` frames so far.
    pub(crate) fn tend(&mut self, engine: &Engine, flows: usize, in_frames: u64) {
        let Self { journal, round, .. } = self;
        let Some(journal) = journal else {
            return;
        };
        if round.left == 0 && round.in_frames != in_frames {
            round.left = flows;
            round.in_frames = in_frames;
        }
        for _ in 0..round.left.min(PART_MAX) {
            round.left -= 1;
            round.at = (round.at + 1) % flows.max(1);
            let number = round.at as u32;
            if let Some(state) = engine.flow(FlowId(number)) {
                journal.update(number, state.snd_una, state.rcv_nxt);
            }
        }
        journal.give_back();
    }

    /// Returns true if sequence numbers may have advanced, or if there may be pages to return to
    /// the system. The host has received `in_frames` frames so far.
    pub(crate) fn is_stale(&self, in_frames: u64) -> bool {
        let Self { journal, round, .. } = self;
        let moved = round.left > 0 || round.in_frames != in_frames;
        let stale = |journal: &FlowJournal| journal.has_empty_pages() || moved && journal.used > 0;
        journal.as_ref().is_some_and(stale)
    }
}

#[cfg(test)]
mod tests;
