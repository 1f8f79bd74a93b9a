//! TCP options that a program adds to the options of the engine (`tidelane-engine`), which runs
//! TCP.

use tidelane_wire::{FlowKey, TcpFlags};

/// Largest length of the program's options in one segment, in bytes.
pub const OPTION_LEN_MAX: u8 = 20;

/// Reads and writes TCP options of the program, so that a program can add an option without a
/// change of the stack (§4 of the MultiStack paper, "Rekindling Network Protocol Innovation with
/// User-Level Stacks", 2014).
///
/// A peer ignores an option that it does not know (RFC 9293 §3.1, MUST-6).
pub trait OptionHandler {
    /// Returns the largest length of the program's options in one segment, in bytes: a multiple of
    /// 4, and at most [`OPTION_LEN_MAX`]. The room for payload in each segment shrinks by this
    /// length.
    fn len_max(&self) -> u8;

    /// Writes the program's options of a segment to `room`. The room has
    /// [`len_max`](Self::len_max) bytes and is filled with no-operation options. `key` is the
    /// connection's 4-tuple. `flags` are the control bits of the segment.
    ///
    /// The stack calls this function again for a retransmission, which is a new segment. If the
    /// engine's own options leave too little room in a segment, the stack sends the segment without
    /// the program's options.
    fn write(&mut self, key: &FlowKey, flags: TcpFlags, room: &mut [u8]);

    /// Reads all TCP options of a received segment whose checksum is valid. The bytes come from the
    /// network and are not trusted. The segment may be old, or may belong to no connection.
    fn read(&mut self, key: &FlowKey, flags: TcpFlags, options: &[u8]);
}

/// Returns the data of the first option of kind `kind` in `options`: the bytes after the option's
/// kind and length. Returns `None` if the search first reaches the end of the options or a
/// malformed option.
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
    fn options_are_found_and_a_malformed_option_ends_the_search() {
        let options = [1, 1, 253, 4, 7, 8, 254, 2, 0, 253, 3, 9];
        assert_eq!(find_option(&options, 253), Some(&[7, 8][..]));
        assert_eq!(find_option(&options, 254), Some(&[][..]));
        assert_eq!(find_option(&options, 5), None);
        for bad in [&[253][..], &[253, 0], &[253, 1], &[253, 5, 1], &[]] {
            assert_eq!(find_option(bad, 253), None, "{bad:?}");
        }
    }
}
