//! Between C's conventions and ours: the stack behind `userdata`, slices, errno, descriptors.

use std::{
    ffi::{c_int, c_void},
    slice,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    errno::{Answer, Errno},
    shared::Shared,
    stack::Fd,
};

/// The stack of the interface that was made last, for calls that come without `userdata`.
static LOADED: Mutex<Option<Arc<Shared>>> = Mutex::new(None);

/// That stack.
pub fn loaded() -> Option<Arc<Shared>> {
    let loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.clone()
}

/// Makes a stack the one that [`loaded`] gives, and what `userdata` points to.
pub fn load(shared: Arc<Shared>) -> *mut c_void {
    *LOADED.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&shared));
    Arc::into_raw(shared).cast_mut().cast()
}

/// Ends what [`load`] began. Descriptors stay open: packetdrill closes those it knows of.
///
/// # Safety
///
/// `userdata` is from [`load`] and is not used afterwards.
pub unsafe fn unload(userdata: *mut c_void) {
    // SAFETY: the caller's promise.
    let shared: Arc<Shared> = unsafe { Arc::from_raw(userdata.cast_const().cast()) };
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if loaded
        .as_ref()
        .is_some_and(|other| Arc::ptr_eq(other, &shared))
    {
        *loaded = None;
    }
}

/// The stack behind `userdata`.
///
/// # Safety
///
/// `userdata` is from [`load`] and outlives the reference.
pub unsafe fn stack<'a>(userdata: *mut c_void) -> &'a Shared {
    // SAFETY: the caller's promise.
    unsafe { &*userdata.cast_const().cast() }
}

/// The number that a C function returns, with `errno` set.
pub fn answer(result: Answer<usize>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(Errno(number)) => {
            // SAFETY: `errno` is a thread-local integer that is always there.
            unsafe { *libc::__errno_location() = number };
            -1
        }
    }
}

/// As [`answer`], for a call that has nothing to say.
pub fn done(result: Answer<()>) -> c_int {
    answer(result.map(|()| 0)) as c_int
}

/// As [`answer`], for a system call that was made.
pub fn kernel(result: isize) -> Answer<usize> {
    usize::try_from(result).map_err(|_| {
        // SAFETY: `errno` is a thread-local integer that is always there.
        Errno(unsafe { *libc::__errno_location() })
    })
}

/// A buffer to read from; null is an empty one.
///
/// # Safety
///
/// `pointer` is valid for reading `len` bytes, or null.
pub unsafe fn bytes<'a>(pointer: *const c_void, len: usize) -> &'a [u8] {
    if pointer.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(pointer.cast(), len) }
}

/// A buffer to write to; null is an empty one.
///
/// # Safety
///
/// `pointer` is valid for writing `len` bytes, or null.
pub unsafe fn bytes_mut<'a>(pointer: *mut c_void, len: usize) -> &'a mut [u8] {
    if pointer.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts_mut(pointer.cast(), len) }
}

/// Copies a value out as C calls do: as much as there is room for, `len` says how much that was or,
/// of an address, how much there is.
///
/// # Safety
///
/// `len` is null or valid, and `to` is null or valid for writing `*len` bytes.
pub unsafe fn copy_out(value: &[u8], to: *mut c_void, len: *mut libc::socklen_t, whole: bool) {
    if to.is_null() || len.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let room = value.len().min(*len as usize);
        bytes_mut(to, room).copy_from_slice(&value[..room]);
        *len = if whole { value.len() } else { room } as libc::socklen_t;
    }
}

/// A descriptor that the kernel knows: of `/dev/null`.
pub fn open_descriptor() -> Answer<Fd> {
    use std::os::fd::IntoRawFd;
    let file = std::fs::File::open("/dev/null");
    file.map(IntoRawFd::into_raw_fd)
        .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EMFILE)))
}

/// Closes a descriptor, ours or not.
pub fn close_descriptor(fd: Fd) -> Answer<()> {
    // SAFETY: closing touches no memory; whose descriptor it is, the caller knows.
    kernel(unsafe { libc::close(fd) } as isize).map(|_| ())
}
