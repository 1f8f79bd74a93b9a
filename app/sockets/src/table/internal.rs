//! The library's own descriptors, and the range of all descriptors that were ever tracked or the
//! library's own. The library is `libtidelane.so`, which contains this crate.

use std::{
    os::fd::RawFd,
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

use super::DESCRIPTORS_MAX;

/// One bit for each descriptor, which is set if the descriptor is the library's own. A call of the
/// program that closes a range of descriptors leaves these descriptors open.
static INTERNAL: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];
/// The highest descriptor that was ever tracked or the library's own, plus one. Initially 0.
static DESCRIPTOR_END: AtomicI32 = AtomicI32::new(0);

/// Returns true if the descriptor belongs to the library itself.
#[inline]
pub fn is_internal(fd: RawFd) -> bool {
    let fd = fd as usize;
    INTERNAL
        .get(fd / 64)
        .is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (fd % 64)) != 0)
}

/// Returns a range that contains all tracked descriptors and all of the library's own. The range
/// may contain many other descriptors.
pub(crate) fn descriptors() -> std::ops::Range<RawFd> {
    0..DESCRIPTOR_END.load(Ordering::Acquire)
}

/// Marks the descriptor as the library's own, or removes the mark if `internal` is false.
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

/// Records that the descriptor is tracked or the library's own: extends the range that
/// `descriptors` returns.
pub(super) fn note_descriptor(fd: RawFd) {
    DESCRIPTOR_END.fetch_max(fd + 1, Ordering::AcqRel);
}
