//! An atomic reference to an object that is never freed.

use std::{
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// An `Option<&'static T>` that threads load and store atomically.
///
/// `None` is all zero bytes, so that a large static array of cells uses memory only for the pages
/// in which a cell was written.
#[derive(Debug)]
#[repr(transparent)]
pub struct StaticCell<T: 'static>(AtomicPtr<T>);

impl<T: Sync> StaticCell<T> {
    /// Creates an empty cell.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Loads the reference, or `None` from an empty cell.
    #[inline]
    pub fn load(&self) -> Option<&'static T> {
        let pointer = self.0.load(Ordering::Acquire);
        // SAFETY: null, or it came from a `&'static T` in `store`.
        unsafe { pointer.as_ref() }
    }

    /// Stores a reference, or empties the cell for `None`.
    pub fn store(&self, value: Option<&'static T>) {
        self.0.store(as_pointer(value), Ordering::Release);
    }

    /// Stores a reference as [`store`](Self::store) does, and returns the previous reference.
    pub fn swap(&self, value: Option<&'static T>) -> Option<&'static T> {
        let pointer = self.0.swap(as_pointer(value), Ordering::AcqRel);
        // SAFETY: null, or it came from a `&'static T`.
        unsafe { pointer.as_ref() }
    }

    /// Stores a reference if the cell is empty. Returns the reference that is in the cell
    /// afterwards. If several threads fill an empty cell, all of them get the same reference.
    pub fn fill(&self, value: &'static T) -> &'static T {
        let new = as_pointer(Some(value));
        let (filled, read) = (Ordering::AcqRel, Ordering::Acquire);
        let found = self
            .0
            .compare_exchange(ptr::null_mut(), new, filled, read)
            .err();
        // SAFETY: the pointer is null, or came from a `&'static T`.
        found
            .and_then(|pointer| unsafe { pointer.as_ref() })
            .unwrap_or(value)
    }

    /// Empties the cell if the cell refers to `value`. The test and the change are one atomic step.
    pub fn clear(&self, value: &'static T) {
        let old = as_pointer(Some(value));
        let (cleared, read) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.0.compare_exchange(old, ptr::null_mut(), cleared, read);
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

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::StaticCell;

    #[test]
    fn all_threads_that_fill_an_empty_cell_get_one_reference() {
        static VALUES: [u32; 4] = [1, 2, 3, 4];
        for _ in 0..1000 {
            let cell = StaticCell::new();
            let found = std::thread::scope(|scope| {
                let threads = VALUES.each_ref().map(|value| {
                    let cell = &cell;
                    scope.spawn(move || cell.fill(value))
                });
                threads.map(|thread| thread.join().unwrap())
            });
            assert!(found.iter().all(|one| ptr::eq(*one, found[0])));
            assert!(cell.is(found[0]));
        }
    }

    #[test]
    fn only_the_reference_that_is_named_is_cleared() {
        static VALUES: [u32; 2] = [1, 2];
        let cell = StaticCell::new();
        cell.store(Some(&VALUES[0]));
        cell.clear(&VALUES[1]);
        assert!(cell.is(&VALUES[0]));
        cell.clear(&VALUES[0]);
        assert!(cell.load().is_none());
    }
}
