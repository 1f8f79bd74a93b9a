//! The close of a descriptor, for `close` and for the streams whose descriptor is closed by
//! `fclose`.

use std::ffi::c_int;

use tidelane_sockets::descriptors;

use crate::libc_abi_unsafe::handled_or_system_call;

/// Closes a descriptor, and returns the result of `close(2)`. The caller then calls `select_stream`
/// of `standard_streams_unsafe`, in case the descriptor is one of the standard descriptors.
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
