//! Memory of 64-bit words that is shared with the kernel or an eBPF program.

use std::{
    io,
    os::fd::BorrowedFd,
    ptr::{NonNull, null_mut},
    sync::atomic::AtomicU64,
};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A mapping of words, which is removed on drop.
#[derive(Debug)]
pub(crate) struct SharedWords {
    /// Address of the first word.
    start: NonNull<AtomicU64>,
    /// Number of words.
    len: usize,
}

// SAFETY: the words are atomic, and the mapping belongs to no thread.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps the first `len` words of a BPF map that has the flag `BPF_F_MMAPABLE`.
    pub(crate) fn of_map(map: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free place, and refuses a length beyond the end of the map.
        let start = unsafe { mmap(null_mut(), len * 8, access, MapFlags::SHARED, map, 0) };
        Ok(Self::new(start?.cast(), len))
    }

    /// Maps `len` words of private memory of this process. The words are zero at first.
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free place.
        let start = unsafe { mmap_anonymous(null_mut(), len * 8, access, MapFlags::PRIVATE) };
        Ok(Self::new(start?.cast(), len))
    }

    fn new(start: *mut AtomicU64, len: usize) -> Self {
        let start = NonNull::new(start).expect("nothing is mapped at address zero");
        Self { start, len }
    }

    /// Returns the word at `index`.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len, "word {index} of {}", self.len);
        // SAFETY: the index is within the mapping, which is aligned to pages and lives as long as
        // `self`. This process accesses the word only atomically, and the kernel stores whole
        // words.
        unsafe { self.start.add(index).as_ref() }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by the constructor, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len * 8) };
    }
}
