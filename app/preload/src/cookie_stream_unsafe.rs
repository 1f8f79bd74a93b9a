//! A stdio stream whose I/O functions call this library (`libtidelane.so`). libc's `fopencookie`
//! opens the stream. libc passes a cookie to each I/O function. Here the cookie is the descriptor.

use std::ffi::{c_char, c_int, c_void};

use libc::{FILE, off64_t, size_t, ssize_t};

use crate::{
    bytes_unsafe::{read, write},
    libc_abi_unsafe::fail_with_errno,
};

/// A function that closes the descriptor of a stream. The argument is the cookie.
pub(crate) type Close = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// The I/O functions of a stream: `cookie_io_functions_t` of fopencookie(3).
#[repr(C)]
struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: Close,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

unsafe extern "C-unwind" fn read_some(
    cookie: *mut c_void,
    into: *mut c_char,
    len: size_t,
) -> ssize_t {
    // SAFETY: libc passed the buffer.
    unsafe { read(cookie as usize as c_int, into.cast(), len) }
}

/// Writes all `len` bytes, as libc's own streams do. Returns the number of bytes written, which is
/// less than `len` after an error.
///
/// # Safety
///
/// `from` must be valid for `len` bytes. `cookie` is the descriptor.
pub(crate) unsafe extern "C-unwind" fn write_all(
    cookie: *mut c_void,
    from: *const c_char,
    len: size_t,
) -> ssize_t {
    let mut done = 0;
    while done < len {
        // SAFETY: the pointer is within the buffer that libc passed.
        let count = unsafe { write(cookie as usize as c_int, from.add(done).cast(), len - done) };
        if count < 0 {
            break;
        }
        done += count as usize;
    }
    done as ssize_t
}

unsafe extern "C-unwind" fn seek(_cookie: *mut c_void, _to: *mut off64_t, _whence: c_int) -> c_int {
    fail_with_errno(libc::ESPIPE) as c_int
}

/// Opens a stream whose I/O functions call this library with the descriptor `fd`. `fclose` of the
/// stream calls the function `close` with the cookie. Returns null if memory is short, or if `mode`
/// is invalid.
///
/// # Safety
///
/// `mode` must be a C string.
pub(crate) unsafe fn open(fd: c_int, mode: *const c_char, close: Close) -> *mut FILE {
    let functions = Functions {
        read: read_some,
        write: write_all,
        seek,
        close,
    };
    // SAFETY: the caller upholds the safety contract, and the functions expect a descriptor as the
    // cookie.
    unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) }
}
