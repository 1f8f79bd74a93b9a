//! Calls that may pass connections to another program: `exec`, and messages with descriptors
//! (SCM_RIGHTS). An accelerated connection is a TCP connection that the service (the process
//! `tidelaned`) carries. An accelerated connection cannot be passed on, so this library
//! (`libtidelane.so`) reports the attempt on standard error. With the environment variable
//! TIDELANE_STRICT, the call also fails.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    os::fd::RawFd,
};

use libc::{mmsghdr, msghdr};
use tidelane_sockets::{Errno, descriptors, hand_over, programs, sys};

use crate::{
    libc_abi_unsafe::{fail_with_errno, system_call},
    next_symbol_unsafe::next_symbol,
};

/// Type of `execv` and `execvp`.
type Exec = unsafe extern "C" fn(*const c_char, *const *const c_char) -> c_int;
/// Type of `execve` and `execvpe`.
type ExecWithEnvironment =
    unsafe extern "C" fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int;

unsafe extern "C" {
    /// The program's environment: libc's array of C strings, which a null pointer ends.
    static environ: *const *const c_char;
}

/// Makes the dynamic linker call `loaded` when it loads the library.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// Prepares the reports about programs that the library cannot serve, such as static binaries: maps
/// the memory in which this process and its forked children note the programs already reported.
extern "C" fn loaded() {
    programs::prepare();
}

/// Checks the program `file` before libc's function `name` executes or spawns this program. Reports
/// an accelerated connection that the call would pass on as standard input, output or error. With
/// TIDELANE_STRICT, returns the error with which the call must then fail. Otherwise also reports
/// the program `file` if the library cannot serve the program.
///
/// # Safety
///
/// `file` must be a C string, or null.
unsafe fn check(name: &CStr, file: *const c_char) -> Result<(), Errno> {
    hand_over::check_exec()?;
    if is_readable(file) {
        let searches = name.to_bytes().ends_with(b"p") || name == c"execvpe";
        // SAFETY: the caller upholds the safety contract.
        let file = unsafe { CStr::from_ptr(file) };
        programs::report_if_not_served(file, searches.then(search_path));
    }
    Ok(())
}

/// Returns the address of libc's function `name` if [`check`] succeeds for the program `file`.
///
/// # Safety
///
/// The same as for `check`.
pub(crate) unsafe fn checked_symbol(
    name: &CStr,
    file: *const c_char,
) -> Result<*mut c_void, Errno> {
    // SAFETY: the caller upholds the safety contract.
    unsafe { check(name, file) }?;
    next_symbol(name).ok_or(Errno(libc::ENOSYS))
}

/// Returns true if the memory of the path is readable. Otherwise `exec` fails with EFAULT.
fn is_readable(path: *const c_char) -> bool {
    let args = [libc::AT_FDCWD as usize, path as usize, 0, 0, 0, 0];
    // SAFETY: the kernel checks the pointer.
    let result = unsafe { sys::call(libc::SYS_faccessat, args) };
    result != Err(Errno(libc::EFAULT))
}

/// Returns the value of PATH, or libc's default path if PATH is not set. Does not use `std::env`,
/// which takes a lock that the child of a `vfork` must not take.
fn search_path() -> &'static [u8] {
    // SAFETY: libc's array ends with null. As in C, the program must not change the array during
    // this call.
    unsafe {
        let mut at = environ;
        while let Some(entry) = at.as_ref().and_then(|entry| entry.as_ref()) {
            let entry = CStr::from_ptr(entry).to_bytes();
            if let Some(value) = entry.strip_prefix(b"PATH=") {
                return value;
            }
            at = at.add(1);
        }
    }
    // libc's default path (confstr _CS_PATH).
    b"/bin:/usr/bin"
}

/// Calls libc's function `name` to execute a program.
///
/// # Safety
///
/// `name` must name a libc function of the type [`Exec`], and the arguments must be valid for this
/// function.
unsafe fn exec(name: &CStr, file: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    let function = match unsafe { checked_symbol(name, file) } {
        Ok(function) => function,
        Err(error) => return fail_with_errno(error.0) as c_int,
    };
    // SAFETY: the caller upholds the safety contract.
    let function = unsafe { std::mem::transmute::<*mut c_void, Exec>(function) };
    // SAFETY: the caller upholds the safety contract.
    unsafe { function(file, argv) }
}

/// Calls libc's function `name` to execute a program with an environment.
///
/// # Safety
///
/// `name` must name a libc function of the type [`ExecWithEnvironment`], and the arguments must be
/// valid for this function.
unsafe fn exec_with(
    name: &CStr,
    file: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    let function = match unsafe { checked_symbol(name, file) } {
        Ok(function) => function,
        Err(error) => return fail_with_errno(error.0) as c_int,
    };
    // SAFETY: the caller upholds the safety contract.
    let function = unsafe { std::mem::transmute::<*mut c_void, ExecWithEnvironment>(function) };
    // SAFETY: the caller upholds the safety contract.
    unsafe { function(file, argv, envp) }
}

/// Interposes libc's `execv(3)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe { exec(c"execv", path, argv) }
}

/// Interposes libc's `execvp(3)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe { exec(c"execvp", file, argv) }
}

/// Interposes libc's `execve(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe { exec_with(c"execve", path, argv, envp) }
}

/// Interposes libc's `execvpe(3)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(
    file: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe { exec_with(c"execvpe", file, argv, envp) }
}

/// Does the work of [`checked_symbol`] for the assembly code of `with_list`. Returns null with
/// `errno` set if the call must fail.
extern "C" fn before_exec(name: *const c_char, file: *const c_char) -> *mut c_void {
    // SAFETY: `with_list` passes a C string.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: the program passes a C string, or null.
    unsafe { checked_symbol(name, file) }.unwrap_or_else(|error| {
        fail_with_errno(error.0);
        std::ptr::null_mut()
    })
}

/// Exports a variadic function of the `exec` family. Rust cannot pass variadic arguments on, so the
/// function is assembly code: it calls `before_exec`, and then jumps to libc's function with the
/// program's arguments in the same registers.
#[cfg(target_arch = "x86_64")]
macro_rules! with_list {
    ($name:ident, $c_name:literal) => {
        #[doc = concat!("Interposes libc's `", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        ///
        /// The arguments must be valid as in C.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> c_int {
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "mov rsi, rdi",
                "lea rdi, [rip + 3f]",
                "call {before}",
                "mov r11, rax",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "test r11, r11",
                "jz 2f",
                "jmp r11",
                "2:",
                "mov eax, -1",
                "ret",
                concat!("3: .asciz \"", $c_name, "\""),
                before = sym before_exec,
            )
        }
    };
}

#[cfg(target_arch = "x86_64")]
with_list!(execl, "execl");
#[cfg(target_arch = "x86_64")]
with_list!(execlp, "execlp");
#[cfg(target_arch = "x86_64")]
with_list!(execle, "execle");

/// Interposes libc's `fexecve(3)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(
    fd: c_int,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe { execveat(fd, c"".as_ptr(), argv, envp, libc::AT_EMPTY_PATH) }
}

/// Interposes libc's `execveat(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    flags: c_int,
) -> c_int {
    let (directory, flags) = (directory as usize, flags as usize);
    let args = [
        directory,
        path as usize,
        argv as usize,
        envp as usize,
        flags,
        0,
    ];
    // SAFETY: the caller upholds the safety contract.
    unsafe { exec_by_number(libc::SYS_execveat, args) as c_int }
}

/// Makes the system call `execve` or `execveat` after [`check`].
///
/// # Safety
///
/// The arguments must be valid for the system call.
pub(crate) unsafe fn exec_by_number(number: i64, args: [usize; 6]) -> isize {
    // The path of `execveat` may be relative to a descriptor, so `check` cannot inspect the file
    // and gets a null pointer.
    let file = if number == libc::SYS_execve {
        args[0]
    } else {
        0
    };
    // SAFETY: the caller upholds the safety contract.
    match unsafe { check(c"execve", file as *const c_char) } {
        // SAFETY: the caller upholds the safety contract.
        Ok(()) => unsafe { system_call(number, args) },
        Err(error) => fail_with_errno(error.0),
    }
}

/// Checks the descriptors that a message passes to another process (SCM_RIGHTS), and reports
/// connections that cannot be passed on. Returns an error if the message must not be sent.
///
/// # Safety
///
/// `msg` must be valid as for `sendmsg`, or null.
pub unsafe fn check_rights(msg: *const msghdr) -> Result<(), Errno> {
    // SAFETY: the caller upholds the safety contract.
    let Some(message) = (unsafe { msg.as_ref() }) else {
        return Ok(());
    };
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return Ok(());
    }
    // SAFETY: the caller guarantees that the control data has the form that the macros expect.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(msg) };
    // SAFETY: as above. The pointer is null at the end.
    while let Some(part) = unsafe { header.as_ref() } {
        if (part.cmsg_level, part.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: as above.
            let (first, empty) = unsafe { (libc::CMSG_DATA(header), libc::CMSG_LEN(0)) };
            let count = part.cmsg_len.saturating_sub(empty as usize) / size_of::<RawFd>();
            // SAFETY: as above. The descriptors need not be aligned.
            let fd = |at| unsafe { first.cast::<RawFd>().add(at).read_unaligned() };
            hand_over::check_rights((0..count).map(fd))?;
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(msg, header) };
    }
    Ok(())
}

/// Does the check of [`check_rights`] for all messages of a `sendmmsg` to `fd`. Checks nothing if
/// `fd` is a tracked socket (a TCP socket that this library may accelerate), because a TCP socket
/// passes no descriptors on.
///
/// # Safety
///
/// `messages` must be valid for `count` elements, or null.
pub unsafe fn check_all_rights(
    fd: c_int,
    messages: *const mmsghdr,
    count: usize,
) -> Result<(), Errno> {
    if messages.is_null() || descriptors::socket(fd).is_some() {
        return Ok(());
    }
    // SAFETY: the caller upholds the safety contract.
    (0..count).try_for_each(|at| unsafe { check_rights(&raw const (*messages.add(at)).msg_hdr) })
}
