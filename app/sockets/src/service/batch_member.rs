//! The membership of sockets in batches. A batch is the set of ready sockets that one `epoll_wait`
//! returned. The program's calls on these sockets change the read and write positions of their
//! connections. To save work, this process publishes several changes of a batch together to the
//! service (the process `tidelaned`).

use std::sync::atomic::{AtomicU32, Ordering};

/// Number that no socket has.
const NO_SOCKET: u32 = u32::MAX;

/// The present batch of one channel: the program works on the sockets of this batch.
#[derive(Debug)]
pub(super) struct Batch {
    /// Number of the batch. Never 0, which means "no batch".
    number: AtomicU32,
    /// Number of the batch's last socket, or [`NO_SOCKET`]. A change of this socket's connection
    /// publishes all changes of the batch.
    last: AtomicU32,
}

impl Batch {
    /// Creates a batch without sockets.
    pub(super) const fn new() -> Self {
        Self {
            number: AtomicU32::new(1),
            last: AtomicU32::new(NO_SOCKET),
        }
    }

    /// Ends the batch, and begins the next batch, which has no sockets yet.
    #[inline]
    pub(super) fn end(&self) {
        self.last.store(NO_SOCKET, Ordering::Relaxed);
        let number = self.number.load(Ordering::Relaxed);
        self.number.store(number.wrapping_add(2), Ordering::Relaxed);
    }

    /// Adds a socket, which becomes the last socket of the batch.
    #[inline]
    pub(super) fn add(&self, socket: &BatchMember) {
        socket.join(self.number.load(Ordering::Relaxed));
        self.last.store(socket.number(), Ordering::Relaxed);
    }

    /// Returns true if the socket is in the batch and is not its last socket.
    #[inline]
    pub(super) fn goes_on_after(&self, socket: &BatchMember) -> bool {
        socket.is_in(self.number.load(Ordering::Relaxed))
            && self.last.load(Ordering::Relaxed) != socket.number()
    }
}

/// The membership of one socket in a batch.
#[derive(Debug)]
pub(crate) struct BatchMember {
    /// Number of the socket in this process.
    number: u32,
    /// Number of the batch that the socket joined most recently, or 0 if the socket is in no batch
    /// (see [`super::Channel::submit`]).
    batch: AtomicU32,
}

impl BatchMember {
    /// Creates the value for the socket with this number. The socket is in no batch.
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

    /// Returns true if the socket is in the batch with the number `batch`.
    #[inline]
    fn is_in(&self, batch: u32) -> bool {
        self.batch.load(Ordering::Relaxed) == batch
    }

    /// Adds the socket to the batch with the number `batch`.
    #[inline]
    fn join(&self, batch: u32) {
        self.batch.store(batch, Ordering::Relaxed);
    }

    /// Removes the socket from its batch.
    pub(crate) fn leave_batch(&self) {
        self.batch.store(0, Ordering::Relaxed);
    }
}
