//! Error numbers of the interface's calls.

use tidelane_engine::CloseCause;

/// An error number of the operating system, positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// Result of a call.
pub type Answer<T = usize> = Result<T, Errno>;

impl Errno {
    /// The call would block, or must be repeated.
    pub const AGAIN: Self = Self(libc::EAGAIN);
    /// The descriptor is not open.
    pub const BADF: Self = Self(libc::EBADF);
    /// An argument is invalid.
    pub const INVAL: Self = Self(libc::EINVAL);
}

/// Returns the error that Linux reports for a connection that ended this way. `None` for an orderly
/// end.
pub fn of_cause(cause: CloseCause) -> Option<Errno> {
    Some(Errno(match cause {
        CloseCause::Finished => return None,
        CloseCause::Refused => libc::ECONNREFUSED,
        CloseCause::TimedOut => libc::ETIMEDOUT,
        CloseCause::HostUnreachable => libc::EHOSTUNREACH,
        CloseCause::NetUnreachable => libc::ENETUNREACH,
        CloseCause::Reset | CloseCause::Aborted => libc::ECONNRESET,
    }))
}
