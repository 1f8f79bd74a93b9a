//! Messages of one line on standard error.

use std::{fmt, io::Write, os::fd::RawFd};

/// The number of standard error.
const STANDARD_ERROR: RawFd = 2;

/// Prints a line with one system call. Prints nothing if standard error is a TCP socket, as in
/// servers that run a child for each connection, because the line would go to the peer or raise
/// SIGPIPE.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let protocol = super::socket_int(STANDARD_ERROR, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    if protocol == Ok(libc::IPPROTO_TCP) {
        return;
    }
    let mut bytes = [0u8; 256];
    let mut rest = &mut bytes[..];
    // A line that does not fit is truncated.
    let _ = writeln!(rest, "tidelane: {text}");
    let unused = rest.len();
    let used = bytes.len() - unused;
    let _ = super::write_bytes(STANDARD_ERROR, &bytes[..used]);
}
