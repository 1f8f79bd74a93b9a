//! The library's own descriptors, and a range that contains each descriptor that has ever been
//! tracked or has ever belonged to the library. The library is `libtidelane.so`, which contains
//! this crate. A descriptor of the program is tracked if the library knows its socket or epoll
//! instance.

use std::{
    os::fd::RawFd,
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

use super::DESCRIPTORS_MAX;

/// One bit for each descriptor, which is set if the descriptor is the library's own. If the program
/// closes a range of descriptors, the library's own descriptors in the range stay open.
static INTERNAL: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];
/// The highest descriptor that has ever been tracked or has ever belonged to the library, plus one.
/// Initially 0.
static DESCRIPTOR_END: AtomicI32 = AtomicI32::new(0);

/// Returns true if the descriptor belongs to the library itself.
#[inline]
pub fn is_internal(fd: RawFd) -> bool {
    let fd = fd as usize;
    INTERNAL
        .get(fd / 64)
        .is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (fd % 64)) != 0)
}

/// Returns a range that contains all tracked descriptors and all of the library's own descriptors.
/// The range may contain many other descriptors.
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

/// Extends the range that `descriptors` returns, so that the range contains `fd`. The caller has
/// begun to track `fd`, or has marked it as the library's own.
pub(super) fn note_descriptor(fd: RawFd) {
    DESCRIPTOR_END.fetch_max(fd + 1, Ordering::AcqRel);
}
