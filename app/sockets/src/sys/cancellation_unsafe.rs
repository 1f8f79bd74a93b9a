//! Cancellation of threads (`pthread_cancel`, POSIX.1-2024 XSH 2.9.5).
//!
//! libc's own calls act on a request to cancel their thread while they wait. The calls of this
//! library make their system calls themselves, so they must notice the request themselves:
//!
//! ```text
//! pthread_cancel -> libc notes the request -> REQUESTED in the thread's word -> SIGCANCEL to it
//! thread:  a call begins, or its system call waits -> sees the word -> CANCELLED
//!          -> the exported function, which holds nothing then, calls pthread_testcancel
//! ```
//!
//! A request may arrive between the look at the word and the wait. The system call therefore has a
//! place of its own in the code (`cancellable`): the handler of SIGCANCEL moves a thread that is
//! there, and has not completed the call, to the end of that place. A completed call is never lost.

use std::{
    ffi::c_int,
    sync::atomic::{AtomicU32, Ordering},
};

use super::{Errno, section_unsafe};

/// The result of a call that the thread's cancellation ended. No system call has this error.
pub const CANCELLED: Errno = Errno(4095);

/// libc's signal for cancellation.
pub const SIGCANCEL: c_int = 32;

/// Nobody has asked for the thread's cancellation.
const NONE: u32 = 0;
/// Somebody has.
const REQUESTED: u32 = 1;
/// Somebody has, the thread has cancellation disabled, and a system call of it was interrupted for
/// that.
const REQUESTED_IN_VAIN: u32 = 2;

unsafe extern "C" {
    /// Not a cancellation point. The values are 0 for enabled and 1 for disabled.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Returns true if the calling thread has cancellation enabled.
fn is_enabled() -> bool {
    const DISABLED: c_int = 1;
    let mut before = DISABLED;
    // SAFETY: `before` is live. libc's function changes a word of the thread, which a handler may
    // do as well.
    unsafe {
        pthread_setcancelstate(DISABLED, &mut before);
        if before != DISABLED {
            pthread_setcancelstate(before, std::ptr::null_mut());
        }
    }
    before != DISABLED
}

/// Returns true if the calling thread is to be cancelled, and allows that.
#[inline]
pub fn is_due() -> bool {
    section_unsafe::cancellation().load(Ordering::Relaxed) != NONE && is_enabled()
}

/// A system call that is a cancellation point: [`CANCELLED`] if the thread is to be cancelled and
/// the call has had no effect.
///
/// # Safety
///
/// As for the system call.
#[inline]
pub unsafe fn call(number: i64, args: [usize; 6]) -> Result<usize, Errno> {
    let word = section_unsafe::cancellation();
    if word.load(Ordering::Relaxed) != NONE {
        // SAFETY: the caller's promise.
        return unsafe { call_after_request(word, number, args) };
    }
    // SAFETY: the caller's promise.
    match unsafe { cancellable(word, number, args) } {
        Err(Errno(libc::EINTR)) if word.load(Ordering::Relaxed) != NONE => {
            // SAFETY: the caller's promise.
            unsafe { call_after_request(word, number, args) }
        }
        result => result,
    }
}

/// As `call`, for a thread with a request.
///
/// # Safety
///
/// As for the system call.
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
        // SAFETY: the caller's promise.
        let result = unsafe { super::call(number, args) };
        let in_vain = word.swap(REQUESTED, Ordering::Relaxed) == REQUESTED_IN_VAIN;
        if !(in_vain && result == Err(Errno(libc::EINTR))) {
            return result;
        }
    }
}

// tidelane_cancellable(number, args, word): as `raw`, but -4095 while `word` is not 0.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.tidelane_cancellable,\"ax\",@progbits",
    ".globl tidelane_cancellable, tidelane_cancellable_end, tidelane_cancellable_ends",
    ".hidden tidelane_cancellable, tidelane_cancellable_end, tidelane_cancellable_ends",
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
    "jne tidelane_cancellable_ends",
    "syscall",
    "tidelane_cancellable_end:",
    "ret",
    "tidelane_cancellable_ends:",
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
    /// The instruction after the system call.
    fn tidelane_cancellable_end();
    /// Returns -4095.
    fn tidelane_cancellable_ends();
}

/// # Safety
///
/// As for the system call.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn cancellable(
    word: &'static AtomicU32,
    number: i64,
    args: [usize; 6],
) -> Result<usize, Errno> {
    // SAFETY: the caller's promise; `args` and `word` are live.
    let result = unsafe { tidelane_cancellable(number as usize, args.as_ptr(), word) };
    if (-4095..0).contains(&result) {
        Err(Errno(-result as i32))
    } else {
        Ok(result as usize)
    }
}

/// # Safety
///
/// As for the system call.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn cancellable(_: &AtomicU32, number: i64, args: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { super::call(number, args) }
}

/// Notes that the cancellation of `thread` is asked for: its next cancellation point acts. The
/// caller then sends it SIGCANCEL.
///
/// # Safety
///
/// `thread` is a thread of this process that nobody has joined.
pub unsafe fn request(thread: libc::pthread_t) {
    // SAFETY: the caller's promise. glibc's `pthread_t` is the thread pointer.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        section_unsafe::cancellation_of(thread as usize).store(REQUESTED, Ordering::SeqCst);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = thread;
}

/// SIGCANCEL has arrived. Returns true if libc's handler may run: no section was interrupted.
///
/// # Safety
///
/// To be called within a handler, with the context that the kernel gave it.
pub unsafe fn arrived(context: *mut libc::c_void) -> bool {
    let word = section_unsafe::cancellation();
    if word.load(Ordering::Relaxed) == NONE {
        return !section_unsafe::is_inside();
    }
    if !is_enabled() {
        word.store(REQUESTED_IN_VAIN, Ordering::Relaxed);
        return false;
    }
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller's promise.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let at = &mut registers[libc::REG_RIP as usize];
        let place =
            tidelane_cancellable as *const () as i64..tidelane_cancellable_end as *const () as i64;
        if place.contains(at) {
            *at = tidelane_cancellable_ends as *const () as i64;
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
