//! The capture file format pcapng: one section, one Ethernet interface, times in nanoseconds.

use std::io::{self, Write};

const BLOCK_SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BLOCK_INTERFACE: u32 = 1;
const BLOCK_ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;
const OPTION_IF_TSRESOL: u16 = 9;
const OPTION_EPB_FLAGS: u16 = 2;
/// Length in bytes of a packet block, without the bytes of the frame and their padding: block type
/// and two block lengths 12, fixed fields 20, options 12.
const FRAME_BLOCK_OVERHEAD: usize = 12 + 20 + 12;

/// Direction of a frame: the field `epb_flags` of a packet block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Direction {
    /// The interface has received the frame.
    Inbound = 1,
    /// The interface has sent the frame.
    Outbound = 2,
}

/// Returns the length in bytes of the block of a frame with `len` captured bytes.
pub fn frame_block_len(len: usize) -> usize {
    FRAME_BLOCK_OVERHEAD + len.next_multiple_of(4)
}

/// Writes the blocks at the start of a file: the section and the interface.
///
/// # Errors
///
/// The errors of `out`.
pub fn write_header(out: &mut impl Write) -> io::Result<()> {
    let mut body = Vec::new();
    body.extend(BYTE_ORDER_MAGIC.to_le_bytes());
    // Version 1.0, and a section of unspecified length.
    body.extend([1, 0, 0, 0]);
    body.extend((-1i64).to_le_bytes());
    write_block(out, BLOCK_SECTION_HEADER, &[&body])?;
    body.clear();
    body.extend(LINKTYPE_ETHERNET.to_le_bytes());
    body.extend([0, 0]);
    // Snapshot length: no limit.
    body.extend(0u32.to_le_bytes());
    body.extend(OPTION_IF_TSRESOL.to_le_bytes());
    // The option has one byte: times are in units of 10^-9 seconds. Three bytes of padding follow.
    body.extend([1, 0, 9, 0, 0, 0]);
    // End of the options.
    body.extend([0; 4]);
    write_block(out, BLOCK_INTERFACE, &[&body])
}

/// Writes the block of a frame of `frame_len` bytes. `bytes` are the captured bytes at the start of
/// the frame. `time_ns` is in nanoseconds since 1970, or since an epoch of the caller's choice.
///
/// # Errors
///
/// The errors of `out`.
pub fn write_frame(
    out: &mut impl Write,
    time_ns: u64,
    direction: Direction,
    frame_len: usize,
    bytes: &[u8],
) -> io::Result<()> {
    let mut head = [0; 20];
    head[4..8].copy_from_slice(&((time_ns >> 32) as u32).to_le_bytes());
    head[8..12].copy_from_slice(&(time_ns as u32).to_le_bytes());
    head[12..16].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    head[16..20].copy_from_slice(&(frame_len as u32).to_le_bytes());
    let padding = &[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()];
    let mut options = [0; 12];
    options[..2].copy_from_slice(&OPTION_EPB_FLAGS.to_le_bytes());
    options[2..4].copy_from_slice(&4u16.to_le_bytes());
    options[4..8].copy_from_slice(&(direction as u32).to_le_bytes());
    let parts: [&[u8]; 4] = [&head, bytes, padding, &options];
    write_block(out, BLOCK_ENHANCED_PACKET, &parts)
}

/// Returns the packet blocks in `bytes`, sorted by their times. Blocks with equal times keep their
/// order. If a block is incomplete or invalid, the function leaves out this block and all bytes
/// after the block.
pub fn sorted_by_time(bytes: &[u8]) -> Vec<u8> {
    let word = |at: usize| {
        let word = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes(word.try_into().ok()?))
    };
    let mut blocks = Vec::new();
    let mut at = 0;
    while let (Some(len), Some(high), Some(low)) = (word(at + 4), word(at + 12), word(at + 16)) {
        let Some(block) = bytes.get(at..at + len as usize).filter(|_| len >= 12) else {
            break;
        };
        blocks.push((u64::from(high) << 32 | u64::from(low), block));
        at += len as usize;
    }
    blocks.sort_by_key(|(time, _)| *time);
    let blocks: Vec<&[u8]> = blocks.into_iter().map(|(_, block)| block).collect();
    blocks.concat()
}

/// Writes a block whose body consists of `parts`.
fn write_block(out: &mut impl Write, kind: u32, parts: &[&[u8]]) -> io::Result<()> {
    let body_len: usize = parts.iter().map(|part| part.len()).sum();
    let len = (body_len as u32 + 12).to_le_bytes();
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&len)?;
    for part in parts {
        out.write_all(part)?;
    }
    out.write_all(&len)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Splits a pcapng stream into its blocks. Checks the two length fields of each block.
    pub fn blocks(mut stream: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let mut blocks = Vec::new();
        while !stream.is_empty() {
            let len = word(&stream[4..]) as usize;
            assert_eq!(len % 4, 0);
            assert_eq!(word(&stream[len - 4..]) as usize, len);
            blocks.push((word(stream), stream[8..len - 4].to_vec()));
            stream = &stream[len..];
        }
        blocks
    }

    #[test]
    fn a_block_has_the_length_that_is_stated() {
        for len in 0..9 {
            let mut out = Vec::new();
            let bytes = vec![7; len];
            write_frame(&mut out, 5, Direction::Inbound, 99, &bytes).unwrap();
            assert_eq!(out.len(), frame_block_len(len));
            let body = blocks(&out).remove(0).1;
            assert_eq!(body[12..20], [len as u8, 0, 0, 0, 99, 0, 0, 0]);
            assert_eq!(body[20..20 + len], bytes);
        }
    }

    #[test]
    fn blocks_are_sorted_by_time_and_remains_are_left_out() {
        let mut out = Vec::new();
        for (time, byte) in [(1u64 << 33, 1), (5, 2), (1 << 33, 3), (4, 4)] {
            write_frame(&mut out, time, Direction::Inbound, 1, &[byte]).unwrap();
        }
        out.extend([6, 0, 0, 0, 200, 0, 0, 0, 1]);
        let sorted = sorted_by_time(&out);
        let order: Vec<u8> = blocks(&sorted).iter().map(|block| block.1[20]).collect();
        assert_eq!(order, [4, 2, 1, 3]);
        assert!(sorted_by_time(&[0; 64]).is_empty());
    }
}
