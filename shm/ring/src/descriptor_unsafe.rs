//! A file descriptor that is closed by a direct system call.

use std::{
    io,
    mem::ManuallyDrop,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd},
};

use rustix::io::DupFlags;

/// An owned descriptor that is closed by a direct system call. `OwnedFd` would call libc's `close`,
/// which Tidelane's preloaded library interposes in a program.
#[derive(Debug)]
pub struct Descriptor(ManuallyDrop<OwnedFd>);

impl Descriptor {
    /// Makes this descriptor number refer to the open file description of `other`. The system call
    /// (`dup3`) also closes the number's previous file, as `close` does. The number stays
    /// allocated. Code that still uses the number therefore cannot reach an unrelated file.
    pub fn replace_with(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: the descriptor is open, and `dup3` replaces its file atomically. `ManuallyDrop`
        // keeps the second owner from closing the descriptor.
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
        // SAFETY: `drop` is the last use of the wrapped descriptor.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        // SAFETY: `into_raw_fd` passed the ownership of the descriptor to this call.
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
        // End of file shows that the write end is closed.
        assert_eq!(rustix::io::read(&read, &mut [0; 1]).unwrap(), 0);
        drop(write);
        assert!(rustix::io::dup(read).is_ok());
    }
}
