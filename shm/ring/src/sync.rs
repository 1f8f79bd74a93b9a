//! The atomics that the protocols use: the processor's, or loom's where they are model-checked.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
