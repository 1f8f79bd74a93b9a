//! The sleep protocol between a program and the service (process `tidelaned`), the two sides of
//! shared-memory rings. No wake-up is lost.
//!
//! The sleeper waits for entries, and the waker publishes entries. The doorbell is an eventfd that
//! wakes the sleeper. Each side can have either role. `flag` is the shared word `needs_wakeup`,
//! whose role is that of `XDP_RING_NEED_WAKEUP` in AF_XDP.
//!
//! ```text
//! sleeper                          waker
//! flag = 1                         publish (Release)
//! fence(SeqCst)                    fence(SeqCst)
//! check the rings once more        if flag == 1, ring the doorbell
//! sleep if the rings are empty
//! ```
//!
//! The two fences have a total order. If the sleeper's fence is first, the waker sees the flag. If
//! the waker's fence is first, the sleeper sees the published entry. `tests/loom.rs` checks the
//! protocol with `needs_wakeup`.

use crate::sync::{AtomicU32, Ordering, fence};

/// Sets the flag of the calling side, which wants to sleep. The caller then checks the rings once
/// more. If a ring has an entry, the caller calls [`cancel_sleep`]. Otherwise, the caller sleeps.
#[inline]
pub fn prepare_to_sleep(needs_wakeup: &AtomicU32) {
    needs_wakeup.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Clears the flag of the calling side, after a wake-up or instead of a sleep.
#[inline]
pub fn cancel_sleep(needs_wakeup: &AtomicU32) {
    if needs_wakeup.load(Ordering::Relaxed) != 0 {
        needs_wakeup.store(0, Ordering::Relaxed);
    }
}

/// Returns true if the caller, which has published entries, must ring the doorbell. The function
/// clears the flag, so that only one of several wakers rings.
#[inline]
pub fn should_ring(needs_wakeup: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    needs_wakeup.load(Ordering::Relaxed) != 0 && needs_wakeup.swap(0, Ordering::Relaxed) != 0
}

/// Returns true if the other side sleeps or is about to sleep. The caller, which has published
/// entries, must then ring the doorbell. A waker that cannot write the flag calls this function
/// instead of [`should_ring`]. The sleeper then clears the flag itself when it wakes up.
#[inline]
pub fn sleeps(needs_wakeup: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    needs_wakeup.load(Ordering::Relaxed) != 0
}

/// Announces a sleep of the calling side by a new odd number in `word`. As after
/// [`prepare_to_sleep`], the caller then checks the rings once more. `number` is private to the
/// sleeper. Its first value is 0, and each announcement adds 2.
///
/// A waker that cannot write `word` calls [`should_ring_sleeper`], which compares the odd number
/// with the odd number for which the waker rang most recently. The waker therefore rings at most
/// once for each sleep.
#[inline]
pub fn announce_sleep(word: &AtomicU32, number: &mut u32) {
    *number = number.wrapping_add(2);
    word.store(*number | 1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Ends the announced sleep of the calling side by an even number in `word`. `number` comes from
/// [`announce_sleep`].
#[inline]
pub fn end_sleep(word: &AtomicU32, number: u32) {
    word.store(number & !1, Ordering::Relaxed);
}

/// Returns true if the peer has announced a sleep for which the caller has not rung. The caller,
/// which has published entries, must then ring the doorbell. Records the odd number of the sleep in
/// `rung`, which is private to the caller and starts with 0.
#[inline]
pub fn should_ring_sleeper(word: &AtomicU32, rung: &mut u32) -> bool {
    fence(Ordering::SeqCst);
    let announced = word.load(Ordering::Relaxed);
    let rings = announced & 1 != 0 && announced != *rung;
    if rings {
        *rung = announced;
    }
    rings
}
