//! io_uring, whose operations bypass this library.
//!
//! An operation on an accelerated connection would reach its placeholder in the kernel, and wait
//! forever. libuv, for example, registers all its descriptors with epoll through io_uring.
//! Therefore a program may not create an io_uring instance, and uses the calls that it would use on
//! an older kernel.

use crate::service::session;

/// Returns true if the program may create an io_uring instance: the user has said that it does not
/// use sockets with it (`tidelane run --io-uring`).
pub fn is_allowed() -> bool {
    session::settings().io_uring
}
