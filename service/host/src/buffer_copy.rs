//! Copies a connection's data from one region to another.
//!
//! A stream buffer is memory that earlier connections used, perhaps connections of another user.
//! The bytes that this connection neither received nor wrote are data of the earlier connections.
//! The host therefore copies ranges of stream positions, and never whole buffers.

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
    /// and no other bytes. The copy of a range is at most as long as the shorter of the two
    /// buffers.
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
                "a part is no longer than a buffer, which lies in its region"
            );
            at = at.wrapping_add(part.len() as u32);
            left -= part.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The copy leaves all bytes outside of the ranges unchanged, next to a range and where a range
    /// wraps in the buffer.
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

    /// A program influences the positions, but cannot make the copy longer than the buffer.
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
