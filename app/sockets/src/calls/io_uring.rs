//! The decision whether the program may use io_uring. The library that contains this crate
//! (`libtidelane.so`) replaces libc's socket calls, but io_uring operations go directly to the
//! kernel.
//!
//! In the kernel, the descriptor of an accelerated connection (a connection that the service, the
//! process `tidelaned`, carries) refers to an unconnected socket. An io_uring operation on the
//! descriptor would reach this socket instead of the connection. By default, `io_uring_setup`
//! therefore fails with ENOSYS, and the program makes the same calls as on a kernel without
//! io_uring. For example, libuv registers descriptors with epoll through io_uring if it can, and
//! otherwise calls `epoll_ctl`.

use crate::service::session;

/// Returns true if the program may create an io_uring instance. The user allows this with `tidelane
/// run --io-uring` for a program that uses io_uring only for files.
pub fn is_allowed() -> bool {
    session::settings().io_uring
}
