//! Calls that duplicate and close descriptors, or get and set their flags.
//!
//! This library (`libtidelane.so`) tracks the program's TCP sockets and epoll instances. A foreign
//! descriptor is neither tracked nor the library's own. The kernel handles calls on foreign
//! descriptors.

use std::ffi::{c_int, c_uint, c_ulong};

use tidelane_sockets::{Handled, descriptors, transfer, urgent};

use crate::{
    cancellation_unsafe::cancellation_point,
    close_unsafe::close_descriptor,
    libc_abi_unsafe::{cancellable_system_call, handled_or_system_call, system_call},
    standard_streams_unsafe,
};

/// The ioctl SIOCOUTQ, which has the number of TIOCOUTQ.
const SIOCOUTQ: c_ulong = 0x5411;
/// The ioctl SIOCINQ, which has the number of FIONREAD.
const SIOCINQ: c_ulong = 0x541b;
/// The ioctl SIOCATMARK, which tells whether the read position is at the urgent mark.
const SIOCATMARK: c_ulong = 0x8905;

/// Interposes libc's `close(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    cancellation_point();
    let result = close_descriptor(fd);
    // If `fd` is 0, 1 or 2, the stream `stdin`, `stdout` or `stderr` may have to be replaced.
    standard_streams_unsafe::select_stream(fd);
    result
}

/// Interposes libc's `close_range(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // The kernel handles a call with CLOSE_RANGE_CLOEXEC, because this call closes no descriptor
    // immediately. The kernel also handles a call with unknown flags, and refuses the call. The
    // library handles a call without flags, or with CLOSE_RANGE_UNSHARE alone.
    let handled = if flags & !(libc::CLOSE_RANGE_UNSHARE as c_int) == 0 {
        descriptors::close_range(first, last, flags)
    } else {
        None
    };
    let args = [first as usize, last as usize, flags as usize, 0, 0, 0];
    // SAFETY: the call takes no pointers.
    let result = unsafe { handled_or_system_call(handled, libc::SYS_close_range, args) as c_int };
    (first..=last.min(2)).for_each(|fd| standard_streams_unsafe::select_stream(fd as c_int));
    result
}

/// Interposes libc's `closefrom(3)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the call takes no pointers.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// Interposes libc's `dup(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    let to = unsafe { system_call(libc::SYS_dup, [fd as usize, 0, 0, 0, 0, 0]) as c_int };
    if to >= 0 && !descriptors::is_foreign(fd) {
        descriptors::on_duplicated(fd, to);
        standard_streams_unsafe::select_stream(to);
    }
    to
}

/// Implements `dup2` (without `flags`) and `dup3`.
///
/// # Safety
///
/// None: the call takes no pointers.
unsafe fn duplicate_to(from: c_int, to: c_int, flags: Option<c_int>) -> c_int {
    let ours = !(descriptors::is_foreign(from) && descriptors::is_foreign(to));
    let handled = if ours {
        descriptors::duplicate_to(from, to, flags)
    } else {
        None
    };
    let (number, flags) = match flags {
        Some(flags) => (libc::SYS_dup3, flags),
        None => (DUP2, 0),
    };
    let args = [from as usize, to as usize, flags as usize, 0, 0, 0];
    // SAFETY: the call takes no pointers.
    let result = unsafe { handled_or_system_call(handled, number, args) as c_int };
    if ours {
        standard_streams_unsafe::select_stream(to);
    }
    result
}

/// The system call for `dup2`.
#[cfg(target_arch = "x86_64")]
const DUP2: i64 = libc::SYS_dup2;
/// The system call for `dup2` on platforms without a system call `dup2`. Without flags, `dup3`
/// differs from `dup2` only if both descriptors are equal: `dup3` then fails with EINVAL.
#[cfg(not(target_arch = "x86_64"))]
const DUP2: i64 = libc::SYS_dup3;

/// Interposes libc's `dup2(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    unsafe { duplicate_to(from, to, None) }
}

/// Interposes libc's `dup3(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    unsafe { duplicate_to(from, to, Some(flags)) }
}

/// The kernel's `struct f_owner_ex`: the owner of a descriptor. The owner gets the signals SIGIO
/// and SIGURG of the descriptor.
#[repr(C)]
struct Owner {
    /// F_OWNER_TID, F_OWNER_PID or F_OWNER_PGRP.
    kind: c_int,
    /// Id of the thread, process or process group.
    pid: libc::pid_t,
}

/// Implements `fcntl` F_GETOWN. Returns the id of the owner, which is negative if the owner is a
/// process group, or -1 on failure. As in glibc, asks the kernel with F_GETOWN_EX: if the id of a
/// process group is below 4096, its negative looks like an error number in the result of F_GETOWN.
fn owner(fd: c_int) -> c_int {
    /// The command F_GETOWN_EX of `fcntl`.
    const F_GETOWN_EX: c_int = 16;
    /// The kind of owner F_OWNER_PGRP.
    const PROCESS_GROUP: c_int = 2;
    let mut owner = Owner { kind: 0, pid: 0 };
    let pointer = &raw mut owner as usize;
    let args = [fd as usize, F_GETOWN_EX as usize, pointer, 0, 0, 0];
    // SAFETY: `owner` is live during the call.
    match unsafe { system_call(libc::SYS_fcntl, args) } {
        0 if owner.kind == PROCESS_GROUP => -owner.pid,
        0 => owner.pid,
        _ => -1,
    }
}

/// Interposes libc's `fcntl(2)`, which is variadic in C. `arg` is wide enough for the argument of
/// every command. With F_SETLKW or F_OFD_SETLKW, the function is a cancellation point.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, arg: usize) -> c_int {
    let args = [fd as usize, command as usize, arg, 0, 0, 0];
    match command {
        libc::F_SETLKW | libc::F_OFD_SETLKW => {
            cancellation_point();
            // SAFETY: the caller upholds the safety contract.
            return unsafe { cancellable_system_call(libc::SYS_fcntl, args) as c_int };
        }
        libc::F_GETOWN => return owner(fd),
        _ => {}
    }
    if descriptors::is_foreign(fd) {
        // SAFETY: the caller upholds the safety contract.
        return unsafe { system_call(libc::SYS_fcntl, args) as c_int };
    }
    let handled: Handled = match command {
        libc::F_GETFL => descriptors::socket(fd).and_then(|s| descriptors::status_flags(s, fd)),
        libc::F_SETFL => {
            descriptors::socket(fd).and_then(|s| descriptors::set_status_flags(s, fd, arg))
        }
        _ => None,
    };
    // SAFETY: the caller upholds the safety contract.
    let result = unsafe { handled_or_system_call(handled, libc::SYS_fcntl, args) as c_int };
    if result >= 0 && matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        descriptors::on_duplicated(fd, result);
        standard_streams_unsafe::select_stream(result);
    }
    result
}

/// Interposes libc's `fcntl(2)` in programs built with large file support.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, arg: usize) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe { fcntl(fd, command, arg) }
}

/// Interposes libc's `ioctl(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
    let value = arg as *mut c_int;
    let handled = descriptors::socket(fd).and_then(|socket| match request {
        // SAFETY: the caller guarantees that the argument points to an integer.
        libc::FIONBIO => unsafe { descriptors::set_nonblocking(socket, fd, *value.as_ref()? != 0) },
        // SAFETY: the caller guarantees that the argument points to an integer.
        SIOCINQ => unsafe { store(value, urgent::unread_len(socket, fd)) },
        // SAFETY: the caller guarantees that the argument points to an integer.
        SIOCOUTQ => unsafe { store(value, transfer::unacknowledged(socket, fd)) },
        // SAFETY: the caller guarantees that the argument points to an integer.
        SIOCATMARK => unsafe { store(value, urgent::at_mark(socket, fd)) },
        _ => None,
    });
    let args = [fd as usize, request as usize, arg, 0, 0, 0];
    // SAFETY: the caller upholds the safety contract.
    unsafe { handled_or_system_call(handled, libc::SYS_ioctl, args) as c_int }
}

/// Interposes libc's `sockatmark(3)`, because its `ioctl` is a call within libc, where this library
/// cannot interpose.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sockatmark(fd: c_int) -> c_int {
    let mut at = 0;
    // SAFETY: `at` is a valid variable.
    let result = unsafe { ioctl(fd, SIOCATMARK, &raw mut at as usize) };
    if result == 0 { at } else { result }
}

/// Stores the result of a handled `ioctl` in the program's integer, and returns 0 as the result of
/// the call. Returns an error unchanged. Returns `None` (the kernel must handle the call) if
/// `handled` is `None` or `into` is null.
///
/// # Safety
///
/// `into` must be valid or null.
unsafe fn store(into: *mut c_int, handled: Handled) -> Handled {
    match handled {
        Some(Ok(value)) => {
            // SAFETY: the caller upholds the safety contract.
            *unsafe { into.as_mut() }? = c_int::try_from(value).unwrap_or(c_int::MAX);
            Some(Ok(0))
        }
        other => other,
    }
}
