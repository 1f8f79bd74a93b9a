//! A file descriptor that closes itself by a system call of its own.

use std::{
    mem::ManuallyDrop,
    os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd},
};

/// An owned descriptor. Unlike `OwnedFd`, its drop does not call libc's `close`, which a preloaded
/// library may be interposing at that very moment.
#[derive(Debug)]
pub struct Descriptor(ManuallyDrop<OwnedFd>);

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Descriptor {
        Descriptor(ManuallyDrop::new(fd))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        debug_assert!(self.0.as_raw_fd() >= 0);
        // SAFETY: the wrapped descriptor is not used again: this is the drop.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        // SAFETY: the descriptor is owned, and `into_raw_fd` gave up its ownership.
        unsafe { rustix::io::close(fd.into_raw_fd()) };
    }
}
