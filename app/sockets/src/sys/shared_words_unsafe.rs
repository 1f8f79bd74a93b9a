//! Words in memory that this process shares with the children that it forks (MAP_SHARED).

use std::{ptr, sync::atomic::AtomicU32};

/// An array of `N` shared words of 32 bits, which stay mapped as long as the process lives.
#[derive(Debug)]
pub(crate) struct SharedWords<const N: usize>(&'static [AtomicU32; N]);

impl<const N: usize> SharedWords<N> {
    /// Maps `N` words, initially zero. Returns `None` if the kernel refuses the mapping.
    pub(crate) fn new() -> Option<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let len = size_of::<[AtomicU32; N]>();
        // SAFETY: a new mapping, at an address that the kernel chooses, disturbs nothing.
        let pages = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        if pages == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the pages are mapped as long as the process lives, aligned and zero. Nothing else
        // uses them.
        Some(Self(unsafe { &*pages.cast::<[AtomicU32; N]>() }))
    }

    /// Returns all words.
    pub(crate) fn all(&self) -> &[AtomicU32; N] {
        self.0
    }
}
