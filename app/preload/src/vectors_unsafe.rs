//! Calls that transfer payload from or to several buffers: `readv`, `writev` and their variants
//! with a position and flags.
//!
//! A tracked socket is a TCP socket that this library (`libtidelane.so`) may accelerate. The crate
//! `tidelane_sockets` handles calls on tracked sockets, and returns `None` for a call that the
//! kernel must handle.

use std::ffi::c_int;

use libc::{iovec, off_t, ssize_t};
use tidelane_sockets::{Handled, descriptors, transfer};

use crate::{
    cancellation_unsafe::cancellation_point,
    libc_abi_unsafe::{handled_or_system_call, iovecs, iovecs_mut},
};

/// The position with which `preadv2` and `pwritev2` act as `readv` and `writev`.
const NO_POSITION: off_t = -1;
/// The flags of `preadv2` and `pwritev2` that have no effect on a socket.
const NO_EFFECT: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND;

/// Handles a read on a tracked socket. Returns `None` if the kernel must handle the call.
///
/// # Safety
///
/// `iov` must be valid for `count` elements, as for `readv`.
unsafe fn receive(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> Handled {
    let socket = descriptors::socket(fd)?;
    // SAFETY: the caller upholds the safety contract.
    let mut into = unsafe { iovecs_mut(iov, usize::try_from(count).ok()?) }?;
    transfer::recv_vectored(socket, fd, into.all(), flags)
}

/// Handles a write on a tracked socket. Returns `None` if the kernel must handle the call.
///
/// # Safety
///
/// `iov` must be valid for `count` elements, as for `writev`.
unsafe fn transmit(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> Handled {
    let socket = descriptors::socket(fd)?;
    // SAFETY: the caller upholds the safety contract.
    let from = unsafe { iovecs(iov, usize::try_from(count).ok()?) }?;
    transfer::send_vectored(socket, fd, &from, flags)
}

/// Converts the RWF flags of `preadv2` or `pwritev2` to the flags of `recvmsg` or `sendmsg`.
/// Returns `None` if the call has a position or an unsupported flag, so that the kernel returns the
/// error.
fn message_flags(position: off_t, flags: c_int) -> Option<c_int> {
    match flags & !NO_EFFECT {
        _ if position != NO_POSITION => None,
        0 => Some(0),
        libc::RWF_NOWAIT => Some(libc::MSG_DONTWAIT),
        _ => None,
    }
}

/// Interposes libc's `readv(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    cancellation_point();
    let args = [fd as usize, iov as usize, count as usize, 0, 0, 0];
    // SAFETY: the caller upholds the safety contract.
    unsafe { handled_or_system_call(receive(fd, iov, count, 0), libc::SYS_readv, args) }
}

/// Interposes libc's `writev(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    cancellation_point();
    let args = [fd as usize, iov as usize, count as usize, 0, 0, 0];
    // SAFETY: the caller upholds the safety contract.
    unsafe { handled_or_system_call(transmit(fd, iov, count, 0), libc::SYS_writev, args) }
}

/// Returns the arguments of the system calls `preadv2` and `pwritev2`, which take the position in
/// two arguments. On 64-bit platforms, the first of these arguments contains all bits.
fn positioned_args(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    position: off_t,
    flags: c_int,
) -> [usize; 6] {
    [
        fd as usize,
        iov as usize,
        count as usize,
        position as usize,
        0,
        flags as usize,
    ]
}

/// Interposes libc's `preadv2(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    position: off_t,
    flags: c_int,
) -> ssize_t {
    cancellation_point();
    let args = positioned_args(fd, iov, count, position, flags);
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let handled = message_flags(position, flags).and_then(|to| receive(fd, iov, count, to));
        handled_or_system_call(handled, libc::SYS_preadv2, args)
    }
}

/// Interposes libc's `preadv2(2)` in programs built with large file support.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv64v2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    position: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller upholds the safety contract, and `off_t` has 64 bits.
    unsafe { preadv2(fd, iov, count, position, flags) }
}

/// Interposes libc's `pwritev2(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    position: off_t,
    flags: c_int,
) -> ssize_t {
    cancellation_point();
    let args = positioned_args(fd, iov, count, position, flags);
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let handled = message_flags(position, flags).and_then(|to| transmit(fd, iov, count, to));
        handled_or_system_call(handled, libc::SYS_pwritev2, args)
    }
}

/// Interposes libc's `pwritev2(2)` in programs built with large file support.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    position: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller upholds the safety contract, and `off_t` has 64 bits.
    unsafe { pwritev2(fd, iov, count, position, flags) }
}
