//! The atomics of the ring protocols: the ones of `core`, or loom's under `cfg(loom)`.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
