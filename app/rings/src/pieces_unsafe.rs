//! The memory of a pool: pieces of equal length, and the numbers of the free pieces.

use std::{any::Any, cell::RefCell, ptr::NonNull};

use rustix::mm::munmap;

/// The memory of a pool, and the numbers of the free pieces.
pub(crate) struct Pieces {
    /// Start of the memory.
    pub(crate) start: NonNull<u8>,
    /// Number of pieces.
    pub(crate) count: u32,
    /// Length of a piece in bytes, with the headroom.
    pub(crate) buffer_len: u32,
    /// Bytes before the payload of an allocated buffer, for the headers of the back end.
    pub(crate) headroom: u32,
    /// Numbers of the free pieces.
    pub(crate) free: RefCell<Vec<u32>>,
    /// If a back end has provided the memory, keeps the memory mapped. `None` if the pool has
    /// mapped the memory itself.
    pub(crate) owner: Option<Box<dyn Any>>,
}

impl Pieces {
    /// Returns the length of the memory in bytes.
    fn len(&self) -> usize {
        self.count as usize * self.buffer_len as usize
    }

    /// Returns the address of a piece.
    ///
    /// # Panics
    ///
    /// If there is no piece with this number.
    pub(crate) fn address(&self, index: u32) -> NonNull<u8> {
        assert!(index < self.count, "the pool has no piece with this number");
        // SAFETY: the piece is within the mapping.
        unsafe { self.start.add(index as usize * self.buffer_len as usize) }
    }

    /// Makes a piece free, because its buffer was dropped or has got other memory.
    pub(crate) fn free(&self, index: u32) {
        self.free.borrow_mut().push(index);
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        if self.owner.is_some() {
            return;
        }
        // SAFETY: the mapping was made with this length. Every buffer holds a reference to this
        // value, so no buffer is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len()) };
    }
}
