//! The close of a descriptor, for `close`, and for `fclose` of a stream whose I/O functions call
//! this library (`libtidelane.so`).
//!
//! The library tracks the program's TCP sockets and epoll instances. A foreign descriptor is
//! neither tracked nor the library's own. The kernel alone handles the close of a foreign
//! descriptor.

use std::ffi::c_int;

use tidelane_sockets::descriptors;

use crate::libc_abi_unsafe::handled_or_system_call;

/// Closes a descriptor, and returns the result of `close(2)`. The caller then calls `select_stream`
/// of `standard_streams_unsafe`, because the descriptor may have been the one of `stdin`, `stdout`
/// or `stderr`.
#[inline]
pub(crate) fn close_descriptor(fd: c_int) -> c_int {
    let handled = if descriptors::is_foreign(fd) {
        None
    } else {
        descriptors::close(fd)
    };
    // SAFETY: the call takes no pointers.
    unsafe {
        handled_or_system_call(handled, libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) as c_int
    }
}
