//! The call `sendto`, which may open a connection (MSG_FASTOPEN). The crate `tidelane_sockets`
//! handles the call on TCP sockets that this library (`libtidelane.so`) may accelerate, and returns
//! `None` for a call that the kernel must handle.

use std::ffi::{c_int, c_void};

use libc::{size_t, sockaddr, socklen_t, ssize_t};
use tidelane_sockets::{Handled, Socket, descriptors, fast_open};

use crate::{
    bytes_unsafe::transmit,
    cancellation_unsafe::cancellation_point,
    libc_abi_unsafe::{bytes, fail_with_errno, system_call},
};

/// Opens the connection to the address `name` if `flags` contains MSG_FASTOPEN. The caller sends
/// the payload afterwards.
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

/// Interposes libc's `sendto(2)`. With MSG_FASTOPEN, first connects the socket to the address. For
/// a connected socket, ignores the address, as Linux does.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> ssize_t {
    cancellation_point();
    let args = [
        fd as usize,
        buf as usize,
        len,
        flags as usize,
        addr as usize,
        addrlen as usize,
    ];
    let prepared = descriptors::socket(fd).and_then(|socket| {
        // SAFETY: the caller upholds the safety contract.
        let prepared = unsafe { prepare(socket, fd, (addr.cast(), addrlen), flags) };
        Some((socket, prepared?))
    });
    match prepared {
        // SAFETY: the caller upholds the safety contract.
        Some((socket, Ok(()))) => unsafe {
            transmit(socket, fd, buf, len, flags, libc::SYS_sendto)
        },
        Some((_, Err(error))) => fail_with_errno(error.0),
        // SAFETY: the caller upholds the safety contract.
        None => unsafe { system_call(libc::SYS_sendto, args) },
    }
}
