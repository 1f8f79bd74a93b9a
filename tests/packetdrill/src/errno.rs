//! Error numbers, as the calls of the interface give them.

use tidelane_engine::CloseCause;

/// An error number of the operating system, positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// What a call gives.
pub type Answer<T = usize> = Result<T, Errno>;

impl Errno {
    /// The call would block, or has to be made again.
    pub const AGAIN: Self = Self(libc::EAGAIN);
    /// Not a descriptor.
    pub const BADF: Self = Self(libc::EBADF);
    /// An argument that the call does not take.
    pub const INVAL: Self = Self(libc::EINVAL);
}

/// What Linux reports for a connection that ended this way; none for an orderly end.
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
