//! Formatted output to a descriptor: `vdprintf`, on x86-64 also `dprintf`, and their variants for
//! programs built with `_FORTIFY_SOURCE`.
//!
//! libc's functions make the system call within libc, where this library (`libtidelane.so`) cannot
//! interpose. On a tracked socket, which is a TCP socket that this library may accelerate, this
//! module lets libc format the text in memory, and then writes the text to the socket.

use std::{
    arch::naked_asm,
    ffi::{CStr, c_char, c_int, c_void},
    ptr::null_mut,
};

use tidelane_sockets::descriptors;

use crate::{
    cookie_stream_unsafe::write_all, libc_abi_unsafe::fail_with_errno,
    next_symbol_unsafe::next_symbol,
};

/// The address of a `va_list`. The calling conventions of x86-64 and aarch64 pass a `va_list` in
/// this form.
type VaList = *mut c_void;

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, args: VaList) -> c_int;
    fn __vasprintf_chk(
        text: *mut *mut c_char,
        flag: c_int,
        format: *const c_char,
        args: VaList,
    ) -> c_int;
}

/// Writes `text`, which libc has formatted, to `fd`, and frees `text`. `len` is the length of the
/// text in bytes, or negative if libc could not format the text. Returns `len` if all bytes were
/// written, and otherwise -1.
///
/// # Safety
///
/// `text` must be the text that `vasprintf` stored, and `len` its result.
unsafe fn write_text(fd: c_int, text: *mut c_char, len: c_int) -> c_int {
    let Ok(bytes) = usize::try_from(len) else {
        return -1;
    };
    // SAFETY: libc has allocated the text, which nothing else uses.
    unsafe {
        let written = write_all(fd as usize as *mut c_void, text, bytes);
        libc::free(text.cast());
        if written as usize == bytes { len } else { -1 }
    }
}

/// Returns libc's own definition of the function `name`. Sets `errno` if libc has no such function.
fn libc_function(name: &CStr) -> Option<*mut c_void> {
    let function = next_symbol(name);
    if function.is_none() {
        fail_with_errno(libc::ENOSYS);
    }
    function
}

/// Interposes libc's `vdprintf(3)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vdprintf(fd: c_int, format: *const c_char, args: VaList) -> c_int {
    if descriptors::socket(fd).is_some() {
        let mut text = null_mut();
        // SAFETY: the caller upholds the safety contract.
        return unsafe {
            let len = vasprintf(&raw mut text, format, args);
            write_text(fd, text, len)
        };
    }
    let Some(function) = libc_function(c"vdprintf") else {
        return -1;
    };
    // SAFETY: the function of this name has this type, and the caller upholds the safety contract.
    unsafe {
        let function: unsafe extern "C-unwind" fn(c_int, *const c_char, VaList) -> c_int =
            std::mem::transmute(function);
        function(fd, format, args)
    }
}

/// Interposes libc's `vdprintf(3)` in programs built with `_FORTIFY_SOURCE`. With a positive
/// `flag`, libc refuses `%n` in a format string in writable memory.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    args: VaList,
) -> c_int {
    if descriptors::socket(fd).is_some() {
        let mut text = null_mut();
        // SAFETY: the caller upholds the safety contract.
        return unsafe {
            let len = __vasprintf_chk(&raw mut text, flag, format, args);
            write_text(fd, text, len)
        };
    }
    let Some(function) = libc_function(c"__vdprintf_chk") else {
        return -1;
    };
    // SAFETY: the function of this name has this type, and the caller upholds the safety contract.
    unsafe {
        let function: unsafe extern "C-unwind" fn(c_int, c_int, *const c_char, VaList) -> c_int =
            std::mem::transmute(function);
        function(fd, flag, format, args)
    }
}

/// The body of a function with variable arguments. The body builds a `va_list` on the stack and
/// passes the `va_list` to `$callee` (System V ABI for x86-64, section 3.5.7). `$named` is the
/// number of named arguments. `$list` is the register in which `$callee` expects the pointer to the
/// `va_list`.
///
/// The stack frame has 216 bytes: the `va_list` at offset 0 (`gp_offset`, `fp_offset`,
/// `overflow_arg_area`, `reg_save_area`), and the register save area at offset 32, with room for
/// six general registers and eight vector registers.
#[cfg(target_arch = "x86_64")]
macro_rules! call_with_va_list {
    ($callee:path, $named:literal, $list:literal) => {
        naked_asm!(
            ".cfi_startproc",
            "sub rsp, 216",
            ".cfi_adjust_cfa_offset 216",
            "mov [rsp + 48], rdx",
            "mov [rsp + 56], rcx",
            "mov [rsp + 64], r8",
            "mov [rsp + 72], r9",
            // AL is zero if no argument is in a vector register.
            "test al, al",
            "je 2f",
            "movaps [rsp + 80], xmm0",
            "movaps [rsp + 96], xmm1",
            "movaps [rsp + 112], xmm2",
            "movaps [rsp + 128], xmm3",
            "movaps [rsp + 144], xmm4",
            "movaps [rsp + 160], xmm5",
            "movaps [rsp + 176], xmm6",
            "movaps [rsp + 192], xmm7",
            "2:",
            concat!("mov dword ptr [rsp], 8 * ", $named),
            "mov dword ptr [rsp + 4], 48",
            "lea rax, [rsp + 224]",
            "mov [rsp + 8], rax",
            "lea rax, [rsp + 32]",
            "mov [rsp + 16], rax",
            concat!("mov ", $list, ", rsp"),
            "call {callee}",
            "add rsp, 216",
            ".cfi_adjust_cfa_offset -216",
            "ret",
            ".cfi_endproc",
            callee = sym $callee,
        )
    };
}

/// Interposes libc's `dprintf(3)`. The signature omits the variable arguments, which
/// `call_with_va_list` passes on.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dprintf(fd: c_int, format: *const c_char) -> c_int {
    call_with_va_list!(vdprintf, "2", "rdx")
}

/// Interposes libc's `dprintf(3)` in programs built with `_FORTIFY_SOURCE`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __dprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
) -> c_int {
    call_with_va_list!(__vdprintf_chk, "3", "rcx")
}
