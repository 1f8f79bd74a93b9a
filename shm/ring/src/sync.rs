//! The atomics of the ring protocols: the types of `core`, or under `cfg(loom)` the types of the
//! model checker loom.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
