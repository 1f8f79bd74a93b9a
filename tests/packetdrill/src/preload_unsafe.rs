//! Replacements for libc functions that packetdrill calls directly, and not through the library of
//! `--so_filename`: `getsockopt`, `system` and `sendfile`.
//!
//! The functions take effect only if LD_PRELOAD names this library, in addition to packetdrill's
//! option `--so_filename`. `getsockopt` and `sendfile` go to the kernel if the descriptor (for
//! `sendfile`, the descriptor to write to) is not a socket of the stack under test.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    sync::Arc,
};

use libc::{off_t, size_t, socklen_t, ssize_t};

use crate::{
    c_unsafe::{kernel, loaded, return_value},
    interface_unsafe::option_of,
    ready_unsafe::out_of_file,
    shared::Shared,
    stack::Fd,
};

/// Text by which [`system`] recognizes an `ip` command that drops the kernel's TCP metrics. The
/// metrics include Fast Open cookies.
const FLUSH: &str = "tcp_metrics flush";

/// Returns the stack that packetdrill initialized most recently, if `fd` is a socket of this stack.
/// Otherwise returns `None`.
fn owner(fd: Fd) -> Option<Arc<Shared>> {
    loaded().filter(|shared| shared.call(|stack| stack.has_socket(fd)))
}

/// Replaces `getsockopt(2)`.
///
/// # Safety
///
/// The arguments are valid for libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match owner(fd) {
            Some(shared) => option_of(&shared, fd, level, name, value, len),
            None => libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) as c_int,
        }
    }
}

/// Replaces `system(3)`. A command that flushes the kernel's TCP metrics also drops the Fast Open
/// cookies of the stack. libc's `system` then runs the command, whether or not the command flushes
/// metrics.
///
/// # Safety
///
/// The argument is valid for libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    type System = unsafe extern "C" fn(*const c_char) -> c_int;
    // SAFETY: guaranteed by the caller; libc has a function of this name and type.
    unsafe {
        let text = (!command.is_null()).then(|| CStr::from_ptr(command).to_string_lossy());
        if text.is_some_and(|text| text.contains(FLUSH))
            && let Some(shared) = loaded()
        {
            shared.call(|stack| stack.forget_servers());
        }
        let real = libc::dlsym(libc::RTLD_NEXT, c"system".as_ptr());
        match real.is_null() {
            true => -1,
            false => std::mem::transmute::<*mut c_void, System>(real)(command),
        }
    }
}

/// Replaces `sendfile(2)`. If `at` is null, the file's offset advances by the number of bytes that
/// were read, even if the socket accepts fewer bytes. Otherwise `*at` advances by the number of
/// bytes that the socket accepts.
///
/// # Safety
///
/// The arguments are valid for libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(to: c_int, from: c_int, at: *mut off_t, len: size_t) -> ssize_t {
    let Some(shared) = owner(to) else {
        // SAFETY: guaranteed by the caller.
        return unsafe { libc::syscall(libc::SYS_sendfile, to, from, at, len) } as ssize_t;
    };
    // SAFETY: guaranteed by the caller. `pread` leaves the file's offset unchanged, as `sendfile`
    // with an offset argument does.
    unsafe {
        if at.is_null() {
            return return_value(out_of_file(&shared, from, to, len, 0));
        }
        let mut buffer = vec![0u8; len];
        let read = kernel(libc::pread(from, buffer.as_mut_ptr().cast(), len, *at));
        let sent = read.and_then(|got| shared.send(to, &buffer[..got], 0));
        if let Ok(sent) = sent {
            *at += sent as off_t;
        }
        return_value(sent)
    }
}
