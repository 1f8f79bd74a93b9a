//! The calls that install signal handlers.
//!
//! A section is a part of this library (`libtidelane.so`) that no handler of the program may
//! interrupt ([`section_unsafe`]). The library therefore installs its own handler in place of the
//! program's handler, except in the cases in `can_intercept`. If a signal arrives within a section,
//! the library's handler defers the signal to the end of the section. Otherwise the library's
//! handler calls the program's handler.

use std::{
    ffi::{c_int, c_void},
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use libc::{sighandler_t, siginfo_t};
use tidelane_sockets::{process, sys::section_unsafe};

use crate::{libc_abi_unsafe::fail_with_errno, next_symbol_unsafe::next_symbol};

/// One more than the highest signal number.
const SIGNALS: usize = 65;

/// The program's handler of one signal, which the library's handler calls.
struct ProgramHandler {
    /// Address of the handler that the library has most recently replaced by its own, or 0 if the
    /// library has replaced none.
    handler: AtomicUsize,
    /// True if the handler was installed with SA_SIGINFO.
    with_info: AtomicBool,
}

/// The program's handlers, by signal number.
static PROGRAM: [ProgramHandler; SIGNALS] = [const {
    ProgramHandler {
        handler: AtomicUsize::new(0),
        with_info: AtomicBool::new(false),
    }
}; SIGNALS];

/// The signals for which the program has chosen by `siginterrupt` that an interrupted system call
/// fails with EINTR: bit `signal - 1` for each signal. A handler that `signal` installs for one of
/// these signals gets no SA_RESTART.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    /// libc's `sigaction`, under a name that this library does not interpose.
    fn __sigaction(signal: c_int, act: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

/// Handles a signal in place of the program's handler: defers the signal if it has interrupted a
/// section, and otherwise calls the program's handler.
unsafe extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passed the arguments.
    if unsafe { section_unsafe::defer_signal(signal, info, context) } {
        return;
    }
    let handler = PROGRAM[signal as usize].handler.load(Ordering::Acquire);
    // SAFETY: the program installed this function as the handler of the signal. A handler without
    // SA_SIGINFO ignores the additional arguments.
    unsafe {
        let handler: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
            std::mem::transmute(handler);
        handler(signal, info, context);
    }
}

/// Returns the address of the library's handler.
fn on_signal_address() -> sighandler_t {
    let on_signal: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_signal;
    on_signal as sighandler_t
}

/// Returns true if the library may install its own handler in place of the handler in `act`.
fn can_intercept(signal: c_int, act: &libc::sigaction) -> bool {
    let is_handler = !matches!(act.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    // The kernel removes a one-shot handler (SA_RESETHAND) at the first delivery, so the second
    // delivery of a deferred signal would not reach the handler.
    let stays = act.sa_flags & libc::SA_RESETHAND == 0;
    // A section cannot defer a signal that an instruction raises, such as SIGSEGV.
    let waits = !section_unsafe::OF_INSTRUCTIONS.contains(&signal);
    // A child between `vfork` and `exec` (where `owns_tables` returns false) shares the memory of
    // the parent, and must not change the parent's `PROGRAM`.
    is_handler
        && stays
        && waits
        && (1..SIGNALS as c_int).contains(&signal)
        && process::owns_tables()
}

/// If the kernel has stored the library's handler in `old`, replaces this handler by the program's
/// previous handler. `before` has the address of the previous handler and a flag, which is true if
/// the program installed the previous handler with SA_SIGINFO.
unsafe fn report_program_handler(old: *mut libc::sigaction, before: (sighandler_t, bool)) {
    // SAFETY: the caller guarantees that `old` is valid or null.
    if let Some(old) = unsafe { old.as_mut() }
        && old.sa_sigaction == on_signal_address()
    {
        old.sa_sigaction = before.0;
        if !before.1 {
            old.sa_flags &= !libc::SA_SIGINFO;
        }
    }
}

/// Interposes libc's `sigaction(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    act: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let known = usize::try_from(signal).ok().and_then(|at| PROGRAM.get(at));
    let Some(program) = known else {
        return fail_with_errno(libc::EINVAL) as c_int;
    };
    let before = (
        program.handler.load(Ordering::Acquire),
        program.with_info.load(Ordering::Acquire),
    );
    // SAFETY: the caller upholds the safety contract.
    let wanted = unsafe { act.as_ref() }.copied();
    let result = match wanted {
        Some(wanted) if can_intercept(signal, &wanted) => {
            let with_info = wanted.sa_flags & libc::SA_SIGINFO != 0;
            program
                .handler
                .store(wanted.sa_sigaction, Ordering::Release);
            program.with_info.store(with_info, Ordering::Release);
            let mut ours = wanted;
            ours.sa_sigaction = on_signal_address();
            ours.sa_flags |= libc::SA_SIGINFO;
            // SAFETY: the caller upholds the safety contract, and `ours` is a valid structure.
            let result = unsafe { __sigaction(signal, &ours, old) };
            if result != 0 {
                program.handler.store(before.0, Ordering::Release);
                program.with_info.store(before.1, Ordering::Release);
            }
            result
        }
        // SAFETY: the caller upholds the safety contract.
        _ => unsafe { __sigaction(signal, act, old) },
    };
    if result == 0 {
        // SAFETY: the caller upholds the safety contract.
        unsafe { report_program_handler(old, before) };
    }
    result
}

/// Returns the bit of a signal in `INTERRUPTING`, or 0 for an invalid number.
fn interrupting_bit(signal: c_int) -> u64 {
    let shift = u32::try_from(signal)
        .ok()
        .and_then(|number| number.checked_sub(1));
    shift
        .and_then(|shift| 1_u64.checked_shl(shift))
        .unwrap_or(0)
}

/// Interposes libc's `siginterrupt(3)`, which also affects later calls of `signal`.
///
/// # Safety
///
/// None: the call takes no pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
    let Some(function) = next_symbol(c"siginterrupt") else {
        return fail_with_errno(libc::ENOSYS) as c_int;
    };
    // SAFETY: libc's function of this name has this type.
    let result = unsafe {
        let function: unsafe extern "C" fn(c_int, c_int) -> c_int = std::mem::transmute(function);
        function(number, interrupts)
    };
    if result == 0 {
        let bit = interrupting_bit(number);
        if interrupts != 0 {
            INTERRUPTING.fetch_or(bit, Ordering::Relaxed);
        } else {
            INTERRUPTING.fetch_and(!bit, Ordering::Relaxed);
        }
    }
    result
}

/// Interposes libc's `signal(2)` with glibc's semantics. After a signal, the handler stays
/// installed. Interrupted system calls are restarted, unless the program has chosen otherwise by
/// `siginterrupt`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    if handler == libc::SIG_ERR {
        fail_with_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: all-zero bytes are valid for both structures, and the pointer to the set is valid.
    unsafe {
        let mut act: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        act.sa_sigaction = handler;
        if INTERRUPTING.load(Ordering::Relaxed) & interrupting_bit(number) == 0 {
            act.sa_flags = libc::SA_RESTART;
        }
        libc::sigemptyset(&mut act.sa_mask);
        if libc::sigaddset(&mut act.sa_mask, number) != 0 || sigaction(number, &act, &mut old) != 0
        {
            return libc::SIG_ERR;
        }
        old.sa_sigaction
    }
}
