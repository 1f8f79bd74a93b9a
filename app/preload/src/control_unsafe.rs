//! Calls that create, bind, connect and shut down sockets, calls that listen and accept, and calls
//! for the addresses and options of sockets.
//!
//! A tracked socket is a TCP socket that this library (`libtidelane.so`) may accelerate, so that
//! the service (the process `tidelaned`) carries its connection. The crate `tidelane_sockets`
//! handles calls on tracked sockets, and returns `None` for a call that the kernel must handle.

use std::ffi::{c_int, c_void};

use libc::{sockaddr, socklen_t};
use tidelane_sockets::{
    Address, Errno, Handled, Socket, connect, descriptors, disconnect, listen, names, options,
};

use crate::{
    cancellation_unsafe::cancellation_point,
    libc_abi_unsafe::{
        bytes, bytes_mut, fail_with_errno, handled_or_system_call, is_errno, libc_result,
        system_call,
    },
    standard_streams_unsafe,
};

/// Interposes libc's `socket(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    let args = [family as usize, kind as usize, protocol as usize, 0, 0, 0];
    // SAFETY: the call takes no pointers.
    let fd = unsafe { system_call(libc::SYS_socket, args) } as c_int;
    if fd >= 0 {
        connect::on_created(fd, family, kind, protocol);
        // If `fd` is 0, 1 or 2, the stream `stdin`, `stdout` or `stderr` may have to be replaced.
        standard_streams_unsafe::select_stream(fd);
    }
    fd
}

/// Interposes libc's `bind(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let args = [fd as usize, addr as usize, len as usize, 0, 0, 0];
    let handled = descriptors::socket(fd).and_then(|socket| connect::refuse_bind(socket, fd));
    // SAFETY: the caller upholds the safety contract.
    let mut result = unsafe { handled_or_system_call(handled, libc::SYS_bind, args) } as c_int;
    // The service may still hold the TCP port for a program that has ended. Wait until the service
    // has released the ports of ended programs, and then try again.
    if result < 0
        && is_errno(libc::EADDRINUSE)
        && descriptors::socket(fd).is_some()
        && listen::may_bind_again()
    {
        // SAFETY: as above.
        result = unsafe { system_call(libc::SYS_bind, args) } as c_int;
    }
    if result == 0
        && let Some(socket) = descriptors::socket(fd)
    {
        connect::on_bound(socket, fd);
    }
    result
}

/// Interposes libc's `listen(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // `adopt` starts tracking a TCP socket whose creation this library has not seen.
    let handled = match descriptors::socket(fd).or_else(|| connect::adopt(fd)) {
        Some(socket) => listen::listen(socket, fd, backlog),
        None => None,
    };
    // SAFETY: the call takes no pointers.
    unsafe {
        handled_or_system_call(
            handled,
            libc::SYS_listen,
            [fd as usize, backlog as usize, 0, 0, 0, 0],
        ) as c_int
    }
}

/// Interposes libc's `accept(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe { accept4(fd, addr, len, 0) }
}

/// Interposes libc's `accept4(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    cancellation_point();
    let accepted = descriptors::socket(fd).and_then(|socket| listen::accept(socket, fd, flags));
    match accepted {
        None => {
            let args = [
                fd as usize,
                addr as usize,
                len as usize,
                flags as usize,
                0,
                0,
            ];
            // SAFETY: the caller upholds the safety contract.
            unsafe { system_call(libc::SYS_accept4, args) as c_int }
        }
        // SAFETY: the caller upholds the safety contract.
        Some(Ok(accepted)) if !addr.is_null() && unsafe { is_negative(len) } => {
            // As Linux does, close the accepted connection if its address cannot be stored.
            // SAFETY: the descriptor was created here, and the program does not know it.
            unsafe { crate::descriptors_unsafe::close(accepted.fd) };
            fail_with_errno(libc::EINVAL) as c_int
        }
        Some(Ok(accepted)) => {
            if !addr.is_null() {
                // SAFETY: the caller upholds the safety contract.
                unsafe { accepted_name(&accepted, addr, len) };
            }
            standard_streams_unsafe::select_stream(accepted.fd);
            accepted.fd
        }
        Some(Err(error)) => fail_with_errno(error.0) as c_int,
    }
}

/// Stores the address of the peer of an accepted connection.
///
/// # Safety
///
/// `addr` and `len` must be valid as for `accept`.
unsafe fn accepted_name(accepted: &listen::Accepted, addr: *mut sockaddr, len: *mut socklen_t) {
    match accepted.peer {
        // SAFETY: the caller upholds the safety contract.
        Some(peer) => unsafe { put_address(peer, addr, len) },
        None => {
            let args = [accepted.fd as usize, addr as usize, len as usize, 0, 0, 0];
            // Ignore ENOTCONN, which means that the peer has reset the connection.
            // SAFETY: the caller upholds the safety contract.
            let _ = unsafe { system_call(libc::SYS_getpeername, args) };
        }
    }
}

/// Returns true if the length of an address is negative as a C `int`, so that Linux refuses it.
///
/// # Safety
///
/// `len` must be valid or null.
unsafe fn is_negative(len: *const socklen_t) -> bool {
    // SAFETY: the caller upholds the safety contract.
    !len.is_null() && unsafe { *len } > i32::MAX as socklen_t
}

/// Stores an address as Linux does: at most `*len` bytes of the address, and the full length in
/// `*len`.
///
/// # Safety
///
/// `len` must be valid or null. `addr` must be valid for writing `*len` bytes.
unsafe fn put_address(address: Address, addr: *mut sockaddr, len: *mut socklen_t) {
    if len.is_null() {
        return;
    }
    let (name, name_len) = address.write();
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let into = bytes_mut(addr.cast(), *len as usize);
        let count = into.len().min(name_len);
        into[..count].copy_from_slice(&name[..count]);
        *len = name_len as socklen_t;
    }
}

/// Interposes libc's `connect(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    cancellation_point();
    // SAFETY: the caller upholds the safety contract.
    let name = unsafe { bytes(addr.cast(), len as usize) };
    let handled = match Address::read(name) {
        Some(peer) => {
            // `adopt` starts tracking a TCP socket whose creation this library has not seen, for
            // example because another program created it. Most untracked sockets here are UDP
            // sockets of a resolver, which `adopt` rejects.
            let socket = descriptors::socket(fd).or_else(|| connect::adopt(fd));
            socket.and_then(|socket| connect::connect(socket, fd, peer))
        }
        None if Address::is_unspecified_family(name) => {
            descriptors::socket(fd).and_then(|socket| disconnect::disconnect(socket, fd))
        }
        None => None,
    };
    let args = [fd as usize, addr as usize, len as usize, 0, 0, 0];
    // SAFETY: the caller upholds the safety contract.
    unsafe { handled_or_system_call(handled, libc::SYS_connect, args) as c_int }
}

/// Interposes libc's `shutdown(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let handled = descriptors::socket(fd).and_then(|socket| connect::shutdown(socket, fd, how));
    let args = [fd as usize, how as usize, 0, 0, 0, 0];
    // SAFETY: the call takes no pointers.
    unsafe { handled_or_system_call(handled, libc::SYS_shutdown, args) as c_int }
}

/// A function that returns the local address or the peer's address of a tracked socket. The
/// function returns `None` if the kernel must handle the call.
type NameOf = fn(&'static Socket, c_int) -> Handled<Address>;

/// Implements `getsockname` and `getpeername`. Stores the address that `name_of` returns for a
/// tracked socket. If the kernel must handle the call, makes the system call `number`.
///
/// # Safety
///
/// `addr` and `len` must be valid as for `getsockname`.
unsafe fn store_name(
    name_of: NameOf,
    number: i64,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    match descriptors::socket(fd).and_then(|socket| name_of(socket, fd)) {
        None => {
            let args = [fd as usize, addr as usize, len as usize, 0, 0, 0];
            // SAFETY: the caller upholds the safety contract.
            unsafe { system_call(number, args) as c_int }
        }
        // SAFETY: the caller upholds the safety contract.
        Some(Ok(_)) if unsafe { is_negative(len) } => fail_with_errno(libc::EINVAL) as c_int,
        Some(Ok(address)) => {
            // SAFETY: the caller upholds the safety contract.
            unsafe { put_address(address, addr, len) };
            0
        }
        Some(Err(error)) => fail_with_errno(error.0) as c_int,
    }
}

/// Interposes libc's `getsockname(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe { store_name(names::local_name, libc::SYS_getsockname, fd, addr, len) }
}

/// Interposes libc's `getpeername(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe { store_name(names::peer_name, libc::SYS_getpeername, fd, addr, len) }
}

/// Interposes libc's `setsockopt(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let args = [
        fd as usize,
        level as usize,
        option as usize,
        value as usize,
        len as usize,
        0,
    ];
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let handled = descriptors::socket(fd)
            .and_then(|socket| options::set(socket, fd, level, option, bytes(value, len as usize)));
        handled_or_system_call(handled, libc::SYS_setsockopt, args) as c_int
    }
}

/// Interposes libc's `getsockopt(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let args = [
        fd as usize,
        level as usize,
        option as usize,
        value as usize,
        len as usize,
        0,
    ];
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let handled = descriptors::socket(fd).and_then(|socket| {
            let room = *len.as_ref()? as usize;
            options::get(socket, fd, level, option, bytes_mut(value, room))
        });
        match handled {
            None => system_call(libc::SYS_getsockopt, args) as c_int,
            Some(Ok(count)) => {
                *len = count as socklen_t;
                0
            }
            Some(Err(Errno(number))) => libc_result(Err(Errno(number))) as c_int,
        }
    }
}
