//! Calls that copy data from a file to a socket (`sendfile`), or between a socket and a pipe
//! (`splice`). A tracked socket is a TCP socket that this library (`libtidelane.so`) may
//! accelerate.

use std::ffi::{c_int, c_uint};

use libc::{off_t, size_t, ssize_t};
use tidelane_sockets::{descriptors, file, sys::cancellation_unsafe::without_cancellation};

use crate::cancellation_unsafe::cancellation_point;
use crate::libc_abi_unsafe::handled_or_system_call;

/// Interposes libc's `sendfile(2)`, which is no cancellation point.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    out: c_int,
    file: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    let args = [out as usize, file as usize, offset as usize, count, 0, 0];
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let handled = descriptors::socket(out).and_then(|socket| {
            let offset = offset.as_mut();
            without_cancellation(|| file::send_file(socket, out, file, offset, count))
        });
        handled_or_system_call(handled, libc::SYS_sendfile, args)
    }
}

/// Interposes libc's `sendfile(2)` in programs built with large file support.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(
    out: c_int,
    file: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller upholds the safety contract, and `off_t` has 64 bits.
    unsafe { sendfile(out, file, offset, count) }
}

/// Interposes libc's `splice(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    /// The flags of `splice` that Linux defines.
    const FLAGS: c_uint =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    cancellation_point();
    let ends = (descriptors::socket(from), descriptors::socket(to));
    let moves = from_offset.is_null() && to_offset.is_null() && len > 0 && flags & !FLAGS == 0;
    let handled = match ends {
        // The kernel handles this call, because its result does not depend on the state of a
        // socket. The result is 0 if `len` is 0. Otherwise the kernel returns an error for the
        // unknown flag, or for the offset, which neither a pipe nor a socket can have.
        _ if !moves => None,
        (Some(socket), None) => file::splice_out(socket, from, to, len, flags),
        (None, Some(socket)) => file::splice_in(socket, to, from, len, flags),
        // Neither end is a tracked socket, or both ends are tracked sockets. In the second case,
        // the kernel returns EINVAL, because neither end is a pipe.
        _ => None,
    };
    let args = [
        from as usize,
        from_offset as usize,
        to as usize,
        to_offset as usize,
        len,
        flags as usize,
    ];
    // SAFETY: the caller upholds the safety contract.
    unsafe { handled_or_system_call(handled, libc::SYS_splice, args) }
}
