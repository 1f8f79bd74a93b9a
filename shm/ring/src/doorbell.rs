//! A doorbell: an eventfd that wakes a side that sleeps on descriptors.
//!
//! The sleeper waits edge-triggered (EPOLLET) and need not drain the eventfd: each ring is an edge,
//! and honest rings never fill the counter.
//!
//! An eventfd has one set of status flags for all processes that hold it. A hostile program that
//! clears O_NONBLOCK of its own doorbell *and* fills its counter makes the service's `ring` block.
//! The service therefore accepts only eventfds from programs, and watches the threads that ring
//! them. A signal interrupts a blocked write; `ring` then returns false, and the service ends the
//! program's session. The doorbells that programs ring are made by the service, separately for each
//! program. The service never drains them, because a read could block, too.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::OFlags,
    io::Errno,
};

use crate::Descriptor;

/// An eventfd, readable if it was rung and not drained since.
#[derive(Debug)]
pub struct Doorbell(Descriptor);

impl Doorbell {
    /// Creates a nonblocking, close-on-exec doorbell.
    pub fn new() -> io::Result<Doorbell> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell(fd.into()))
    }

    /// Wraps a doorbell from a trusted side.
    pub fn from_trusted(fd: impl Into<Descriptor>) -> Doorbell {
        Doorbell(fd.into())
    }

    /// Wraps a doorbell from a side that may be hostile. The descriptor must be an eventfd, because
    /// a write to a file of another type may block despite O_NONBLOCK, which the function sets.
    pub fn from_untrusted(fd: OwnedFd) -> io::Result<Doorbell> {
        let fd = Descriptor::from(fd);
        let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let name = rustix::fs::readlink(path, Vec::new())?;
        if name.as_bytes() != b"anon_inode:[eventfd]" {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the doorbell is no eventfd",
            ));
        }
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Doorbell(fd))
    }

    /// Wakes the sleeper. Returns false if the eventfd is broken, or the write was interrupted: see
    /// the module's documentation.
    pub fn ring(&self) -> bool {
        match rustix::io::write(&self.0, &1u64.to_ne_bytes()) {
            // EAGAIN: the counter is full, so the eventfd is readable.
            Ok(_) | Err(Errno::AGAIN) => true,
            Err(_) => false,
        }
    }

    /// Makes the eventfd unreadable. Returns true if it had been rung.
    pub fn drain(&self) -> bool {
        let mut count = [0; 8];
        matches!(rustix::io::read(&self.0, &mut count), Ok(8))
    }

    /// Returns the descriptor.
    pub fn descriptor(&self) -> &Descriptor {
        &self.0
    }

    /// Returns the descriptor to poll for readability, or to send to the other side.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Doorbell> for Descriptor {
    fn from(bell: Doorbell) -> Descriptor {
        bell.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_merged_until_drained() {
        let bell = Doorbell::new().unwrap();
        assert!(!bell.drain());
        assert!(bell.ring() && bell.ring());
        assert!(bell.drain());
        assert!(!bell.drain());
    }

    #[test]
    fn an_untrusted_eventfd_is_made_nonblocking() {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let copy = Doorbell::from_untrusted(rustix::io::dup(&bell).unwrap()).unwrap();
        assert!(!copy.drain());
        rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert!(copy.ring());
    }

    #[test]
    fn nothing_else_is_taken_from_a_stranger() {
        let file = rustix::fs::memfd_create("[eventfd]", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(Doorbell::from_untrusted(file).is_err());
        let (read, write) = rustix::pipe::pipe().unwrap();
        assert!(Doorbell::from_untrusted(read).is_err());
        assert!(Doorbell::from_untrusted(write).is_err());
    }
}
