//! stdio streams on sockets: `fdopen`, `fileno`.
//!
//! libc's streams make their system calls within libc, where this library (`libtidelane.so`) cannot
//! interpose. On a tracked socket, which is a TCP socket that this library may accelerate, `fdopen`
//! therefore creates a stream whose I/O functions call this library (`fopencookie`). libc knows no
//! descriptor of this stream, so this module keeps a list of the streams and their descriptors for
//! `fileno`.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use libc::FILE;
use tidelane_sockets::descriptors;

use crate::{
    cookie_stream_unsafe::open, descriptors_unsafe::close, libc_abi_unsafe::fail_with_errno,
    next_symbol_unsafe::next_symbol, standard_streams_unsafe,
};

/// The streams on tracked sockets: the address of each `FILE`, and its descriptor.
static STREAMS: Mutex<Vec<(usize, c_int)>> = Mutex::new(Vec::new());
/// True if `STREAMS` has or had an entry.
static EVER_OPENED: AtomicBool = AtomicBool::new(false);

fn streams() -> std::sync::MutexGuard<'static, Vec<(usize, c_int)>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes the descriptor of a stream, for `fclose`, and removes an entry of this descriptor from
/// `STREAMS`. The cookie is the descriptor.
unsafe extern "C-unwind" fn close_stream(cookie: *mut c_void) -> c_int {
    let fd = cookie as usize as c_int;
    let mut all = streams();
    // The cookie does not tell which stream is closed. If the program has several streams with the
    // same descriptor, remove the entry of this descriptor with the highest index.
    if let Some(at) = all.iter().rposition(|(_, other)| *other == fd) {
        all.swap_remove(at);
    }
    drop(all);
    // SAFETY: the call takes no pointers.
    unsafe { close(fd) }
}

/// Interposes libc's `fdopen(3)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller upholds the safety contract.
    let known = !mode.is_null() && matches!(unsafe { *mode } as u8, b'r' | b'w' | b'a');
    if descriptors::socket(fd).is_some() && known {
        // SAFETY: the caller upholds the safety contract.
        let stream = unsafe { open(fd, mode, close_stream) };
        if !stream.is_null() {
            streams().push((stream as usize, fd));
            EVER_OPENED.store(true, Ordering::Release);
        }
        return stream;
    }
    let Some(function) = next_symbol(c"fdopen") else {
        fail_with_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    };
    // SAFETY: the function of this name has this type, and the caller upholds the safety contract.
    unsafe {
        let function: unsafe extern "C" fn(c_int, *const c_char) -> *mut FILE =
            std::mem::transmute(function);
        function(fd, mode)
    }
}

/// Returns the descriptor of a stream. If this library has not opened the stream, calls libc's
/// function `name`.
///
/// # Safety
///
/// `name` must be `fileno` or a function of the same type. `stream` must be an open stream.
unsafe fn descriptor_of(stream: *mut FILE, name: &CStr) -> c_int {
    if EVER_OPENED.load(Ordering::Acquire) {
        let found = streams()
            .iter()
            .find(|(other, _)| *other == stream as usize)
            .copied();
        if let Some((_, fd)) = found {
            return fd;
        }
    }
    if let Some(fd) = standard_streams_unsafe::descriptor_of(stream) {
        return fd;
    }
    let Some(function) = next_symbol(name) else {
        return fail_with_errno(libc::ENOSYS) as c_int;
    };
    // SAFETY: the function of this name has this type, and the caller upholds the safety contract.
    unsafe {
        let function: unsafe extern "C" fn(*mut FILE) -> c_int = std::mem::transmute(function);
        function(stream)
    }
}

/// Interposes libc's `fileno(3)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fileno(stream: *mut FILE) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe { descriptor_of(stream, c"fileno") }
}

/// Interposes libc's `fileno_unlocked(3)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fileno_unlocked(stream: *mut FILE) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe { descriptor_of(stream, c"fileno_unlocked") }
}

/// Flushes all streams at `exit` if a stream is or was on a tracked socket. libc would flush its
/// streams too late, after the library has closed the connections.
pub(crate) fn flush() {
    if EVER_OPENED.load(Ordering::Acquire) || standard_streams_unsafe::were_replaced() {
        // SAFETY: null stands for all streams.
        unsafe { libc::fflush(std::ptr::null_mut()) };
    }
}
