//! Conversions between C and Rust: `userdata` and the stack, pointers and slices, errno, and
//! descriptors. An interface is a `struct packetdrill_interface`, packetdrill's table of C
//! functions with a `userdata` pointer. Each interface has a stack of its own.

use std::{
    ffi::{c_int, c_void},
    slice,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    errno::{CallResult, Errno},
    shared::Shared,
    stack::Fd,
};

/// The stack of the interface that was made most recently. The preloaded libc functions use this
/// stack, because libc's signatures have no `userdata` argument.
static LOADED: Mutex<Option<Arc<Shared>>> = Mutex::new(None);

/// Returns the stack of the interface that was made most recently. Returns `None` if this interface
/// was freed, or if no interface was made.
pub fn loaded() -> Option<Arc<Shared>> {
    let loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.clone()
}

/// Makes [`loaded`] return `shared`, and returns a `userdata` pointer to `shared`.
pub fn load(shared: Arc<Shared>) -> *mut c_void {
    *LOADED.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&shared));
    Arc::into_raw(shared).cast_mut().cast()
}

/// Drops the reference that [`load`] made. If [`loaded`] returned this stack, [`loaded`] then
/// returns `None`. Descriptors of the stack stay open, because packetdrill closes them.
///
/// # Safety
///
/// `userdata` is from [`load`] and is not used afterwards.
pub unsafe fn unload(userdata: *mut c_void) {
    // SAFETY: guaranteed by the caller.
    let shared: Arc<Shared> = unsafe { Arc::from_raw(userdata.cast_const().cast()) };
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if loaded
        .as_ref()
        .is_some_and(|other| Arc::ptr_eq(other, &shared))
    {
        *loaded = None;
    }
}

/// Returns the stack behind `userdata`.
///
/// # Safety
///
/// `userdata` is from [`load`] and outlives the reference.
pub unsafe fn stack<'a>(userdata: *mut c_void) -> &'a Shared {
    // SAFETY: guaranteed by the caller.
    unsafe { &*userdata.cast_const().cast() }
}

/// Converts `result` to the return value of a C function. An error sets `errno` and returns -1.
pub fn return_value(result: CallResult<usize>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(Errno(number)) => {
            // SAFETY: `errno` is a thread-local integer that is always there.
            unsafe { *libc::__errno_location() = number };
            -1
        }
    }
}

/// Converts `result` to the return value of a C function. Success returns 0. An error sets `errno`
/// and returns -1.
pub fn return_status(result: CallResult<()>) -> c_int {
    return_value(result.map(|()| 0)) as c_int
}

/// Converts the return value of a system call. A negative value becomes the error in `errno`.
pub fn kernel(result: isize) -> CallResult<usize> {
    usize::try_from(result).map_err(|_| {
        // SAFETY: `errno` is a thread-local integer that is always there.
        Errno(unsafe { *libc::__errno_location() })
    })
}

/// Returns the caller's buffer as a slice to read from. A null pointer is an empty buffer.
///
/// # Safety
///
/// `pointer` is valid for reading `len` bytes, or null.
pub unsafe fn bytes<'a>(pointer: *const c_void, len: usize) -> &'a [u8] {
    if pointer.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(pointer.cast(), len) }
}

/// Returns the caller's buffer as a slice to write to. A null pointer is an empty buffer.
///
/// # Safety
///
/// `pointer` is valid for writing `len` bytes, or null.
pub unsafe fn bytes_mut<'a>(pointer: *mut c_void, len: usize) -> &'a mut [u8] {
    if pointer.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts_mut(pointer.cast(), len) }
}

/// Copies at most `*len` bytes of `value` to the caller's buffer `to`.
///
/// If `whole` is false, sets `*len` to the number of copied bytes, as `getsockopt` does. If `whole`
/// is true, sets `*len` to the length of `value` even if `value` was truncated, as `accept` does
/// for addresses. Does nothing if `to` or `len` is null.
///
/// # Safety
///
/// `len` is null or valid, and `to` is null or valid for writing `*len` bytes.
pub unsafe fn copy_out(value: &[u8], to: *mut c_void, len: *mut libc::socklen_t, whole: bool) {
    if to.is_null() || len.is_null() {
        return;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let room = value.len().min(*len as usize);
        bytes_mut(to, room).copy_from_slice(&value[..room]);
        *len = if whole { value.len() } else { room } as libc::socklen_t;
    }
}

/// Opens `/dev/null` to reserve a descriptor number. The kernel then gives no other file this
/// number.
pub fn open_descriptor() -> CallResult<Fd> {
    use std::os::fd::IntoRawFd;
    let file = std::fs::File::open("/dev/null");
    file.map(IntoRawFd::into_raw_fd)
        .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EMFILE)))
}

/// Closes a descriptor of the kernel.
pub fn close_descriptor(fd: Fd) -> CallResult<()> {
    // SAFETY: closing touches no memory, and the caller owns the descriptor.
    kernel(unsafe { libc::close(fd) } as isize).map(|_| ())
}

/// Opens a descriptor and calls `make` with it. Closes the descriptor if `make` fails.
pub(crate) fn new_descriptor(make: impl FnOnce(Fd) -> CallResult<()>) -> CallResult<usize> {
    let fd = open_descriptor()?;
    match make(fd) {
        Ok(()) => Ok(fd as usize),
        Err(error) => {
            close_descriptor(fd)?;
            Err(error)
        }
    }
}
