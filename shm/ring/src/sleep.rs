//! The sleep protocol: a sleeper is rung when something was published, and never misses it.
//!
//! ```text
//! sleeper                          waker
//! flag = 1                         publish (Release)
//! fence(SeqCst)                    fence(SeqCst)
//! look at the rings once more      flag == 1 ? ring
//! sleep, unless there is something
//! ```
//!
//! Of the two fences one comes first. If the sleeper's does, the waker sees the flag; if the
//! waker's does, the sleeper sees what was published. `tests/loom.rs` checks it.

use crate::sync::{AtomicU32, Ordering, fence};

/// Announces that this side is about to sleep. Look at the rings after it, then sleep, or
/// [`cancel_sleep`].
#[inline]
pub fn prepare_to_sleep(needs_wakeup: &AtomicU32) {
    needs_wakeup.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Takes the announcement back, after waking up or instead of sleeping.
#[inline]
pub fn cancel_sleep(needs_wakeup: &AtomicU32) {
    if needs_wakeup.load(Ordering::Relaxed) != 0 {
        needs_wakeup.store(0, Ordering::Relaxed);
    }
}

/// After publishing: whether this side must ring. Clears the flag, so that only one rings.
#[inline]
pub fn should_ring(needs_wakeup: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    needs_wakeup.load(Ordering::Relaxed) != 0 && needs_wakeup.swap(0, Ordering::Relaxed) != 0
}

/// `should_ring` for a waker that cannot write the flag: whether the other side sleeps. It clears
/// the flag itself when it wakes.
#[inline]
pub fn sleeps(needs_wakeup: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    needs_wakeup.load(Ordering::Relaxed) != 0
}
