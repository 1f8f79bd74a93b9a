//! io_uring, whose operations bypass this library.
//!
//! The service (the process `tidelaned`) carries an accelerated connection. In the kernel, the
//! descriptor of the connection is only a placeholder socket. An io_uring operation would reach the
//! placeholder, and never complete. libuv, for example, registers its descriptors with epoll
//! through io_uring. Therefore a program may not create an io_uring instance. The program then uses
//! the same calls as on a kernel without io_uring.

use crate::service::session;

/// Returns true if the program may create an io_uring instance. The user allows this for a program
/// that uses io_uring without sockets (`tidelane run --io-uring`).
pub fn is_allowed() -> bool {
    session::settings().io_uring
}
