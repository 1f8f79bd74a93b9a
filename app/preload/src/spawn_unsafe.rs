//! The `posix_spawn` functions. An accelerated connection is a TCP connection that the service (the
//! process `tidelaned`) carries, and cannot be passed on to another program. This module reports an
//! accelerated connection that a spawned program would get as standard input, output or error. With
//! the environment variable TIDELANE_STRICT, the call also fails.
//!
//! The spawned program gets a standard descriptor through a file action (`adddup2`), or inherits
//! the standard descriptor of this process. This module does not check other inherited descriptors,
//! because most programs pass them on only because FD_CLOEXEC is not set.

use std::ffi::{c_char, c_int, c_void};

use tidelane_sockets::hand_over;

use crate::{hand_over_unsafe::checked_symbol, next_symbol_unsafe::next_symbol};

/// Interposes libc's `posix_spawn_file_actions_adddup2(3)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    fd: c_int,
    to: c_int,
) -> c_int {
    if let Err(error) = hand_over::check_spawned(fd, to) {
        return error.0;
    }
    let Some(function) = next_symbol(c"posix_spawn_file_actions_adddup2") else {
        return libc::ENOSYS;
    };
    // SAFETY: the function of this name has this type.
    let function: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int =
        unsafe { std::mem::transmute(function) };
    // SAFETY: the caller upholds the safety contract.
    unsafe { function(actions, fd, to) }
}

/// Exports `posix_spawn` or `posix_spawnp`.
macro_rules! export_spawn {
    ($name:ident, $c_name:literal) => {
        #[doc = concat!("Interposes libc's `", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        ///
        /// The arguments must be valid as in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: *mut libc::pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: *const *mut c_char,
            envp: *const *mut c_char,
        ) -> c_int {
            // SAFETY: the caller upholds the safety contract.
            let function = match unsafe { checked_symbol($c_name, path) } {
                Ok(function) => function,
                Err(error) => return error.0,
            };
            // SAFETY: the function of this name has this type, and the caller passes the arguments.
            unsafe {
                let function: unsafe extern "C" fn(
                    *mut libc::pid_t,
                    *const c_char,
                    *const c_void,
                    *const c_void,
                    *const *mut c_char,
                    *const *mut c_char,
                ) -> c_int = std::mem::transmute(function);
                function(pid, path, actions, attributes, argv, envp)
            }
        }
    };
}

export_spawn!(posix_spawn, c"posix_spawn");
export_spawn!(posix_spawnp, c"posix_spawnp");
