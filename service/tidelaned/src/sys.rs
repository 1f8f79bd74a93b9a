//! The few system calls that no safe wrapper has: scheduling classes, signals.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// In the normal class the thread does what interrupts do for the kernel's stack: it must not wait
/// behind the programs that it serves. It sleeps when there is nothing to do.
const NICE: libc::c_int = -10;

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
    // SAFETY: no pointers. Means nothing in the idle class; a refusal leaves an equal share.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, tid as libc::id_t, NICE) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// An option of a TCP socket in the first bytes of `into`: so many.
pub fn tcp_option(fd: BorrowedFd<'_>, name: libc::c_int, into: &mut [u8]) -> io::Result<usize> {
    let mut len = into.len() as libc::socklen_t;
    let value = into.as_mut_ptr().cast();
    // SAFETY: `value` points to `len` writable bytes, and `len` is a live local.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, name, value, &raw mut len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((len as usize).min(into.len()))
}

/// The calling thread's id.
pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// What [`interrupt`] sends: by default it is ignored, so nothing depends on who is first.
const INTERRUPT: libc::c_int = libc::SIGURG;

extern "C" fn on_interrupt(_: libc::c_int) {}

/// Makes [`interrupt`] end a blocking system call with EINTR.
pub fn allow_interrupts() -> io::Result<()> {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a valid sigaction (no flags: calls are not restarted); the handler does
    // nothing, so it may run anywhere.
    let result = unsafe {
        (*action.as_mut_ptr()).sa_sigaction = on_interrupt as *const () as libc::sighandler_t;
        libc::sigaction(INTERRUPT, action.as_ptr(), std::ptr::null_mut())
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Interrupts the blocking system call, if any, of thread `tid` of this process.
pub fn interrupt(tid: i32) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: no pointers. The thread may be gone: then the call fails, which is as well.
    unsafe { libc::syscall(libc::SYS_tgkill, process, tid, INTERRUPT) };
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
