//! Descriptors of the library itself, and how far the tables are in use.

use std::{
    os::fd::RawFd,
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

use super::DESCRIPTORS_MAX;

/// Descriptors of the library itself, a bit each: programs that close all they find spare them.
static INTERNAL: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];
/// One more than the highest descriptor that was ever ours.
static DESCRIPTOR_END: AtomicI32 = AtomicI32::new(0);

/// Returns true if the descriptor belongs to the library itself.
#[inline]
pub fn is_internal(fd: RawFd) -> bool {
    let fd = fd as usize;
    INTERNAL
        .get(fd / 64)
        .is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (fd % 64)) != 0)
}

/// All descriptors that may be ours.
pub(crate) fn descriptors() -> std::ops::Range<RawFd> {
    0..DESCRIPTOR_END.load(Ordering::Acquire)
}

/// Makes the descriptor the library's own, or the program's again.
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

/// The descriptor is in a table.
pub(super) fn note_descriptor(fd: RawFd) {
    DESCRIPTOR_END.fetch_max(fd + 1, Ordering::AcqRel);
}
