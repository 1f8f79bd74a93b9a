//! An atomic reference to something that is never freed.

use std::{
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// `Option<&'static T>` that threads may load and store.
///
/// Zero bytes are `None`, so that a large static array of cells costs nothing until it is used.
#[derive(Debug)]
#[repr(transparent)]
pub struct StaticCell<T: 'static>(AtomicPtr<T>);

impl<T: Sync> StaticCell<T> {
    /// An empty cell.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// What the cell refers to.
    #[inline]
    pub fn load(&self) -> Option<&'static T> {
        let pointer = self.0.load(Ordering::Acquire);
        // SAFETY: null, or it came from a `&'static T` in `store`.
        unsafe { pointer.as_ref() }
    }

    /// Changes what the cell refers to.
    pub fn store(&self, value: Option<&'static T>) {
        self.0.store(as_pointer(value), Ordering::Release);
    }

    /// Changes what the cell refers to, and returns what it was.
    pub fn swap(&self, value: Option<&'static T>) -> Option<&'static T> {
        let pointer = self.0.swap(as_pointer(value), Ordering::AcqRel);
        // SAFETY: null, or it came from a `&'static T`.
        unsafe { pointer.as_ref() }
    }

    /// Whether the cell refers to `value`.
    #[inline]
    pub fn is(&self, value: &'static T) -> bool {
        ptr::eq(self.0.load(Ordering::Acquire), value)
    }
}

fn as_pointer<T>(value: Option<&'static T>) -> *mut T {
    value.map_or(ptr::null_mut(), |value| ptr::from_ref(value).cast_mut())
}
