//! [`Buffers`]: the buffers that a program in C can name, each with its number and its owner.
//!
//! The program has the number of a buffer and the address of its bytes. The low bits of the number
//! are the index of the buffer's place (entry) in a table. The other bits are the number of the
//! context (the sockets of one thread) and the number of the use of the place. A new use begins
//! whenever a buffer gets the place. A number of an earlier use or of another context is therefore
//! refused. A number repeats after 2^24 - 1 uses of the place.
//!
//! The diagram shows the owners of a buffer, and the calls that change the owner. A sync is a call
//! of `tlr_sync` or `tlr_rx_sync`. Its result is the list (the ready list), which has the received
//! data until the next sync.
//!
//! ```text
//!   context ── allocate ──> program ── send, release ──> context
//!      └────── sync ──> list ── hold ──> program
//!                        └── send, release, the next sync ──> context
//! ```
//!
//! A place holds the [`Buffer`] value. The memory of the buffer is a piece of the context's pool,
//! or memory that a back end lends, such as a part of a stream buffer of the Tidelane service. A
//! buffer that the context owns has no place.

use std::ptr::NonNull;

use tidelane_rings::Buffer;

use crate::{error::Error, types::CSlot};

/// Bits of the index of a place. `TLR_INDEX` and `TLR_INDEXES` of `tidelane_rings.h` depend on this
/// constant.
const INDEX_BITS: u32 = 18;
/// Bits of the number of a place's use.
const USE_BITS: u32 = 24;
/// Bits of the number of a context.
const CONTEXT_BITS: u32 = 21;

const _: () = assert!(INDEX_BITS + USE_BITS + CONTEXT_BITS == 63, "never negative");

/// Largest number of places.
const PLACES_MAX: usize = 1 << INDEX_BITS;
/// A sync fails if the program owns this number of buffers or more. The other places are kept for
/// the buffers of the next list.
const HELD_MAX: u32 = 1 << (INDEX_BITS - 1);

/// Owner of a buffer that has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The ready list (the result of a sync), until the next sync.
    List,
    /// The program.
    Program,
}

/// An entry of the table of buffers.
#[derive(Debug, Default)]
struct Place {
    buffer: Option<(Buffer, Owner)>,
    /// Number of the place's present use, or of its most recent use if the place is free. Zero
    /// before the first use.
    uses: u32,
}

/// The table of the buffers that the program or the ready list owns.
#[derive(Debug)]
pub struct Buffers {
    /// The low `CONTEXT_BITS` bits of the number of the context.
    context: u32,
    places: Vec<Place>,
    /// Indexes of the places without a buffer.
    free: Vec<u32>,
    /// Number of buffers that the program owns.
    held: u32,
}

impl Buffers {
    /// Returns the table of the context with the number `context`. The table has no buffers.
    pub fn new(context: u32) -> Self {
        Self {
            context: context & ((1 << CONTEXT_BITS) - 1),
            places: Vec::new(),
            free: Vec::new(),
            held: 0,
        }
    }

    /// Returns the number of buffers that the program owns.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Returns an error if the program owns so many buffers that the buffers of the next list might
    /// not find places.
    pub fn check_room_for_a_list(&self) -> Result<(), Error> {
        match self.held < HELD_MAX {
            true => Ok(()),
            false => Err(Error::TOO_MANY_HELD),
        }
    }

    /// Gives a buffer to `owner`, and returns the number of the buffer. If no place is free, drops
    /// the buffer and returns `None`.
    pub fn give(&mut self, buffer: Buffer, owner: Owner) -> Option<i64> {
        if self.free.is_empty() && self.places.len() < PLACES_MAX {
            self.free.push(self.places.len() as u32);
            self.places.push(Place::default());
        }
        let index = self.free.pop()?;
        let place = &mut self.places[index as usize];
        // Uses start at 1, so that no buffer has the number 0.
        place.uses = (place.uses % ((1 << USE_BITS) - 1)) + 1;
        place.buffer = Some((buffer, owner));
        self.held += u32::from(owner == Owner::Program);
        let number = u64::from(self.context) << USE_BITS | u64::from(place.uses);
        Some((number << INDEX_BITS | u64::from(index)) as i64)
    }

    /// Takes a buffer from its owner, the list or the program. Returns the buffer and this owner.
    pub fn take(&mut self, number: i64) -> Result<(Buffer, Owner), Error> {
        let index = self.find(number)?;
        let taken = self.places[index].buffer.take().ok_or(Error::BUFFER_GONE)?;
        self.free.push(index as u32);
        self.held -= u32::from(taken.1 == Owner::Program);
        Ok(taken)
    }

    /// Gives the buffer of the preceding [`Self::take`] back to its owner, with its number
    /// unchanged. The caller must not give or take another buffer between the two calls.
    pub fn give_back(&mut self, buffer: Buffer, owner: Owner) {
        if let Some(index) = self.free.pop() {
            self.places[index as usize].buffer = Some((buffer, owner));
            self.held += u32::from(owner == Owner::Program);
        }
    }

    /// Makes the program the owner of a buffer of the list. A buffer of the program stays with the
    /// program.
    pub fn hold(&mut self, number: i64) -> Result<(), Error> {
        let index = self.find(number)?;
        if let Some((_, owner)) = &mut self.places[index].buffer {
            let before = std::mem::replace(owner, Owner::Program);
            self.held += u32::from(before == Owner::List);
        }
        Ok(())
    }

    /// Drops each buffer of `slots` that still belongs to the list.
    pub fn end_list(&mut self, slots: &[CSlot]) {
        for slot in slots {
            let is_of_list = self.find(slot.buffer).is_ok_and(|index| {
                let buffer = &self.places[index].buffer;
                matches!(buffer, Some((_, Owner::List)))
            });
            if is_of_list {
                drop(self.take(slot.buffer));
            }
        }
    }

    /// Returns the address and the length of the payload.
    pub fn payload(&self, number: i64) -> Result<(NonNull<u8>, u32), Error> {
        let buffer = self.buffer(number)?;
        Ok((buffer.address(), buffer.len() as u32))
    }

    /// Makes the payload writable. Returns the address and the length of the payload.
    pub fn writable_payload(&mut self, number: i64) -> Result<(NonNull<u8>, u32), Error> {
        let buffer = self.buffer_mut(number)?;
        // If the program may only read the memory, `payload_mut` copies the buffer to other memory.
        buffer.payload_mut();
        Ok((buffer.address(), buffer.len() as u32))
    }

    /// Returns the number of bytes from the start of the payload to the end of the buffer.
    pub fn capacity(&self, number: i64) -> Result<u32, Error> {
        let buffer = self.buffer(number)?;
        Ok(buffer.capacity() - buffer.range().start)
    }

    /// Moves the start of the payload forward by `skip` bytes, and sets the length of the payload
    /// to `len`. Fails if the new payload would end beyond the buffer.
    pub fn set_payload(&mut self, number: i64, skip: u32, len: u32) -> Result<(), Error> {
        let buffer = self.buffer_mut(number)?;
        let start = buffer.range().start.checked_add(skip);
        let start = start.ok_or(Error::LENGTH)?;
        let limit = buffer.capacity();
        let end = start.checked_add(len).filter(|end| *end <= limit);
        buffer.set_payload(start..end.ok_or(Error::LENGTH)?);
        Ok(())
    }

    fn buffer(&self, number: i64) -> Result<&Buffer, Error> {
        let place = &self.places[self.find(number)?];
        let buffer = place.buffer.as_ref();
        buffer.map(|(buffer, _)| buffer).ok_or(Error::BUFFER_GONE)
    }

    fn buffer_mut(&mut self, number: i64) -> Result<&mut Buffer, Error> {
        let index = self.find(number)?;
        let buffer = self.places[index].buffer.as_mut();
        buffer.map(|(buffer, _)| buffer).ok_or(Error::BUFFER_GONE)
    }

    /// Returns the index of the place that holds the buffer with this number.
    fn find(&self, number: i64) -> Result<usize, Error> {
        let number = u64::try_from(number).map_err(|_| Error::NO_SUCH_BUFFER)?;
        let index = (number & ((1 << INDEX_BITS) - 1)) as usize;
        let uses = (number >> INDEX_BITS) & ((1 << USE_BITS) - 1);
        let context = number >> (INDEX_BITS + USE_BITS);
        let place = self.places.get(index).ok_or(Error::NO_SUCH_BUFFER)?;
        if context != u64::from(self.context) {
            return Err(Error::NO_SUCH_BUFFER);
        }
        match place.buffer.is_some() && u64::from(place.uses) == uses {
            true => Ok(index),
            false => Err(Error::BUFFER_GONE),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidelane_rings::Pool;

    use super::*;

    fn pool(count: u32) -> Pool {
        Pool::new(count, 100).expect("there is memory")
    }

    fn allocate(pool: &Pool, buffers: &mut Buffers) -> i64 {
        let buffer = pool.allocate().expect("free");
        buffers.give(buffer, Owner::Program).expect("a place")
    }

    #[test]
    fn a_number_is_valid_for_one_use() {
        let (pool, mut buffers) = (pool(1), Buffers::new(7));
        let first = allocate(&pool, &mut buffers);
        assert_eq!((first & 0x3_ffff, buffers.held()), (0, 1));
        assert!(pool.allocate().is_none());
        let (buffer, owner) = buffers.take(first).expect("the program's");
        assert_eq!((owner, buffers.held()), (Owner::Program, 0));
        assert_eq!(buffers.take(first).err(), Some(Error::BUFFER_GONE));
        buffers.give_back(buffer, owner);
        assert_eq!(buffers.payload(first).map(|(_, len)| len), Ok(0));
        drop(buffers.take(first));
        let second = allocate(&pool, &mut buffers);
        assert_ne!(first, second);
        for gone in [first, second + (1 << INDEX_BITS)] {
            assert_eq!(buffers.payload(gone).err(), Some(Error::BUFFER_GONE));
            assert_eq!(buffers.hold(gone), Err(Error::BUFFER_GONE));
            assert_eq!(buffers.set_payload(gone, 0, 1), Err(Error::BUFFER_GONE));
            let written = buffers.writable_payload(gone);
            assert_eq!(written.err(), Some(Error::BUFFER_GONE));
        }
        assert_eq!(pool.free_count(), 0);
        drop(buffers.take(second));
        assert_eq!(pool.free_count(), 1);
    }

    #[test]
    fn other_numbers_are_refused() {
        let pool = pool(8);
        let (mut ours, mut other) = (Buffers::new(1), Buffers::new(2));
        let number = allocate(&pool, &mut ours);
        let foreign = allocate(&pool, &mut other);
        let out_of_range = number - (number & 0x3_ffff) + 4;
        for wrong in [foreign, out_of_range, -1, i64::MIN, i64::MAX, 0] {
            let taken = ours.take(wrong);
            assert_eq!(taken.err(), Some(Error::NO_SUCH_BUFFER), "{wrong:x}");
        }
        // The number of the context in a buffer's number repeats after 2^21 contexts.
        assert_eq!(Buffers::new(1 << CONTEXT_BITS).context, 0);
        // A number is positive even if all its bits of the context are set.
        let mut last = Buffers::new(u32::MAX);
        let number = allocate(&pool, &mut last);
        assert!(number > 0 && last.payload(number).is_ok());
    }

    #[test]
    fn uses_wrap_without_zero() {
        let (pool, mut buffers) = (pool(1), Buffers::new(1));
        let first = allocate(&pool, &mut buffers);
        drop(buffers.take(first));
        buffers.places[0].uses = (1 << USE_BITS) - 1;
        assert_eq!(allocate(&pool, &mut buffers), first);
    }

    #[test]
    fn the_end_of_a_list_returns_buffers_without_a_holder() {
        let (pool, mut buffers) = (pool(3), Buffers::new(1));
        let numbers: Vec<i64> = (0..3)
            .map(|_| {
                let buffer = pool.allocate().expect("free");
                buffers.give(buffer, Owner::List).expect("a place")
            })
            .collect();
        let slots: Vec<CSlot> = numbers
            .iter()
            .map(|number| CSlot {
                buffer: *number,
                descriptor: 0,
                len: 0,
                next: -1,
                reserved: 0,
            })
            .collect();
        for _ in 0..2 {
            buffers.hold(numbers[1]).expect("in the list, then held");
            assert_eq!(buffers.held(), 1);
        }
        drop(buffers.take(numbers[2]));
        // A new buffer gets the place of the released buffer. The end of the list must not drop the
        // new buffer.
        let again = allocate(&pool, &mut buffers);
        buffers.end_list(&slots);
        assert_eq!((pool.free_count(), buffers.held()), (1, 2));
        assert_eq!(buffers.payload(numbers[0]).err(), Some(Error::BUFFER_GONE));
        assert!(buffers.payload(numbers[1]).is_ok() && buffers.payload(again).is_ok());
    }

    #[test]
    fn a_payload_stays_within_its_buffer() {
        let (pool, mut buffers) = (pool(2), Buffers::new(1));
        let number = allocate(&pool, &mut buffers);
        let start = buffers.payload(number).expect("held").0;
        assert_eq!(buffers.capacity(number), Ok(100));
        assert_eq!(buffers.set_payload(number, 30, 70), Ok(()));
        assert_eq!(buffers.capacity(number), Ok(70));
        let (at, len) = buffers.payload(number).expect("held");
        assert_eq!((at.addr().get() - start.addr().get(), len), (30, 70));
        for (skip, len) in [
            (0, 71),
            (71, 0),
            (1, 70),
            (u32::MAX, 0),
            (0, u32::MAX),
            (u32::MAX, u32::MAX),
        ] {
            let result = buffers.set_payload(number, skip, len);
            assert_eq!(result, Err(Error::LENGTH), "{skip} {len}");
        }
        assert_eq!(buffers.set_payload(number, 70, 0), Ok(()));
        assert_eq!(buffers.payload(number).expect("held").1, 0);
    }

    /// A program that owns a buffer in each place gets no further buffer. A list is refused as soon
    /// as the program owns a buffer in half of the places.
    #[test]
    fn the_number_of_places_is_limited() {
        let (pool, mut buffers) = (pool(1), Buffers::new(1));
        let detached = || {
            let mut buffer = pool.allocate().expect("free");
            buffer.detach();
            buffer
        };
        let mut numbers = Vec::new();
        while let Some(number) = buffers.give(detached(), Owner::Program) {
            numbers.push(number);
            let is_few = numbers.len() < PLACES_MAX / 2;
            assert_eq!(buffers.check_room_for_a_list().is_ok(), is_few);
        }
        assert_eq!(numbers.len(), PLACES_MAX);
        drop(buffers.take(numbers[PLACES_MAX / 2]));
        let again = buffers.give(detached(), Owner::Program);
        let again = again.expect("the place that is free");
        assert_eq!(again & 0x3_ffff, (PLACES_MAX / 2) as i64);
    }
}
