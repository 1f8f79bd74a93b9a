//! From results to libc's convention, and from C's pointers to slices.

use std::{
    ffi::{c_int, c_void},
    slice,
};

use tidelane_sockets::{Errno, Handled, sys};

/// The result, or -1 with `errno` set.
#[inline]
pub fn answer(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(error) => fail(error.0),
    }
}

/// -1, with `errno` set.
#[cold]
pub fn fail(number: c_int) -> isize {
    // SAFETY: libc's `errno` is a thread-local integer that is always there.
    unsafe { *libc::__errno_location() = number };
    -1
}

/// The system call.
///
/// # Safety
///
/// As for the system call.
#[inline]
pub unsafe fn kernel(number: i64, args: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    answer(unsafe { sys::call(number, args) })
}

/// What we did, or else the system call.
///
/// # Safety
///
/// As for the system call.
#[inline]
pub unsafe fn ours_or_kernel(handled: Handled, number: i64, args: [usize; 6]) -> isize {
    match handled {
        Some(result) => answer(result),
        // SAFETY: the caller's promise.
        None => unsafe { kernel(number, args) },
    }
}

/// The program's buffer to read from. Null is an empty one.
///
/// # Safety
///
/// `pointer` is valid for reading `len` bytes, or null.
#[inline]
pub unsafe fn bytes<'a>(pointer: *const c_void, len: usize) -> &'a [u8] {
    if pointer.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise; the kernel takes no more than this at once either.
    unsafe { slice::from_raw_parts(pointer.cast(), len.min(LEN_MAX)) }
}

/// The program's buffer to write to. Null is an empty one.
///
/// # Safety
///
/// `pointer` is valid for writing `len` bytes, or null.
#[inline]
pub unsafe fn bytes_mut<'a>(pointer: *mut c_void, len: usize) -> &'a mut [u8] {
    if pointer.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise. The bytes are only written.
    unsafe { slice::from_raw_parts_mut(pointer.cast(), len.min(LEN_MAX)) }
}

/// MAX_RW_COUNT: what Linux moves at most in one call.
const LEN_MAX: usize = 0x7fff_f000;
