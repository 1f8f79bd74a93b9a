//! A list that usually has one element, for the channels or sockets that a thread waits for.

/// A list whose first element is stored inline, so that one element needs no allocation.
#[derive(Clone, Debug)]
pub(crate) struct SmallVec<T> {
    /// The first element. `None` if the list is empty.
    first: Option<T>,
    /// The other elements.
    more: Vec<T>,
}

impl<T: Copy> SmallVec<T> {
    pub(crate) const fn new() -> Self {
        Self {
            first: None,
            more: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, value: T) {
        if self.first.is_none() {
            self.first = Some(value);
        } else {
            self.more.push(value);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = T> {
        self.first.into_iter().chain(self.more.iter().copied())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Removes the elements for which `matches` returns true. Returns true if an element was
    /// removed. The order of the remaining elements may change.
    pub(crate) fn remove(&mut self, mut matches: impl FnMut(T) -> bool) -> bool {
        let before = self.iter().count();
        self.more.retain(|value| !matches(*value));
        if self.first.is_some_and(matches) {
            self.first = self.more.pop();
        }
        self.iter().count() < before
    }
}

impl<T> From<Option<T>> for SmallVec<T> {
    fn from(first: Option<T>) -> Self {
        Self {
            first,
            more: Vec::new(),
        }
    }
}
