//! A lock for short critical sections. Unlike libc's locks, this lock needs no allocation and no
//! call of libc, so that the interposed functions can use it.
//!
//! The program's signal handlers do not run while their thread holds a lock (`section_unsafe`). A
//! few handlers run nevertheless, such as handlers of SIGSEGV and one-shot handlers (SA_RESETHAND).
//! If one of these handlers tries to take a lock that its own thread holds, [`Lock::lock`] ends the
//! process and [`Lock::enter`] returns `None`. The lock records its owner, so neither of these
//! functions deadlocks.

use std::{
    cell::UnsafeCell,
    fmt,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{Rank, Section, order::Held};
use crate::sys;

/// Number of attempts to take a lock after which the thread yields the CPU, in case the lock's
/// owner waits for this CPU.
const SPINS_MAX: u32 = 100;

/// A spin lock that records its owner, so that a thread that already holds the lock does not
/// deadlock.
pub struct Lock<T> {
    /// Identity of the owning thread, 0 if the lock is free.
    owner: AtomicUsize,
    /// The position of this lock in the lock order.
    rank: Rank,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is only reached through a guard, and there is one guard at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Creates a free lock of rank [`Rank::Leaf`]: a thread that holds this lock takes no other.
    pub const fn new(value: T) -> Self {
        Self::ranked(Rank::Leaf, value)
    }

    /// Creates a free lock.
    pub const fn ranked(rank: Rank, value: T) -> Self {
        Self {
            owner: AtomicUsize::new(0),
            rank,
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock. Waits while another thread holds the lock.
    ///
    /// # Panics
    ///
    /// Aborts the process if this thread already holds the lock, which is possible in a signal
    /// handler that interrupted the thread. In debug builds, this function, [`enter`](Self::enter)
    /// and [`lock_of_new`](Self::lock_of_new) panic if the thread takes the lock against the lock
    /// order.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        match self.enter() {
            Some(guard) => guard,
            None => reentered(),
        }
    }

    /// Takes the lock. Waits while another thread holds the lock. Returns `None` if this thread
    /// already holds the lock.
    #[inline]
    pub fn enter(&self) -> Option<Guard<'_, T>> {
        let me = sys::thread_identity();
        let section = Section::enter();
        // In debug builds, `Held::new` panics if the thread takes locks against the order. The
        // check precedes the wait, because the wait could be a deadlock without a message.
        // `Held::new` would also panic for a lock that this thread already holds, so this case
        // returns first.
        if cfg!(debug_assertions) && self.is_held_by(me) {
            return None;
        }
        let held = Held::new(self.rank);
        (self.take(me) || self.wait(me)).then(|| Guard::new(self, held, section))
    }

    /// Takes the lock of a new object. The thread may hold the lock of one older object of the same
    /// rank. A deadlock is impossible: another thread that holds the new object's lock releases the
    /// lock soon, and takes no other lock of this rank meanwhile.
    ///
    /// # Panics
    ///
    /// Aborts the process if this thread already holds the lock.
    pub fn lock_of_new(&self) -> Guard<'_, T> {
        let me = sys::thread_identity();
        let section = Section::enter();
        if self.is_held_by(me) {
            reentered();
        }
        let held = Held::new_within(self.rank);
        if !self.take(me) && !self.wait(me) {
            reentered();
        }
        Guard::new(self, held, section)
    }

    /// Takes the lock if the lock is free, and otherwise returns `None`. The lock order does not
    /// matter here, because this function does not wait.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let section = Section::enter();
        self.take(sys::thread_identity())
            .then(|| Guard::new(self, Held::new_unordered(self.rank), section))
    }

    #[inline]
    fn take(&self, me: usize) -> bool {
        self.owner
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    fn is_held_by(&self, thread: usize) -> bool {
        self.owner.load(Ordering::Relaxed) == thread
    }

    /// Waits until the lock is free, and takes it. Returns false if this thread already holds the
    /// lock.
    #[cold]
    fn wait(&self, me: usize) -> bool {
        if self.is_held_by(me) {
            return false;
        }
        let mut spins = 0;
        loop {
            if self.is_held_by(0) && self.take(me) {
                return true;
            }
            spins += 1;
            if spins % SPINS_MAX == 0 {
                sys::yield_now();
            } else {
                sys::spin_hint();
            }
        }
    }

    /// Releases the lock in a child after fork, where the lock's owner may not exist, and replaces
    /// the value. The old value is not dropped, because the owner may have been changing the value
    /// at the time of the fork.
    pub fn reset_after_fork(&self, value: T) {
        // SAFETY: the child has one thread, which runs the fork handler and does not hold this
        // lock's guard. `write` does not drop the old value.
        unsafe { self.value.get().write(value) };
        self.owner.store(0, Ordering::Release);
    }

    /// Releases the lock in a child after fork, and keeps the value. A thread of the parent may
    /// have been changing the value, so the value must be valid at any instant.
    pub fn unlock_after_fork(&self) {
        self.owner.store(0, Ordering::Release);
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").finish_non_exhaustive()
    }
}

#[cold]
fn reentered() -> ! {
    let line =
        b"tidelane: a signal handler used a socket whose lock the interrupted thread holds\n";
    let _ = sys::write_bytes(2, line);
    std::process::abort()
}

/// Access to the value of a lock that this thread holds. Dropping the guard releases the lock.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// In debug builds, the record of this lock for the check of the lock order.
    _held: Held,
    /// A section, which defers the program's signal handlers. The section ends after the lock is
    /// released, because fields are dropped after the guard's own `drop`.
    _section: Section,
}

impl<'a, T> Guard<'a, T> {
    #[inline]
    fn new(lock: &'a Lock<T>, held: Held, section: Section) -> Self {
        Self {
            lock,
            _held: held,
            _section: section,
        }
    }
}

impl<T> fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard is the only way to the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the only way to the value.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.owner.store(0, Ordering::Release);
    }
}
