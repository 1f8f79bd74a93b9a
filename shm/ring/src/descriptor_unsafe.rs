//! A file descriptor that is closed by a direct system call.

use std::{
    io,
    mem::ManuallyDrop,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd},
};

use rustix::io::DupFlags;

/// An owned descriptor. Unlike `OwnedFd`, its drop does not call libc's `close`, which a preloaded
/// library may be interposing.
#[derive(Debug)]
pub struct Descriptor(ManuallyDrop<OwnedFd>);

impl Descriptor {
    /// Makes this descriptor number refer to the file of `other` (dup3) and closes its previous
    /// file. Code that still uses the number does no harm.
    pub fn replace_with(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: the number is open and stays so: dup3 replaces what it names in one step. The
        // second owner is never dropped.
        let mut same = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(self.0.as_raw_fd()) });
        rustix::io::dup3(other, &mut same, DupFlags::CLOEXEC)?;
        Ok(())
    }
}

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
        // SAFETY: the wrapped descriptor is not used again: this is the drop.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        // SAFETY: the descriptor is owned, and `into_raw_fd` gave up its ownership.
        unsafe { rustix::io::close(fd.into_raw_fd()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_descriptor_closes_its_previous_file() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let write = Descriptor::from(write);
        let number = write.as_fd().as_raw_fd();
        write.replace_with(read.as_fd()).unwrap();
        assert_eq!(write.as_fd().as_raw_fd(), number);
        // End of file: the writing end is closed.
        assert_eq!(rustix::io::read(&read, &mut [0; 1]).unwrap(), 0);
        drop(write);
        assert!(rustix::io::dup(read).is_ok());
    }
}
