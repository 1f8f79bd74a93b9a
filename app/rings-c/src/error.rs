//! Errors of the functions: the kernel's error numbers.

use std::io;

/// Error number of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(i32);

impl Error {
    /// The handle is no open context.
    pub const CONTEXT: Self = Self(libc::EBADF);
    /// The context belongs to another thread or process.
    pub const THREAD: Self = Self(libc::EPERM);
    /// A signal handler has interrupted another call.
    pub const INTERRUPTED_CALL: Self = Self(libc::EBUSY);
    /// No further context can be numbered.
    pub const CONTEXTS: Self = Self(libc::EMFILE);
    /// A pointer is null.
    pub const POINTER: Self = Self(libc::EFAULT);
    /// An argument is outside of its range.
    pub const ARGUMENT: Self = Self(libc::EINVAL);
    /// The back end is unknown.
    pub const BACK_END: Self = Self(libc::EOPNOTSUPP);
    /// The address is neither IPv4 nor IPv6.
    pub const FAMILY: Self = Self(libc::EAFNOSUPPORT);
    /// The descriptor is not open in the context.
    pub const DESCRIPTOR: Self = Self(libc::ENOTSOCK);
    /// The descriptor cannot send.
    pub const NOT_CONNECTED: Self = Self(libc::ENOTCONN);
    /// The descriptor has no room for another buffer.
    pub const FULL: Self = Self(libc::EAGAIN);
    /// The ready list has no such entry or slot.
    pub const ENTRY: Self = Self(libc::ENOENT);
    /// All buffers have owners.
    pub const NO_BUFFER: Self = Self(libc::ENOBUFS);
    /// The buffer belongs to the program and the list no more.
    pub const BUFFER_GONE: Self = Self(libc::ESTALE);
    /// The payload would end beyond the buffer.
    pub const LENGTH: Self = Self(libc::EMSGSIZE);

    /// Returns the result of the C function: a negative number.
    pub fn code(self) -> i32 {
        -self.0
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self(match (error.raw_os_error(), error.kind()) {
            (Some(errno), _) => errno,
            (None, io::ErrorKind::Unsupported) => libc::ENOSYS,
            (None, io::ErrorKind::InvalidInput) => libc::EINVAL,
            (None, io::ErrorKind::OutOfMemory) => libc::ENOMEM,
            (None, _) => libc::EIO,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_kernel_keep_their_numbers() {
        let error = Error::from(io::Error::from_raw_os_error(libc::EADDRINUSE));
        assert_eq!(error.code(), -libc::EADDRINUSE);
        let error = Error::from(io::Error::new(io::ErrorKind::Unsupported, "an old kernel"));
        assert_eq!(error.code(), -libc::ENOSYS);
    }
}
