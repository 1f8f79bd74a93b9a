//! The membership of sockets in batches. A batch is the set of ready sockets that one `epoll_wait`
//! returned. The requests that the program's calls on these sockets make to the service are
//! published together.

use std::sync::atomic::{AtomicU32, Ordering};

/// The membership of one socket in a batch: the set of ready sockets that an `epoll_wait` returned.
#[derive(Debug)]
pub(crate) struct BatchMember {
    /// Number of the socket in this process.
    number: u32,
    /// The last batch that the socket was part of, or 0 (see [`super::Channel::submit`]).
    batch: AtomicU32,
}

impl BatchMember {
    /// Creates the member of the socket with this number, in no batch.
    pub(crate) const fn new(number: u32) -> Self {
        Self {
            number,
            batch: AtomicU32::new(0),
        }
    }

    /// Returns the number of the socket.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns true if the socket is in `batch`.
    #[inline]
    pub(super) fn is_in(&self, batch: u32) -> bool {
        self.batch.load(Ordering::Relaxed) == batch
    }

    /// Adds the socket to `batch`.
    #[inline]
    pub(super) fn join(&self, batch: u32) {
        self.batch.store(batch, Ordering::Relaxed);
    }

    /// Removes the socket from its batch.
    pub(crate) fn leave_batch(&self) {
        self.batch.store(0, Ordering::Relaxed);
    }
}
