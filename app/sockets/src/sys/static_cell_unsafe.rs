//! An atomic reference to an object that is never freed.

use std::{
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// An `Option<&'static T>` that threads load and store atomically.
///
/// `None` is all zero bytes, so that a large static array of cells only uses memory for the pages
/// in which a cell was written.
#[derive(Debug)]
#[repr(transparent)]
pub struct StaticCell<T: 'static>(AtomicPtr<T>);

impl<T: Sync> StaticCell<T> {
    /// Creates an empty cell.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Loads the reference.
    #[inline]
    pub fn load(&self) -> Option<&'static T> {
        let pointer = self.0.load(Ordering::Acquire);
        // SAFETY: null, or it came from a `&'static T` in `store`.
        unsafe { pointer.as_ref() }
    }

    /// Stores a reference.
    pub fn store(&self, value: Option<&'static T>) {
        self.0.store(as_pointer(value), Ordering::Release);
    }

    /// Stores a reference and returns the previous one.
    pub fn swap(&self, value: Option<&'static T>) -> Option<&'static T> {
        let pointer = self.0.swap(as_pointer(value), Ordering::AcqRel);
        // SAFETY: null, or it came from a `&'static T`.
        unsafe { pointer.as_ref() }
    }

    /// Returns true if the cell refers to `value`.
    #[inline]
    pub fn is(&self, value: &'static T) -> bool {
        ptr::eq(self.0.load(Ordering::Acquire), value)
    }
}

fn as_pointer<T>(value: Option<&'static T>) -> *mut T {
    value.map_or(ptr::null_mut(), |value| ptr::from_ref(value).cast_mut())
}
