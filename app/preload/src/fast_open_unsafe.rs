//! The flag MSG_FASTOPEN of `send`, `sendto`, `sendmsg` and `sendmmsg`, which opens a connection.

use std::ffi::{c_int, c_void};

use libc::socklen_t;
use tidelane_sockets::{Handled, Socket, fast_open};

use crate::libc_abi_unsafe::bytes;

/// Opens the connection to the address `name` if `flags` contains MSG_FASTOPEN. The caller sends
/// the payload afterwards. Returns `None` if the kernel must handle the call.
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
