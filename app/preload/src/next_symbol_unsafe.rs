//! The definitions of functions that this library (`libtidelane.so`) exports too, in the libraries
//! that were loaded after this library, such as libc and liburing.

use std::ffi::{CStr, c_void};

/// Returns the address of the next definition of a function, or `None` if no library after this
/// library defines the function.
pub(crate) fn next_symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string.
    let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!function.is_null()).then_some(function)
}
