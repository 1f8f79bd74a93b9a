//! The functions of liburing that create an io_uring instance. This library (`libtidelane.so`)
//! cannot serve sockets over io_uring, because io_uring operations bypass libc.
//!
//! By default, the exported functions therefore return -ENOSYS, as on a kernel without io_uring. If
//! the user allows io_uring (`tidelane run --io-uring`), each exported function calls liburing's
//! function of the same name.

use std::ffi::{c_int, c_uint, c_void};

use tidelane_sockets::io_uring;

use crate::next_symbol_unsafe::next_symbol;

/// Exports a function of liburing.
macro_rules! export_liburing {
    ($name:ident, $c_name:literal, ($($argument:ident: $kind:ty),*)) => {
        /// Calls liburing's function of this name. Returns -ENOSYS if the user has not allowed
        /// io_uring, or if liburing is not loaded.
        ///
        /// # Safety
        ///
        /// The arguments must be valid as in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let own = if io_uring::is_allowed() { next_symbol($c_name) } else { None };
            let Some(own) = own else {
                return -libc::ENOSYS;
            };
            // SAFETY: the function of this name has this type, and the caller passes the arguments.
            unsafe {
                let own: unsafe extern "C" fn($($kind),*) -> c_int = std::mem::transmute(own);
                own($($argument),*)
            }
        }
    };
}

export_liburing!(io_uring_setup, c"io_uring_setup", (entries: c_uint, params: *mut c_void));
export_liburing!(
    io_uring_queue_init,
    c"io_uring_queue_init",
    (entries: c_uint, ring: *mut c_void, flags: c_uint)
);
export_liburing!(
    io_uring_queue_init_params,
    c"io_uring_queue_init_params",
    (entries: c_uint, ring: *mut c_void, params: *mut c_void)
);
export_liburing!(
    io_uring_queue_init_mem,
    c"io_uring_queue_init_mem",
    (entries: c_uint, ring: *mut c_void, params: *mut c_void, buffer: *mut c_void, size: usize)
);
