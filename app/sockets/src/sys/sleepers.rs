//! Threads that sleep on one doorbell: the one place that decides on a wake-up.
//!
//! ```text
//! who sleeps:  announce -> look at the rings and the ready list -> sleep -> leave
//! who has news:            put them there -> wake
//! ```
//!
//! One of the two sees the other: either the sleeper finds the news at its last look, or who has
//! the news finds the sleeper and rings. Several threads may sleep on one doorbell, of which a ring
//! wakes one; whoever takes the ring away without taking the news passes it on with another `wake`.
//! `tests/loom.rs` checks this file against every order of these steps.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};

/// See the module.
#[derive(Debug)]
pub struct Sleepers(AtomicU32);

impl Sleepers {
    /// Nobody sleeps.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// This thread is about to sleep: it looks once more after this.
    pub fn announce(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// This thread does not sleep any more. Returns true if others do.
    pub fn leave(&self) -> bool {
        self.0.fetch_sub(1, Ordering::SeqCst) > 1
    }

    /// News were put where sleepers look: rings, if there are any.
    #[inline]
    pub fn wake(&self, ring: impl FnOnce()) {
        if self.0.load(Ordering::SeqCst) > 0 {
            ring();
        }
    }

    /// For the child after fork: the threads that slept are not here.
    pub fn reset_after_fork(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
