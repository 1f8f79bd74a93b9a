//! The owner of each buffer of a context.
//!
//! The program in C has the number of a buffer and the address of its bytes. The number has the
//! buffer's index in its low bits. The other bits name the context and the use of the buffer: the
//! number changes whenever the buffer gets an owner on the side of the program. A number of an
//! earlier use or of another context is therefore found out, until a buffer has had 2^24 uses.
//!
//! ```text
//!   free or context ── allocate ──> program ── send, release ──> free or context
//!        └────── sync ──> list ── hold ──> program
//!                          └── send, release, the next sync ──> free or context
//! ```

use std::ptr::NonNull;

use tidelane_rings::{Buffer, Pool};

use crate::{error::Error, types::CSlot};

/// Bits of the index. A pool has at most 2^15 buffers.
const INDEX_BITS: u32 = 15;
/// Bits of the number of the use, and of the number of the context.
const NUMBER_BITS: u32 = 24;

/// Owner of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The pool or the back end.
    Context,
    /// The ready list, until the next sync.
    List,
    /// The program.
    Program,
}

/// A buffer: its owner, its use, and the range of its payload while the owner is not the context.
#[derive(Clone, Debug)]
struct Place {
    owner: Owner,
    /// Number of the present use, or of the last one. Zero before the first.
    uses: u32,
    start: u32,
    end: u32,
}

/// The buffers of a context by number.
#[derive(Debug)]
pub struct Buffers {
    pool: Pool,
    /// Number of the context, of `NUMBER_BITS` bits.
    context: u32,
    places: Vec<Place>,
    /// Number of buffers of the program.
    held: u32,
}

impl Buffers {
    /// Returns the table of a pool whose buffers the context has. `context` is the number of the
    /// context.
    pub fn new(pool: Pool, context: u32) -> Self {
        assert!(pool.count() <= 1 << INDEX_BITS, "the index has 15 bits");
        let place = Place {
            owner: Owner::Context,
            uses: 0,
            start: 0,
            end: 0,
        };
        Self {
            places: vec![place; pool.count() as usize],
            context: context & ((1 << NUMBER_BITS) - 1),
            pool,
            held: 0,
        }
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the number of buffers that the program owns.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Gives a buffer to the list or to the program. Returns the number of the buffer.
    ///
    /// # Panics
    ///
    /// If the buffer is of another pool.
    pub fn give(&mut self, buffer: Buffer, owner: Owner) -> i64 {
        let place = &mut self.places[buffer.index() as usize];
        // The use 0 is none, so that the number 0 is never valid.
        place.uses = (place.uses % ((1 << NUMBER_BITS) - 1)) + 1;
        let uses = place.uses;
        let index = self.put(buffer, owner);
        let number = u64::from(self.context) << NUMBER_BITS | u64::from(uses);
        (number << INDEX_BITS | u64::from(index)) as i64
    }

    /// Gives back a buffer that [`Self::take`] has taken, with its number unchanged.
    pub fn give_back(&mut self, buffer: Buffer, owner: Owner) {
        self.put(buffer, owner);
    }

    fn put(&mut self, buffer: Buffer, owner: Owner) -> u32 {
        assert!(buffer.is_of(&self.pool), "a buffer of another pool");
        let range = buffer.range();
        let index = buffer.into_index();
        let place = &mut self.places[index as usize];
        (place.start, place.end) = (range.start, range.end);
        place.owner = owner;
        self.held += u32::from(owner == Owner::Program);
        index
    }

    /// Takes a buffer from the list or from the program. Also returns its owner.
    pub fn take(&mut self, number: i64) -> Result<(Buffer, Owner), Error> {
        let index = self.find(number)?;
        let place = &mut self.places[index];
        let owner = std::mem::replace(&mut place.owner, Owner::Context);
        self.held -= u32::from(owner == Owner::Program);
        // SAFETY: the owner was not the context, so that the index came from `into_index` in `put`
        // and was not adopted since. The program uses the address no longer: its function's
        // promise. The kernel does not have the buffer.
        let buffer = unsafe { self.pool.adopt(index as u32, place.start..place.end) };
        Ok((buffer, owner))
    }

    /// Makes the program the owner of a buffer of the list.
    pub fn hold(&mut self, number: i64) -> Result<(), Error> {
        let index = self.find(number)?;
        let before = std::mem::replace(&mut self.places[index].owner, Owner::Program);
        self.held += u32::from(before == Owner::List);
        Ok(())
    }

    /// Returns the buffers that still belong to the list to the pool.
    pub fn end_list(&mut self, slots: &[CSlot]) {
        for slot in slots {
            let found = self.find(slot.buffer);
            if found.is_ok_and(|index| self.places[index].owner == Owner::List) {
                drop(self.take(slot.buffer));
            }
        }
    }

    /// Returns the address and the length of the payload.
    pub fn payload(&self, number: i64) -> Result<(NonNull<u8>, u32), Error> {
        let index = self.find(number)?;
        let place = &self.places[index];
        let start = self.pool.address(index as u32);
        // SAFETY: the payload starts within the buffer.
        let start = unsafe { start.add(place.start as usize) };
        Ok((start, place.end - place.start))
    }

    /// Returns the number of bytes from the start of the payload to the end of the buffer.
    pub fn capacity(&self, number: i64) -> Result<u32, Error> {
        let index = self.find(number)?;
        Ok(self.pool.buffer_len() - self.places[index].start)
    }

    /// Sets the payload to the `len` bytes that follow the first `skip` bytes of the payload.
    pub fn set_payload(&mut self, number: i64, skip: u32, len: u32) -> Result<(), Error> {
        let index = self.find(number)?;
        let limit = self.pool.buffer_len();
        let place = &mut self.places[index];
        let start = place.start.checked_add(skip).ok_or(Error::LENGTH)?;
        let end = start.checked_add(len).filter(|end| *end <= limit);
        (place.start, place.end) = (start, end.ok_or(Error::LENGTH)?);
        Ok(())
    }

    /// Returns the index of a buffer of the list or the program.
    fn find(&self, number: i64) -> Result<usize, Error> {
        let number = u64::try_from(number).map_err(|_| Error::ARGUMENT)?;
        let index = (number & ((1 << INDEX_BITS) - 1)) as usize;
        let uses = (number >> INDEX_BITS) & ((1 << NUMBER_BITS) - 1);
        let context = number >> (INDEX_BITS + NUMBER_BITS);
        let place = self.places.get(index).ok_or(Error::ARGUMENT)?;
        if context != u64::from(self.context) {
            return Err(Error::ARGUMENT);
        }
        let is_present = place.owner != Owner::Context && u64::from(place.uses) == uses;
        if is_present {
            Ok(index)
        } else {
            Err(Error::BUFFER_GONE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers(count: u32, context: u32) -> Buffers {
        Buffers::new(Pool::new(count, 100).expect("there is memory"), context)
    }

    fn allocate(buffers: &mut Buffers) -> i64 {
        let buffer = buffers.pool().allocate().expect("free");
        buffers.give(buffer, Owner::Program)
    }

    #[test]
    fn a_number_is_valid_for_one_use() {
        let mut buffers = buffers(1, 7);
        let first = allocate(&mut buffers);
        assert_eq!((first & 0x7fff, buffers.held()), (0, 1));
        assert!(buffers.pool().allocate().is_none());
        let (buffer, owner) = buffers.take(first).expect("the program's");
        assert_eq!((owner, buffers.held()), (Owner::Program, 0));
        assert_eq!(buffers.take(first).err(), Some(Error::BUFFER_GONE));
        buffers.give_back(buffer, owner);
        assert_eq!(buffers.payload(first).map(|(_, len)| len), Ok(0));
        drop(buffers.take(first));
        let second = allocate(&mut buffers);
        assert_ne!(first, second);
        for gone in [first, second + (1 << INDEX_BITS)] {
            assert_eq!(buffers.payload(gone).err(), Some(Error::BUFFER_GONE));
            assert_eq!(buffers.hold(gone), Err(Error::BUFFER_GONE));
            assert_eq!(buffers.set_payload(gone, 0, 1), Err(Error::BUFFER_GONE));
        }
        assert_eq!(buffers.pool().free_count(), 0);
        drop(buffers.take(second));
        assert_eq!(buffers.pool().free_count(), 1);
    }

    #[test]
    fn other_numbers_are_refused() {
        let mut ours = buffers(4, 1);
        let mut other = buffers(4, 2);
        let (number, foreign) = (allocate(&mut ours), allocate(&mut other));
        let out_of_range = number - (number & 0x7fff) + 4;
        for wrong in [foreign, out_of_range, -1, i64::MIN, i64::MAX, 0] {
            assert_eq!(ours.take(wrong).err(), Some(Error::ARGUMENT), "{wrong:x}");
        }
        // The number of a context that was opened 2^24 contexts later is the same.
        assert_eq!(buffers(1, 1 << NUMBER_BITS).context, 0);
    }

    #[test]
    fn uses_wrap_without_zero() {
        let mut buffers = buffers(1, 1);
        let first = allocate(&mut buffers);
        drop(buffers.take(first));
        buffers.places[0].uses = (1 << NUMBER_BITS) - 1;
        assert_eq!(allocate(&mut buffers), first);
    }

    #[test]
    fn the_end_of_a_list_returns_what_nobody_holds() {
        let mut buffers = buffers(3, 1);
        let numbers: Vec<i64> = (0..3)
            .map(|_| {
                let buffer = buffers.pool().allocate().expect("free");
                buffers.give(buffer, Owner::List)
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
        // The buffer that was released meanwhile has a new use.
        let again = allocate(&mut buffers);
        buffers.end_list(&slots);
        assert_eq!((buffers.pool().free_count(), buffers.held()), (1, 2));
        assert_eq!(buffers.payload(numbers[0]).err(), Some(Error::BUFFER_GONE));
        assert!(buffers.payload(numbers[1]).is_ok() && buffers.payload(again).is_ok());
    }

    #[test]
    fn a_payload_stays_within_its_buffer() {
        let mut buffers = buffers(2, 1);
        let number = allocate(&mut buffers);
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
}
