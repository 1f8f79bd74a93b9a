//! The boundary to C: conversion of results to libc's convention (-1 and `errno`), and of C
//! pointers to slices.

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

use crate::cancellation_unsafe::exit_cancelled_thread;

/// Converts a result to libc's convention: the value, or -1 with `errno` set.
#[inline]
pub fn libc_result(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(error) => fail_with_errno(error.0),
    }
}

/// Returns true if `errno` equals `number`.
pub fn is_errno(number: c_int) -> bool {
    // SAFETY: libc's `errno` is a thread-local integer that always exists.
    unsafe { *libc::__errno_location() == number }
}

/// Sets `errno` to `number` and returns -1. If `number` is `CANCELLED`, which means that
/// `pthread_cancel` has ended the call, ends the thread and does not return.
#[cold]
pub fn fail_with_errno(number: c_int) -> isize {
    if number == CANCELLED.0 {
        exit_cancelled_thread();
    }
    // SAFETY: libc's `errno` is a thread-local integer that always exists.
    unsafe { *libc::__errno_location() = number };
    -1
}

/// Makes a system call. Does not return if the call is a cancellation point and the thread is
/// cancelled.
///
/// # Safety
///
/// The arguments must be valid for the system call.
#[inline]
pub unsafe fn system_call(number: i64, args: [usize; 6]) -> isize {
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        if is_cancellation_point(number) {
            cancellable_system_call(number, args)
        } else {
            libc_result(sys::call(number, args))
        }
    }
}

/// Makes a system call that is a cancellation point.
///
/// # Safety
///
/// The arguments must be valid for the system call.
#[inline]
pub unsafe fn cancellable_system_call(number: i64, args: [usize; 6]) -> isize {
    // SAFETY: the caller upholds the safety contract.
    libc_result(unsafe { cancellation_unsafe::call(number, args) })
}

/// Returns true if [`system_call`] must make this system call as a cancellation point. The list
/// does not contain `fcntl`, because only some commands of `fcntl` are cancellation points. For
/// these commands, the caller calls [`cancellable_system_call`] itself.
#[inline]
const fn is_cancellation_point(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_accept4
            | libc::SYS_connect
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_ppoll
            | libc::SYS_preadv2
            | libc::SYS_pselect6
            | libc::SYS_pwritev2
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

/// Converts `handled`, a result of `tidelane_sockets`, to libc's convention. If `handled` is
/// `None`, makes the system call, because the kernel must handle the call.
///
/// # Safety
///
/// The arguments must be valid for the system call.
#[inline]
pub unsafe fn handled_or_system_call(handled: Handled, number: i64, args: [usize; 6]) -> isize {
    match handled {
        Some(result) => libc_result(result),
        // SAFETY: the caller upholds the safety contract.
        None => unsafe { system_call(number, args) },
    }
}

/// Returns the buffer of the program from which a call reads. A null pointer yields an empty slice.
///
/// # Safety
///
/// `pointer` must be valid for reading `len` bytes, or null.
#[inline]
pub unsafe fn bytes<'a>(pointer: *const c_void, len: usize) -> &'a [u8] {
    if pointer.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller upholds the safety contract. Like the kernel, use at most MAX_RW_COUNT
    // bytes.
    unsafe { slice::from_raw_parts(pointer.cast(), len.min(MAX_RW_COUNT)) }
}

/// Returns the buffer of the program to which a call writes. A null pointer yields an empty slice.
///
/// # Safety
///
/// `pointer` must be valid for writing `len` bytes, or null.
#[inline]
pub unsafe fn bytes_mut<'a>(pointer: *mut c_void, len: usize) -> &'a mut [u8] {
    if pointer.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: the caller upholds the safety contract. Uninitialized bytes are written, but never
    // read.
    unsafe { slice::from_raw_parts_mut(pointer.cast(), len.min(MAX_RW_COUNT)) }
}

/// Returns the buffers of a vectored write. Returns `None` if the array is invalid, so that the
/// caller makes the system call, which returns the error.
///
/// # Safety
///
/// `iovecs` must be valid for `count` elements. The pointer of each element must be null, or valid
/// for reading the element's length.
pub unsafe fn iovecs<'a>(iovecs: *const iovec, count: usize) -> Option<Cow<'a, [IoSlice<'a>]>> {
    // SAFETY: the caller upholds the safety contract.
    let whole = match unsafe { check_iovecs(iovecs, count) } {
        IovecCheck::Invalid => return None,
        IovecCheck::Empty => return Some(Cow::Borrowed(&[])),
        IovecCheck::Valid(whole) => whole,
        IovecCheck::WithNull(some) => {
            // SAFETY: the caller upholds the safety contract.
            let part = |iovec: &iovec| unsafe { bytes(iovec.iov_base, iovec.iov_len) };
            return Some(some.iter().map(|given| IoSlice::new(part(given))).collect());
        }
    };
    // SAFETY: `IoSlice` has the layout of `iovec` on Unix, and the caller upholds the safety
    // contract.
    Some(Cow::Borrowed(unsafe {
        slice::from_raw_parts(whole.as_ptr().cast(), whole.len())
    }))
}

/// The buffers of a vectored read.
pub enum IovecsMut<'a> {
    /// The program's own `iovec` array.
    Given(&'a mut [IoSliceMut<'a>]),
    /// A copy of the array, in which an empty slice replaces each null pointer.
    Normalized(Vec<IoSliceMut<'a>>),
}

impl<'a> IovecsMut<'a> {
    /// Returns the buffers as a slice.
    pub fn all(&mut self) -> &mut [IoSliceMut<'a>] {
        match self {
            Self::Given(iovecs) => iovecs,
            Self::Normalized(iovecs) => iovecs,
        }
    }
}

/// Returns the buffers of a vectored read. Returns `None` in the same cases as [`iovecs`].
///
/// # Safety
///
/// `iovecs` must be valid for `count` elements. The pointer of each element must be null, or valid
/// for writing the element's length.
pub unsafe fn iovecs_mut<'a>(iovecs: *const iovec, count: usize) -> Option<IovecsMut<'a>> {
    // SAFETY: the caller upholds the safety contract.
    let whole = match unsafe { check_iovecs(iovecs, count) } {
        IovecCheck::Invalid => return None,
        IovecCheck::Empty => return Some(IovecsMut::Given(&mut [])),
        IovecCheck::Valid(whole) => whole,
        IovecCheck::WithNull(some) => {
            // SAFETY: the caller upholds the safety contract.
            let part = |iovec: &iovec| unsafe { bytes_mut(iovec.iov_base, iovec.iov_len) };
            let slices = some.iter().map(|given| IoSliceMut::new(part(given)));
            return Some(IovecsMut::Normalized(slices.collect()));
        }
    };
    // SAFETY: `IoSliceMut` has the layout of `iovec` on Unix, and the caller upholds the safety
    // contract. The called functions write to the buffers, and never to the array.
    let given = unsafe { slice::from_raw_parts_mut(whole.as_ptr().cast_mut().cast(), whole.len()) };
    Some(IovecsMut::Given(given))
}

/// The result of [`check_iovecs`]: how an `iovec` array can become a slice.
enum IovecCheck<'a> {
    /// The array has more than IOV_MAX elements, an element is longer than SSIZE_MAX, or the
    /// pointer to the array is null. The kernel reports the error.
    Invalid,
    /// The array has no elements.
    Empty,
    /// No element has a null pointer, so that the array can be used without a copy.
    Valid(&'a [iovec]),
    /// An element has a null pointer, which a slice cannot have. The caller has to copy the array.
    WithNull(&'a [iovec]),
}

/// Checks the `iovec` array of a vectored call.
///
/// # Safety
///
/// If `count` is at most IOV_MAX, `iovecs` must be null, or valid for `count` elements.
unsafe fn check_iovecs<'a>(iovecs: *const iovec, count: usize) -> IovecCheck<'a> {
    if count > IOV_MAX {
        return IovecCheck::Invalid;
    }
    if count == 0 {
        return IovecCheck::Empty;
    }
    if iovecs.is_null() {
        return IovecCheck::Invalid;
    }
    // SAFETY: the caller upholds the safety contract.
    let iovecs = unsafe { slice::from_raw_parts(iovecs, count) };
    if iovecs
        .iter()
        .any(|iovec| iovec.iov_len > isize::MAX as usize)
    {
        IovecCheck::Invalid
    } else if iovecs.iter().any(|iovec| iovec.iov_base.is_null()) {
        IovecCheck::WithNull(iovecs)
    } else {
        IovecCheck::Valid(iovecs)
    }
}

/// Largest number of buffers in a vectored call. Also the largest number of messages that one
/// `sendmmsg` sends.
pub const IOV_MAX: usize = 1024;
/// Largest number of bytes that Linux transfers in one call.
const MAX_RW_COUNT: usize = 0x7fff_f000;
