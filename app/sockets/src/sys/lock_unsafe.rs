//! A lock for short critical sections. Unlike libc's locks, this lock needs no allocation and no
//! call of libc, so that the interposed functions can use it.
//!
//! The program's signal handlers do not run while their thread holds a lock (`section_unsafe`). A
//! few handlers run nevertheless, such as handlers of SIGSEGV and one-shot handlers (SA_RESETHAND).
//! If one of these handlers takes a lock that its own thread holds, the process ends instead of
//! deadlocking, because the lock records its owner.

use std::{
    cell::UnsafeCell,
    fmt,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{Rank, Section, order};
use crate::sys;

/// Number of attempts after which the thread yields the CPU, in case the owner waits for this CPU.
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
    /// handler that interrupted the thread.
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
        if self.take(me) {
            Some(Guard::new(self, section))
        } else {
            self.enter_contended(me, section)
        }
    }

    /// Takes the lock of a new object while the lock of an older object of the same kind is held.
    /// No other thread holds a new object's lock for long.
    pub fn lock_of_new(&self) -> Guard<'_, T> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            sys::yield_now();
        }
    }

    /// Takes the lock if the lock is free, regardless of the lock order. Returns `None` otherwise.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let section = Section::enter();
        self.take(sys::thread_identity())
            .then(|| Guard::new_unordered(self, section))
    }

    #[inline]
    fn take(&self, me: usize) -> bool {
        self.owner
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[cold]
    fn enter_contended(&self, me: usize, section: Section) -> Option<Guard<'_, T>> {
        if self.owner.load(Ordering::Relaxed) == me {
            return None;
        }
        let mut spins = 0;
        loop {
            if self.owner.load(Ordering::Relaxed) == 0 && self.take(me) {
                return Some(Guard::new(self, section));
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
    /// its value. The old value is not dropped, because the owner may have been changing it.
    pub fn reset_after_fork(&self, value: T) {
        // SAFETY: the child has one thread, which runs the fork handler and does not hold this
        // lock's guard. `write` does not drop the old value.
        unsafe { self.value.get().write(value) };
        self.owner.store(0, Ordering::Release);
    }

    /// Releases the lock in a child after fork, and keeps its value. A thread of the parent may
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
    /// Checks the lock order in debug builds.
    _held: order::Held,
    /// A section, in which no signal handler of the program runs. The section ends after the lock
    /// is released, because fields are dropped after the guard's own `drop`.
    _section: Section,
}

impl<'a, T> Guard<'a, T> {
    #[inline]
    fn new(lock: &'a Lock<T>, section: Section) -> Self {
        Self {
            lock,
            _held: order::Held::new(lock.rank),
            _section: section,
        }
    }

    #[inline]
    fn new_unordered(lock: &'a Lock<T>, section: Section) -> Self {
        Self {
            lock,
            _held: order::Held::new_unordered(lock.rank),
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
