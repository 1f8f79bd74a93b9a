//! A hostile program that writes random values to its region, the memory that the program shares
//! with the service. A slot is the record of one connection in the region. A ring set has the rings
//! between one thread of the program and one core of the service.
//!
//! Each burst has up to 16 writes at random offsets, most of them in structures that the service
//! reads. The burst then overwrites the next 16 words (of 8 bytes) of a sweep over the parts of the
//! region that a run uses first. The sweep starts again after the last word.

use std::sync::Arc;

use tidelane_abi::{
    CONTROL_EVENT_OFFSET, CONTROL_REQUEST_OFFSET, DATA_EVENT_OFFSET, DATA_REQUEST_OFFSET,
    HEADER_LEN, RING_SET_LEN, RingSetHead, Slot, ring_set_offset,
};
use tidelane_netem::Rng;
use tidelane_ring::ProgramRegion;
use tidelane_time::{Duration, Instant};

/// Number of slots that the random writes and the sweep target: the slots that the run uses first.
const SLOTS_AIMED_AT: u64 = 8;
/// Number of bytes of each buffer area that the sweep covers.
const BUFFERS_SWEPT: u64 = 64 << 10;
/// Boundary values, which the fuzzer writes more often than other values.
const EDGES: [u64; 8] = [
    0,
    1,
    0xff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 63,
    u64::MAX,
];

/// Number of words of 8 bytes that the sweep covers in one burst.
const SWEEP_WORDS: u64 = 16;

/// Writes random values to one region, in bursts.
pub struct RegionFuzzer {
    region: Arc<ProgramRegion>,
    /// Mean time between two bursts.
    every: Duration,
    /// Time of the next burst.
    pub next: Instant,
    /// Number of writes so far.
    pub writes: u64,
    /// Number of words that the sweep has overwritten so far, including the words that it has
    /// overwritten in earlier processes of the program.
    pub swept: u64,
    rng: Rng,
}

impl RegionFuzzer {
    /// Creates a fuzzer of `region`. `every` is the mean time between two bursts. `swept` is the
    /// number of words that the sweep has already overwritten. The sweep continues after these
    /// words.
    pub fn new(region: Arc<ProgramRegion>, every: Duration, swept: u64, rng: Rng) -> Self {
        Self {
            region,
            every,
            next: Instant::ZERO,
            writes: 0,
            swept,
            rng,
        }
    }

    /// Writes one burst, and schedules the next burst.
    pub fn write_burst(&mut self, now: Instant) {
        for _ in 0..self.rng.between(1, 16) {
            let (start, len) = self.target();
            let offset = start + self.rng.below(len);
            let value = self.value();
            let size = [1, 4, 8][self.rng.below(3) as usize];
            self.region.region().copy_in(
                offset - offset % size,
                &value.to_le_bytes()[..size as usize],
            );
            self.writes += 1;
        }
        for _ in 0..SWEEP_WORDS {
            let (offset, value) = (self.sweep_offset(), self.value());
            self.region.region().copy_in(offset, &value.to_le_bytes());
            self.writes += 1;
            self.swept += 1;
        }
        self.next = now + Duration(1 + self.rng.below(2 * self.every.0));
    }

    /// Returns the region offset of the next word of the sweep. The sweep covers the header, the
    /// first ring set, the first slots, and the start of each buffer area.
    fn sweep_offset(&self) -> u64 {
        let layout = self.region.layout();
        let slots_start = layout.slot_offset(0).unwrap_or(HEADER_LEN);
        let parts = [
            (0, HEADER_LEN),
            (ring_set_offset(0), RING_SET_LEN),
            (slots_start, SLOTS_AIMED_AT * size_of::<Slot>() as u64),
            (layout.rx_area().start, BUFFERS_SWEPT),
            (layout.tx_area().start, BUFFERS_SWEPT),
        ];
        let total: u64 = parts.iter().map(|(_, len)| len / 8).sum();
        let mut word = self.swept % total;
        for (start, len) in parts {
            if word < len / 8 {
                return start + 8 * word;
            }
            word -= len / 8;
        }
        0
    }

    /// Returns a random value. About half of the values are boundary values, or close to a boundary
    /// value.
    fn value(&mut self) -> u64 {
        let edge = EDGES[self.rng.below(EDGES.len() as u64) as usize];
        match self.rng.below(4) {
            0 => edge,
            1 => edge.wrapping_add(self.rng.below(16)).wrapping_sub(8),
            2 => self.rng.below(1 << 16),
            _ => self.rng.next_u64(),
        }
    }

    /// Selects a structure, or the whole region, for the next random write. Returns the region
    /// offset and the length in bytes of the selected part.
    fn target(&mut self) -> (u64, u64) {
        let ring_set = ring_set_offset(0);
        let slots = self.region.layout().slot_offset(0).unwrap_or(HEADER_LEN);
        match self.rng.below(10) {
            0 => (0, HEADER_LEN),
            1 | 2 => (ring_set, size_of::<RingSetHead>() as u64),
            3 => (ring_set + DATA_REQUEST_OFFSET, 256),
            4 => (ring_set + DATA_EVENT_OFFSET, 256),
            5 => (ring_set + CONTROL_REQUEST_OFFSET, 1024),
            6 => (
                ring_set + CONTROL_EVENT_OFFSET,
                RING_SET_LEN - CONTROL_EVENT_OFFSET,
            ),
            7 | 8 => (slots, SLOTS_AIMED_AT * size_of::<Slot>() as u64),
            _ => (0, self.region.region().len()),
        }
    }
}
