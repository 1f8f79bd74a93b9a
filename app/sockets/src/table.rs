//! Which descriptors are ours: a lookup without a lock, a few instructions for foreign ones.
//!
//! The tables know nothing of what they hold: sockets and epoll instances keep theirs in
//! [`Descriptors`] by descriptor and in [`Numbers`] by number. Objects are never freed, only used
//! again (see [`Pool`]), so a reference that a thread still holds while another thread closes the
//! descriptor stays valid; whoever takes the object's lock asks once more whether the descriptor
//! refers to it.

mod internal;
mod ranges;

use std::os::fd::RawFd;

pub use internal::is_internal;
pub(crate) use internal::{descriptors, set_internal};
pub(crate) use ranges::{Piece, pieces};

use crate::sys::{Lock, StaticCell};

/// Descriptors above are never ours. (The kernel's own limit, fs.nr_open, is the same by default.)
const DESCRIPTORS_MAX: usize = 1 << 20;

/// Descriptor -> object.
#[derive(Debug)]
pub(crate) struct Descriptors<T: 'static>([StaticCell<T>; DESCRIPTORS_MAX]);

impl<T: Sync> Descriptors<T> {
    /// Refers to nothing, in zero bytes.
    pub(crate) const fn new() -> Self {
        Self([const { StaticCell::new() }; DESCRIPTORS_MAX])
    }

    /// The object behind a descriptor, if it is ours.
    #[inline]
    pub(crate) fn get(&self, fd: RawFd) -> Option<&'static T> {
        self.0.get(fd as usize)?.load()
    }

    /// Returns true if `fd` refers to `object` (still).
    #[inline]
    pub(crate) fn refers(&self, fd: RawFd, object: &'static T) -> bool {
        self.0.get(fd as usize).is_some_and(|cell| cell.is(object))
    }

    /// Makes `fd` refer to `object`. False: the number is too high.
    pub(crate) fn set(&self, fd: RawFd, object: &'static T) -> bool {
        let Some(cell) = self.0.get(fd as usize) else {
            return false;
        };
        cell.store(Some(object));
        internal::note_descriptor(fd);
        true
    }

    /// Takes the object away from the descriptor; the caller is the only one who gets it.
    pub(crate) fn take(&self, fd: RawFd) -> Option<&'static T> {
        self.0.get(fd as usize)?.swap(None)
    }
}

/// Number -> object.
#[derive(Debug)]
pub(crate) struct Numbers<T: 'static, const MAX: usize>([StaticCell<T>; MAX]);

impl<T: Sync, const MAX: usize> Numbers<T, MAX> {
    /// Refers to nothing, in zero bytes.
    pub(crate) const fn new() -> Self {
        Self([const { StaticCell::new() }; MAX])
    }

    /// The object with this number.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&'static T> {
        self.0.get(number as usize)?.load()
    }

    /// Gives the number to an object. False: the number is too high.
    pub(crate) fn set(&self, number: u32, object: &'static T) -> bool {
        let Some(cell) = self.0.get(number as usize) else {
            return false;
        };
        cell.store(Some(object));
        true
    }

    /// Takes the number away from `object`, if it has it (still).
    pub(crate) fn clear(&self, number: u32, object: &'static T) {
        if let Some(cell) = self.0.get(number as usize)
            && cell.is(object)
        {
            cell.store(None);
        }
    }
}

/// Objects for reuse, and how many were made.
#[derive(Debug)]
pub(crate) struct Pool<T: 'static>(Lock<Pooled<T>>);

#[derive(Debug)]
struct Pooled<T: 'static> {
    free: Vec<&'static T>,
    made: u32,
}

impl<T: Sync> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self(Lock::new(Pooled {
            free: Vec::new(),
            made: 0,
        }))
    }

    /// A free object, used before, or made with the next of `numbers`.
    pub(crate) fn take<const MAX: usize>(
        &self,
        numbers: &Numbers<T, MAX>,
        make: impl FnOnce(u32) -> T,
    ) -> Option<&'static T> {
        let mut pool = self.0.lock();
        if let Some(object) = pool.free.pop() {
            return Some(object);
        }
        if pool.made as usize >= MAX {
            return None;
        }
        let object: &'static T = Box::leak(Box::new(make(pool.made)));
        numbers.set(pool.made, object);
        pool.made += 1;
        Some(object)
    }

    /// Nobody refers to the object by a descriptor any more.
    pub(crate) fn free(&self, object: &'static T) {
        self.0.lock().free.push(object);
    }

    /// How many objects were made.
    pub(crate) fn made(&self) -> u32 {
        self.0.lock().made
    }

    /// For the child after fork: the lock may be held by a thread that does not exist here. What a
    /// half-done change lost is a pooled object, no more.
    pub(crate) fn reset_after_fork(&self) {
        self.0.unlock_after_fork();
    }
}
