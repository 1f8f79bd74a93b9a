//! Messages of one line on standard error.

use std::{fmt, io::Write, os::fd::RawFd};

/// The number of standard error.
const STANDARD_ERROR: RawFd = 2;
/// Largest length of a line in bytes, with its newline.
const LINE_MAX: usize = 256;

/// Prints a line with one system call. Prints nothing if standard error is a TCP socket, as in
/// servers that run a child for each connection, because the line would go to the peer or raise
/// SIGPIPE.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let protocol = super::socket_int(STANDARD_ERROR, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    if protocol == Ok(libc::IPPROTO_TCP) {
        return;
    }
    let (bytes, len) = formatted(text);
    let _ = super::write_bytes(STANDARD_ERROR, &bytes[..len]);
}

/// Formats a line with its newline, without allocation. Returns the bytes and their number.
/// Truncates a line that does not fit.
fn formatted(text: fmt::Arguments<'_>) -> ([u8; LINE_MAX], usize) {
    let mut bytes = [0; LINE_MAX];
    let mut rest = &mut bytes[..LINE_MAX - 1];
    let _ = write!(rest, "tidelane: {text}");
    let unused = rest.len();
    let end = LINE_MAX - 1 - unused;
    bytes[end] = b'\n';
    (bytes, end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_ends_with_its_only_newline() {
        let prefix = "tidelane: ".len();
        for len in [0, 1, LINE_MAX - prefix - 1, LINE_MAX - prefix, 1000] {
            let (bytes, used) = formatted(format_args!("{}", "x".repeat(len)));
            let newlines = bytes[..used].iter().filter(|byte| **byte == b'\n');
            assert_eq!((bytes[used - 1], newlines.count()), (b'\n', 1), "{len}");
            assert_eq!(used, LINE_MAX.min(prefix + len + 1));
        }
    }
}
