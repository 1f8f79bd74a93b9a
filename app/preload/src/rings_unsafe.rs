//! The functions by which liburing makes a ring. Its system calls pass libc by.
//!
//! They return the negated error, as liburing's do. Where rings are allowed, liburing's own
//! function of that name is called.

use std::ffi::{CStr, c_int, c_uint, c_void};

use tidelane_sockets::rings;

/// The function of that name in the library that was loaded after this one.
fn next(name: &CStr) -> Option<*const c_void> {
    // SAFETY: the name ends with a zero byte; the result is null if there is no such function.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!address.is_null()).then_some(address.cast_const())
}

/// Exports a function of liburing.
macro_rules! makes_a_ring {
    ($name:ident, $c_name:literal, ($($argument:ident: $kind:ty),*)) => {
        /// As liburing's; -ENOSYS where no ring may be made.
        ///
        /// # Safety
        ///
        /// As in C.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let own = if rings::allowed() { next($c_name) } else { None };
            let Some(own) = own else {
                return -libc::ENOSYS;
            };
            // SAFETY: the function of this name has this type; the arguments are the caller's.
            unsafe {
                let own: unsafe extern "C" fn($($kind),*) -> c_int = std::mem::transmute(own);
                own($($argument),*)
            }
        }
    };
}

makes_a_ring!(io_uring_setup, c"io_uring_setup", (entries: c_uint, params: *mut c_void));
makes_a_ring!(
    io_uring_queue_init,
    c"io_uring_queue_init",
    (entries: c_uint, ring: *mut c_void, flags: c_uint)
);
makes_a_ring!(
    io_uring_queue_init_params,
    c"io_uring_queue_init_params",
    (entries: c_uint, ring: *mut c_void, params: *mut c_void)
);
makes_a_ring!(
    io_uring_queue_init_mem,
    c"io_uring_queue_init_mem",
    (entries: c_uint, ring: *mut c_void, params: *mut c_void, buffer: *mut c_void, size: usize)
);
