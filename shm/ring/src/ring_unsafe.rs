//! The four rings of a context: cursors plus entries in shared memory.

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

/// Which of a context's rings: where it lies and what its entries are.
///
/// # Safety
///
/// `LEN` entries from `OFFSET` on must lie in the context, and any bits must be an `Entry`.
pub unsafe trait Ring {
    /// An entry.
    type Entry: Copy + std::fmt::Debug;
    /// Number of entries, a power of two.
    const LEN: u32;
    /// Offset of the entries from the context's start.
    const OFFSET: u64;
    /// The ring's indices.
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

/// A ring in a region that it keeps mapped.
#[derive(Debug)]
struct Place<R: Ring> {
    index: NonNull<RingIndex>,
    entries: NonNull<R::Entry>,
    _region: Arc<ProgramRegion>,
    _ring: PhantomData<R>,
}

impl<R: Ring> Place<R> {
    fn new(region: Arc<ProgramRegion>, context: u32) -> Option<Place<R>> {
        let head = region.context(context)?.head;
        let index = NonNull::from(R::index(head));
        let start = context_offset(context) + R::OFFSET;
        let last = u64::from(R::LEN - 1) * size_of::<R::Entry>() as u64;
        region.pointer::<R::Entry>(start + last)?;
        let entries = region.pointer(start)?;
        Some(Place {
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

/// The producing end of a ring. There must be one per ring.
#[derive(Debug)]
pub struct Producer<R: Ring> {
    cursor: ProducerCursor,
    place: Place<R>,
}

// SAFETY: the pointers are into the mapping that `_region` keeps and belong to no thread.
unsafe impl<R: Ring> Send for Producer<R> {}

impl<R: Ring> Producer<R> {
    /// The producer of a context's new ring; None if there can be no such context.
    pub fn new(region: Arc<ProgramRegion>, context: u32) -> Option<Producer<R>> {
        let place = Place::new(region, context)?;
        Some(Producer {
            cursor: ProducerCursor::new(R::LEN),
            place,
        })
    }

    /// Writes an entry, which the consumer sees after `publish`.
    #[inline]
    pub fn push(&mut self, entry: R::Entry) -> Result<(), PushError> {
        let at = self.cursor.claim(&self.place.index().consumed)?;
        // SAFETY: `entry` is a valid, aligned place; see there.
        unsafe { self.place.entry(at).write_volatile(entry) };
        self.cursor.commit();
        Ok(())
    }

    /// Makes pushed entries visible: one store. Whether there were any; then see
    /// [`crate::sleep::should_ring`].
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.cursor.publish(&self.place.index().produced)
    }

    /// Pushed and not yet published entries.
    pub fn unpublished(&self) -> u32 {
        self.cursor.unpublished()
    }

    /// Entries that can be pushed now.
    pub fn room(&mut self) -> Result<u32, Corrupt> {
        self.cursor.room(&self.place.index().consumed)
    }
}

/// The consuming end of a ring. There must be one per ring.
#[derive(Debug)]
pub struct Consumer<R: Ring> {
    cursor: ConsumerCursor,
    place: Place<R>,
}

// SAFETY: as for `Producer`.
unsafe impl<R: Ring> Send for Consumer<R> {}

impl<R: Ring> Consumer<R> {
    /// The consumer of a context's new ring; None if there can be no such context.
    pub fn new(region: Arc<ProgramRegion>, context: u32) -> Option<Consumer<R>> {
        let place = Place::new(region, context)?;
        Some(Consumer {
            cursor: ConsumerCursor::new(R::LEN),
            place,
        })
    }

    /// The next entry: a copy, made once. Its fields are the peer's and not validated.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<R::Entry>, Corrupt> {
        let Some(at) = self.cursor.claim(&self.place.index().produced)? else {
            return Ok(None);
        };
        // SAFETY: `entry` is a valid, aligned place, and any bytes are an entry. Volatile: read
        // exactly once, so what is validated is what is used.
        let entry = unsafe { self.place.entry(at).read_volatile() };
        self.cursor.commit();
        Ok(Some(entry))
    }

    /// How many entries can be popped, at least; zero only if there are none.
    #[inline]
    pub fn known(&mut self) -> Result<u32, Corrupt> {
        self.cursor.known(&self.place.index().produced)
    }

    /// The next entries, as [`pop`](Self::pop) gives them, and their places are the producer's
    /// again. How many; zero only if there are none.
    #[inline]
    pub fn take(&mut self, entries: &mut [R::Entry]) -> Result<usize, Corrupt> {
        let known = self.cursor.known(&self.place.index().produced)?;
        let count = known.min(entries.len() as u32);
        for (ahead, entry) in (0..count).zip(entries) {
            let at = self.cursor.ahead(ahead);
            // SAFETY: as in `pop`.
            *entry = unsafe { self.place.entry(at).read_volatile() };
        }
        self.cursor.commit_many(count);
        self.release();
        Ok(count as usize)
    }

    /// Entry `ahead` of those that [`known`](Self::known) said there are, as `pop` gives it; they
    /// stay until `drop_known`.
    #[inline]
    pub fn peek(&self, ahead: u32) -> R::Entry {
        // SAFETY: as in `pop`.
        unsafe { self.place.entry(self.cursor.ahead(ahead)).read_volatile() }
    }

    /// Gives the first `count` entries, which were looked at, back to the producer.
    #[inline]
    pub fn drop_known(&mut self, count: u32) {
        self.cursor.commit_many(count);
        self.release();
    }

    /// Gives the places of popped entries back to the producer: one store.
    #[inline]
    pub fn release(&mut self) {
        self.cursor.release(&self.place.index().consumed);
    }

    /// Whether there is nothing to pop. One load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.cursor.is_empty(&self.place.index().produced)
    }
}

#[cfg(test)]
mod tests;
