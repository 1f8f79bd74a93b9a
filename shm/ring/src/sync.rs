//! The atomics of the protocols: those of the processor, or loom's for model checking.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
