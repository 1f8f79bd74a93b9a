//! The streams `stdin`, `stdout` and `stderr` after a connection was put on their descriptors, for
//! example by `dup2(connection, 1)`.
//!
//! libc's own standard streams make their system calls within libc, where this library
//! (`libtidelane.so`) cannot interpose. A tracked socket is a TCP socket that this library may
//! accelerate. While the descriptor of a standard stream refers to a tracked socket, the stream's
//! variable (for example `stdout`) refers to a substitute, which is a stream whose I/O functions
//! call this library. C++'s `std::cout` still refers to libc's own stream. If the program copied
//! the variable before the change, the copy still refers to libc's own stream, too.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr::null_mut,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use libc::FILE;
use tidelane_sockets::descriptors;

use crate::{
    cancellation_unsafe::cancellation_point, close_unsafe::close_descriptor,
    cookie_stream_unsafe::open,
};

/// The highest descriptor of a standard stream: the descriptor of `stderr`.
const LAST: c_int = 2;
/// The bit `_IO_UNBUFFERED` in the field `_flags` of glibc's `FILE`.
const UNBUFFERED: c_int = 2;
/// The bit `_IO_LINE_BUF` in the field `_flags` of glibc's `FILE`.
const LINE_BUFFERED: c_int = 0x200;

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    /// Drops the bytes in the buffers of a stream.
    fn __fpurge(stream: *mut FILE);
}

/// The first fields of glibc's `FILE`, which are part of its ABI (`bits/types/struct_FILE.h`).
#[repr(C)]
struct FileHead {
    /// `_flags`, which contain `_IO_UNBUFFERED` and `_IO_LINE_BUF`.
    flags: c_int,
    /// `_IO_read_ptr`, `_IO_read_end` and `_IO_read_base`.
    read: [*mut c_char; 3],
    /// `_IO_write_base`: start of the unflushed output.
    write_base: *mut c_char,
    /// `_IO_write_ptr`: end of the unflushed output.
    write_ptr: *mut c_char,
}

/// The two streams of one standard descriptor: libc's own, and its substitute.
#[derive(Clone, Copy)]
struct Streams {
    /// Address of libc's own stream.
    own: usize,
    /// Address of the stream whose I/O functions call this library.
    substitute: usize,
    /// True while the descriptor refers to a tracked socket, so that the variable refers to the
    /// substitute.
    in_use: bool,
}

/// The streams of each standard descriptor that refers or referred to a tracked socket. The index
/// is the descriptor.
static STREAMS: Mutex<[Option<Streams>; 3]> = Mutex::new([None; 3]);
/// True if `STREAMS` has or had an entry.
static EVER_REPLACED: AtomicBool = AtomicBool::new(false);

fn streams() -> MutexGuard<'static, [Option<Streams>; 3]> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the address of the variable `stdin`, `stdout` or `stderr`.
fn variable(fd: c_int) -> *mut *mut FILE {
    match fd {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        _ => &raw mut stderr,
    }
}

/// Selects the stream for the standard descriptor `fd`: libc's own stream or the substitute. The
/// caller has made a call that may have changed the file to which `fd` refers. Does nothing if `fd`
/// is not a standard descriptor.
#[inline]
pub(crate) fn select_stream(fd: c_int) {
    if (0..=LAST).contains(&fd) {
        select_standard_stream(fd);
    }
}

#[cold]
fn select_standard_stream(fd: c_int) {
    let tracked = descriptors::socket(fd).is_some();
    if !tracked && !EVER_REPLACED.load(Ordering::Acquire) {
        return;
    }
    let mut all = streams();
    let entry = &mut all[fd as usize];
    match entry {
        Some(streams) if streams.in_use != tracked => {
            streams.in_use = tracked;
            let (own, substitute) = (streams.own as *mut FILE, streams.substitute as *mut FILE);
            // SAFETY: libc's own stream exists for ever. The substitute exists until
            // `close_substitute` removes the entry.
            unsafe {
                if tracked {
                    switch(fd, own, substitute);
                } else {
                    switch(fd, substitute, own);
                }
            }
        }
        Some(_) => (),
        None if tracked => *entry = open_substitute(fd),
        None => (),
    }
}

/// Opens the substitute of the standard stream of `fd`, and lets the variable refer to the
/// substitute. Returns `None` if the variable is null or memory is short.
fn open_substitute(fd: c_int) -> Option<Streams> {
    let mode = if fd == 0 { c"r" } else { c"w" };
    // SAFETY: as in C, the program does not change the variable during this call. `own` is open,
    // and the substitute has no bytes in its buffer.
    unsafe {
        let own = *variable(fd);
        let substitute = open(fd, mode.as_ptr(), close_substitute);
        if own.is_null() || substitute.is_null() {
            return None;
        }
        let flags = (*own.cast::<FileHead>()).flags;
        if flags & UNBUFFERED != 0 {
            libc::setvbuf(substitute, null_mut(), libc::_IONBF, 0);
        } else if flags & LINE_BUFFERED != 0 {
            libc::setvbuf(substitute, null_mut(), libc::_IOLBF, 0);
        }
        EVER_REPLACED.store(true, Ordering::Release);
        switch(fd, own, substitute);
        Some(Streams {
            own: own as usize,
            substitute: substitute as usize,
            in_use: true,
        })
    }
}

/// Lets the variable of a standard stream refer to `to` if it refers to `from`. Does not change a
/// variable to which the program has assigned another stream.
///
/// Moves unflushed output of `from` to `to`. Without this library, there would be one stream, and
/// the new file of the descriptor would get this output.
///
/// # Safety
///
/// Both streams must be open streams of glibc.
unsafe fn switch(fd: c_int, from: *mut FILE, to: *mut FILE) {
    // SAFETY: the caller upholds the safety contract. The buffer has `len` bytes.
    unsafe {
        let head = &*from.cast::<FileHead>();
        let len = (head.write_ptr as usize).saturating_sub(head.write_base as usize);
        if fd != 0 && len > 0 {
            libc::fwrite(head.write_base.cast(), 1, len, to);
            __fpurge(from);
        }
        let variable = variable(fd);
        if *variable == from {
            *variable = to;
        }
    }
}

/// Closes the descriptor of a substitute, for `fclose`. If the variable refers to the substitute,
/// first lets the variable refer to libc's own stream.
unsafe extern "C-unwind" fn close_substitute(cookie: *mut c_void) -> c_int {
    let fd = cookie as usize as c_int;
    let entry = streams()[fd as usize].take();
    if let Some(entry) = entry {
        // SAFETY: as in C, the program does not use the variable during this call.
        unsafe {
            let variable = variable(fd);
            if *variable as usize == entry.substitute {
                *variable = entry.own as *mut FILE;
            }
        }
    }
    cancellation_point();
    let result = close_descriptor(fd);
    select_stream(fd);
    result
}

/// Returns the descriptor of a stream that is a substitute, or `None` for any other stream.
pub(crate) fn descriptor_of(stream: *mut FILE) -> Option<c_int> {
    if !EVER_REPLACED.load(Ordering::Acquire) {
        return None;
    }
    let all = streams();
    let is_stream =
        |entry: &Option<Streams>| entry.is_some_and(|e| e.substitute == stream as usize);
    all.iter().position(is_stream).map(|fd| fd as c_int)
}

/// Returns true if a standard stream is or was replaced by a substitute.
pub(crate) fn were_replaced() -> bool {
    EVER_REPLACED.load(Ordering::Acquire)
}
