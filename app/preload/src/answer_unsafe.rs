//! From results to libc's convention, and from C's pointers to slices.

use std::{
    borrow::Cow,
    ffi::{c_int, c_void},
    io::{IoSlice, IoSliceMut},
    slice,
};

use libc::iovec;
use tidelane_sockets::{Errno, Handled, sys};

/// The result, or -1 with `errno` set.
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

/// The parts of a vectored call. None: as no call may have them, which the kernel will say.
///
/// # Safety
///
/// `parts` is valid for `count` elements, and each part for its length, or null.
pub unsafe fn parts<'a>(parts: *const iovec, count: usize) -> Option<Cow<'a, [IoSlice<'a>]>> {
    // SAFETY: the caller's promise.
    let whole = match unsafe { look(parts, count) } {
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

/// Parts to write to, as the program gave them or mended.
pub enum PartsMut<'a> {
    /// As given.
    Given(&'a mut [IoSliceMut<'a>]),
    /// Null ones are empty ones.
    Mended(Vec<IoSliceMut<'a>>),
}

impl<'a> PartsMut<'a> {
    /// The parts.
    pub fn all(&mut self) -> &mut [IoSliceMut<'a>] {
        match self {
            Self::Given(parts) => parts,
            Self::Mended(parts) => parts,
        }
    }
}

/// As `parts`, to write to.
///
/// # Safety
///
/// As for `parts`.
pub unsafe fn parts_mut<'a>(parts: *const iovec, count: usize) -> Option<PartsMut<'a>> {
    // SAFETY: the caller's promise.
    let whole = match unsafe { look(parts, count) } {
        Parts::Impossible => return None,
        Parts::None => return Some(PartsMut::Given(&mut [])),
        Parts::Whole(whole) => whole,
        Parts::WithNull(some) => {
            // SAFETY: the caller's promise.
            let part = |part: &iovec| unsafe { bytes_mut(part.iov_base, part.iov_len) };
            let mended = some.iter().map(|given| IoSliceMut::new(part(given)));
            return Some(PartsMut::Mended(mended.collect()));
        }
    };
    // SAFETY: `IoSliceMut` has the layout of `iovec` on Unix; the caller's promise. The array
    // itself is not changed.
    let given = unsafe { slice::from_raw_parts_mut(whole.as_ptr().cast_mut().cast(), whole.len()) };
    Some(PartsMut::Given(given))
}

/// What a look at a call's parts shows.
enum Parts<'a> {
    /// Too many, or too long.
    Impossible,
    None,
    Whole(&'a [iovec]),
    /// Some are null, which a slice cannot be.
    WithNull(&'a [iovec]),
}

/// # Safety
///
/// `parts` is valid for `count` elements, if those are not too many.
unsafe fn look<'a>(parts: *const iovec, count: usize) -> Parts<'a> {
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

/// IOV_MAX.
const PARTS_MAX: usize = 1024;
/// MAX_RW_COUNT: what Linux moves at most in one call.
const LEN_MAX: usize = 0x7fff_f000;
