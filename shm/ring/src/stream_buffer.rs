//! Circular buffers for the payload of one direction of a connection. The buffers lie in a region,
//! the memory that a program shares with the service (process `tidelaned`). A *stream position*
//! counts the payload bytes of the direction modulo 2^32. The first byte has position 0.

use std::{ops::Range, sync::atomic::AtomicU8};

use tidelane_abi::{
    BufferWord, STREAM_BUFFER_LOG2_MAX, STREAM_BUFFER_LOG2_MIN,
    buffer_word::{LOG2_BITS, OFFSET_UNIT},
};

use crate::Region;

/// A buffer of `2^log2` bytes in a region. The byte at stream position `p` is at region offset
/// `offset + (p & (2^log2 - 1))`. The *wrap* is the step from the end of the buffer to its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamBuffer {
    /// Region offset in bytes, a multiple of [`OFFSET_UNIT`].
    pub offset: u64,
    /// Binary logarithm of the size in bytes.
    pub log2: u8,
}

impl StreamBuffer {
    /// Parses a word that the other side wrote. Returns `None` if the size of the buffer is not
    /// allowed, or if the buffer does not lie within the region offsets `area`. The word zero
    /// stands for no buffer. This word also gives `None`, because its size of 1 byte is not
    /// allowed.
    #[inline]
    pub fn from_word(word: BufferWord, area: Range<u64>) -> Option<StreamBuffer> {
        let log2 = (word & ((1 << LOG2_BITS) - 1)) as u8;
        if !(STREAM_BUFFER_LOG2_MIN..=STREAM_BUFFER_LOG2_MAX).contains(&log2) {
            return None;
        }
        let offset = (word >> LOG2_BITS).checked_mul(OFFSET_UNIT)?;
        let end = offset.checked_add(1 << log2)?;
        (area.start <= offset && end <= area.end).then_some(StreamBuffer { offset, log2 })
    }

    /// Returns the buffer as a word for the slot of the connection. A slot is the record of a
    /// connection in the region.
    #[inline]
    pub fn to_word(self) -> BufferWord {
        debug_assert!(self.offset.is_multiple_of(OFFSET_UNIT));
        (self.offset / OFFSET_UNIT) << LOG2_BITS | BufferWord::from(self.log2)
    }

    /// Returns the size in bytes.
    #[inline]
    pub const fn len(self) -> u32 {
        1 << self.log2
    }

    /// Returns false, because a buffer has at least 2 KiB.
    pub const fn is_empty(self) -> bool {
        false
    }

    /// Returns the region offsets of the buffer.
    pub const fn range(self) -> Range<u64> {
        self.offset..self.offset + (1 << self.log2)
    }

    /// Copies `bytes` to the buffer, beginning at stream position `pos`. Returns true if the bytes
    /// were copied, and false if `bytes` is longer than the buffer, or if the buffer is not in a
    /// part of the region that this process may write.
    #[inline(always)]
    pub fn write(self, region: &Region, pos: u32, bytes: &[u8]) -> bool {
        if bytes.len() > self.len() as usize {
            return false;
        }
        let (at, first) = self.split(pos, bytes.len());
        if first == bytes.len() {
            return region.copy_in(at, bytes);
        }
        self.write_wrapped(region, at, first, bytes)
    }

    #[inline(never)]
    fn write_wrapped(self, region: &Region, at: u64, first: usize, bytes: &[u8]) -> bool {
        let (before_wrap, after_wrap) = bytes.split_at(first);
        region.copy_in(at, before_wrap) && region.copy_in(self.offset, after_wrap)
    }

    /// Copies bytes from the buffer to `bytes`, beginning at stream position `pos`. Returns true if
    /// the bytes were copied, and false if `bytes` is longer than the buffer, or if the buffer is
    /// not within the region.
    #[inline(always)]
    pub fn read(self, region: &Region, pos: u32, bytes: &mut [u8]) -> bool {
        if bytes.len() > self.len() as usize {
            return false;
        }
        let (at, first) = self.split(pos, bytes.len());
        if first == bytes.len() {
            return region.copy_out(at, bytes);
        }
        self.read_wrapped(region, at, first, bytes)
    }

    #[inline(never)]
    fn read_wrapped(self, region: &Region, at: u64, first: usize, bytes: &mut [u8]) -> bool {
        let (before_wrap, after_wrap) = bytes.split_at_mut(first);
        region.copy_out(at, before_wrap) && region.copy_out(self.offset, after_wrap)
    }

    /// Returns the `len` bytes from stream position `pos` on as references into the buffer: the
    /// part before the wrap and the part after it. Returns `None` if `len` exceeds the buffer, or
    /// if the buffer is not in a part of the region that this process may write.
    pub fn runs(self, region: &Region, pos: u32, len: usize) -> Option<[&[AtomicU8]; 2]> {
        if len > self.len() as usize {
            return None;
        }
        let (at, first) = self.split(pos, len);
        Some([
            region.bytes(at, first)?,
            region.bytes(self.offset, len - first)?,
        ])
    }

    /// Returns the region offset of stream position `pos`, and the number of bytes from there to
    /// the wrap, limited to `len`. Returns `None` if `len` is zero.
    pub fn part(self, pos: u32, len: u32) -> Option<(u64, u32)> {
        let (offset, first) = self.split(pos, len as usize);
        (first > 0).then_some((offset, first as u32))
    }

    /// Copies the bytes at stream positions `[start, end)` to the buffer `to`. Returns true if the
    /// bytes were copied. Returns false in three cases: a buffer is smaller than the bytes, a
    /// buffer is not within the region, or this process may not write `to`.
    pub fn relocate(self, region: &Region, to: StreamBuffer, start: u32, end: u32) -> bool {
        let total = end.wrapping_sub(start);
        if total > self.len().min(to.len()) {
            return false;
        }
        let mut moved = 0;
        while moved < total {
            let pos = start.wrapping_add(moved);
            let left = (total - moved) as usize;
            let (source, source_run) = self.split(pos, left);
            let (target, run) = to.split(pos, source_run);
            if !region.copy_within(source, target, run) {
                return false;
            }
            moved += run as u32;
        }
        true
    }

    /// Returns the region offset of stream position `pos`, and the number of bytes from there to
    /// the wrap, limited to `len`.
    #[inline]
    fn split(self, pos: u32, len: usize) -> (u64, usize) {
        let inside = pos & (self.len() - 1);
        (
            self.offset + u64::from(inside),
            len.min((self.len() - inside) as usize),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use proptest::prelude::*;

    use super::*;

    const AREA: Range<u64> = 4096..1 << 20;

    #[test]
    fn words_are_validated() {
        let good = StreamBuffer {
            offset: 4096,
            log2: 12,
        };
        assert_eq!(StreamBuffer::from_word(good.to_word(), AREA), Some(good));
        let last = StreamBuffer {
            offset: (1 << 20) - 2048,
            log2: 11,
        };
        assert_eq!(StreamBuffer::from_word(last.to_word(), AREA), Some(last));
        for bad in [
            StreamBuffer {
                offset: 4096,
                log2: 10,
            },
            StreamBuffer {
                offset: 4096,
                log2: 24,
            },
            StreamBuffer {
                offset: 4096,
                log2: 64,
            },
            StreamBuffer {
                offset: 3072,
                log2: 11,
            },
            StreamBuffer {
                offset: (1 << 20) - 1024,
                log2: 11,
            },
            StreamBuffer {
                offset: 4096,
                log2: 20,
            },
        ] {
            assert_eq!(
                StreamBuffer::from_word(bad.to_word(), AREA),
                None,
                "{bad:?}"
            );
        }
        assert_eq!(StreamBuffer::from_word(0, AREA), None);
        assert_eq!(StreamBuffer::from_word(u64::MAX, AREA), None);
        assert_eq!(
            StreamBuffer::from_word(u64::MAX << 8 | 12, 0..u64::MAX),
            None
        );
    }

    proptest! {
        #[test]
        fn hostile_words_never_leave_the_area(word: u64) {
            // The offset of the shifted word is below 4 MiB, so that the buffer may lie within the
            // area.
            for word in [word, word >> 44] {
                if let Some(buffer) = StreamBuffer::from_word(word, AREA) {
                    prop_assert!(AREA.start <= buffer.offset && buffer.range().end <= AREA.end);
                }
            }
        }

        #[test]
        fn bytes_survive_wrap_and_relocation(
            pos: u32,
            bytes in prop::collection::vec(any::<u8>(), 0..=2048),
            grow in 11u8..=14,
        ) {
            let region = Region::heap(1 << 16).unwrap();
            let small = StreamBuffer { offset: 2048, log2: 11 };
            let other = StreamBuffer { offset: 16384, log2: grow };
            prop_assert!(small.write(&region, pos, &bytes));
            let end = pos.wrapping_add(bytes.len() as u32);
            prop_assert!(small.relocate(&region, other, pos, end));
            for buffer in [small, other] {
                let mut got = vec![0; bytes.len()];
                prop_assert!(buffer.read(&region, pos, &mut got));
                prop_assert_eq!(&got, &bytes);
                let runs = buffer.runs(&region, pos, bytes.len()).expect("it is in the region");
                let seen = runs.into_iter().flatten().map(|byte| byte.load(Ordering::Relaxed));
                prop_assert_eq!(seen.collect::<Vec<u8>>(), bytes.clone());
            }
            prop_assert!(small.runs(&region, pos, 2049).is_none());
            prop_assert!(!small.write(&region, pos, &[0; 2049]));
            prop_assert!(!other.relocate(&region, small, pos, pos.wrapping_add(2049)));
        }
    }
}
