//! An outage: a time without a service (the process `tidelaned`), in which listeners wait for the
//! next service.
//!
//! During an outage, listeners listen only in the kernel. No event announces a new service, so one
//! of the sleeping threads wakes up periodically and looks for a new service on behalf of the
//! process (`socket::listening::seek_service`). A session is the registration of this process with
//! one service.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::session;

/// Time between two attempts to find the service, in nanoseconds.
const PROBE_INTERVAL_NS: u64 = 200_000_000;

/// Number of this process's listeners that want a service: the service has the listener, or the
/// process looks for the next service on behalf of the listener.
static LISTENERS: AtomicU32 = AtomicU32::new(0);
/// True while a thread sleeps that has to look for the service afterwards ([`BoundedSleep`]).
static SEARCHING: AtomicBool = AtomicBool::new(false);
/// Number of the newest session in which the process offered its existing listeners, or 0.
static OFFERED: AtomicU32 = AtomicU32::new(0);

/// Counts a listener of this process that wants a service.
pub(crate) fn note_listener() {
    LISTENERS.fetch_add(1, Ordering::Relaxed);
}

/// Subtracts a listener from `LISTENERS`, because the listener was closed or stays with the kernel
/// for good.
pub(crate) fn forget_listener() {
    LISTENERS.fetch_sub(1, Ordering::Relaxed);
}

/// Records that the process offers its listeners to the service in this session.
pub(crate) fn note_offered(session: u32) {
    OFFERED.store(session, Ordering::Relaxed);
}

/// Returns true if this process has listeners that want a service, and has not offered these
/// listeners in a live session: the process has not registered yet, the service of the newest
/// session is gone, or the process has registered with a new service but has not yet offered its
/// listeners to this service.
#[inline]
pub(crate) fn seeks_service() -> bool {
    LISTENERS.load(Ordering::Relaxed) > 0
        && session::last().is_none_or(|session| {
            session.is_gone() || session.generation != OFFERED.load(Ordering::Relaxed)
        })
}

/// The sleep of a thread. The sleep has a time limit if the thread has to look for the service.
pub(crate) struct BoundedSleep {
    /// True if this thread has to look for the service after the sleep.
    searches: bool,
}

impl BoundedSleep {
    /// Begins a sleep. Of the threads that sleep during an outage, the first has to look for the
    /// service.
    #[inline]
    pub(crate) fn begin() -> Self {
        let searches = seeks_service() && !SEARCHING.swap(true, Ordering::AcqRel);
        Self { searches }
    }

    /// Returns the time limit of the sleep in nanoseconds. `left_ns` is the time that remains of
    /// the program's own time limit. `None` means no limit.
    pub(crate) fn limit(&self, left_ns: Option<u64>) -> Option<u64> {
        if self.searches {
            Some(left_ns.map_or(PROBE_INTERVAL_NS, |left| left.min(PROBE_INTERVAL_NS)))
        } else {
            left_ns
        }
    }
}

impl Drop for BoundedSleep {
    fn drop(&mut self) {
        if self.searches {
            SEARCHING.store(false, Ordering::Release);
        }
    }
}

/// Resets the state in a child after fork. The counted listeners belong to the parent, and the
/// parent's threads do not exist in the child.
pub(crate) fn reset_after_fork() {
    LISTENERS.store(0, Ordering::Relaxed);
    SEARCHING.store(false, Ordering::Relaxed);
    OFFERED.store(0, Ordering::Relaxed);
}
