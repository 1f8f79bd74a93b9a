//! Events of the library's own descriptors in the program's epoll instances.
//!
//! The library (`libtidelane.so`, which contains this crate) adds three kinds of descriptors to
//! these instances:
//!
//! * Doorbells are eventfds by which the service (the process `tidelaned`) wakes threads.
//! * The control socket is the Unix socket over which this process registered with the service.
//! * The template is an unconnected socket. Some epoll instances contain no doorbell. To wake a
//!   thread that sleeps in such an instance, this process makes the kernel report the template
//!   there (`Channel::wake_sleepers`).

use super::session::{self, ProcessSession};

/// Two bytes whose addresses serve as `epoll_data`: the address of the first byte for doorbells and
/// the template, and the address of the second byte for the control socket. The program has no
/// pointers to these bytes, so it does not use these addresses as `epoll_data`.
static INTERNAL_TAGS: [u8; 2] = [0; 2];

/// Returns true if the kernel's event is about one of the library's own descriptors. If the control
/// socket hung up, also records that the service is gone.
pub(crate) fn is_internal_event(event: &libc::epoll_event) -> bool {
    let data = event.u64;
    if data == internal_tag(1)
        && let Some(program) = session::current().and_then(ProcessSession::program)
    {
        program.is_service_alive();
    }
    data == internal_tag(0) || data == internal_tag(1)
}

/// Returns the `epoll_data` of doorbells and the template (`which` 0), or of the control socket
/// (`which` 1).
pub(super) fn internal_tag(which: usize) -> u64 {
    &raw const INTERNAL_TAGS[which] as u64
}
