//! The four rings of a ring set, which connects one thread of a program with one fast-path core (a
//! polling thread of the service, the process `tidelaned`). The indices and the entries of a ring
//! are in shared memory. Each process has a cursor, with copies of the indices, in private memory.
//!
//! The data rings carry requests and events of existing connections. The control rings carry
//! requests to open connections and to accept connections of a listener, and the resulting events.

use std::{marker::PhantomData, ptr::NonNull, sync::Arc};

use tidelane_abi::{
    CONTROL_EVENT_OFFSET, CONTROL_REQUEST_OFFSET, CONTROL_RING_LEN, ControlEvent, ControlRequest,
    DATA_EVENT_OFFSET, DATA_REQUEST_OFFSET, DATA_RING_LEN, RingIndex, RingSetHead, ring_set_offset,
};

use crate::{
    ProgramRegion,
    cursor::{ConsumerCursor, Corrupt, ProducerCursor, PushError},
};

/// A kind of ring: the location of its entries in a ring set, and their type.
///
/// # Safety
///
/// `LEN` entries from `OFFSET` on must lie in the ring set. Every bit pattern must be a valid
/// `Entry`.
pub unsafe trait Ring {
    /// Type of the entries.
    type Entry: Copy + std::fmt::Debug;
    /// Number of entries, which is a power of two.
    const LEN: u32;
    /// Offset of the entries from the start of the ring set, in bytes.
    const OFFSET: u64;
    /// Returns the indices of the ring.
    fn index(head: &RingSetHead) -> &RingIndex;
}

macro_rules! ring {
    ($(#[$doc:meta])* $name:ident, $entry:ty, $len:expr, $offset:expr, $index:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name {}

        const _: () = assert!(
            $offset + $len as u64 * size_of::<$entry>() as u64 <= tidelane_abi::RING_SET_LEN
                && $offset >= size_of::<RingSetHead>() as u64
                && $offset.is_multiple_of(align_of::<$entry>() as u64)
        );

        // SAFETY: the assertion above checks the range. The entries are repr(C) and consist of
        // integers.
        unsafe impl Ring for $name {
            type Entry = $entry;
            const LEN: u32 = $len;
            const OFFSET: u64 = $offset;

            fn index(head: &RingSetHead) -> &RingIndex {
                &head.$index
            }
        }
    };
}

ring!(
    /// Ring of data requests, from program to service.
    DataRequests, u64, DATA_RING_LEN, DATA_REQUEST_OFFSET, data_request
);
ring!(
    /// Ring of data events, from service to program.
    DataEvents, u64, DATA_RING_LEN, DATA_EVENT_OFFSET, data_event
);
ring!(
    /// Ring of control requests, from program to service.
    ControlRequests, ControlRequest, CONTROL_RING_LEN, CONTROL_REQUEST_OFFSET, control_request
);
ring!(
    /// Ring of control events, from service to program.
    ControlEvents, ControlEvent, CONTROL_RING_LEN, CONTROL_EVENT_OFFSET, control_event
);

/// The program's end of the data-request ring.
pub type DataRequestProducer = Producer<DataRequests>;
/// The service's end of the data-request ring.
pub type DataRequestConsumer = Consumer<DataRequests>;
/// The service's end of the data-event ring.
pub type DataEventProducer = Producer<DataEvents>;
/// The program's end of the data-event ring.
pub type DataEventConsumer = Consumer<DataEvents>;
/// The program's end of the control-request ring.
pub type ControlRequestProducer = Producer<ControlRequests>;
/// The service's end of the control-request ring.
pub type ControlRequestConsumer = Consumer<ControlRequests>;
/// The service's end of the control-event ring.
pub type ControlEventProducer = Producer<ControlEvents>;
/// The program's end of the control-event ring.
pub type ControlEventConsumer = Consumer<ControlEvents>;

/// Pointers to a ring in shared memory. The value keeps the region mapped.
#[derive(Debug)]
struct RingMemory<R: Ring> {
    index: NonNull<RingIndex>,
    entries: NonNull<R::Entry>,
    _region: Arc<ProgramRegion>,
    _ring: PhantomData<R>,
}

impl<R: Ring> RingMemory<R> {
    fn new(region: Arc<ProgramRegion>, ring_set: u32) -> Option<RingMemory<R>> {
        let head = region.ring_set(ring_set)?.head;
        let index = NonNull::from(R::index(head));
        let start = ring_set_offset(ring_set) + R::OFFSET;
        let last = u64::from(R::LEN - 1) * size_of::<R::Entry>() as u64;
        region.pointer::<R::Entry>(start + last)?;
        let entries = region.pointer(start)?;
        Some(RingMemory {
            index,
            entries,
            _region: region,
            _ring: PhantomData,
        })
    }

    #[inline]
    fn index(&self) -> &RingIndex {
        // SAFETY: the pointer came from a reference into the mapping, which `_region` keeps.
        unsafe { self.index.as_ref() }
    }

    #[inline]
    fn entry(&self, at: usize) -> *mut R::Entry {
        debug_assert!(at < R::LEN as usize);
        // SAFETY: cursors return positions below `LEN`. `new` checked that the last position lies
        // in the mapping, which `_region` keeps.
        unsafe { self.entries.as_ptr().add(at) }
    }
}

/// The producing side of a ring. Each ring must have only one producer.
#[derive(Debug)]
pub struct Producer<R: Ring> {
    cursor: ProducerCursor,
    memory: RingMemory<R>,
}

// SAFETY: the pointers refer to the mapping that `_region` keeps, and belong to no thread.
unsafe impl<R: Ring> Send for Producer<R> {}

impl<R: Ring> Producer<R> {
    /// Creates the producer of a new ring in a ring set. Returns `None` if the ring set cannot
    /// exist.
    pub fn new(region: Arc<ProgramRegion>, ring_set: u32) -> Option<Producer<R>> {
        let memory = RingMemory::new(region, ring_set)?;
        Some(Producer {
            cursor: ProducerCursor::new(R::LEN),
            memory,
        })
    }

    /// Writes an entry. The consumer sees the entry after `publish`.
    #[inline]
    pub fn push(&mut self, entry: R::Entry) -> Result<(), PushError> {
        let at = self.cursor.claim(&self.memory.index().consumed)?;
        // SAFETY: `RingMemory::entry` returns a valid and aligned pointer.
        unsafe { self.memory.entry(at).write_volatile(entry) };
        self.cursor.commit();
        Ok(())
    }

    /// Makes pushed entries visible with one store. Returns true if there were entries to publish.
    /// The caller then calls [`crate::sleep::should_ring`].
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.cursor.publish(&self.memory.index().produced)
    }

    /// Returns the number of entries that are pushed and not yet published.
    pub fn unpublished(&self) -> u32 {
        self.cursor.unpublished()
    }

    /// Returns the number of entries that can be pushed now.
    pub fn room(&mut self) -> Result<u32, Corrupt> {
        self.cursor.room(&self.memory.index().consumed)
    }
}

/// The consuming side of a ring. Each ring must have only one consumer.
#[derive(Debug)]
pub struct Consumer<R: Ring> {
    cursor: ConsumerCursor,
    memory: RingMemory<R>,
}

// SAFETY: as for `Producer`.
unsafe impl<R: Ring> Send for Consumer<R> {}

impl<R: Ring> Consumer<R> {
    /// Creates the consumer of a new ring in a ring set. Returns `None` if the ring set cannot
    /// exist.
    pub fn new(region: Arc<ProgramRegion>, ring_set: u32) -> Option<Consumer<R>> {
        let memory = RingMemory::new(region, ring_set)?;
        Some(Consumer {
            cursor: ConsumerCursor::new(R::LEN),
            memory,
        })
    }

    /// Takes a copy of the next entry. The peer wrote the fields, and they are not validated.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<R::Entry>, Corrupt> {
        let Some(at) = self.cursor.claim(&self.memory.index().produced)? else {
            return Ok(None);
        };
        // SAFETY: `RingMemory::entry` returns a valid and aligned pointer, and every bit pattern is
        // a valid entry. The volatile read happens exactly once, so the caller validates the value
        // that it uses.
        let entry = unsafe { self.memory.entry(at).read_volatile() };
        self.cursor.commit();
        Ok(Some(entry))
    }

    /// Returns a lower bound of the number of entries in the ring. The bound is zero only if the
    /// ring is empty.
    #[inline]
    pub fn known(&mut self) -> Result<u32, Corrupt> {
        self.cursor.known(&self.memory.index().produced)
    }

    /// Copies the next entries to `entries`, and gives their positions back to the producer.
    /// Returns the number of copied entries, which is zero only if the ring or `entries` is empty.
    /// The entries are not validated.
    #[inline]
    pub fn take(&mut self, entries: &mut [R::Entry]) -> Result<usize, Corrupt> {
        let known = self.cursor.known(&self.memory.index().produced)?;
        let count = known.min(entries.len() as u32);
        for (ahead, entry) in (0..count).zip(entries) {
            let at = self.cursor.ahead(ahead);
            // SAFETY: as in `pop`.
            *entry = unsafe { self.memory.entry(at).read_volatile() };
        }
        self.cursor.commit_many(count);
        self.release();
        Ok(count as usize)
    }

    /// Returns a copy of the entry that is `ahead` entries after the next entry. `ahead` must be
    /// less than the result of [`known`](Self::known). The entries stay in the ring until
    /// `drop_known`, and are not validated.
    #[inline]
    pub fn peek(&self, ahead: u32) -> R::Entry {
        // SAFETY: as in `pop`.
        unsafe { self.memory.entry(self.cursor.ahead(ahead)).read_volatile() }
    }

    /// Gives the positions of the first `count` entries, which the caller has read, back to the
    /// producer.
    #[inline]
    pub fn drop_known(&mut self, count: u32) {
        self.cursor.commit_many(count);
        self.release();
    }

    /// Gives the positions of popped entries back to the producer with one store.
    #[inline]
    pub fn release(&mut self) {
        self.cursor.release(&self.memory.index().consumed);
    }

    /// Returns true if the ring is empty. The check costs one load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.cursor.is_empty(&self.memory.index().produced)
    }
}

#[cfg(test)]
mod tests;
