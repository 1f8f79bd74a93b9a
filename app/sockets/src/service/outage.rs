//! The time without a service: listeners find the next one.
//!
//! A listener whose service is gone, or that was opened while there was none, is the kernel's
//! alone, and no event tells that there is a new service. One of the threads that sleep therefore
//! wakes up now and then and looks, for all of the process
//! (`socket::listening::look_for_service`).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::session;

/// How long the thread sleeps that looks for the service.
const NAP_NS: u64 = 200_000_000;

/// Listeners that a service had, has or is to have.
static LISTENERS: AtomicU32 = AtomicU32::new(0);
/// A thread looks for the service.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// The last session that was offered the listeners of before.
static OFFERED: AtomicU32 = AtomicU32::new(0);

/// A service has, or is to have, one more listener of this process.
pub(crate) fn note_listener() {
    LISTENERS.fetch_add(1, Ordering::Relaxed);
}

/// Such a listener is closed.
pub(crate) fn forget_listener() {
    LISTENERS.fetch_sub(1, Ordering::Relaxed);
}

/// The listeners are offered to this session.
pub(crate) fn note_end(session: u32) {
    OFFERED.store(session, Ordering::Relaxed);
}

/// Returns true if there are listeners, and their service is gone, or there was none, or they were
/// not offered to the present one, which a thread found for another purpose.
#[inline]
pub(crate) fn is_now() -> bool {
    LISTENERS.load(Ordering::Relaxed) > 0
        && session::last().is_none_or(|session| {
            session.is_gone() || session.generation != OFFERED.load(Ordering::Relaxed)
        })
}

/// A sleep, which is short for one thread if the service is gone.
pub(crate) struct Nap {
    watches: bool,
}

impl Nap {
    /// A sleep begins.
    #[inline]
    pub(crate) fn begin() -> Self {
        let watches = is_now() && !WATCHED.swap(true, Ordering::AcqRel);
        Self { watches }
    }

    /// How long the thread may sleep that would sleep for so long (`None`: until an event).
    pub(crate) fn limit(&self, left_ns: Option<u64>) -> Option<u64> {
        if self.watches {
            Some(left_ns.map_or(NAP_NS, |left| left.min(NAP_NS)))
        } else {
            left_ns
        }
    }
}

impl Drop for Nap {
    fn drop(&mut self) {
        if self.watches {
            WATCHED.store(false, Ordering::Release);
        }
    }
}

/// For the child after fork: its listeners are the parent's, and the threads do not exist here.
pub(crate) fn reset_after_fork() {
    LISTENERS.store(0, Ordering::Relaxed);
    WATCHED.store(false, Ordering::Relaxed);
    OFFERED.store(0, Ordering::Relaxed);
}
