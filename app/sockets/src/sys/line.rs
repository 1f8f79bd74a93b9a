//! Messages of one line on standard error.

use std::{fmt, io::Write, os::fd::RawFd};

/// The descriptor of standard error.
const STANDARD_ERROR: RawFd = 2;
/// Largest length of a line in bytes, with its newline.
const LINE_MAX: usize = 256;

/// Prints a line with one system call. If standard error is a TCP socket, prints nothing, because
/// the line would go to the peer or raise SIGPIPE. Standard error is a TCP socket, for example, in
/// the children of a server that runs a child for each connection.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let protocol = super::socket_int(STANDARD_ERROR, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    if protocol == Ok(libc::IPPROTO_TCP) {
        return;
    }
    let (bytes, len) = formatted(text);
    let _ = super::write_bytes(STANDARD_ERROR, &bytes[..len]);
}

/// Formats a line: a prefix, `text`, and a newline. Does not allocate. Truncates a line that is
/// longer than [`LINE_MAX`]. Returns an array that begins with the line, and the line's length.
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
