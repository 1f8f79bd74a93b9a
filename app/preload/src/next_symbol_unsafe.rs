//! Some functions that this library (`libtidelane.so`) exports are also defined by libc, by
//! liburing, or by another library that comes after this library in the search order of the
//! dynamic linker. This module finds the other definition.

use std::ffi::{CStr, c_void};

/// Returns the address of the next definition of the function `name` after this library. Returns
/// `None` if no library after this library defines the function.
pub(crate) fn next_symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string.
    let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!function.is_null()).then_some(function)
}
