//! System calls on threads: identities, yielding the CPU, and signals.

use super::{Errno, call1, call3};

/// Returns the id of this process. Asks the kernel, because a cached id is wrong after `vfork`.
pub(crate) fn process_id() -> u32 {
    call1(libc::SYS_getpid, 0).unwrap_or(0) as u32
}

/// Yields the CPU to another thread.
pub(crate) fn yield_now() {
    let _ = call1(libc::SYS_sched_yield, 0);
}

/// Returns the id of the calling thread.
pub(crate) fn thread_id() -> i32 {
    call1(libc::SYS_gettid, 0).unwrap_or(0) as i32
}

/// Returns true if a thread of this process has the id `thread`.
pub(crate) fn thread_exists(thread: i32) -> bool {
    send(thread, 0) != Err(Errno(libc::ESRCH))
}

/// Sends `signal` to the calling thread.
pub(crate) fn raise(signal: i32) {
    let _ = send(thread_id(), signal);
}

/// Sends `signal` to the thread with the id `thread` of this process. If `signal` is 0, only checks
/// that the thread exists. Returns ESRCH if the process has no thread with this id.
fn send(thread: i32, signal: i32) -> Result<usize, Errno> {
    call3(
        libc::SYS_tgkill,
        process_id() as usize,
        thread as usize,
        signal as usize,
    )
}
