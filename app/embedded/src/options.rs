//! TCP options that the program adds to the options of the engine.

use tidelane_wire::{FlowKey, TcpFlags};

/// Largest length in bytes of the options of a program in one segment.
pub const OPTION_LEN_MAX: u8 = 20;

/// TCP options that a program adds, without a change of the stack (paper MultiStack, §4).
///
/// A peer that does not know the option ignores it (RFC 9293 §3.1, MUST-6).
pub trait OptionHandler {
    /// Returns the largest length of the options in one segment: a multiple of 4, and at most
    /// [`OPTION_LEN_MAX`]. Segments have that much less room for payload.
    fn len_max(&self) -> u8;

    /// Writes the options of a segment to `room`, which has [`len_max`](Self::len_max) bytes and is
    /// filled with no-operation options. `key` is the connection, as this end sees it, and `flags`
    /// are the control bits of the segment.
    ///
    /// The stack calls this function again for a retransmission, which is a new segment. If the
    /// engine's own options leave too little room in a segment, the stack sends the segment without
    /// the program's options.
    fn write(&mut self, key: &FlowKey, flags: TcpFlags, room: &mut [u8]);

    /// Reads the bytes of all options of a received segment with a valid checksum. The peer, or
    /// anyone on the path, chooses these bytes. The segment may be old, or for no connection.
    fn read(&mut self, key: &FlowKey, flags: TcpFlags, options: &[u8]);
}

/// Returns the data of the option `kind` in `options`: the bytes after kind and length. Returns
/// `None` if there is no such option, or if the options are malformed.
pub fn find_option(options: &[u8], kind: u8) -> Option<&[u8]> {
    let mut rest = options;
    loop {
        rest = match *rest {
            [0, ..] | [] => return None,
            [1, ..] => &rest[1..],
            [this, len, ..] => {
                let option = rest.get(2..usize::from(len))?;
                if this == kind {
                    return Some(option);
                }
                &rest[usize::from(len)..]
            }
            [_] => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_and_malformed_ones_end_the_search() {
        let options = [1, 1, 253, 4, 7, 8, 254, 2, 0, 253, 3, 9];
        assert_eq!(find_option(&options, 253), Some(&[7, 8][..]));
        assert_eq!(find_option(&options, 254), Some(&[][..]));
        assert_eq!(find_option(&options, 5), None);
        for bad in [&[253][..], &[253, 0], &[253, 1], &[253, 5, 1], &[]] {
            assert_eq!(find_option(bad, 253), None, "{bad:?}");
        }
    }
}
