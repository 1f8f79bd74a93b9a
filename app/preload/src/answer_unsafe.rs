//! Conversion of results to libc's convention, and of C's pointers to slices.

use std::{
    borrow::Cow,
    ffi::{c_int, c_void},
    io::{IoSlice, IoSliceMut},
    slice,
};

use libc::iovec;
use tidelane_sockets::{
    Errno, Handled, sys,
    sys::cancellation_unsafe::{self, CANCELLED},
};

use crate::cancellation_unsafe::act;

/// Returns the result, or -1 with `errno` set.
#[inline]
pub fn answer(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(error) => fail(error.0),
    }
}

/// Returns true if `errno` has this value.
pub fn is_last_error(number: c_int) -> bool {
    // SAFETY: libc's `errno` is a thread-local integer that is always there.
    unsafe { *libc::__errno_location() == number }
}

/// Sets `errno` and returns -1. Does not return if the call was cancelled.
#[cold]
pub fn fail(number: c_int) -> isize {
    if number == CANCELLED.0 {
        act();
    }
    // SAFETY: libc's `errno` is a thread-local integer that is always there.
    unsafe { *libc::__errno_location() = number };
    -1
}

/// Makes the system call. Does not return from a cancellation point if the thread was cancelled.
///
/// # Safety
///
/// As for the system call.
#[inline]
pub unsafe fn kernel(number: i64, args: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        if may_wait(number) {
            kernel_wait(number, args)
        } else {
            answer(sys::call(number, args))
        }
    }
}

/// Makes a system call that is a cancellation point.
///
/// # Safety
///
/// As for the system call.
#[inline]
pub unsafe fn kernel_wait(number: i64, args: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    answer(unsafe { cancellation_unsafe::call(number, args) })
}

/// Returns true for system calls that wait, and so are cancellation points.
#[inline]
const fn may_wait(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_accept4
            | libc::SYS_connect
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_ppoll
            | libc::SYS_pselect6
            | libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_recvfrom
            | libc::SYS_recvmmsg
            | libc::SYS_recvmsg
            | libc::SYS_sendmmsg
            | libc::SYS_sendmsg
            | libc::SYS_sendto
            | libc::SYS_splice
            | libc::SYS_write
            | libc::SYS_writev
    )
}

/// Returns the result of a handled call, or makes the system call.
///
/// # Safety
///
/// As for the system call.
#[inline]
pub unsafe fn handled_or_kernel(handled: Handled, number: i64, args: [usize; 6]) -> isize {
    match handled {
        Some(result) => answer(result),
        // SAFETY: the caller's promise.
        None => unsafe { kernel(number, args) },
    }
}

/// The program's buffer for a write. A null pointer yields an empty slice.
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

/// The program's buffer for a read. A null pointer yields an empty slice.
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

/// The buffers of a vectored write. Returns `None` for an invalid array, for which the kernel
/// returns the error.
///
/// # Safety
///
/// `parts` is valid for `count` elements, and each part for its length, or null.
pub unsafe fn parts<'a>(parts: *const iovec, count: usize) -> Option<Cow<'a, [IoSlice<'a>]>> {
    // SAFETY: the caller's promise.
    let whole = match unsafe { inspect(parts, count) } {
        Parts::Impossible => return None,
        Parts::None => return Some(Cow::Borrowed(&[])),
        Parts::Whole(whole) => whole,
        Parts::WithNull(some) => {
            // SAFETY: the caller's promise.
            let part = |part: &iovec| unsafe { bytes(part.iov_base, part.iov_len) };
            return Some(some.iter().map(|given| IoSlice::new(part(given))).collect());
        }
    };
    // SAFETY: `IoSlice` has the layout of `iovec` on Unix; the caller's promise.
    Some(Cow::Borrowed(unsafe {
        slice::from_raw_parts(whole.as_ptr().cast(), whole.len())
    }))
}

/// The buffers of a vectored read.
pub enum PartsMut<'a> {
    /// The program's own array.
    Given(&'a mut [IoSliceMut<'a>]),
    /// A copy of the array, in which null pointers are empty slices.
    Normalized(Vec<IoSliceMut<'a>>),
}

impl<'a> PartsMut<'a> {
    /// The buffers.
    pub fn all(&mut self) -> &mut [IoSliceMut<'a>] {
        match self {
            Self::Given(parts) => parts,
            Self::Normalized(parts) => parts,
        }
    }
}

/// Like `parts`, for a vectored read.
///
/// # Safety
///
/// As for `parts`.
pub unsafe fn parts_mut<'a>(parts: *const iovec, count: usize) -> Option<PartsMut<'a>> {
    // SAFETY: the caller's promise.
    let whole = match unsafe { inspect(parts, count) } {
        Parts::Impossible => return None,
        Parts::None => return Some(PartsMut::Given(&mut [])),
        Parts::Whole(whole) => whole,
        Parts::WithNull(some) => {
            // SAFETY: the caller's promise.
            let part = |part: &iovec| unsafe { bytes_mut(part.iov_base, part.iov_len) };
            let mended = some.iter().map(|given| IoSliceMut::new(part(given)));
            return Some(PartsMut::Normalized(mended.collect()));
        }
    };
    // SAFETY: `IoSliceMut` has the layout of `iovec` on Unix; the caller's promise. The array
    // itself is not changed.
    let given = unsafe { slice::from_raw_parts_mut(whole.as_ptr().cast_mut().cast(), whole.len()) };
    Some(PartsMut::Given(given))
}

/// The result of checking an array of buffers.
enum Parts<'a> {
    /// The array is too long, or the buffers are.
    Impossible,
    None,
    Whole(&'a [iovec]),
    /// Some pointers are null, which a slice cannot have.
    WithNull(&'a [iovec]),
}

/// Checks an array of buffers.
///
/// # Safety
///
/// `parts` is valid for `count` elements, if `count` is within the limit.
unsafe fn inspect<'a>(parts: *const iovec, count: usize) -> Parts<'a> {
    if count > PARTS_MAX {
        return Parts::Impossible;
    }
    if parts.is_null() || count == 0 {
        return Parts::None;
    }
    // SAFETY: the caller's promise.
    let parts = unsafe { slice::from_raw_parts(parts, count) };
    if parts.iter().any(|part| part.iov_len > isize::MAX as usize) {
        Parts::Impossible
    } else if parts.iter().any(|part| part.iov_base.is_null()) {
        Parts::WithNull(parts)
    } else {
        Parts::Whole(parts)
    }
}

/// Most buffers of a vectored call (IOV_MAX).
const PARTS_MAX: usize = 1024;
/// Most bytes that Linux moves in one call (MAX_RW_COUNT).
const LEN_MAX: usize = 0x7fff_f000;
