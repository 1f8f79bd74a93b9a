//! The channels of the epoll instances that contain another epoll instance. A thread that sleeps in
//! an outer instance waits for events of the inner instance, too.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sys::{self, Lock};

/// Number of additions to the channels within any instance, modulo 2^32. An addition is the
/// registration of an inner instance, or the event that the channel of an inner instance gets its
/// rings and its doorbell.
static ADDITIONS: AtomicU32 = AtomicU32::new(0);

fn additions() -> u32 {
    ADDITIONS.load(Ordering::SeqCst)
}

/// The announcement of a sleep. After an addition, the thread has to announce its sleep again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announcement {
    /// Number of additions before the announcement.
    additions: u32,
    /// True if no addition came while `begin` announced the sleep. The next addition then counts
    /// this thread among the stale sleepers.
    is_counted: bool,
}

impl Announcement {
    /// Announces the sleep by `announce`. Returns the result of `announce`, too.
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

    /// Returns true if no addition has followed.
    pub(crate) fn is_current(&self) -> bool {
        self.additions == additions()
    }

    /// Records in `stale` that this thread has woken. The thread calls this function before it ends
    /// the announced sleep, so that no addition counts a thread that has been recorded.
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

/// Greatest number of epoll instances around an instance: EP_MAX_NESTS of Linux.
pub(crate) const NESTING_MAX: u32 = 4;
/// Time in nanoseconds that another thread gets to look at a doorbell that has rung.
const LOOK_TIME_NS: u64 = 50_000;
/// Largest number of these times before an addition goes on without a thread that does not wake.
const LOOKS_MAX: u32 = 200;

/// Sleeps for a moment, so that other threads can look at a doorbell that has rung.
fn let_others_look() {
    let _ = sys::ppoll(&mut [], Some(LOOK_TIME_NS), None);
}

/// Subtracts 1 from `count`, unless the count is 0.
#[inline]
fn count_down(count: &AtomicU32) {
    if count.load(Ordering::SeqCst) > 0 {
        let less = |count: u32| count.checked_sub(1);
        let _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

/// The rings of an inner channel's doorbell by threads that wait in an outer instance and have
/// reset the doorbell. The doorbell may have rung for threads that sleep on the inner channel, so a
/// thread in the outer instance rings it again until these threads have woken. The thread in the
/// outer instance also sees its own rings (echoes).
#[derive(Debug, Default)]
pub(super) struct RungAgain {
    /// Number of threads that have yet to wake.
    owed: AtomicU32,
    /// True if the next ring that a thread in the outer instance sees may be an echo.
    may_be_echo: AtomicBool,
}

impl RungAgain {
    /// Calls `ring` after this thread has reset the doorbell, if some of the `sleepers` threads on
    /// the inner channel have yet to wake. Then leaves them some time.
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
        let_others_look();
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

/// The threads that sleep in an epoll instance, and that have to announce their sleep again after
/// an addition. Each ring of a doorbell wakes one thread, and several rings may wake the same
/// thread.
#[derive(Debug)]
pub(crate) struct StaleSleepers(AtomicU32);

impl StaleSleepers {
    /// Creates the value of an instance without such threads.
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Calls `wake` until `count` threads have ended their announcements, for a limited time.
    pub(super) fn wake_all(&self, count: u32, wake: impl Fn()) {
        self.0.store(count, Ordering::SeqCst);
        if !self.look(wake) {
            self.reset();
        }
    }

    /// Forgets the threads.
    pub(super) fn reset(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    /// Waits, for a limited time, until no thread has to announce its sleep again. A thread calls
    /// this function before it sleeps, so that `wake` in `wake_all` reaches the other threads: the
    /// kernel wakes the thread first that began to sleep last.
    pub(crate) fn give_way(&self) {
        self.look(|| ());
    }

    /// Calls `before` and waits for a moment, again and again. Returns true when no thread has to
    /// announce its sleep again, and false after a limited time.
    fn look(&self, before: impl Fn()) -> bool {
        for _ in 0..LOOKS_MAX {
            if self.0.load(Ordering::SeqCst) == 0 {
                return true;
            }
            before();
            let_others_look();
        }
        false
    }

    fn leave(&self) {
        count_down(&self.0);
    }
}

/// The channels of the outer instances of one epoll instance. An outer instance stays in the list
/// after it has removed the inner instance, so the list may cause needless wake-ups. `C` is the
/// type of channels.
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
