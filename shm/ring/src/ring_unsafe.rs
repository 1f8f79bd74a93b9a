//! The four rings of a context: cursors, with entries in shared memory.

use std::{marker::PhantomData, ptr::NonNull, sync::Arc};

use tidelane_abi::{
    CONTROL_EVENT_OFFSET, CONTROL_REQUEST_OFFSET, CONTROL_RING_LEN, ContextHead, ControlEvent,
    ControlRequest, DATA_EVENT_OFFSET, DATA_REQUEST_OFFSET, DATA_RING_LEN, RingIndex,
    context_offset,
};

use crate::{
    ProgramRegion,
    cursor::{ConsumerCursor, Corrupt, ProducerCursor, PushError},
};

/// A kind of ring: its offset in a context and its type of entries.
///
/// # Safety
///
/// `LEN` entries from `OFFSET` on must lie in the context, and any bits must be an `Entry`.
pub unsafe trait Ring {
    /// Type of the entries.
    type Entry: Copy + std::fmt::Debug;
    /// Number of entries, a power of two.
    const LEN: u32;
    /// Offset of the entries from the context's start.
    const OFFSET: u64;
    /// Returns the indices of the ring.
    fn index(head: &ContextHead) -> &RingIndex;
}

macro_rules! ring {
    ($(#[$doc:meta])* $name:ident, $entry:ty, $len:expr, $offset:expr, $index:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name {}

        const _: () = assert!(
            $offset + $len as u64 * size_of::<$entry>() as u64 <= tidelane_abi::CONTEXT_LEN
                && $offset >= size_of::<ContextHead>() as u64
                && $offset.is_multiple_of(align_of::<$entry>() as u64)
        );

        // SAFETY: the range is asserted above; the entries are repr(C) and of integers only.
        unsafe impl Ring for $name {
            type Entry = $entry;
            const LEN: u32 = $len;
            const OFFSET: u64 = $offset;

            fn index(head: &ContextHead) -> &RingIndex {
                &head.$index
            }
        }
    };
}

ring!(
    /// Data requests: program to service.
    DataRequests, u64, DATA_RING_LEN, DATA_REQUEST_OFFSET, data_request
);
ring!(
    /// Data events: service to program.
    DataEvents, u64, DATA_RING_LEN, DATA_EVENT_OFFSET, data_event
);
ring!(
    /// Control requests: program to service.
    ControlRequests, ControlRequest, CONTROL_RING_LEN, CONTROL_REQUEST_OFFSET, control_request
);
ring!(
    /// Control events: service to program.
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

/// Location of a ring in a region that it keeps mapped.
#[derive(Debug)]
struct RingMemory<R: Ring> {
    index: NonNull<RingIndex>,
    entries: NonNull<R::Entry>,
    _region: Arc<ProgramRegion>,
    _ring: PhantomData<R>,
}

impl<R: Ring> RingMemory<R> {
    fn new(region: Arc<ProgramRegion>, context: u32) -> Option<RingMemory<R>> {
        let head = region.context(context)?.head;
        let index = NonNull::from(R::index(head));
        let start = context_offset(context) + R::OFFSET;
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
        // SAFETY: cursors give places below `LEN`, and `new` checked that the last one lies in the
        // mapping, which `_region` keeps.
        unsafe { self.entries.as_ptr().add(at) }
    }
}

/// The producing end of a ring. There must be only one per ring.
#[derive(Debug)]
pub struct Producer<R: Ring> {
    cursor: ProducerCursor,
    memory: RingMemory<R>,
}

// SAFETY: the pointers are into the mapping that `_region` keeps and belong to no thread.
unsafe impl<R: Ring> Send for Producer<R> {}

impl<R: Ring> Producer<R> {
    /// Creates the producer of a context's new ring; None if the context cannot exist.
    pub fn new(region: Arc<ProgramRegion>, context: u32) -> Option<Producer<R>> {
        let memory = RingMemory::new(region, context)?;
        Some(Producer {
            cursor: ProducerCursor::new(R::LEN),
            memory,
        })
    }

    /// Writes an entry, which becomes visible to the consumer with `publish`.
    #[inline]
    pub fn push(&mut self, entry: R::Entry) -> Result<(), PushError> {
        let at = self.cursor.claim(&self.memory.index().consumed)?;
        // SAFETY: `entry` is a valid, aligned place; see there.
        unsafe { self.memory.entry(at).write_volatile(entry) };
        self.cursor.commit();
        Ok(())
    }

    /// Makes pushed entries visible with one store. Returns true if there were any; then see
    /// [`crate::sleep::should_ring`].
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.cursor.publish(&self.memory.index().produced)
    }

    /// Returns the number of entries pushed and not published.
    pub fn unpublished(&self) -> u32 {
        self.cursor.unpublished()
    }

    /// Returns the number of entries that can be pushed now.
    pub fn room(&mut self) -> Result<u32, Corrupt> {
        self.cursor.room(&self.memory.index().consumed)
    }
}

/// The consuming end of a ring. There must be only one per ring.
#[derive(Debug)]
pub struct Consumer<R: Ring> {
    cursor: ConsumerCursor,
    memory: RingMemory<R>,
}

// SAFETY: as for `Producer`.
unsafe impl<R: Ring> Send for Consumer<R> {}

impl<R: Ring> Consumer<R> {
    /// Creates the consumer of a context's new ring; None if the context cannot exist.
    pub fn new(region: Arc<ProgramRegion>, context: u32) -> Option<Consumer<R>> {
        let memory = RingMemory::new(region, context)?;
        Some(Consumer {
            cursor: ConsumerCursor::new(R::LEN),
            memory,
        })
    }

    /// Takes a copy of the next entry. The fields come from the peer and are not validated.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<R::Entry>, Corrupt> {
        let Some(at) = self.cursor.claim(&self.memory.index().produced)? else {
            return Ok(None);
        };
        // SAFETY: `entry` is a valid, aligned place, and any bytes are an entry. Volatile: read
        // exactly once, so what is validated is what is used.
        let entry = unsafe { self.memory.entry(at).read_volatile() };
        self.cursor.commit();
        Ok(Some(entry))
    }

    /// Returns a lower bound of the number of entries; zero only if there are none.
    #[inline]
    pub fn known(&mut self) -> Result<u32, Corrupt> {
        self.cursor.known(&self.memory.index().produced)
    }

    /// Takes several entries, like [`pop`](Self::pop), and returns their positions to the producer.
    /// Returns the number of entries; zero only if there are none.
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

    /// Returns entry `ahead`, which must be less than [`known`](Self::known), like `pop`. The
    /// entries stay in the ring until `drop_known`.
    #[inline]
    pub fn peek(&self, ahead: u32) -> R::Entry {
        // SAFETY: as in `pop`.
        unsafe { self.memory.entry(self.cursor.ahead(ahead)).read_volatile() }
    }

    /// Returns the first `count` entries, which the caller has read, to the producer.
    #[inline]
    pub fn drop_known(&mut self, count: u32) {
        self.cursor.commit_many(count);
        self.release();
    }

    /// Returns the positions of popped entries to the producer with one store.
    #[inline]
    pub fn release(&mut self) {
        self.cursor.release(&self.memory.index().consumed);
    }

    /// Returns true if there is no entry. Costs one load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.cursor.is_empty(&self.memory.index().produced)
    }
}

#[cfg(test)]
mod tests;
