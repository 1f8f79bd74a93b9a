//! Allocator of stream buffers, the circular payload buffers of connections. The buffers lie in one
//! area of a region, the memory that a program shares with the service (process `tidelaned`). The
//! allocator is a buddy allocator with a quick list (a stack of unmerged free blocks) for each
//! size.
//!
//! ```text
//! alloc: 1. pop a block from the quick list of the size
//!        2. take a block from the buddy lists; if only a larger block is free, split it
//!        3. merge the blocks of all quick lists into the buddy lists, and repeat step 2
//!        4. begin the next chunk of the area, and repeat step 2
//! free:  push the block to the quick list; if the list is full, first merge its older half
//! ```
//!
//! If the quick list has a block, the allocator returns the most recently freed buffer of the size,
//! because its memory is likely to be in the CPU caches. For request-response traffic, an
//! allocation is a pop from the quick list, and a release is a push.
//!
//! The service allocates receive buffers, and the program allocates send buffers. All state is
//! private: the allocator reads nothing from shared memory. The allocator divides the area into
//! chunks of 8 MiB, and begins a chunk when the earlier chunks have no suitable block. Each chunk
//! needs 40 KiB of state.

use std::{fmt::Debug, ops::Range};

use tidelane_abi::{STREAM_BUFFER_LOG2_MAX, STREAM_BUFFER_LOG2_MIN};

use crate::StreamBuffer;

/// Binary logarithm of the smallest buffer's size in bytes.
const MIN: u8 = STREAM_BUFFER_LOG2_MIN;
/// Number of buffer sizes. A buffer of order `n` has `2^n` units.
const ORDERS: usize = (STREAM_BUFFER_LOG2_MAX - STREAM_BUFFER_LOG2_MIN + 1) as usize;
/// Size of a unit in bytes: the smallest buffer.
const UNIT: u64 = 1 << STREAM_BUFFER_LOG2_MIN;
/// Size of a chunk in bytes: the largest buffer.
const CHUNK: u64 = 1 << STREAM_BUFFER_LOG2_MAX;
/// Number of units in a chunk.
const UNITS_PER_CHUNK: usize = (CHUNK / UNIT) as usize;
/// Number of low bits of a unit's number that give its place within the chunk.
const CHUNK_BITS: u32 = UNITS_PER_CHUNK.trailing_zeros();
/// Largest number of blocks on the quick list of one size. More blocks would rarely be reused
/// before a merge is needed.
const QUICK_MAX: usize = 64;
/// Number that stands for no unit.
const NONE: u32 = u32::MAX;

/// State of a unit. A unit has the size of the smallest buffer (2 KiB). A block of order `n` has
/// `2^n` units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No block begins at this unit.
    Inside,
    /// An allocated block of this order begins at this unit.
    Allocated(u8),
    /// A block on the quick list of this order begins at this unit.
    Quick(u8),
    /// A block on the buddy list of this order begins at this unit. Its pages may be resident.
    Dirty(u8),
    /// A block on the buddy list of this order begins at this unit. Its pages are not resident.
    Clean(u8),
}

/// State of the units of one chunk. The arrays are built on the heap, because the thread that adds
/// a chunk may be a program's thread with a small stack.
#[derive(Debug)]
struct Chunk {
    state: Box<[State; UNITS_PER_CHUNK]>,
    /// By unit: first unit of the next block on the same buddy list, or `NONE`.
    next: Box<[u32; UNITS_PER_CHUNK]>,
    /// By unit: first unit of the previous block on the same buddy list, or `NONE`.
    previous: Box<[u32; UNITS_PER_CHUNK]>,
}

impl Chunk {
    /// Creates a chunk in which no block begins.
    fn new() -> Self {
        Self {
            state: boxed(State::Inside),
            next: boxed(NONE),
            previous: boxed(NONE),
        }
    }
}

/// Returns an array of equal values that is built on the heap.
fn boxed<T: Clone + Debug, const N: usize>(value: T) -> Box<[T; N]> {
    let values = vec![value; N].into_boxed_slice();
    values.try_into().expect("N values")
}

/// Free blocks of one size. The most recently freed block is at the end.
#[derive(Clone, Copy, Debug)]
struct QuickList {
    /// First unit of each block, in the first `len` entries.
    units: [u32; QUICK_MAX],
    /// Number of blocks.
    len: usize,
}

/// Allocates stream buffers in one area of a region. The module's documentation describes the
/// algorithm.
#[derive(Debug)]
pub struct BufferAllocator {
    /// Region offsets of the area in bytes.
    area: Range<u64>,
    chunks: Vec<Chunk>,
    /// Number of chunks that the area can have.
    chunks_max: usize,
    /// First unit of the first block on the buddy list of each order, or `NONE`.
    free: [u32; ORDERS],
    /// The quick list of each order.
    quick: Box<[QuickList; ORDERS]>,
    /// Number of bytes in allocated blocks.
    allocated: u64,
    /// True if a block was freed since [`take_dirty`](BufferAllocator::take_dirty) last returned
    /// `None`.
    free_dirty: bool,
}

impl BufferAllocator {
    /// Creates an allocator for the region offsets in `area`. The whole area is free.
    pub fn new(area: Range<u64>) -> BufferAllocator {
        let start = area.start.next_multiple_of(UNIT);
        let end = (area.end / UNIT * UNIT).max(start);
        // Unit numbers have 32 bits, and `NONE` is reserved.
        let end = end.min(start.saturating_add(u64::from(NONE >> CHUNK_BITS) * CHUNK));
        let chunks_max = (end - start).div_ceil(CHUNK) as usize;
        BufferAllocator {
            area: start..end,
            chunks: Vec::with_capacity(chunks_max.min(1024)),
            chunks_max,
            free: [NONE; ORDERS],
            quick: boxed(QuickList {
                units: [0; QUICK_MAX],
                len: 0,
            }),
            allocated: 0,
            free_dirty: false,
        }
    }

    /// Allocates a buffer of `2^log2` bytes. Returns `None` if there is no space, or if the size is
    /// not allowed.
    pub fn alloc(&mut self, log2: u8) -> Option<StreamBuffer> {
        let order = log2
            .checked_sub(MIN)
            .filter(|&order| (order as usize) < ORDERS)?;
        let quick = &mut self.quick[order as usize];
        let unit = if quick.len > 0 {
            quick.len -= 1;
            quick.units[quick.len]
        } else {
            self.alloc_slow(order)?
        };
        self.set_state(unit, State::Allocated(order));
        self.allocated += 1 << log2;
        Some(StreamBuffer {
            offset: self.area.start + u64::from(unit) * UNIT,
            log2,
        })
    }

    /// Frees a buffer. Returns true if the buffer was allocated. Returns false and changes nothing
    /// if this allocator did not allocate the buffer, or if the buffer is already free.
    pub fn free(&mut self, buffer: StreamBuffer) -> bool {
        let Some(unit) = self.unit_of(buffer) else {
            return false;
        };
        let order = buffer.log2 - MIN;
        self.set_state(unit, State::Quick(order));
        self.allocated -= u64::from(buffer.len());
        self.free_dirty = true;
        if self.quick[order as usize].len == QUICK_MAX {
            self.merge_quick(order, QUICK_MAX / 2);
        }
        let quick = &mut self.quick[order as usize];
        quick.units[quick.len] = unit;
        quick.len += 1;
        true
    }

    /// Returns the number of allocated bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated
    }

    /// Returns the size of the area in bytes.
    pub fn capacity(&self) -> u64 {
        self.area.end - self.area.start
    }

    /// Returns the size in bytes of the largest buffer that fits into the area while no buffer is
    /// allocated. Returns 0 if no buffer fits.
    pub fn longest(&self) -> u32 {
        self.capacity().checked_ilog2().map_or(0, |log2| {
            let log2 = log2.min(u32::from(STREAM_BUFFER_LOG2_MAX));
            if log2 < u32::from(MIN) { 0 } else { 1 << log2 }
        })
    }

    /// Returns true if a block was freed since [`take_dirty`](Self::take_dirty) last returned
    /// `None`.
    pub fn has_free_dirty(&self) -> bool {
        self.free_dirty
    }

    /// Merges all free blocks. Then takes the largest dirty block (a free block whose pages may be
    /// resident). The caller owns the block, releases its pages (`Region::punch_hole`), and then
    /// calls [`return_clean`](Self::return_clean). Returns `None` if no dirty block has at least
    /// `len_min` bytes.
    pub fn take_dirty(&mut self, len_min: u64) -> Option<StreamBuffer> {
        self.merge_all();
        let orders = (0..ORDERS as u8).rev();
        let found = orders
            .take_while(|order| UNIT << order >= len_min)
            .find_map(|order| Some((self.first_dirty(order)?, order)));
        let Some((unit, order)) = found else {
            self.free_dirty = false;
            return None;
        };
        self.unlink(unit, order);
        self.set_state(unit, State::Allocated(order));
        let block = StreamBuffer {
            offset: self.area.start + u64::from(unit) * UNIT,
            log2: order + MIN,
        };
        self.allocated += u64::from(block.len());
        Some(block)
    }

    /// Frees a block from [`take_dirty`](Self::take_dirty) whose pages the caller has released.
    /// Returns true if the block was allocated. Returns false and changes nothing if this allocator
    /// did not allocate the block, or if the block is already free.
    pub fn return_clean(&mut self, block: StreamBuffer) -> bool {
        let Some(unit) = self.unit_of(block) else {
            return false;
        };
        self.allocated -= u64::from(block.len());
        self.merge(unit, block.log2 - MIN, true);
        true
    }

    fn first_dirty(&self, order: u8) -> Option<u32> {
        let mut unit = self.free[order as usize];
        while unit != NONE {
            if self.state(unit) == State::Dirty(order) {
                return Some(unit);
            }
            unit = self.chunk(unit).next[index_in_chunk(unit)];
        }
        None
    }

    fn alloc_slow(&mut self, order: u8) -> Option<u32> {
        if let Some(unit) = self.take_block(order) {
            return Some(unit);
        }
        self.merge_all();
        if let Some(unit) = self.take_block(order) {
            return Some(unit);
        }
        // A new chunk of full size can give a block of any order. Only the last chunk of the area
        // can be smaller.
        while self.begin_chunk() {
            if let Some(unit) = self.take_block(order) {
                return Some(unit);
            }
        }
        None
    }

    /// Takes a block of `order` from the buddy lists. If these lists have no block of `order`,
    /// splits the smallest larger block.
    fn take_block(&mut self, order: u8) -> Option<u32> {
        let from = (order..ORDERS as u8).find(|&from| self.free[from as usize] != NONE)?;
        let unit = self.free[from as usize];
        let clean = self.state(unit) == State::Clean(from);
        self.unlink(unit, from);
        for half in (order..from).rev() {
            self.link(unit + (1 << half), half, clean);
        }
        Some(unit)
    }

    /// Adds the next chunk of the area. Returns true if the area had room for the chunk.
    fn begin_chunk(&mut self) -> bool {
        let n = self.chunks.len();
        if n == self.chunks_max {
            return false;
        }
        self.chunks.push(Chunk::new());
        let first = (n as u32) << CHUNK_BITS;
        let units_in_area = (self.capacity() / UNIT - u64::from(first)) as u32;
        let mut left = units_in_area.min(UNITS_PER_CHUNK as u32);
        let mut unit = first;
        while left > 0 {
            let order = left.ilog2() as u8;
            self.link(unit, order, true);
            unit += 1 << order;
            left -= 1 << order;
        }
        true
    }

    fn merge_all(&mut self) {
        for order in 0..ORDERS as u8 {
            self.merge_quick(order, self.quick[order as usize].len);
        }
    }

    /// Moves the `count` oldest blocks of a quick list to the buddy lists.
    fn merge_quick(&mut self, order: u8, count: usize) {
        for n in 0..count {
            self.merge(self.quick[order as usize].units[n], order, false);
        }
        let quick = &mut self.quick[order as usize];
        quick.units.copy_within(count..quick.len, 0);
        quick.len -= count;
    }

    /// Merges a block with its free buddies and puts the result on a buddy list. `clean` is true if
    /// no page of the block is resident.
    fn merge(&mut self, mut unit: u32, mut order: u8, mut clean: bool) {
        self.set_state(unit, State::Inside);
        while (order as usize) < ORDERS - 1 {
            let buddy = unit ^ (1 << order);
            let state = self.state(buddy);
            if state != State::Dirty(order) && state != State::Clean(order) {
                break;
            }
            self.unlink(buddy, order);
            clean &= state == State::Clean(order);
            unit = unit.min(buddy);
            order += 1;
        }
        self.link(unit, order, clean);
    }

    fn link(&mut self, unit: u32, order: u8, clean: bool) {
        let head = std::mem::replace(&mut self.free[order as usize], unit);
        if head != NONE {
            self.chunk_mut(head).previous[index_in_chunk(head)] = unit;
        }
        let chunk = self.chunk_mut(unit);
        chunk.next[index_in_chunk(unit)] = head;
        chunk.previous[index_in_chunk(unit)] = NONE;
        chunk.state[index_in_chunk(unit)] = if clean {
            State::Clean(order)
        } else {
            State::Dirty(order)
        };
    }

    fn unlink(&mut self, unit: u32, order: u8) {
        let chunk = self.chunk_mut(unit);
        let (next, previous) = (
            chunk.next[index_in_chunk(unit)],
            chunk.previous[index_in_chunk(unit)],
        );
        chunk.state[index_in_chunk(unit)] = State::Inside;
        if next != NONE {
            self.chunk_mut(next).previous[index_in_chunk(next)] = previous;
        }
        if previous != NONE {
            self.chunk_mut(previous).next[index_in_chunk(previous)] = next;
        } else {
            self.free[order as usize] = next;
        }
    }

    /// Returns the first unit of a buffer, or `None` if this allocator has not allocated the
    /// buffer.
    fn unit_of(&self, buffer: StreamBuffer) -> Option<u32> {
        let inside = buffer.offset.checked_sub(self.area.start)?;
        let order = buffer.log2.checked_sub(MIN)?;
        let in_chunks = inside / CHUNK < self.chunks.len() as u64;
        if !in_chunks || !inside.is_multiple_of(UNIT) {
            return None;
        }
        let unit = (inside / UNIT) as u32;
        (self.state(unit) == State::Allocated(order)).then_some(unit)
    }

    fn state(&self, unit: u32) -> State {
        self.chunk(unit).state[index_in_chunk(unit)]
    }

    fn set_state(&mut self, unit: u32, state: State) {
        self.chunk_mut(unit).state[index_in_chunk(unit)] = state;
    }

    fn chunk(&self, unit: u32) -> &Chunk {
        &self.chunks[(unit >> CHUNK_BITS) as usize]
    }

    fn chunk_mut(&mut self, unit: u32) -> &mut Chunk {
        &mut self.chunks[(unit >> CHUNK_BITS) as usize]
    }
}

/// Returns the index of a unit within its chunk.
fn index_in_chunk(unit: u32) -> usize {
    unit as usize % UNITS_PER_CHUNK
}

#[cfg(test)]
mod tests;
