//! Bounce buffers: memory through which `sendfile` and `splice` copy payload between a connection
//! and a file or pipe.

use crate::sys::Lock;

/// Length of a bounce buffer in bytes.
const BOUNCE_LEN: usize = 64 << 10;
/// Largest number of unused bounce buffers in the pool, to limit the memory that the pool uses.
const BOUNCE_KEPT_MAX: usize = 16;

/// The pool: unused bounce buffers, kept for later calls.
static BOUNCE: Lock<Vec<Box<[u8]>>> = Lock::new(Vec::new());

/// A bounce buffer. Dropping the value returns the buffer to the pool, or frees the buffer if the
/// pool is full.
pub(super) struct Bounce(pub(super) Box<[u8]>);

impl Bounce {
    pub(super) fn new() -> Self {
        let kept = BOUNCE.lock().pop();
        Self(kept.unwrap_or_else(|| vec![0; BOUNCE_LEN].into_boxed_slice()))
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        let mut kept = BOUNCE.lock();
        if kept.len() < BOUNCE_KEPT_MAX {
            kept.push(std::mem::take(&mut self.0));
        }
    }
}

/// Releases the lock of the pool in a child after fork, because a thread that does not exist in the
/// child may have held the lock.
pub(super) fn reset_after_fork() {
    BOUNCE.unlock_after_fork();
}
