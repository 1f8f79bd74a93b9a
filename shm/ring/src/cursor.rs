//! Indices of a single-producer single-consumer ring whose other side may be hostile.
//!
//! Each side works with private copies of both indices. Each side checks the peer's index before
//! copying the index. The consumer's index is impossible if it moves back or passes the published
//! entries. The producer's index is impossible if the ring would hold more entries than its length.
//! An impossible index is reported as [`Corrupt`], and the session ends. A ring position that is
//! derived from a cursor is therefore always inside the ring, whatever the peer writes.

use crate::sync::{AtomicU32, Ordering};

/// The peer wrote an impossible index, so the session has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Reason for which an entry was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The ring is full.
    Full,
    /// The consumer's index is impossible.
    Corrupt,
}

/// The producer's private copies of the ring's indices. All indices are free-running.
#[derive(Debug)]
pub struct ProducerCursor {
    mask: u32,
    /// Index after the last committed entry.
    produced: u32,
    /// The producer's index that the consumer can see.
    published: u32,
    /// The consumer's index at the last load.
    consumed: u32,
}

impl ProducerCursor {
    /// Creates the cursor of a new ring of `len` (a power of two) entries.
    pub fn new(len: u32) -> ProducerCursor {
        assert!(len.is_power_of_two() && len < 1 << 31);
        ProducerCursor {
            mask: len - 1,
            produced: 0,
            published: 0,
            consumed: 0,
        }
    }

    /// Creates a cursor with its indices at `index`, for tests of wrap-around at 2^32.
    pub fn starting_at(len: u32, index: u32) -> ProducerCursor {
        ProducerCursor {
            produced: index,
            published: index,
            consumed: index,
            ..ProducerCursor::new(len)
        }
    }

    /// Returns the position for the next entry. The caller writes the entry, then calls `commit`.
    #[inline]
    pub fn claim(&mut self, consumed: &AtomicU32) -> Result<usize, PushError> {
        if self.produced.wrapping_sub(self.consumed) > self.mask {
            self.refresh(consumed)
                .map_err(|Corrupt| PushError::Corrupt)?;
            if self.produced.wrapping_sub(self.consumed) > self.mask {
                return Err(PushError::Full);
            }
        }
        Ok((self.produced & self.mask) as usize)
    }

    /// Records that the entry at the claimed position was written.
    #[inline]
    pub fn commit(&mut self) {
        self.produced = self.produced.wrapping_add(1);
    }

    /// Makes committed entries visible to the consumer. Returns true if there were any.
    #[inline]
    pub fn publish(&mut self, produced: &AtomicU32) -> bool {
        if self.produced == self.published {
            return false;
        }
        self.published = self.produced;
        produced.store(self.produced, Ordering::Release);
        true
    }

    /// Returns the number of entries committed and not published.
    pub fn unpublished(&self) -> u32 {
        self.produced.wrapping_sub(self.published)
    }

    /// Returns the number of entries that can be pushed now.
    pub fn room(&mut self, consumed: &AtomicU32) -> Result<u32, Corrupt> {
        self.refresh(consumed)?;
        Ok(self.mask + 1 - self.produced.wrapping_sub(self.consumed))
    }

    #[inline]
    fn refresh(&mut self, consumed: &AtomicU32) -> Result<(), Corrupt> {
        // Acquire: the consumer has read the entries before this index, so they may be overwritten.
        let theirs = consumed.load(Ordering::Acquire);
        if theirs.wrapping_sub(self.consumed) > self.published.wrapping_sub(self.consumed) {
            return Err(Corrupt);
        }
        self.consumed = theirs;
        Ok(())
    }
}

/// The consumer's private copies of the ring's indices. All indices are free-running.
#[derive(Debug)]
pub struct ConsumerCursor {
    mask: u32,
    /// The producer's index at the last load.
    produced: u32,
    /// Index after the last committed entry.
    consumed: u32,
    /// The consumer's index that the producer can see.
    released: u32,
}

impl ConsumerCursor {
    /// Creates the cursor of a new ring of `len` (a power of two) entries.
    pub fn new(len: u32) -> ConsumerCursor {
        assert!(len.is_power_of_two() && len < 1 << 31);
        ConsumerCursor {
            mask: len - 1,
            produced: 0,
            consumed: 0,
            released: 0,
        }
    }

    /// Creates a cursor with its indices at `index`, for tests of wrap-around at 2^32.
    pub fn starting_at(len: u32, index: u32) -> ConsumerCursor {
        ConsumerCursor {
            produced: index,
            consumed: index,
            released: index,
            ..ConsumerCursor::new(len)
        }
    }

    /// Returns the position of the next entry, if there is one. The caller copies the entry, then
    /// calls `commit`.
    #[inline]
    pub fn claim(&mut self, produced: &AtomicU32) -> Result<Option<usize>, Corrupt> {
        if self.consumed == self.produced && !self.refresh(produced)? {
            return Ok(None);
        }
        Ok(Some((self.consumed & self.mask) as usize))
    }

    /// Records that the entry at the claimed position was copied.
    #[inline]
    pub fn commit(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }

    /// Returns the number of entries before the private copy of the producer's index. The ring may
    /// hold more. Loads the producer's index again only if the copy has no entry left.
    #[inline]
    pub fn known(&mut self, produced: &AtomicU32) -> Result<u32, Corrupt> {
        if self.consumed == self.produced {
            self.refresh(produced)?;
        }
        Ok(self.produced.wrapping_sub(self.consumed))
    }

    /// Returns the position of the entry that comes `ahead` entries after the next entry. `ahead`
    /// must be less than [`known`](Self::known).
    #[inline]
    pub fn ahead(&self, ahead: u32) -> usize {
        (self.consumed.wrapping_add(ahead) & self.mask) as usize
    }

    /// Records that the first `count` entries were copied.
    #[inline]
    pub fn commit_many(&mut self, count: u32) {
        self.consumed = self.consumed.wrapping_add(count);
    }

    /// Gives the positions of committed entries back to the producer, for new entries.
    #[inline]
    pub fn release(&mut self, consumed: &AtomicU32) {
        if self.released != self.consumed {
            self.released = self.consumed;
            consumed.store(self.consumed, Ordering::Release);
        }
    }

    /// Returns true if there is no entry. Returns false for an impossible index, so that the caller
    /// calls `claim`, which reports [`Corrupt`].
    #[inline]
    pub fn is_empty(&self, produced: &AtomicU32) -> bool {
        self.consumed == self.produced && produced.load(Ordering::Acquire) == self.consumed
    }

    #[inline]
    fn refresh(&mut self, produced: &AtomicU32) -> Result<bool, Corrupt> {
        // Acquire: the entries before this index are visible.
        let theirs = produced.load(Ordering::Acquire);
        let unreleased = self.consumed.wrapping_sub(self.released);
        if theirs.wrapping_sub(self.consumed) > self.mask + 1 - unreleased {
            return Err(Corrupt);
        }
        self.produced = theirs;
        Ok(self.produced != self.consumed)
    }
}
