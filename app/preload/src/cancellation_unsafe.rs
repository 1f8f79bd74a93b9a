//! `pthread_cancel`, and the cancellation points among the functions that this library
//! (`libtidelane.so`) exports in place of libc's.
//!
//! Each exported function that is a cancellation point begins with [`cancellation_point`]. If a
//! cancellation request ends a blocked call, the crate `tidelane_sockets` returns the error
//! `CANCELLED`, and `fail_with_errno` of `libc_abi_unsafe` calls [`exit_cancelled_thread`]. libc
//! then unwinds the thread. The exported functions are `extern "C-unwind"`, so that libc can unwind
//! their stack frames. These frames own no resources when the unwinding begins.

use std::{
    ffi::{c_int, c_void},
    sync::atomic::{AtomicUsize, Ordering},
};

use libc::{pthread_t, siginfo_t};
use tidelane_sockets::sys::{
    self,
    cancellation_unsafe::{self as cancellation, SIGCANCEL},
};

use crate::next_symbol_unsafe::next_symbol;

unsafe extern "C-unwind" {
    /// Ends the thread if a cancellation is pending and enabled.
    fn pthread_testcancel();
}

/// Type of a signal handler with SA_SIGINFO.
type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// Address of libc's handler of SIGCANCEL, the signal of `pthread_cancel`, or 0 while the address
/// is unknown.
static LIBC_HANDLER: AtomicUsize = AtomicUsize::new(0);

/// Ends the calling thread if its cancellation is pending and enabled.
#[inline]
pub fn cancellation_point() {
    if cancellation::is_due() {
        exit_cancelled_thread();
    }
}

/// Ends the calling thread, whose cancellation is pending and enabled.
#[cold]
#[inline(never)]
pub fn exit_cancelled_thread() {
    // SAFETY: the stack frames from here up to the exported function have no destructors to run.
    // The exported function is `extern "C-unwind"`.
    unsafe { pthread_testcancel() }
}

/// Handles SIGCANCEL in place of libc's handler. Calls libc's handler, which may end the thread,
/// only if the thread may end at the interrupted instruction.
unsafe extern "C-unwind" fn on_sigcancel(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the kernel passed the context.
    if !unsafe { cancellation::on_sigcancel(context) } {
        return;
    }
    let handler = LIBC_HANDLER.load(Ordering::Acquire);
    // SAFETY: libc installed this handler for the signal, with SA_SIGINFO.
    unsafe {
        let handler: Handler = std::mem::transmute(handler);
        handler(signal, info, context);
    }
}

/// The kernel's `struct sigaction`.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: sys::SignalMask,
}

/// Installs the library's handler of SIGCANCEL in place of libc's handler. From then on, the
/// library's handler decides whether libc's handler runs. Does nothing if libc has not installed
/// its handler yet, or if the library's handler is already installed.
///
/// The library's handler has SA_RESTART. Without this flag, calls of a thread that has disabled
/// cancellation would fail with EINTR, and `handlers_restart` of `tidelane_sockets` (which tests
/// all handlers of the process for SA_RESTART) would always return false. If the kernel will
/// restart the interrupted system call, the kernel moves the thread back to the system call
/// instruction before the handler runs. The thread is then within `cancellable` (the code of
/// `tidelane_sockets` that makes the system call), where the handler can end the call.
fn install_in_front_of_libc() {
    let mut action = KernelAction {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    let change = |new: *const KernelAction, old: *mut KernelAction| {
        let args = [
            SIGCANCEL as usize,
            new as usize,
            old as usize,
            size_of::<sys::SignalMask>(),
            0,
            0,
        ];
        // SAFETY: the pointers are null or refer to live structures.
        unsafe { sys::call(libc::SYS_rt_sigaction, args) }
    };
    let ours: Handler = on_sigcancel;
    if change(std::ptr::null(), &mut action).is_err()
        || matches!(action.handler, libc::SIG_DFL | libc::SIG_IGN)
        || action.handler == ours as usize
    {
        return;
    }
    LIBC_HANDLER.store(action.handler, Ordering::Release);
    action.handler = ours as usize;
    action.flags |= libc::SA_RESTART as usize;
    let _ = change(&action, std::ptr::null_mut());
}

/// Returns the kernel's id of a living thread, or `None` if glibc returns an error. glibc encodes
/// the thread's id in the id of the thread's CPU clock.
fn thread_id(thread: pthread_t) -> Option<usize> {
    let mut clock = 0;
    // SAFETY: the caller passes a living thread, and `clock` is a valid variable.
    let result = unsafe { libc::pthread_getcpuclockid(thread, &mut clock) };
    // A clock id contains the complement of the thread id, shifted left by three bits (Linux'
    // CPUCLOCK_PID).
    (result == 0).then_some(!(clock >> 3) as u32 as usize)
}

/// Interposes libc's `pthread_cancel(3)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_cancel(thread: pthread_t) -> c_int {
    let Some(function) = next_symbol(c"pthread_cancel") else {
        return libc::ENOSYS;
    };
    // SAFETY: libc's function has this type.
    let function = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(pthread_t) -> c_int>(
            function,
        )
    };
    // SAFETY: the caller upholds the safety contract.
    let result = unsafe { function(thread) };
    if result == 0 {
        install_in_front_of_libc();
        // SAFETY: the caller guarantees that the thread has not been joined.
        unsafe { cancellation::request(thread) };
        interrupt(thread);
    }
    result
}

/// Sends SIGCANCEL to the thread. If the thread waits in a system call, the signal interrupts this
/// call.
fn interrupt(thread: pthread_t) {
    if let Some(id) = thread_id(thread) {
        let args = [std::process::id() as usize, id, SIGCANCEL as usize, 0, 0, 0];
        // SAFETY: the call takes no pointers.
        let _ = unsafe { sys::call(libc::SYS_tgkill, args) };
    }
}
