//! Cancellation points (`pthread_cancel`, POSIX.1-2024 XSH 2.9.5).
//!
//! `pthread_cancel` ends a thread at its next cancellation point, or in the cancellation point
//! where the thread waits. libc's own calls detect the cancellation request while they wait. This
//! crate makes its system calls without libc, so it has to detect the request itself. Each thread
//! has a cancellation word, in which this crate records the request:
//!
//! ```text
//! pthread_cancel -> libc records the request -> REQUESTED in the thread's word -> SIGCANCEL
//! thread:  a call begins, or its system call waits -> finds the request -> CANCELLED
//!          -> the exported function (the library's substitute for the libc function that the
//!             program called) holds no lock at this point, and calls pthread_testcancel
//! ```
//!
//! A request may arrive between the check of the word and the wait. Therefore the check and the
//! system call are a code sequence of their own (`cancellable`). If SIGCANCEL interrupts a thread
//! in this sequence before the system call is complete, `on_sigcancel` moves the thread to the end
//! of the sequence. The result of a completed call is never lost.
//!
//! On architectures other than x86-64, the word stays zero, and only libc handles cancellation.

use std::{
    ffi::c_int,
    sync::atomic::{AtomicU32, Ordering},
};

use super::{Errno, section_unsafe};

/// The result of a call that a cancellation request ended. No system call returns this error.
pub const CANCELLED: Errno = Errno(4095);

/// libc's signal for cancellation.
pub const SIGCANCEL: c_int = 32;

/// Value of the thread's cancellation word if no cancellation of the thread was requested.
const NONE: u32 = 0;
/// Value of the word after the cancellation of the thread was requested.
const REQUESTED: u32 = 1;
/// Value of the word after SIGCANCEL has arrived at a thread that has a request but has disabled
/// cancellation. If the signal has interrupted a system call that the kernel does not restart, such
/// as `epoll_wait`, the thread has to repeat the call.
const INTERRUPTED_WHILE_DISABLED: u32 = 2;

unsafe extern "C" {
    /// Enables (0) or disables (1) cancellation of the calling thread. The function is no
    /// cancellation point.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The state in which libc does not cancel the thread.
const DISABLED: c_int = 1;

/// Disables cancellation of the calling thread. Returns the previous state.
fn disable() -> c_int {
    let mut before = DISABLED;
    // SAFETY: `before` is live. libc's function changes a word of the thread, which a handler may
    // do as well.
    unsafe { pthread_setcancelstate(DISABLED, &mut before) };
    before
}

/// Restores the state that `disable` has returned.
fn restore(before: c_int) {
    if before != DISABLED {
        // SAFETY: libc allows a null pointer for the old state, and see `disable`.
        unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    }
}

/// Returns true if the calling thread has cancellation enabled.
fn is_enabled() -> bool {
    let before = disable();
    restore(before);
    before != DISABLED
}

/// Runs `call` with cancellation disabled. The library's substitutes for libc functions that are no
/// cancellation points use this function, so that a cancellation request ends neither the call nor
/// the thread.
pub fn without_cancellation<R>(call: impl FnOnce() -> R) -> R {
    let before = disable();
    let result = call();
    restore(before);
    result
}

/// Returns true if cancellation of the calling thread was requested and is enabled.
#[inline]
pub fn is_due() -> bool {
    section_unsafe::cancellation().load(Ordering::Relaxed) != NONE && is_enabled()
}

/// Makes a system call that is a cancellation point. Returns [`CANCELLED`] if the thread has to be
/// cancelled and the call has had no effect.
///
/// # Safety
///
/// The requirements of the system call hold, for example the requirements on its pointers.
#[inline]
pub unsafe fn call(number: i64, args: [usize; 6]) -> Result<usize, Errno> {
    let word = section_unsafe::cancellation();
    if word.load(Ordering::Relaxed) != NONE {
        // SAFETY: the caller guarantees the requirements of this function.
        return unsafe { call_after_request(word, number, args) };
    }
    // SAFETY: the caller guarantees the requirements of this function.
    match unsafe { cancellable(word, number, args) } {
        Err(Errno(libc::EINTR)) if word.load(Ordering::Relaxed) != NONE => {
            // SAFETY: the caller guarantees the requirements of this function.
            unsafe { call_after_request(word, number, args) }
        }
        result => result,
    }
}

/// Makes a system call of a thread with a cancellation request. If cancellation is enabled, returns
/// [`CANCELLED`] without making the call. If SIGCANCEL has arrived and the call fails with EINTR,
/// repeats the call.
///
/// # Safety
///
/// The requirements of the system call hold, for example the requirements on its pointers.
#[cold]
unsafe fn call_after_request(
    word: &AtomicU32,
    number: i64,
    args: [usize; 6],
) -> Result<usize, Errno> {
    if is_enabled() {
        return Err(CANCELLED);
    }
    loop {
        // SAFETY: the caller guarantees the requirements of this function.
        let result = unsafe { super::call(number, args) };
        let interrupted = word.swap(REQUESTED, Ordering::Relaxed) == INTERRUPTED_WHILE_DISABLED;
        if !(interrupted && result == Err(Errno(libc::EINTR))) {
            return result;
        }
    }
}

// tidelane_cancellable(number, args, word) makes a system call as `raw` does. If the value at
// `word` is not 0, the function returns -4095 without making the call.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.tidelane_cancellable,\"ax\",@progbits",
    ".globl tidelane_cancellable, tidelane_cancellable_after_syscall",
    ".globl tidelane_cancellable_cancelled",
    ".hidden tidelane_cancellable, tidelane_cancellable_after_syscall",
    ".hidden tidelane_cancellable_cancelled",
    ".type tidelane_cancellable,@function",
    "tidelane_cancellable:",
    ".cfi_startproc",
    "movq %rdx, %r11",
    "movq %rdi, %rax",
    "movq %rsi, %rcx",
    "movq (%rcx), %rdi",
    "movq 8(%rcx), %rsi",
    "movq 16(%rcx), %rdx",
    "movq 24(%rcx), %r10",
    "movq 32(%rcx), %r8",
    "movq 40(%rcx), %r9",
    "cmpl $0, (%r11)",
    "jne tidelane_cancellable_cancelled",
    "syscall",
    "tidelane_cancellable_after_syscall:",
    "ret",
    "tidelane_cancellable_cancelled:",
    "movq $-4095, %rax",
    "ret",
    ".cfi_endproc",
    ".size tidelane_cancellable, . - tidelane_cancellable",
    ".popsection",
    options(att_syntax)
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn tidelane_cancellable(number: usize, args: *const usize, word: *const AtomicU32) -> isize;
    /// Label of the instruction after the system call.
    fn tidelane_cancellable_after_syscall();
    /// Label of the instructions that return -4095.
    fn tidelane_cancellable_cancelled();
}

/// Makes a system call if `word` is [`NONE`]. Otherwise, or if SIGCANCEL interrupts the call and
/// `on_sigcancel` ends it, returns [`CANCELLED`].
///
/// # Safety
///
/// The requirements of the system call hold, for example the requirements on its pointers.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn cancellable(
    word: &'static AtomicU32,
    number: i64,
    args: [usize; 6],
) -> Result<usize, Errno> {
    // SAFETY: the caller guarantees the requirements of the call; `args` and `word` are live.
    super::from_raw(unsafe { tidelane_cancellable(number as usize, args.as_ptr(), word) })
}

/// Makes a system call. Does not look at the cancellation word.
///
/// # Safety
///
/// The requirements of the system call hold, for example the requirements on its pointers.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn cancellable(_: &AtomicU32, number: i64, args: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller guarantees the requirements of this function.
    unsafe { super::call(number, args) }
}

/// Records a cancellation request for `thread`. The thread acts on the request at its next
/// cancellation point. The caller sends SIGCANCEL afterwards, in case the thread already waits.
///
/// On architectures other than x86-64, does nothing, because a thread has no access there to the
/// word of another thread. On these architectures, only libc's handler of SIGCANCEL acts on the
/// request.
///
/// # Safety
///
/// `thread` is a thread of this process that was not joined.
pub unsafe fn request(thread: libc::pthread_t) {
    // SAFETY: the caller guarantees a live thread. glibc's `pthread_t` is the thread pointer.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        section_unsafe::cancellation_of(thread as usize).store(REQUESTED, Ordering::SeqCst);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = thread;
}

/// Handles SIGCANCEL. Returns true if libc's handler, which may end the thread, may run.
///
/// Returns false in these cases:
///
/// * The signal interrupted a section (a part of the library that no signal handler of the program
///   interrupts).
/// * The thread has a request in its word, but has disabled cancellation.
/// * This function has moved the thread to the end of `cancellable`.
///
/// # Safety
///
/// The caller is a signal handler and passes the context from the kernel.
pub unsafe fn on_sigcancel(context: *mut libc::c_void) -> bool {
    let word = section_unsafe::cancellation();
    if word.load(Ordering::Relaxed) == NONE {
        return !section_unsafe::is_inside();
    }
    if !is_enabled() {
        word.store(INTERRUPTED_WHILE_DISABLED, Ordering::Relaxed);
        return false;
    }
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller guarantees the requirements of this function.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let at = &mut registers[libc::REG_RIP as usize];
        let start = tidelane_cancellable as *const () as i64;
        let end = tidelane_cancellable_after_syscall as *const () as i64;
        if (start..end).contains(at) {
            *at = tidelane_cancellable_cancelled as *const () as i64;
            return false;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = context;
    !section_unsafe::is_inside()
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_calls_without_effect() {
        let word = AtomicU32::new(NONE);
        let word: &'static AtomicU32 = Box::leak(Box::new(word));
        let mut ends = [0; 2];
        // SAFETY: `ends` is live.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let byte = 7u8;
        let write = || {
            let args = [ends[1] as usize, &raw const byte as usize, 1, 0, 0, 0];
            // SAFETY: the byte is live.
            unsafe { cancellable(word, libc::SYS_write, args) }
        };
        assert_eq!(write(), Ok(1));
        word.store(REQUESTED, Ordering::Relaxed);
        assert_eq!(write(), Err(CANCELLED));
        let mut waiting = 0;
        // SAFETY: `waiting` is live.
        unsafe { libc::ioctl(ends[0], libc::FIONREAD, &raw mut waiting) };
        assert_eq!(waiting, 1);
    }

    #[test]
    fn a_thread_has_its_own_request() {
        assert!(!is_due());
        let other = std::thread::spawn(|| {
            // SAFETY: the thread is alive.
            unsafe { request(libc::pthread_self()) };
            is_due()
        });
        assert!(other.join().expect("a thread"));
        assert!(!is_due());
    }
}
