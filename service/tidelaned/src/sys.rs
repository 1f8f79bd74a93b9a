//! The few system calls that no safe wrapper has: scheduling classes.

use std::{
    io,
    os::fd::{FromRawFd, OwnedFd},
};

/// The scheduling class of a fast-path thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Runs whenever nothing else on its CPU wants to: spinning costs the programs nothing.
    Idle,
    /// Takes its share like everyone else.
    Normal,
}

/// Moves thread `tid` of this process (0: the caller) to `class`.
pub fn set_class(tid: i32, class: Class) -> io::Result<()> {
    let policy = match class {
        Class::Idle => libc::SCHED_IDLE,
        Class::Normal => libc::SCHED_OTHER,
    };
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is to a live, initialised sched_param; the call keeps no reference.
    let result = unsafe { libc::sched_setscheduler(tid, policy, &parameter) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The calling thread's id.
pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Blocks SIGINT and SIGTERM in this thread and those that it starts; the descriptor becomes
/// readable when one comes.
pub fn block_signals() -> io::Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is live and writable; sigemptyset initialises it before it is used.
    let fd = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        if libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: signalfd has just returned this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
