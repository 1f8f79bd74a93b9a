//! System calls on ordinary files, for `sendfile` and `splice`.

use std::{os::fd::RawFd, sync::atomic::AtomicU8};

use super::{Errno, call, call3};

/// Sets the file position with `lseek`. Returns the new position in bytes.
pub(crate) fn seek(fd: RawFd, offset: i64, whence: i32) -> Result<usize, Errno> {
    call3(
        libc::SYS_lseek,
        fd as usize,
        offset as usize,
        whence as usize,
    )
}

/// Reads from `offset` with `preadv` into two parts of a circular send buffer in shared memory,
/// which the service (the process `tidelaned`) may read at the same time. Returns the number of
/// bytes, 0 at the end of the file.
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

/// Reads from `offset` with `pread`. Returns the number of bytes, 0 at the end of the file.
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
