//! The sleep protocol: a sleeper is woken after a publication, and never misses one.
//!
//! ```text
//! sleeper                          waker
//! flag = 1                         publish (Release)
//! fence(SeqCst)                    fence(SeqCst)
//! look at the rings once more      flag == 1 ? ring
//! sleep, unless there is something
//! ```
//!
//! One of the two fences comes first. If it is the sleeper's, the waker sees the flag; if it is the
//! waker's, the sleeper sees the published entry. `tests/loom.rs` checks the protocol.

use crate::sync::{AtomicU32, Ordering, fence};

/// Announces that this side is about to sleep. The caller then checks the rings once more, and
/// sleeps or calls [`cancel_sleep`].
#[inline]
pub fn prepare_to_sleep(needs_wakeup: &AtomicU32) {
    needs_wakeup.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Revokes the announcement, after waking up or instead of sleeping.
#[inline]
pub fn cancel_sleep(needs_wakeup: &AtomicU32) {
    if needs_wakeup.load(Ordering::Relaxed) != 0 {
        needs_wakeup.store(0, Ordering::Relaxed);
    }
}

/// Returns true if this side has to ring after it published. Clears the flag, so that only one
/// waker rings.
#[inline]
pub fn should_ring(needs_wakeup: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    needs_wakeup.load(Ordering::Relaxed) != 0 && needs_wakeup.swap(0, Ordering::Relaxed) != 0
}

/// Returns true if the other side sleeps: `should_ring` for a waker that cannot write the flag. The
/// sleeper clears the flag when it wakes up.
#[inline]
pub fn sleeps(needs_wakeup: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    needs_wakeup.load(Ordering::Relaxed) != 0
}
