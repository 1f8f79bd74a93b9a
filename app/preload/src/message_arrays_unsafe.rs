//! `recvmmsg(2)` and `sendmmsg(2)`, which transfer an array of messages. A tracked socket is a TCP
//! socket that this library (`libtidelane.so`) may accelerate.

use std::ffi::{c_int, c_uint};

use libc::{mmsghdr, timespec};
use tidelane_sockets::{Handled, descriptors, sys, transfer};

use crate::{
    bytes_unsafe::{receive_message, send_message},
    cancellation_unsafe::cancellation_point,
    hand_over_unsafe::check_all_rights,
    libc_abi_unsafe::{IOV_MAX, fail_with_errno, handled_or_system_call},
    readiness_unsafe::timeout_ns,
};

/// Interposes libc's `recvmmsg(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    cancellation_point();
    let args = [
        fd as usize,
        messages as usize,
        count as usize,
        flags as usize,
        timeout as usize,
        0,
    ];
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let handled = receive_messages(fd, messages, count as usize, flags, timeout);
        handled_or_system_call(handled, libc::SYS_recvmmsg, args) as c_int
    }
}

/// Handles `recvmmsg` on a tracked socket. Returns the number of received messages, or `None` if
/// the kernel must handle the call. As in Linux, checks the time limit only after each message, and
/// stores the remaining time in `timeout`.
///
/// # Safety
///
/// The arguments must be valid as for `recvmmsg`.
unsafe fn receive_messages(
    fd: c_int,
    messages: *mut mmsghdr,
    count: usize,
    flags: c_int,
    timeout: *mut timespec,
) -> Handled {
    let socket = descriptors::socket(fd)?;
    // The kernel returns the error for a null pointer or an invalid timeout.
    if messages.is_null() {
        return None;
    }
    // SAFETY: the caller upholds the safety contract.
    let limit_ns = unsafe { timeout_ns(timeout) }?;
    let end_ns = limit_ns.map(|limit| sys::monotonic_ns().saturating_add(limit));
    if flags & libc::MSG_ERRQUEUE == 0
        && let Some(error) = transfer::pending_error(socket, fd)
    {
        return Some(Err(error));
    }
    let mut message_flags = flags & !libc::MSG_WAITFORONE;
    for index in 0..count {
        // SAFETY: the caller guarantees that there are `count` messages.
        let message = unsafe { &mut *messages.add(index) };
        // SAFETY: the caller upholds the safety contract.
        match unsafe { receive_message(fd, &raw mut message.msg_hdr, message_flags) } {
            Some(Ok(len)) => message.msg_len = len as c_uint,
            failed if index == 0 => return failed,
            Some(Err(error)) => {
                transfer::keep_error(socket, fd, error);
                return Some(Ok(index));
            }
            None => return Some(Ok(index)),
        }
        if flags & libc::MSG_WAITFORONE != 0 {
            message_flags |= libc::MSG_DONTWAIT;
        }
        let left_ns = end_ns.map(|end| end.saturating_sub(sys::monotonic_ns()));
        // SAFETY: the caller upholds the safety contract.
        if let (Some(left), Some(timeout)) = (left_ns, unsafe { timeout.as_mut() }) {
            timeout.tv_sec = (left / 1_000_000_000) as i64;
            timeout.tv_nsec = (left % 1_000_000_000) as i64;
        }
        if left_ns == Some(0) || message.msg_hdr.msg_flags & libc::MSG_OOB != 0 {
            return Some(Ok(index + 1));
        }
    }
    Some(Ok(count))
}

/// Interposes libc's `sendmmsg(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    cancellation_point();
    // As in Linux, a call sends at most IOV_MAX messages.
    let count = count.min(IOV_MAX as c_uint);
    let args = [
        fd as usize,
        messages as usize,
        count as usize,
        flags as usize,
        0,
        0,
    ];
    // SAFETY: the caller guarantees that there are `count` messages.
    if let Err(error) = unsafe { check_all_rights(fd, messages, count as usize) } {
        return fail_with_errno(error.0) as c_int;
    }
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let handled = send_messages(fd, messages, count as usize, flags);
        handled_or_system_call(handled, libc::SYS_sendmmsg, args) as c_int
    }
}

/// Handles `sendmmsg` on a tracked socket. Returns the number of sent messages, or `None` if the
/// kernel must handle the call.
///
/// # Safety
///
/// The arguments must be valid as for `sendmmsg`.
unsafe fn send_messages(fd: c_int, messages: *mut mmsghdr, count: usize, flags: c_int) -> Handled {
    descriptors::socket(fd)?;
    // The kernel returns the error for a null pointer.
    if messages.is_null() {
        return None;
    }
    for index in 0..count {
        // SAFETY: the caller guarantees that there are `count` messages.
        let message = unsafe { &mut *messages.add(index) };
        // SAFETY: the caller upholds the safety contract.
        match unsafe { send_message(fd, &raw const message.msg_hdr, flags) } {
            Some(Ok(len)) => message.msg_len = len as c_uint,
            failed if index == 0 => return failed,
            None | Some(Err(_)) => return Some(Ok(index)),
        }
    }
    Some(Ok(count))
}
