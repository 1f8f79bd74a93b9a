//! io_uring, whose operations bypass the calls of this crate.
//!
//! The service (the process `tidelaned`) carries an accelerated connection. In the kernel, the
//! descriptor of the connection is only a placeholder socket. An io_uring operation on the
//! descriptor would reach the placeholder, and never complete. libuv, for example, registers its
//! descriptors with epoll through io_uring. Therefore `io_uring_setup` fails with ENOSYS by
//! default. The program then makes the same calls as on a kernel without io_uring.

use crate::service::session;

/// Returns true if the program may create an io_uring instance. The user allows io_uring with
/// `tidelane run --io-uring`, for a program that does not use it for sockets.
pub fn is_allowed() -> bool {
    session::settings().io_uring
}
