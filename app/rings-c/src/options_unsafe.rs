//! Reads the options that a C program passes to the ring API, and copies the strings to which they
//! point.

use std::ffi::{CStr, c_char};

use crate::{back_end::BackEndOptions, error::Error, types::Options};

/// Reads the options with which a C program opens a context (the TCP and UDP sockets of one
/// thread). A null pointer stands for the defaults.
///
/// # Safety
///
/// `options` is null or points to valid options. Each pointer in the options is null or points to
/// a NUL-terminated string, in any encoding.
pub unsafe fn read(options: *const Options) -> Result<BackEndOptions, Error> {
    // SAFETY: the caller's promise.
    let Some(options) = (unsafe { options.as_ref() }) else {
        return Ok(BackEndOptions::default());
    };
    Ok(BackEndOptions {
        numbers: *options,
        // SAFETY: the caller's promise.
        interface: unsafe { text(options.interface) }?,
        // SAFETY: the caller's promise.
        service: unsafe { text(options.service) }?,
    })
}

/// Returns a copy of a string, or `None` for a null pointer. Fails if the string is not UTF-8.
///
/// # Safety
///
/// `text` is null or points to a NUL-terminated string.
unsafe fn text(text: *const c_char) -> Result<Option<String>, Error> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str().map_err(|_| Error::NAME)?;
    Ok(Some(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_copied_and_must_be_utf8() {
        let bytes = [0xff_u8, 0];
        let (name, not_utf8) = (c"eth7", CStr::from_bytes_with_nul(&bytes));
        let not_utf8 = not_utf8.expect("an end").as_ptr();
        let mut options = Options {
            buffers: 7,
            interface: name.as_ptr(),
            ..Options::default()
        };
        // SAFETY: the pointers are null or point to NUL-terminated strings.
        let read = |options: &Options| unsafe { super::read(options) };
        let got = read(&options).expect("strings");
        assert_eq!(
            (got.interface.as_deref(), got.service),
            (Some("eth7"), None)
        );
        assert_eq!(got.numbers.buffers, 7);
        options.service = not_utf8;
        assert_eq!(read(&options).err(), Some(Error::NAME));
        // SAFETY: a null pointer stands for the defaults.
        let default = unsafe { super::read(std::ptr::null()) }.expect("the defaults");
        assert_eq!(default.numbers.buffers, 0);
    }
}
