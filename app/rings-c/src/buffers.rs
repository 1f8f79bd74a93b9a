//! [`Buffers`]: the buffers that a program in C can name, each with its number and its owner.
//!
//! The program has the number of a buffer and the address of its bytes. The low bits of the number
//! are the index of the buffer's place in a table. The other bits identify the context and the use
//! of the place: the number changes whenever a buffer gets the place. A number of an earlier use or
//! of another context is therefore refused. A number repeats after 2^24 - 1 uses of the place.
//!
//! ```text
//!   context ── allocate ──> program ── send, release ──> context
//!      └────── sync ──> list ── hold ──> program
//!                        └── send, release, the next sync ──> context
//! ```
//!
//! A place holds the buffer itself, whether its memory belongs to the pool or to a stream buffer of
//! the service. A buffer that the context owns has no place.

use std::ptr::NonNull;

use tidelane_rings::Buffer;

use crate::{error::Error, types::CSlot};

/// Bits of the index. `TLR_INDEX` and `TLR_INDEXES` of the header depend on this number.
const INDEX_BITS: u32 = 18;
/// Bits of the number of the use.
const USE_BITS: u32 = 24;
/// Bits of the number of the context.
const CONTEXT_BITS: u32 = 21;

const _: () = assert!(INDEX_BITS + USE_BITS + CONTEXT_BITS == 63, "never negative");

/// Limit of the places.
const PLACES_MAX: usize = 1 << INDEX_BITS;
/// A sync fails if the program owns this number of buffers or more. The remaining places are for
/// the buffers of the list.
const HELD_MAX: u32 = 1 << (INDEX_BITS - 1);

/// Owner of a buffer that has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The ready list, until the next sync.
    List,
    /// The program.
    Program,
}

/// An entry of the table of buffers.
#[derive(Debug, Default)]
struct Place {
    buffer: Option<(Buffer, Owner)>,
    /// Number of the present use, or of the last use while the place is free. Zero before the first
    /// use.
    uses: u32,
}

/// The buffers of the program and of the ready list by number.
#[derive(Debug)]
pub struct Buffers {
    /// Number of the context, of `CONTEXT_BITS` bits.
    context: u32,
    places: Vec<Place>,
    /// Indexes of the places without a buffer.
    free: Vec<u32>,
    /// Number of buffers of the program.
    held: u32,
}

impl Buffers {
    /// Returns the table of the context with this number, without buffers.
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

    /// Returns an error if the program has so many buffers that a list may find no places.
    pub fn check_room_for_a_list(&self) -> Result<(), Error> {
        match self.held < HELD_MAX {
            true => Ok(()),
            false => Err(Error::TOO_MANY_HELD),
        }
    }

    /// Gives a buffer to the list or to the program. Returns the number of the buffer, or `None` if
    /// there is no place.
    pub fn give(&mut self, buffer: Buffer, owner: Owner) -> Option<i64> {
        if self.free.is_empty() && self.places.len() < PLACES_MAX {
            self.free.push(self.places.len() as u32);
            self.places.push(Place::default());
        }
        let index = self.free.pop()?;
        let place = &mut self.places[index as usize];
        // Uses start at 1, so that the number 0 is never valid.
        place.uses = (place.uses % ((1 << USE_BITS) - 1)) + 1;
        place.buffer = Some((buffer, owner));
        self.held += u32::from(owner == Owner::Program);
        let number = u64::from(self.context) << USE_BITS | u64::from(place.uses);
        Some((number << INDEX_BITS | u64::from(index)) as i64)
    }

    /// Takes a buffer from the list or from the program. Also returns its owner.
    pub fn take(&mut self, number: i64) -> Result<(Buffer, Owner), Error> {
        let index = self.find(number)?;
        let taken = self.places[index].buffer.take().ok_or(Error::BUFFER_GONE)?;
        self.free.push(index as u32);
        self.held -= u32::from(taken.1 == Owner::Program);
        Ok(taken)
    }

    /// Gives back the buffer that the last [`Self::take`] has taken, with its number unchanged.
    pub fn give_back(&mut self, buffer: Buffer, owner: Owner) {
        if let Some(index) = self.free.pop() {
            self.places[index as usize].buffer = Some((buffer, owner));
            self.held += u32::from(owner == Owner::Program);
        }
    }

    /// Makes the program the owner of a buffer of the list.
    pub fn hold(&mut self, number: i64) -> Result<(), Error> {
        let index = self.find(number)?;
        if let Some((_, owner)) = &mut self.places[index].buffer {
            let before = std::mem::replace(owner, Owner::Program);
            self.held += u32::from(before == Owner::List);
        }
        Ok(())
    }

    /// Drops the buffers that still belong to the list.
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

    /// Returns the address and the length of the payload, in memory that the program may write.
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

    /// Sets the payload to the `len` bytes that follow the first `skip` bytes of the payload.
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

    /// Returns the index of the place of a buffer of the list or the program.
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
        // The bits of the context repeat after 2^21 contexts.
        assert_eq!(Buffers::new(1 << CONTEXT_BITS).context, 0);
        // The largest number is positive.
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
        // The place of the released buffer has a new buffer, which the end of the list must not
        // drop.
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

    /// All places may be in use. The program then gets no buffer, and a list is refused long
    /// before.
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
