//! Messages of the library on standard error: rare, and one line each.

use std::{fmt, io::Write, os::fd::RawFd};

const STANDARD_ERROR: RawFd = 2;

/// One line, in one system call.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let mut bytes = [0u8; 256];
    let mut rest = &mut bytes[..];
    // A line that is too long is cut.
    let _ = writeln!(rest, "tidelane: {text}");
    let unused = rest.len();
    let used = bytes.len() - unused;
    let _ = super::write_bytes(STANDARD_ERROR, &bytes[..used]);
}
