//! How the library knows its own descriptors among the events of an epoll instance.

use super::session::{self, Session};

/// Marks the library's own descriptors in the program's epoll instance: addresses of ours, which
/// no program uses for its own data. The doorbell's, then the control socket's.
static INTERNAL_MARKS: [u8; 2] = [0; 2];
/// Whether the kernel's event is about a descriptor of the library's own. If the service hung up,
/// that is noted.
pub(crate) fn is_internal_event(event: &libc::epoll_event) -> bool {
    let data = event.u64;
    if data == internal_mark(1)
        && let Some(program) = session::current().and_then(Session::program)
    {
        program.is_service_alive();
    }
    data == internal_mark(0) || data == internal_mark(1)
}

/// The data of the doorbell's events, then that of the control socket's.
pub(super) fn internal_mark(which: usize) -> u64 {
    &raw const INTERNAL_MARKS[which] as u64
}
