//! Calls that create a child process without running the `pthread_atfork` handlers: `_Fork`,
//! `clone`, and the system calls `fork`, `vfork`, `clone` and `clone3` through `syscall(2)`.
//!
//! The fork handlers of this library (`libtidelane.so`) let parent and child share the connections
//! (`tidelane_sockets::process`). In the calls above, this module runs these handlers itself if the
//! child gets a copy of the parent's memory (no CLONE_VM). For a `clone` or `clone3` through
//! `syscall(2)`, the handlers run only if the call also has no new stack. A `vfork` through
//! `syscall(2)` becomes a `fork`.

use std::ffi::{c_int, c_long, c_void};

use tidelane_sockets::process;

use crate::{
    libc_abi_unsafe::{fail_with_errno, system_call},
    next_symbol_unsafe::next_symbol,
};

/// Runs the library's fork handlers before and after the function `fork`. In the child, `fork`
/// returns zero. In the parent, `fork` returns the child's process id, or a negative number on
/// failure.
fn with_fork_handlers<R: Into<i64> + Copy>(fork: impl FnOnce() -> R) -> R {
    let prepared = process::before_fork();
    let pid = fork();
    if prepared {
        process::after_fork(pid.into() == 0);
    }
    pid
}

/// Interposes libc's `_Fork(3)`.
///
/// # Safety
///
/// The child may call only async-signal-safe functions.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> c_int {
    let Some(function) = next_symbol(c"_Fork") else {
        return fail_with_errno(libc::ENOSYS) as c_int;
    };
    // SAFETY: libc declares the function of this name with this type.
    let function: unsafe extern "C" fn() -> c_int = unsafe { std::mem::transmute(function) };
    // SAFETY: the caller upholds the safety contract.
    with_fork_handlers(|| unsafe { function() })
}

/// Type of the function that the child of `clone` runs.
type ChildFunction = unsafe extern "C" fn(*mut c_void) -> c_int;
/// Type of libc's `clone` function.
type CloneFunction = unsafe extern "C" fn(
    Option<ChildFunction>,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// The argument of [`child_entry`]: the function that the child of `clone` runs for the program,
/// and the function's argument.
struct Child {
    run: ChildFunction,
    argument: *mut c_void,
    /// Result of `before_fork`: true if `after_fork` must be called.
    prepared: bool,
}

/// Runs in the child of `clone`: completes the fork (`after_fork`) if the parent has prepared the
/// fork, and then calls the program's function.
unsafe extern "C" fn child_entry(child: *mut c_void) -> c_int {
    // SAFETY: `clone` passed a pointer to a `Child`, of which this process has its own copy.
    let child = unsafe { &*child.cast::<Child>() };
    if child.prepared {
        process::after_fork(true);
    }
    // SAFETY: the caller of `clone` upholds the safety contract.
    let status = unsafe { (child.run)(child.argument) };
    // Do not return: libc's `clone` would end the child by a direct system call, without the
    // library's `_exit`.
    // SAFETY: the call takes no pointers.
    unsafe { crate::exit_unsafe::_exit(status) }
}

/// Interposes libc's `clone(2)`, with all optional arguments.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    run: Option<ChildFunction>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_void,
    tls: *mut c_void,
    child_tid: *mut c_void,
) -> c_int {
    let Some(function) = next_symbol(c"clone") else {
        return fail_with_errno(libc::ENOSYS) as c_int;
    };
    // SAFETY: libc declares the function of this name with this type.
    let function: CloneFunction = unsafe { std::mem::transmute(function) };
    let Some(run) = run.filter(|_| flags & libc::CLONE_VM == 0) else {
        // SAFETY: the caller upholds the safety contract.
        return unsafe { function(run, stack, flags, argument, parent_tid, tls, child_tid) };
    };
    let child = Child {
        run,
        argument,
        prepared: process::before_fork(),
    };
    let entry: Option<ChildFunction> = Some(child_entry);
    let pointer = (&raw const child).cast_mut().cast();
    // SAFETY: the caller upholds the safety contract. The child reads its own copy of `child`.
    let pid = unsafe { function(entry, stack, flags, pointer, parent_tid, tls, child_tid) };
    if child.prepared {
        process::after_fork(false);
    }
    pid
}

/// Makes the system call `number`, which creates a child process with a copy of the parent's memory
/// and stack. Runs the library's fork handlers before and after the system call.
///
/// # Safety
///
/// The arguments must be valid for the system call.
pub(crate) unsafe fn fork_by_number(number: c_long, args: [usize; 6]) -> c_long {
    // SAFETY: the caller upholds the safety contract.
    with_fork_handlers(|| unsafe { system_call(number, args) } as i64) as c_long
}

/// Returns true if the child of a system call `clone` with these arguments gets a copy of the
/// parent's memory and stack, because the call has neither CLONE_VM nor a new stack.
pub(crate) fn clone_copies_memory(args: [usize; 6]) -> bool {
    args[1] == 0 && args[0] & libc::CLONE_VM as usize == 0
}

/// Returns true if the child of a system call `clone3` with these arguments gets a copy of the
/// parent's memory and stack, because the call has neither CLONE_VM nor a new stack. Returns false
/// if the pointer to `struct clone_args` is null, or if the structure is too short for the field
/// `stack`.
///
/// # Safety
///
/// The arguments must be valid for the system call.
pub(crate) unsafe fn clone3_copies_memory(args: [usize; 6]) -> bool {
    /// Index of the field `stack` in `struct clone_args`, in 64-bit words.
    const STACK: usize = 5;
    let words = args[0] as *const u64;
    if words.is_null() || args[1] < (STACK + 1) * size_of::<u64>() {
        return false;
    }
    // SAFETY: the caller guarantees that the structure has the length that was checked above.
    let (flags, stack) = unsafe { (words.read_unaligned(), words.add(STACK).read_unaligned()) };
    stack == 0 && flags & libc::CLONE_VM as u64 == 0
}
