//! A word that this process shares with those that it forks.

use std::{ptr, sync::atomic::AtomicU32};

/// A word in a page of its own. Never unmapped.
#[derive(Debug)]
pub(crate) struct SharedWord(&'static AtomicU32);

impl SharedWord {
    /// A word that is zero. `None` if there is no memory.
    pub(crate) fn new() -> Option<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at an address that the kernel chooses, disturbs nothing.
        let page =
            unsafe { libc::mmap(ptr::null_mut(), size_of::<u32>(), protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the page is mapped for as long as the process lives, aligned and zero, and is
        // used as nothing else.
        Some(Self(unsafe { &*page.cast::<AtomicU32>() }))
    }

    /// The word.
    pub(crate) fn get(&self) -> &AtomicU32 {
        self.0
    }
}
