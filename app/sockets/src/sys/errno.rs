//! Error numbers (errno). This crate depends on the crate `tidelane-client`, which reports the end
//! of a connection with a cause (`close_cause`), not with an errno.

use tidelane_abi::close_cause;

/// A positive error number of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// The result of a program's call that this crate may carry out, for example on a tracked socket (a
/// TCP socket of the program that this crate may accelerate). `None` means that the caller has to
/// make the system call instead.
pub type Handled<T = usize> = Option<Result<T, Errno>>;

/// The result of a call that the library leaves to the kernel.
pub const TO_KERNEL: Handled = None;

/// Returns the result of a call that failed with the error number `number`.
pub(crate) fn fail<T>(number: i32) -> Handled<T> {
    Some(Err(Errno(number)))
}

/// Returns the error number that Linux reports for a connection that ended with `cause`, a
/// [`close_cause`]. Returns 0 for an orderly end.
pub(crate) fn from_cause(cause: u32) -> i32 {
    match cause {
        close_cause::FINISHED => 0,
        close_cause::REFUSED => libc::ECONNREFUSED,
        close_cause::TIMED_OUT => libc::ETIMEDOUT,
        close_cause::HOST_UNREACHABLE => libc::EHOSTUNREACH,
        close_cause::NET_UNREACHABLE => libc::ENETUNREACH,
        close_cause::NO_PORT => libc::EADDRNOTAVAIL,
        close_cause::LIMIT => libc::ENOBUFS,
        // RESET, ABORTED (also after the death of the process `tidelaned`), and causes that a later
        // version of `tidelaned` may report.
        _ => libc::ECONNRESET,
    }
}
