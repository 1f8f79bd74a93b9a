//! The channels of outer epoll instances, which contain other (inner) epoll instances.
//!
//! A channel consists of rings and a doorbell (an eventfd) that this process shares with the
//! service (the process `tidelaned`). Each epoll instance has a channel. A thread announces its
//! sleep to a channel, so that the service rings the doorbell at the next event. A thread that
//! sleeps in an outer instance also waits for events of the inner instances, so the thread
//! announces its sleep to their channels, too.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sys::{self, Lock};

/// Number of additions in this process, modulo 2^32. An addition gives an outer instance another
/// doorbell to wait for: an inner instance is registered, or the channel of an inner instance gets
/// its rings and its doorbell.
static ADDITIONS: AtomicU32 = AtomicU32::new(0);

fn additions() -> u32 {
    ADDITIONS.load(Ordering::SeqCst)
}

/// The announcement of a sleep. After an addition, the thread has to announce its sleep again,
/// because the added channel does not know of the sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announcement {
    /// Number of additions before the announcement.
    additions: u32,
    /// True if no addition came while `begin` announced the sleep. The next addition then counts
    /// this thread among the stale sleepers ([`StaleSleepers`]).
    is_counted: bool,
}

impl Announcement {
    /// Calls `announce`, which announces the sleep. Also returns the result of `announce`.
    pub(crate) fn begin<R>(announce: impl FnOnce() -> R) -> (Self, R) {
        let additions = additions();
        let result = announce();
        let mut announcement = Self {
            additions,
            is_counted: false,
        };
        announcement.is_counted = announcement.is_current();
        (announcement, result)
    }

    /// Returns true if no addition has followed the call of `begin`.
    pub(crate) fn is_current(&self) -> bool {
        self.additions == additions()
    }

    /// Subtracts this thread from `stale` if an addition has counted the thread. The thread calls
    /// this function before it ends the announced sleep. Otherwise an addition between the two
    /// steps would not count this thread, but this function would still subtract 1.
    pub(crate) fn end(&self, stale: &StaleSleepers) {
        if self.is_counted && !self.is_current() {
            stale.leave();
        }
    }
}

/// Counts an addition.
pub(super) fn count_addition() {
    ADDITIONS.fetch_add(1, Ordering::SeqCst);
}

/// Greatest number of nested outer instances around one instance (EP_MAX_NESTS of Linux).
pub(crate) const NESTING_MAX: u32 = 4;
/// Time in nanoseconds for which a thread pauses, so that another thread can look at a doorbell
/// that has rung.
const PAUSE_NS: u64 = 50_000;
/// Largest number of pauses ([`PAUSE_NS`]) in one wait for other threads. The waiting thread
/// then goes on, even if another thread has not woken.
const POLLS_MAX: u32 = 200;

/// Sleeps for [`PAUSE_NS`], so that other threads can look at a doorbell that has rung.
fn let_others_run() {
    let _ = sys::ppoll(&mut [], Some(PAUSE_NS), None);
}

/// Subtracts 1 from `count`, unless the count is 0.
#[inline]
fn count_down(count: &AtomicU32) {
    if count.load(Ordering::SeqCst) > 0 {
        let less = |count: u32| count.checked_sub(1);
        let _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

/// The repeated rings of an inner channel's doorbell. A thread that waits in an outer instance
/// resets the doorbell when the thread checks the inner instance. The doorbell may have rung for
/// threads that sleep on the inner channel. The thread in the outer instance therefore rings the
/// doorbell again until these threads have woken. The thread also sees these repeated rings itself
/// (echoes).
#[derive(Debug, Default)]
pub(super) struct RungAgain {
    /// Number of threads on the inner channel that have yet to wake.
    owed: AtomicU32,
    /// True if the next ring that a thread in the outer instance sees may be an echo.
    may_be_echo: AtomicBool,
}

impl RungAgain {
    /// Calls `ring`, which rings the doorbell again after this thread has reset it, and gives the
    /// threads on the inner channel time to wake. `sleepers` is the number of these threads.
    /// Neither rings nor waits if no thread sleeps on the inner channel, or if all threads have
    /// woken and the ring that this thread saw may have been an echo.
    pub(super) fn ring(&self, sleepers: u32, ring: impl FnOnce()) {
        if sleepers == 0 {
            return self.reset();
        }
        if self.owed.load(Ordering::SeqCst) == 0 {
            if self.may_be_echo.swap(false, Ordering::SeqCst) {
                return;
            }
            self.owed.store(sleepers, Ordering::SeqCst);
            self.may_be_echo.store(true, Ordering::SeqCst);
        }
        ring();
        let_others_run();
    }

    /// Forgets the threads that have yet to wake.
    pub(super) fn reset(&self) {
        self.owed.store(0, Ordering::SeqCst);
        self.may_be_echo.store(false, Ordering::SeqCst);
    }

    /// Records that a thread has woken on the inner channel.
    #[inline]
    pub(super) fn leave(&self) {
        count_down(&self.owed);
    }
}

/// The number of stale sleepers: threads that sleep in an epoll instance and that have to announce
/// their sleep again after an addition. Each ring of a doorbell wakes one thread, and several rings
/// may wake the same thread. The number shows when all stale sleepers have woken.
#[derive(Debug)]
pub(crate) struct StaleSleepers(AtomicU32);

impl StaleSleepers {
    /// Creates the value of an instance without stale sleepers.
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Calls `wake` again and again, until `count` threads have ended their announcements or a
    /// limited time has passed.
    pub(super) fn wake_all(&self, count: u32, wake: impl Fn()) {
        self.0.store(count, Ordering::SeqCst);
        if !self.poll_until_none(wake) {
            self.reset();
        }
    }

    /// Sets the number to 0.
    pub(super) fn reset(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    /// Waits, for a limited time, until no thread has to announce its sleep again. A thread calls
    /// this function before it sleeps, so that `wake` in `wake_all` reaches the other threads.
    /// Otherwise `wake` would reach the calling thread, because the kernel first wakes the thread
    /// that most recently began to sleep.
    pub(crate) fn give_way(&self) {
        self.poll_until_none(|| ());
    }

    /// Calls `before` and waits for a moment, again and again. Returns true when no thread has to
    /// announce its sleep again, and false after a limited time.
    fn poll_until_none(&self, before: impl Fn()) -> bool {
        for _ in 0..POLLS_MAX {
            if self.0.load(Ordering::SeqCst) == 0 {
                return true;
            }
            before();
            let_others_run();
        }
        false
    }

    fn leave(&self) {
        count_down(&self.0);
    }
}

/// The channels of the outer instances of one epoll instance. If the program removes the inner
/// instance from an outer instance, the outer instance's channel stays in the list, so the list may
/// cause needless wake-ups. `C` is the type of a channel.
#[derive(Debug)]
pub(crate) struct OuterChannels<C: 'static> {
    channels: Lock<Vec<&'static C>>,
    /// True if `channels` has an element.
    any: AtomicBool,
}

impl<C> OuterChannels<C> {
    /// Creates an empty list.
    pub(super) fn new() -> Self {
        Self {
            channels: Lock::new(Vec::new()),
            any: AtomicBool::new(false),
        }
    }

    /// Adds the channel of an outer instance.
    pub(crate) fn add(&self, outer: &'static C) {
        let mut channels = self.channels.lock();
        if !channels.iter().any(|known| std::ptr::eq(*known, outer)) {
            channels.push(outer);
        }
        self.any.store(true, Ordering::SeqCst);
    }

    /// Empties the list, because the inner instance is closed.
    pub(crate) fn clear(&self) {
        self.channels.lock().clear();
        self.any.store(false, Ordering::SeqCst);
    }

    /// Calls `each` for each channel, without holding a lock.
    #[inline]
    pub(super) fn for_each(&self, each: impl FnMut(&'static C)) {
        if self.any.load(Ordering::SeqCst) {
            let channels = self.channels.lock().clone();
            channels.into_iter().for_each(each);
        }
    }

    /// Resets the lock in a child after fork.
    pub(super) fn reset_after_fork(&self) {
        self.channels.unlock_after_fork();
    }
}
