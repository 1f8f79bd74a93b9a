//! The memory of a NIC's frames.

use std::{cell::UnsafeCell, ops::Range, ptr::NonNull, slice};

/// The memory of a NIC's frames, which all have the same length.
pub struct Frames {
    /// Bytes of all frames, one frame after another.
    bytes: Box<[UnsafeCell<u8>]>,
    /// Length of each frame in bytes.
    frame_len: u32,
}

impl Frames {
    /// Returns the memory of `count` frames of `frame_len` bytes each. All bytes are zero.
    pub fn new(count: u32, frame_len: u32) -> Self {
        let zeroed = vec![0_u8; count as usize * frame_len as usize].into_boxed_slice();
        let raw = Box::into_raw(zeroed) as *mut [UnsafeCell<u8>];
        Self {
            // SAFETY: `UnsafeCell<u8>` has the layout of `u8`, and the box is unique.
            bytes: unsafe { Box::from_raw(raw) },
            frame_len,
        }
    }

    /// Returns a pointer to the start of the first frame.
    pub fn start(&self) -> NonNull<u8> {
        NonNull::from(&*self.bytes).cast()
    }

    fn at(&self, number: u32, range: &Range<u32>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.frame_len);
        let at = number as usize * self.frame_len as usize;
        // Index the cells, so that a wrong frame number panics instead of giving a pointer outside
        // the memory.
        let frame = &self.bytes[at..at + self.frame_len as usize];
        frame[range.start as usize..].as_ptr().cast::<u8>() as *mut u8
    }

    /// Returns the bytes of a range of frame `number`.
    ///
    /// # Safety
    ///
    /// Nobody writes the bytes until the borrow ends.
    pub unsafe fn bytes(&self, number: u32, range: Range<u32>) -> &[u8] {
        // SAFETY: the range is within the memory. The caller guarantees that the bytes do not
        // change while they are borrowed.
        unsafe { slice::from_raw_parts(self.at(number, &range), range.len()) }
    }

    /// Returns the bytes of a range of frame `number` for writing.
    ///
    /// # Safety
    ///
    /// Nobody else accesses the bytes until the borrow ends.
    #[expect(
        clippy::mut_from_ref,
        reason = "callers borrow different frames at once"
    )]
    pub unsafe fn bytes_mut(&self, number: u32, range: Range<u32>) -> &mut [u8] {
        // SAFETY: as in `bytes`. The caller also guarantees that no other code accesses the bytes.
        unsafe { slice::from_raw_parts_mut(self.at(number, &range), range.len()) }
    }
}
