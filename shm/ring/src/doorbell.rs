//! A doorbell: an eventfd that wakes a sleeping program, or a sleeping core (a polling thread of
//! the service, the process `tidelaned`).
//!
//! To ring the doorbell is to add 1 to the eventfd's counter. The sleeper waits edge-triggered
//! (EPOLLET), and each addition is an edge. The sleeper therefore need not drain the eventfd. The
//! 64-bit counter never fills if all wakers behave well.
//!
//! An eventfd has one set of status flags for all processes that hold it. A hostile program that
//! clears O_NONBLOCK of its own doorbell *and* fills the counter makes the service's `ring` block.
//! A watchdog therefore watches the threads that ring doorbells, and interrupts a blocked write by
//! a signal. `ring` then returns false, and the service ends the program's session, which is the
//! program's registration with the service. The service accepts only an eventfd as a doorbell.
//!
//! The service creates the doorbells that programs ring, separately for each program. The service
//! never drains them: if the program has cleared O_NONBLOCK, a read of an empty counter blocks.

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

/// An eventfd. The eventfd is readable if it was rung and has not been drained since.
#[derive(Debug)]
pub struct Doorbell(Descriptor);

impl Doorbell {
    /// Creates a nonblocking, close-on-exec doorbell.
    pub fn new() -> io::Result<Doorbell> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell(fd.into()))
    }

    /// Wraps an eventfd from a trusted process.
    pub fn from_trusted(fd: impl Into<Descriptor>) -> Doorbell {
        Doorbell(fd.into())
    }

    /// Wraps an eventfd from a process that may be hostile. Sets O_NONBLOCK. Refuses files of other
    /// types, because a write to them may block even with O_NONBLOCK.
    pub fn from_untrusted(fd: OwnedFd) -> io::Result<Doorbell> {
        let fd = Descriptor::from(fd);
        let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let name = rustix::fs::readlink(path, Vec::new())?;
        if name.as_bytes() != b"anon_inode:[eventfd]" {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the doorbell is not an eventfd",
            ));
        }
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Doorbell(fd))
    }

    /// Wakes the sleeper. Returns true if the eventfd is readable afterwards. Returns false if the
    /// write failed, or if a signal of the watchdog interrupted the write (see the module).
    pub fn ring(&self) -> bool {
        match rustix::io::write(&self.0, &1u64.to_ne_bytes()) {
            // EAGAIN means that the counter is full. The eventfd is readable in this case.
            Ok(_) | Err(Errno::AGAIN) => true,
            Err(_) => false,
        }
    }

    /// Resets the counter, so that the eventfd is not readable. Returns true if the counter was not
    /// zero.
    pub fn drain(&self) -> bool {
        let mut count = [0; 8];
        matches!(rustix::io::read(&self.0, &mut count), Ok(8))
    }

    /// Returns the owned descriptor, for example to replace its file
    /// ([`Descriptor::replace_with`]).
    pub fn descriptor(&self) -> &Descriptor {
        &self.0
    }

    /// Returns the descriptor, to poll for readability or to pass to another process.
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
    fn only_an_eventfd_is_accepted_as_a_doorbell() {
        let file = rustix::fs::memfd_create("[eventfd]", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(Doorbell::from_untrusted(file).is_err());
        let (read, write) = rustix::pipe::pipe().unwrap();
        assert!(Doorbell::from_untrusted(read).is_err());
        assert!(Doorbell::from_untrusted(write).is_err());
    }
}
