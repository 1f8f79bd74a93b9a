//! The decision whether the program may use io_uring. This crate replaces libc's socket calls, but
//! io_uring operations go directly to the kernel.
//!
//! The service (the process `tidelaned`) carries every accelerated connection. In the kernel, the
//! descriptor of an accelerated connection refers to an unconnected socket. An io_uring operation
//! on the descriptor would reach this socket instead of the connection. By default,
//! `io_uring_setup` therefore fails with ENOSYS. The program then makes the same calls as on a
//! kernel without io_uring. libuv, for example, registers descriptors with epoll through io_uring,
//! and falls back to `epoll_ctl`.

use crate::service::session;

/// Returns true if the program may create an io_uring instance. The user allows io_uring with
/// `tidelane run --io-uring`, for a program that uses io_uring only for files.
pub fn is_allowed() -> bool {
    session::settings().io_uring
}
