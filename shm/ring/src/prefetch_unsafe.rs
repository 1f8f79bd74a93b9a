//! Prefetches of memory that another CPU may have in its cache.

/// Length of a cache line in bytes.
pub const CACHE_LINE: usize = 64;

/// Purpose of a prefetch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The caller reads the memory next.
    Read,
    /// The caller writes the memory next. The prefetch takes the cache line away from other CPUs.
    Write,
}

/// Prefetches the cache line at `at`, on x86-64 only.
#[inline(always)]
fn prefetch_line(at: *const u8, access: Access) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: at any address, a prefetch has no effect on the values that code reads, and causes no
    // fault. A CPU without `prefetchw` executes the instruction as a no-op.
    unsafe {
        use std::arch::{
            asm,
            x86_64::{_MM_HINT_T0, _mm_prefetch},
        };
        match access {
            Access::Read => _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>()),
            Access::Write => asm!(
                "prefetchw [{}]",
                in(reg) at,
                options(nostack, preserves_flags, readonly)
            ),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, access);
}

/// Prefetches `len` bytes at `start`, on x86-64 only.
#[inline(always)]
pub fn prefetch(start: *const u8, len: usize, access: Access) {
    for offset in (0..len).step_by(CACHE_LINE) {
        prefetch_line(start.wrapping_add(offset), access);
    }
}
