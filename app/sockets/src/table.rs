//! Lookup of objects by descriptor and by number, without locks.
//!
//! The objects are the sockets and the epoll instances of the program, and the channels to the
//! service. Sockets have a [`DescriptorTable`], and epoll instances have another. Each kind of
//! object has at least one [`NumberTable`]. A descriptor is tracked if a table maps the descriptor
//! to an object. A lookup of any other descriptor costs only a few instructions.
//!
//! Objects are never freed, only reused (see [`Pool`]). A reference therefore stays valid while
//! another thread closes the descriptor. After a thread has taken the object's lock, it checks
//! again whether the descriptor still refers to the object.

mod internal;
mod ranges;

use std::os::fd::RawFd;

pub use internal::is_internal;
pub(crate) use internal::{descriptors, set_internal};
pub(crate) use ranges::{CloseRangeStep, close_range_steps};

use crate::sys::{Lock, StaticCell};

/// Number of descriptors that can be tracked, from 0 on. The number is the default of the sysctl
/// `fs.nr_open`, the kernel's limit on the number of descriptors of a process.
const DESCRIPTORS_MAX: usize = 1 << 20;

/// Maps descriptors to objects.
#[derive(Debug)]
pub(crate) struct DescriptorTable<T: 'static>([StaticCell<T>; DESCRIPTORS_MAX]);

impl<T: Sync> DescriptorTable<T> {
    /// Creates an empty table, whose bytes are all zero.
    pub(crate) const fn new() -> Self {
        Self([const { StaticCell::new() }; DESCRIPTORS_MAX])
    }

    /// Returns the object that a descriptor refers to, or `None` if the descriptor is not tracked.
    #[inline]
    pub(crate) fn get(&self, fd: RawFd) -> Option<&'static T> {
        self.0.get(fd as usize)?.load()
    }

    /// Returns true if `fd` still refers to `object`.
    #[inline]
    pub(crate) fn refers(&self, fd: RawFd, object: &'static T) -> bool {
        self.0.get(fd as usize).is_some_and(|cell| cell.is(object))
    }

    /// Makes `fd` refer to `object`. Returns false if `fd` is negative, or [`DESCRIPTORS_MAX`] or
    /// higher.
    pub(crate) fn set(&self, fd: RawFd, object: &'static T) -> bool {
        let Some(cell) = self.0.get(fd as usize) else {
            return false;
        };
        cell.store(Some(object));
        internal::note_descriptor(fd);
        true
    }

    /// Clears the descriptor and returns its object. Of several threads, only one gets the object.
    pub(crate) fn take(&self, fd: RawFd) -> Option<&'static T> {
        self.0.get(fd as usize)?.swap(None)
    }
}

/// Maps numbers to objects. Examples are the number of a socket, and the slot of its connection
/// (the number of the connection's record in the memory that program and service share).
#[derive(Debug)]
pub(crate) struct NumberTable<T: 'static, const MAX: usize>([StaticCell<T>; MAX]);

impl<T: Sync, const MAX: usize> NumberTable<T, MAX> {
    /// Creates an empty table, whose bytes are all zero.
    pub(crate) const fn new() -> Self {
        Self([const { StaticCell::new() }; MAX])
    }

    /// Returns the object with this number, or `None` if the number is free.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&'static T> {
        self.0.get(number as usize)?.load()
    }

    /// Assigns the number to an object. Returns false if the number is `MAX` or higher.
    pub(crate) fn set(&self, number: u32, object: &'static T) -> bool {
        let Some(cell) = self.0.get(number as usize) else {
            return false;
        };
        cell.store(Some(object));
        true
    }

    /// Clears the number if it still belongs to `object`.
    pub(crate) fn clear(&self, number: u32, object: &'static T) {
        if let Some(cell) = self.0.get(number as usize) {
            cell.clear(object);
        }
    }
}

/// A pool of free objects of one kind, to be used again.
#[derive(Debug)]
pub(crate) struct Pool<T: 'static>(Lock<Pooled<T>>);

/// The contents of a pool, under its lock.
#[derive(Debug)]
struct Pooled<T: 'static> {
    free: Vec<&'static T>,
    /// Number of objects that were ever created, free or in use.
    count: u32,
}

impl<T: Sync> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self(Lock::new(Pooled {
            free: Vec::new(),
            count: 0,
        }))
    }

    /// Takes an object from the pool. If the pool is empty, creates an object and assigns the next
    /// number of `numbers` to the object. Returns `None` if the pool is empty and `MAX` objects
    /// exist.
    pub(crate) fn take<const MAX: usize>(
        &self,
        numbers: &NumberTable<T, MAX>,
        make: impl FnOnce(u32) -> T,
    ) -> Option<&'static T> {
        let mut pool = self.0.lock();
        if let Some(object) = pool.free.pop() {
            return Some(object);
        }
        if pool.count as usize >= MAX {
            return None;
        }
        let object: &'static T = Box::leak(Box::new(make(pool.count)));
        numbers.set(pool.count, object);
        pool.count += 1;
        Some(object)
    }

    /// Returns to the pool an object that is not in use any more.
    pub(crate) fn free(&self, object: &'static T) {
        self.0.lock().free.push(object);
    }

    /// Returns the number of objects that were ever created, free or in use.
    pub(crate) fn count(&self) -> u32 {
        self.0.lock().count
    }

    /// Releases the lock in a child after fork, because a thread that does not exist in the child
    /// may hold the lock. If that thread was changing the pool, the child may lose an object.
    pub(crate) fn reset_after_fork(&self) {
        self.0.unlock_after_fork();
    }
}
