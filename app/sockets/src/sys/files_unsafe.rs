//! System calls on ordinary files and pipes, for `sendfile` and `splice`.

use std::{os::fd::RawFd, sync::atomic::AtomicU8};

use super::{Errno, call, call3, cancellation_unsafe};

/// Sets the file position with `lseek`. Returns the new position in bytes.
pub(crate) fn seek(fd: RawFd, offset: i64, whence: i32) -> Result<usize, Errno> {
    call3(
        libc::SYS_lseek,
        fd as usize,
        offset as usize,
        whence as usize,
    )
}

/// Reads a file from byte `offset` with `preadv`, into two parts of a circular send buffer in
/// shared memory. The service (the process `tidelaned`) may read this memory at the same time.
/// Returns the number of bytes read, 0 at the end of the file.
pub(crate) fn pread_shared(fd: RawFd, into: [&[AtomicU8]; 2], offset: i64) -> Result<usize, Errno> {
    let run = |bytes: &[AtomicU8]| libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let runs = into.map(run);
    let args = [
        fd as usize,
        runs.as_ptr() as usize,
        runs.len(),
        offset as usize,
        0,
        0,
    ];
    // SAFETY: both runs are live, have the given lengths, and may be written through a shared
    // reference.
    unsafe { call(libc::SYS_preadv, args) }
}

/// Reads a file from byte `offset` with `pread`. Returns the number of bytes read, 0 at the end of
/// the file.
pub(crate) fn pread(fd: RawFd, into: &mut [u8], offset: i64) -> Result<usize, Errno> {
    let args = [
        fd as usize,
        into.as_mut_ptr() as usize,
        into.len(),
        offset as usize,
        0,
        0,
    ];
    // SAFETY: `into` is live and has the given length.
    unsafe { call(libc::SYS_pread64, args) }
}

/// Reads from a pipe with `read`. If the pipe is blocking, waits for bytes. The call is a
/// cancellation point. Returns the number of bytes read, 0 at the end of the stream.
pub(crate) fn read_waiting(pipe: RawFd, into: &mut [u8]) -> Result<usize, Errno> {
    let pointer = into.as_mut_ptr() as usize;
    let args = [pipe as usize, pointer, into.len(), 0, 0, 0];
    // SAFETY: `into` is live and has the given length.
    unsafe { cancellation_unsafe::call(libc::SYS_read, args) }
}

/// Writes to a pipe with `write`. If the pipe is blocking, waits for room. The call is a
/// cancellation point. Returns the number of bytes written.
pub(crate) fn write_waiting(pipe: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    let args = [pipe as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
    // SAFETY: `bytes` is live and has the given length.
    unsafe { cancellation_unsafe::call(libc::SYS_write, args) }
}

/// Returns true if a pipe holds no bytes. Returns false if the kernel refuses the query.
pub(crate) fn is_empty_pipe(pipe: RawFd) -> bool {
    let mut unread: i32 = 0;
    let pointer = &raw mut unread as usize;
    let asked = call3(
        libc::SYS_ioctl,
        pipe as usize,
        libc::FIONREAD as usize,
        pointer,
    );
    asked.is_ok() && unread == 0
}
