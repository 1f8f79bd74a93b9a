//! Copies a connection's data from one region to another. A region is the memory that a program
//! shares with the service, or the host's own memory for connections before accept.
//!
//! A stream buffer may be memory that earlier connections used, perhaps connections of another
//! user. The bytes that this connection neither received nor wrote may be data of the earlier
//! connections. The host therefore copies ranges of stream positions, and never whole buffers.

use std::ops::Range;

use tidelane_ring::{Region, StreamBuffer};

/// Length in bytes of the chunks in which a range is copied.
const CHUNK_LEN: usize = 2048;

/// A stream buffer with the region in which it lies, as source or target of a copy.
#[derive(Clone, Copy)]
pub struct BufferIn<'r> {
    region: &'r Region,
    buffer: StreamBuffer,
}

impl<'r> BufferIn<'r> {
    /// Returns `buffer`, which lies in `region`.
    pub fn new(region: &'r Region, buffer: StreamBuffer) -> Self {
        Self { region, buffer }
    }

    /// Copies the bytes at the stream positions of `ranges` to the same stream positions in `to`,
    /// and no other bytes. If a range is longer than the shorter of the two buffers, copies only
    /// the start of the range, as much as this buffer can hold.
    pub fn copy_to(self, to: BufferIn<'_>, ranges: impl IntoIterator<Item = Range<u32>>) {
        for range in ranges {
            self.copy_range_to(to, range);
        }
    }

    fn copy_range_to(self, to: BufferIn<'_>, range: Range<u32>) {
        let mut chunk = [0; CHUNK_LEN];
        let held = self.buffer.len().min(to.buffer.len());
        let mut left = range.end.wrapping_sub(range.start).min(held) as usize;
        let mut at = range.start;
        while left > 0 {
            let part = &mut chunk[..left.min(CHUNK_LEN)];
            let copied =
                self.buffer.read(self.region, at, part) && to.buffer.write(to.region, at, part);
            debug_assert!(
                copied,
                "a buffer lies outside of its region, or is shorter than a part"
            );
            at = at.wrapping_add(part.len() as u32);
            left -= part.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The copy changes no byte outside of the ranges. The first range wraps at the end of the
    /// small buffer.
    #[test]
    fn nothing_but_the_ranges_moves() {
        let (from_region, to_region) = (filled(1), filled(2));
        let (small, large) = (buffer(12), buffer(13));
        let ranges = [4000..4200, 5000..5001, 7000..7000];
        let from = BufferIn::new(&from_region, small);
        from.copy_to(BufferIn::new(&to_region, large), ranges.clone());
        for pos in 4000..4000 + large.len() {
            let wanted = ranges.iter().any(|range| range.contains(&pos));
            let mut byte = [0];
            assert!(large.read(&to_region, pos, &mut byte));
            assert_eq!(byte == [1], wanted, "position {pos}");
        }
    }

    /// A program influences the positions, but cannot make the copy longer than the shorter buffer.
    #[test]
    fn a_range_longer_than_the_buffer_ends() {
        let (from_region, to_region) = (filled(1), filled(2));
        let from = BufferIn::new(&from_region, buffer(12));
        from.copy_to(
            BufferIn::new(&to_region, buffer(13)),
            std::iter::once(0..u32::MAX),
        );
        let mut bytes = [0; 8192];
        assert!(buffer(13).read(&to_region, 0, &mut bytes));
        assert_eq!(bytes.iter().filter(|byte| **byte == 1).count(), 4096);
    }

    fn buffer(log2: u8) -> StreamBuffer {
        StreamBuffer { offset: 8192, log2 }
    }

    fn filled(byte: u8) -> Region {
        let region = Region::heap(1 << 15).expect("there is memory");
        assert!(region.copy_in(0, &[byte; 1 << 15]));
        region
    }
}
