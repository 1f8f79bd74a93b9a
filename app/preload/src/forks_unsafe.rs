//! Children that are made without libc's fork handlers: `_Fork`, `clone`, and `fork`, `vfork`,
//! `clone` and `clone3` by number. If parent and child do not share their memory, this module does
//! the work of the fork handlers.

use std::ffi::{c_int, c_long, c_void};

use tidelane_sockets::process;

use crate::{
    answer_unsafe::{fail, kernel},
    hand_over_unsafe::next_symbol,
};

/// Makes a child with the fork handlers. `make` returns in both processes.
fn with_fork_handlers<R: Into<i64> + Copy>(make: impl FnOnce() -> R) -> R {
    let watches = process::before_fork();
    let made = make();
    if watches {
        process::after_fork(made.into() == 0);
    }
    made
}

/// `_Fork(3)`.
///
/// # Safety
///
/// As in C.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> c_int {
    let Some(function) = next_symbol(c"_Fork") else {
        return fail(libc::ENOSYS) as c_int;
    };
    // SAFETY: the function of this name has this type.
    let function: unsafe extern "C" fn() -> c_int = unsafe { std::mem::transmute(function) };
    // SAFETY: the caller's promise.
    with_fork_handlers(|| unsafe { function() })
}

type Run = unsafe extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(
    Option<Run>,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// The function that a child of `clone` runs, and its argument.
struct Child {
    run: Run,
    argument: *mut c_void,
    watches: bool,
}

/// Entry point of a child of `clone`.
unsafe extern "C" fn begin(child: *mut c_void) -> c_int {
    // SAFETY: `clone` below gave it, and this process has a copy of its own.
    let child = unsafe { &*child.cast::<Child>() };
    if child.watches {
        process::after_fork(true);
    }
    // SAFETY: the promise of the caller of `clone`.
    let status = unsafe { (child.run)(child.argument) };
    // The rest of libc's `clone` would end the child without the library's `_exit`.
    // SAFETY: no pointers.
    unsafe { crate::descriptors_unsafe::_exit(status) }
}

/// `clone(2)`, with all its optional arguments.
///
/// # Safety
///
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    run: Option<Run>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_void,
    tls: *mut c_void,
    child_tid: *mut c_void,
) -> c_int {
    let Some(function) = next_symbol(c"clone") else {
        return fail(libc::ENOSYS) as c_int;
    };
    // SAFETY: the function of this name has this type.
    let function: Clone = unsafe { std::mem::transmute(function) };
    let Some(run) = run.filter(|_| flags & libc::CLONE_VM == 0) else {
        // SAFETY: the caller's promise.
        return unsafe { function(run, stack, flags, argument, parent_tid, tls, child_tid) };
    };
    let child = Child {
        run,
        argument,
        watches: process::before_fork(),
    };
    let given = (&raw const child).cast_mut().cast();
    // SAFETY: the caller's promise. The child reads its copy of `child`.
    let made = unsafe { function(Some(begin), stack, flags, given, parent_tid, tls, child_tid) };
    if child.watches {
        process::after_fork(false);
    }
    made
}

/// Handles system calls by number that make children.
///
/// # Safety
///
/// As for the system call.
pub(crate) unsafe fn by_number(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let number = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => number,
        // The child of a `vfork` could not return from here, so it gets memory of its own.
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => libc::SYS_fork,
        libc::SYS_clone if args[1] == 0 && args[0] & libc::CLONE_VM as usize == 0 => number,
        // SAFETY: the caller's promise.
        libc::SYS_clone3 if unsafe { copies_memory(args) } => number,
        _ => return None,
    };
    // SAFETY: the caller's promise.
    Some(with_fork_handlers(|| unsafe { kernel(number, args) } as i64) as c_long)
}

/// Returns true if the child of a `clone3` returns from the call, in memory of its own.
///
/// # Safety
///
/// As for the system call.
unsafe fn copies_memory(args: [usize; 6]) -> bool {
    /// Index of the stack in `struct clone_args`, in words.
    const STACK: usize = 5;
    let words = args[0] as *const u64;
    if words.is_null() || args[1] < (STACK + 1) * size_of::<u64>() {
        return false;
    }
    // SAFETY: the caller's promise: the structure has the length that was just looked at.
    let (flags, stack) = unsafe { (words.read_unaligned(), words.add(STACK).read_unaligned()) };
    stack == 0 && flags & libc::CLONE_VM as u64 == 0
}
