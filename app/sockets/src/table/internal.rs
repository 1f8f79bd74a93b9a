//! Descriptors of the library itself, and the highest descriptor in use.

use std::{
    os::fd::RawFd,
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

use super::DESCRIPTORS_MAX;

/// A bit for each descriptor of the library itself. Calls that close ranges of descriptors spare
/// these.
static INTERNAL: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];
/// One more than the highest descriptor that was ever tracked.
static DESCRIPTOR_END: AtomicI32 = AtomicI32::new(0);

/// Returns true if the descriptor belongs to the library itself.
#[inline]
pub fn is_internal(fd: RawFd) -> bool {
    let fd = fd as usize;
    INTERNAL
        .get(fd / 64)
        .is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (fd % 64)) != 0)
}

/// The range of descriptors that may be tracked.
pub(crate) fn descriptors() -> std::ops::Range<RawFd> {
    0..DESCRIPTOR_END.load(Ordering::Acquire)
}

/// Marks the descriptor as the library's own, or as the program's again.
pub(crate) fn set_internal(fd: RawFd, internal: bool) {
    let number = fd as usize;
    let Some(word) = INTERNAL.get(number / 64) else {
        return;
    };
    let bit = 1 << (number % 64);
    if internal {
        word.fetch_or(bit, Ordering::Relaxed);
        note_descriptor(fd);
    } else {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Records that the descriptor is in a table.
pub(super) fn note_descriptor(fd: RawFd) {
    DESCRIPTOR_END.fetch_max(fd + 1, Ordering::AcqRel);
}
