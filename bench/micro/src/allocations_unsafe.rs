//! A global allocator that counts allocations, because the packet path (the code that runs for each
//! packet) must not allocate.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering},
};

/// Number of allocations and reallocations since the process started.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The system's allocator with a counter of `alloc` and `realloc` calls.
pub struct Counting;

// SAFETY: each method passes its arguments to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(at, layout, new_size) }
    }
}

/// Returns the number of allocations and reallocations since the process started.
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}
