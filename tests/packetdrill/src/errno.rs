//! Error numbers that the socket calls return.

use tidelane_engine::{CloseCause, OpenError};

/// An error number of the operating system, such as EAGAIN. The number is positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// Result of a socket call.
pub type CallResult<T = usize> = Result<T, Errno>;

impl Errno {
    /// EAGAIN: the call would block. After this error, a blocking call waits and tries again.
    pub const AGAIN: Self = Self(libc::EAGAIN);
    /// EBADF: the descriptor is not open.
    pub const BADF: Self = Self(libc::EBADF);
    /// EINVAL: an argument is invalid.
    pub const INVAL: Self = Self(libc::EINVAL);
}

/// Returns the error that Linux reports for a connection that ended with `cause`. Returns `None`
/// for a connection that both ends closed normally.
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

/// Returns the error with which `connect` fails if the engine (Tidelane's TCP) refuses to open a
/// connection.
pub const fn errno_of_open(error: OpenError) -> Errno {
    Errno(match error {
        OpenError::InUse => libc::EADDRNOTAVAIL,
        OpenError::Full => libc::ENOBUFS,
        OpenError::BadEndpoint => libc::EINVAL,
    })
}
