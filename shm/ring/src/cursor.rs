//! Indices of a single-producer single-consumer ring in shared memory. The process at the other end
//! of the ring (the *peer*) may be hostile.
//!
//! Each side keeps private copies of both indices, and validates the peer's index before it copies
//! the index. The consumer's index is invalid if it moves back or passes the published entries. The
//! producer's index is invalid if the ring would hold more entries than its capacity. An invalid
//! index is reported as [`Corrupt`] and not copied. A position that is derived from a cursor is
//! therefore always inside the ring, whatever value the peer writes.
//!
//! In the functions, the parameter `produced` is the producer's shared index, and the parameter
//! `consumed` is the consumer's shared index. The fields with these names are private.

use crate::sync::{AtomicU32, Ordering};

/// The peer wrote an invalid index. The caller must stop using the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Reason why an entry was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The ring is full.
    Full,
    /// The consumer's index is invalid.
    Corrupt,
}

/// The producer's private copies of the ring's indices. An index counts entries and wraps at 2^32.
#[derive(Debug)]
pub struct ProducerCursor {
    /// Number of entries of the ring minus one. `index & mask` is the position of an entry.
    mask: u32,
    /// Index after the last committed entry.
    produced: u32,
    /// The producer's index that the consumer can see.
    published: u32,
    /// The consumer's index when it was last loaded.
    consumed: u32,
}

impl ProducerCursor {
    /// Creates the cursor of a new ring of `len` entries. `len` must be a power of two.
    pub fn new(len: u32) -> ProducerCursor {
        assert!(len.is_power_of_two() && len < 1 << 31);
        ProducerCursor {
            mask: len - 1,
            produced: 0,
            published: 0,
            consumed: 0,
        }
    }

    /// Creates a cursor whose indices start at `index`, for tests of the wrap-around at 2^32.
    pub fn starting_at(len: u32, index: u32) -> ProducerCursor {
        ProducerCursor {
            produced: index,
            published: index,
            consumed: index,
            ..ProducerCursor::new(len)
        }
    }

    /// Returns the position for the next entry. The caller writes the entry and then calls
    /// `commit`.
    #[inline]
    pub fn claim(&mut self, consumed: &AtomicU32) -> Result<usize, PushError> {
        if self.produced.wrapping_sub(self.consumed) > self.mask {
            self.refresh(consumed)
                .map_err(|Corrupt| PushError::Corrupt)?;
            if self.produced.wrapping_sub(self.consumed) > self.mask {
                return Err(PushError::Full);
            }
        }
        Ok(self.position())
    }

    /// Returns the position of the next entry. The ring may have no room at this position yet.
    #[inline]
    pub fn position(&self) -> usize {
        (self.produced & self.mask) as usize
    }

    /// Records that the entry at the claimed position was written.
    #[inline]
    pub fn commit(&mut self) {
        self.produced = self.produced.wrapping_add(1);
    }

    /// Returns the position for the next `count` entries if the ring has room for them. The
    /// function does not check whether the entries extend beyond the last position of the ring. The
    /// caller writes the entries and then calls `commit_many`.
    #[inline]
    pub fn claim_many(&mut self, count: u32, consumed: &AtomicU32) -> Result<usize, PushError> {
        if self.free() < count {
            self.refresh(consumed)
                .map_err(|Corrupt| PushError::Corrupt)?;
            if self.free() < count {
                return Err(PushError::Full);
            }
        }
        Ok(self.position())
    }

    /// Records that `count` entries from the claimed position on were written.
    #[inline]
    pub fn commit_many(&mut self, count: u32) {
        self.produced = self.produced.wrapping_add(count);
    }

    /// Makes committed entries visible to the consumer. Returns true if there were entries to
    /// publish.
    #[inline]
    pub fn publish(&mut self, produced: &AtomicU32) -> bool {
        if self.produced == self.published {
            return false;
        }
        self.published = self.produced;
        produced.store(self.produced, Ordering::Release);
        true
    }

    /// Returns the number of entries that are committed and not yet published.
    pub fn unpublished(&self) -> u32 {
        self.produced.wrapping_sub(self.published)
    }

    /// Returns the number of entries that can be pushed now.
    pub fn room(&mut self, consumed: &AtomicU32) -> Result<u32, Corrupt> {
        self.refresh(consumed)?;
        Ok(self.free())
    }

    /// Returns the number of entries that can be pushed according to the private copy of the
    /// consumer's index. The ring may have more room.
    #[inline]
    pub fn free(&self) -> u32 {
        self.mask + 1 - self.produced.wrapping_sub(self.consumed)
    }

    #[inline]
    fn refresh(&mut self, consumed: &AtomicU32) -> Result<(), Corrupt> {
        // Acquire orders the consumer's reads of the entries before our writes to their positions.
        let theirs = consumed.load(Ordering::Acquire);
        if theirs.wrapping_sub(self.consumed) > self.published.wrapping_sub(self.consumed) {
            return Err(Corrupt);
        }
        self.consumed = theirs;
        Ok(())
    }
}

/// The consumer's private copies of the ring's indices. An index counts entries and wraps at 2^32.
#[derive(Debug)]
pub struct ConsumerCursor {
    /// Number of entries of the ring minus one. `index & mask` is the position of an entry.
    mask: u32,
    /// The producer's index when it was last loaded.
    produced: u32,
    /// Index after the last entry that the consumer has copied and committed.
    consumed: u32,
    /// The consumer's index that the producer can see.
    released: u32,
}

impl ConsumerCursor {
    /// Creates the cursor of a new ring of `len` entries. `len` must be a power of two.
    pub fn new(len: u32) -> ConsumerCursor {
        assert!(len.is_power_of_two() && len < 1 << 31);
        ConsumerCursor {
            mask: len - 1,
            produced: 0,
            consumed: 0,
            released: 0,
        }
    }

    /// Creates a cursor whose indices start at `index`, for tests of the wrap-around at 2^32.
    pub fn starting_at(len: u32, index: u32) -> ConsumerCursor {
        ConsumerCursor {
            produced: index,
            consumed: index,
            released: index,
            ..ConsumerCursor::new(len)
        }
    }

    /// Returns the position of the next entry, or `None` if the ring is empty. The caller copies
    /// the entry and then calls `commit`.
    #[inline]
    pub fn claim(&mut self, produced: &AtomicU32) -> Result<Option<usize>, Corrupt> {
        if self.consumed == self.produced && !self.refresh(produced)? {
            return Ok(None);
        }
        Ok(Some(self.position()))
    }

    /// Records that the entry at the claimed position was copied.
    #[inline]
    pub fn commit(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }

    /// Returns the number of entries up to the private copy of the producer's index. The ring may
    /// hold more entries. If this number is zero, the function first loads the producer's index, so
    /// a result of zero means that the ring is empty.
    #[inline]
    pub fn known(&mut self, produced: &AtomicU32) -> Result<u32, Corrupt> {
        if self.consumed == self.produced {
            self.refresh(produced)?;
        }
        Ok(self.produced.wrapping_sub(self.consumed))
    }

    /// Returns the position of the next entry. The ring may have no entry at this position yet.
    #[inline]
    pub fn position(&self) -> usize {
        (self.consumed & self.mask) as usize
    }

    /// Returns the number of entries up to the producer's index. The index is not validated, so the
    /// number may exceed the length of the ring.
    #[inline]
    pub fn produced(&self, produced: &AtomicU32) -> u32 {
        produced.load(Ordering::Relaxed).wrapping_sub(self.consumed)
    }

    /// Returns the position of the entry that is `ahead` entries after the next entry. `ahead` must
    /// be less than the result of [`known`](Self::known).
    #[inline]
    pub fn ahead(&self, ahead: u32) -> usize {
        (self.consumed.wrapping_add(ahead) & self.mask) as usize
    }

    /// Records that the next `count` entries were copied.
    #[inline]
    pub fn commit_many(&mut self, count: u32) {
        self.consumed = self.consumed.wrapping_add(count);
    }

    /// Gives the positions of committed entries back to the producer.
    #[inline]
    pub fn release(&mut self, consumed: &AtomicU32) {
        if self.released != self.consumed {
            self.released = self.consumed;
            consumed.store(self.consumed, Ordering::Release);
        }
    }

    /// Returns true if the ring is empty. Returns false if the producer's index is invalid, so that
    /// the caller calls `claim`, which reports [`Corrupt`].
    #[inline]
    pub fn is_empty(&self, produced: &AtomicU32) -> bool {
        self.consumed == self.produced && produced.load(Ordering::Acquire) == self.consumed
    }

    /// Loads the producer's index. Returns true if the ring has an entry.
    #[inline]
    fn refresh(&mut self, produced: &AtomicU32) -> Result<bool, Corrupt> {
        // Acquire makes the entries before this index visible.
        let theirs = produced.load(Ordering::Acquire);
        let unreleased = self.consumed.wrapping_sub(self.released);
        if theirs.wrapping_sub(self.consumed) > self.mask + 1 - unreleased {
            return Err(Corrupt);
        }
        self.produced = theirs;
        Ok(self.produced != self.consumed)
    }
}
