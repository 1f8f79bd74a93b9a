//! Calls that transfer payload: the families of `read`, `write`, `recv` and `send`.
//!
//! A tracked socket is a TCP socket that this library (`libtidelane.so`) may accelerate, so that
//! the service (the process `tidelaned`) carries its connection. The crate `tidelane_sockets`
//! handles calls on tracked sockets, and returns `None` for a call that the kernel must handle.

use std::ffi::{c_int, c_void};

use libc::{msghdr, size_t, sockaddr, socklen_t, ssize_t};
use tidelane_sockets::{Handled, Socket, descriptors, transfer};

use crate::{
    cancellation_unsafe::cancellation_point,
    fast_open_unsafe::prepare,
    hand_over_unsafe::check_rights,
    libc_abi_unsafe::{
        bytes, bytes_mut, fail_with_errno, handled_or_system_call, iovecs, iovecs_mut, system_call,
    },
};

/// Interposes libc's `read(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
    cancellation_point();
    // Unlike a `recv` of zero bytes, a `read` of zero bytes never blocks. Leave the `read` to the
    // kernel, which returns the correct result.
    match descriptors::socket(fd) {
        // SAFETY: the caller upholds the safety contract.
        Some(socket) if count > 0 => unsafe { receive(socket, fd, buf, count, 0, libc::SYS_read) },
        // SAFETY: the caller upholds the safety contract.
        _ => unsafe { system_call(libc::SYS_read, [fd as usize, buf as usize, count, 0, 0, 0]) },
    }
}

/// Reads from a tracked socket, for `read`, `recv` and `recvfrom`. If the kernel must handle the
/// call, makes the system call with the number `syscall`.
///
/// # Safety
///
/// `buf` must be valid for `len` bytes. With MSG_TRUNC, the call stores no bytes, and `buf` may be
/// null.
#[inline]
unsafe fn receive(
    socket: &'static Socket,
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    syscall: i64,
) -> ssize_t {
    if flags == 0 {
        // SAFETY: the caller upholds the safety contract.
        let count = transfer::recv_now(socket, fd, unsafe { bytes_mut(buf, len) });
        if count > 0 {
            return count as ssize_t;
        }
    }
    // SAFETY: the caller upholds the safety contract.
    unsafe { receive_slow(socket, fd, buf, len, flags, syscall) }
}

/// Handles the calls of `receive` that have flags, or for which `recv_now` has read no bytes.
///
/// # Safety
///
/// The same as for `receive`.
#[inline(never)]
unsafe fn receive_slow(
    socket: &'static Socket,
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    syscall: i64,
) -> ssize_t {
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let handled = if flags & libc::MSG_TRUNC != 0 {
            transfer::skip(socket, fd, len, flags)
        } else {
            transfer::recv(socket, fd, bytes_mut(buf, len), flags)
        };
        handled_or_system_call(
            handled,
            syscall,
            [fd as usize, buf as usize, len, flags as usize, 0, 0],
        )
    }
}

/// Interposes libc's `read(2)` in programs built with `_FORTIFY_SOURCE`. `len` is the size of the
/// buffer in bytes.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buf: *mut c_void,
    count: size_t,
    len: size_t,
) -> ssize_t {
    check_object_size(count <= len);
    // SAFETY: the caller upholds the safety contract.
    unsafe { read(fd, buf, count) }
}

/// Aborts the process if `fits` is false: the call would then be allowed to store more bytes than
/// the program's buffer can hold.
fn check_object_size(fits: bool) {
    if !fits {
        // Unlike glibc's `__chk_fail`, print no message.
        std::process::abort();
    }
}

/// Interposes libc's `write(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, buf: *const c_void, count: size_t) -> ssize_t {
    cancellation_point();
    match descriptors::socket(fd) {
        // SAFETY: the caller upholds the safety contract.
        Some(socket) => unsafe { transmit(socket, fd, buf, count, 0, libc::SYS_write) },
        // SAFETY: the caller upholds the safety contract.
        None => unsafe {
            system_call(libc::SYS_write, [fd as usize, buf as usize, count, 0, 0, 0])
        },
    }
}

/// Writes to a tracked socket, for `write`, `send` and `sendto`. If the kernel must handle the
/// call, makes the system call with the number `syscall`.
///
/// # Safety
///
/// `buf` must be valid for `len` bytes.
#[inline]
pub(crate) unsafe fn transmit(
    socket: &'static Socket,
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    syscall: i64,
) -> ssize_t {
    // SAFETY: the caller upholds the safety contract.
    let from = unsafe { bytes(buf, len) };
    let mut sent = 0;
    if transfer::is_plain_send(flags) {
        sent = transfer::send_now(socket, fd, from);
        if sent == from.len() && sent > 0 {
            return sent as ssize_t;
        }
    }
    let handled = transfer::send_rest(socket, fd, from, flags, sent);
    let args = [fd as usize, buf as usize, len, flags as usize, 0, 0];
    // SAFETY: the caller upholds the safety contract.
    unsafe { handled_or_system_call(handled, syscall, args) }
}

/// Interposes libc's `recv(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recv(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    cancellation_point();
    let args = [fd as usize, buf as usize, len, flags as usize, 0, 0];
    match descriptors::socket(fd) {
        // SAFETY: the caller upholds the safety contract.
        Some(socket) => unsafe { receive(socket, fd, buf, len, flags, libc::SYS_recvfrom) },
        // SAFETY: the caller upholds the safety contract.
        None => unsafe { system_call(libc::SYS_recvfrom, args) },
    }
}

/// Interposes libc's `recv(2)` in programs built with `_FORTIFY_SOURCE`. `len` is the size of the
/// buffer in bytes.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    count: size_t,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    check_object_size(count <= len);
    // SAFETY: the caller upholds the safety contract.
    unsafe { recv(fd, buf, count, flags) }
}

/// Interposes libc's `send(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    cancellation_point();
    let args = [fd as usize, buf as usize, len, flags as usize, 0, 0];
    match descriptors::socket(fd) {
        // SAFETY: the caller upholds the safety contract.
        Some(_) if flags & libc::MSG_FASTOPEN != 0 => unsafe {
            sendto(fd, buf, len, flags, std::ptr::null(), 0)
        },
        // SAFETY: the caller upholds the safety contract.
        Some(socket) => unsafe { transmit(socket, fd, buf, len, flags, libc::SYS_sendto) },
        // SAFETY: the caller upholds the safety contract.
        None => unsafe { system_call(libc::SYS_sendto, args) },
    }
}

/// Interposes libc's `sendto(2)`. On a tracked socket, MSG_FASTOPEN first connects the socket to
/// the address. Without this flag, the address is ignored, as in Linux for TCP.
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

/// Interposes libc's `recvfrom(2)`. On a tracked socket, stores no address, and sets the length of
/// the address to 0, as Linux does for TCP.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
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
    let Some(socket) = descriptors::socket(fd) else {
        // SAFETY: the caller upholds the safety contract.
        return unsafe { system_call(libc::SYS_recvfrom, args) };
    };
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let count = receive(socket, fd, buf, len, flags, libc::SYS_recvfrom);
        if count >= 0 && !addr.is_null() && !addrlen.is_null() {
            *addrlen = 0;
        }
        count
    }
}

/// Interposes libc's `recvfrom(2)` in programs built with `_FORTIFY_SOURCE`. `len` is the size of
/// the buffer in bytes.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    count: size_t,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    check_object_size(count <= len);
    // SAFETY: the caller upholds the safety contract.
    unsafe { recvfrom(fd, buf, count, flags, addr, addrlen) }
}

/// Handles `recvmsg` on a tracked socket. Returns `None` if the kernel must handle the call.
///
/// # Safety
///
/// `msg` must be valid as for `recvmsg`.
pub(crate) unsafe fn receive_message(fd: c_int, msg: *mut msghdr, flags: c_int) -> Handled {
    let socket = descriptors::socket(fd)?;
    // SAFETY: the caller upholds the safety contract.
    let msg = unsafe { msg.as_mut() }?;
    // SAFETY: the caller upholds the safety contract.
    let mut into = unsafe { iovecs_mut(msg.msg_iov, msg.msg_iovlen) }?;
    let handled = transfer::recv_vectored(socket, fd, into.all(), flags);
    if let Some(Ok(_)) = handled {
        // A read from a TCP stream returns no address and no ancillary data, and truncates nothing.
        // In `msg_flags`, Linux sets MSG_OOB if the call has returned the urgent byte, and copies
        // MSG_CMSG_CLOEXEC from the flags of the call.
        if !msg.msg_name.is_null() {
            msg.msg_namelen = 0;
        }
        msg.msg_controllen = 0;
        msg.msg_flags = flags & (libc::MSG_OOB | libc::MSG_CMSG_CLOEXEC);
    }
    handled
}

/// Handles `sendmsg` on a tracked socket. Ignores the ancillary data of the message. Returns `None`
/// if the kernel must handle the call.
///
/// # Safety
///
/// `msg` must be valid as for `sendmsg`.
pub(crate) unsafe fn send_message(fd: c_int, msg: *const msghdr, flags: c_int) -> Handled {
    let socket = descriptors::socket(fd)?;
    // SAFETY: the caller upholds the safety contract.
    let msg = unsafe { msg.as_ref() }?;
    // SAFETY: the caller upholds the safety contract.
    let from = unsafe { iovecs(msg.msg_iov, msg.msg_iovlen) }?;
    // SAFETY: the caller upholds the safety contract.
    let prepared = unsafe { prepare(socket, fd, (msg.msg_name, msg.msg_namelen), flags) };
    if let Err(error) = prepared? {
        return Some(Err(error));
    }
    transfer::send_vectored(socket, fd, &from, flags)
}

/// Interposes libc's `recvmsg(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    cancellation_point();
    let args = [fd as usize, msg as usize, flags as usize, 0, 0, 0];
    // SAFETY: the caller upholds the safety contract.
    unsafe { handled_or_system_call(receive_message(fd, msg, flags), libc::SYS_recvmsg, args) }
}

/// Interposes libc's `sendmsg(2)`. Fails if the message passes descriptors on (SCM_RIGHTS) and
/// `check_rights` refuses one of them.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    cancellation_point();
    // SAFETY: the caller upholds the safety contract.
    if let Err(error) = unsafe { check_rights(msg) } {
        return fail_with_errno(error.0);
    }
    let args = [fd as usize, msg as usize, flags as usize, 0, 0, 0];
    // SAFETY: the caller upholds the safety contract.
    unsafe { handled_or_system_call(send_message(fd, msg, flags), libc::SYS_sendmsg, args) }
}
