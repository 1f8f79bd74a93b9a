//! The atomics of the ring protocols: the types of `core`, or the types of loom under `cfg(loom)`.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
