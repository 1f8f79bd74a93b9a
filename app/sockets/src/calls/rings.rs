//! Rings of io_uring, whose calls the kernel carries out: they pass this library by.
//!
//! On a connection of ours such a call would reach the socket that stands for it in the kernel, and
//! wait for ever. libuv registers all its descriptors with epoll through a ring. A program that
//! gets no ring uses the calls that it would use on an older kernel.

use crate::service::session;

/// Returns true if the program may make a ring: its user has said that it uses none for sockets
/// (`tidelane run --io-uring`).
pub fn allowed() -> bool {
    session::settings().io_uring
}
