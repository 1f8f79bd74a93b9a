//! The threads that sleep on one doorbell (an eventfd), and the decision whether an event has to
//! ring the doorbell.
//!
//! ```text
//! sleeper:  announce -> check for events -> sleep -> leave
//! waker:                store the event -> wake
//! ```
//!
//! No event is missed: either the sleeper finds the event when it checks after the announcement, or
//! the waker finds the announcement and rings the doorbell. Threads that sleep in the same kernel
//! epoll instance share one edge of the doorbell, so a ring wakes only one of them. A thread that
//! wakes up without handling all events calls `wake` again for the next thread. `tests/loom.rs`
//! checks this protocol in every order of the steps.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};

/// The number of threads that sleep on one doorbell, or that are about to sleep.
#[derive(Debug)]
pub struct Sleepers(AtomicU32);

impl Sleepers {
    /// Creates the count with no sleeping thread.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Announces that this thread is about to sleep. The thread then has to check for events once
    /// more before it sleeps.
    pub fn announce(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the sleep of this thread. Returns true if other threads still sleep or are about to.
    pub fn leave(&self) -> bool {
        self.0.fetch_sub(1, Ordering::SeqCst) > 1
    }

    /// Returns the number of threads that sleep or are about to sleep.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Returns true if a thread sleeps, or is about to.
    pub fn any(&self) -> bool {
        self.count() > 0
    }

    /// Calls `ring` if a thread sleeps, or is about to. The caller has stored the event before.
    #[inline]
    pub fn wake(&self, ring: impl FnOnce()) {
        if self.any() {
            ring();
        }
    }

    /// Resets the count in a child after fork, where the sleeping threads do not exist.
    pub fn reset_after_fork(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
