//! Error numbers: the only place of the project, with the rest of this crate, that knows them.

use tidelane_abi::close_cause;

/// An error number of the operating system, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// What a call on one of our sockets gives. `None`: not ours, make the system call.
pub type Handled<T = usize> = Option<Result<T, Errno>>;

/// "Not ours after all: make the system call."
pub const TO_KERNEL: Handled = None;

/// The call is done and failed.
pub(crate) fn fail<T>(number: i32) -> Handled<T> {
    Some(Err(Errno(number)))
}

/// What Linux reports for a connection that ended this way; 0 for an orderly end.
pub(crate) fn from_cause(cause: u32) -> i32 {
    match cause {
        close_cause::FINISHED => 0,
        close_cause::REFUSED => libc::ECONNREFUSED,
        close_cause::TIMED_OUT => libc::ETIMEDOUT,
        close_cause::HOST_UNREACHABLE => libc::EHOSTUNREACH,
        close_cause::NET_UNREACHABLE => libc::ENETUNREACH,
        close_cause::NO_PORT => libc::EADDRNOTAVAIL,
        close_cause::LIMIT => libc::ENOBUFS,
        // RESET, ABORTED (also: the service died), and numbers of a later version.
        _ => libc::ECONNRESET,
    }
}
