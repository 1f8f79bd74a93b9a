//! The flag MSG_FASTOPEN (TCP Fast Open) of `send`, `sendto`, `sendmsg` and `sendmmsg`. A call with
//! this flag opens the connection before it sends the payload.

use std::ffi::{c_int, c_void};

use libc::socklen_t;
use tidelane_sockets::{Handled, Socket, fast_open};

use crate::libc_abi_unsafe::bytes;

/// Opens the connection to the address `name` of `len` bytes if `flags` contains MSG_FASTOPEN.
/// Without this flag, does nothing. The caller sends the payload afterwards. Returns `None` if the
/// kernel must handle the call.
///
/// # Safety
///
/// `name` must be valid for `len` bytes, or null.
pub(crate) unsafe fn prepare(
    socket: &'static Socket,
    fd: c_int,
    (name, len): (*const c_void, socklen_t),
    flags: c_int,
) -> Handled<()> {
    // SAFETY: the caller upholds the safety contract.
    let name = (!name.is_null()).then(|| unsafe { bytes(name, len as usize) });
    fast_open::prepare(socket, fd, name, flags)
}
