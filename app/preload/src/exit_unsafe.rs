//! The end of the process: `_exit`, and the work at the end of `exit`.
//!
//! An accelerated connection is a TCP connection that the service (the process `tidelaned`)
//! carries. If the process closes the connection before the process ends, the service sends the
//! unsent payload and a FIN, or a RST if SO_LINGER is 0 seconds. Otherwise the service resets the
//! connection.

use std::ffi::c_int;

use tidelane_sockets::exit;

use crate::{libc_abi_unsafe::system_call, stdio_unsafe};

/// Interposes libc's `_exit(2)`. Before the process ends, closes its established accelerated
/// connections and its listeners.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    exit::at_exit();
    loop {
        // SAFETY: the call takes no pointers and does not return.
        unsafe { system_call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Interposes libc's `_Exit(3)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: the call takes no pointers.
    unsafe { _exit(status) }
}

/// Flushes the stdio streams if one of them is or was on a tracked socket (a TCP socket that this
/// library, `libtidelane.so`, may accelerate). Then closes the established accelerated connections
/// and the listeners of the process.
extern "C" fn finish() {
    stdio_unsafe::flush();
    exit::at_exit();
}

/// Makes `exit` call `finish` after the handlers that the program has installed with `atexit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;
