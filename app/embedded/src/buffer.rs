//! [`StreamBuffer`]: the data of one direction of a connection.

/// A ring buffer that is addressed by stream positions. A stream position counts the bytes of one
/// direction, modulo 2^32. The ring has no memory until the first [`reserve`](Self::reserve).
#[derive(Debug, Default)]
pub struct StreamBuffer {
    /// The ring. Its length is zero or a power of two.
    bytes: Box<[u8]>,
}

/// Smallest ring in bytes. A new ring is filled with zeros, and a long fill would cost a short
/// connection more than a long connection loses by growing its ring.
const LEN_MIN: usize = 512;

impl StreamBuffer {
    /// Returns the length of the ring in bytes.
    #[cfg(test)]
    fn capacity(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Enlarges the ring to at least `len` bytes. `start` is the stream position of the oldest byte
    /// in use. The bytes from `start` on keep their stream positions.
    pub fn reserve(&mut self, start: u32, len: u32) {
        let old = self.bytes.len();
        if len as usize <= old {
            return;
        }
        let grown = (len as usize).next_power_of_two().max(LEN_MIN);
        let before = std::mem::replace(
            self,
            Self {
                bytes: vec![0; grown].into_boxed_slice(),
            },
        );
        let mut pos = start;
        for part in before.slices(start, old as u32) {
            self.write(pos, part);
            pos = pos.wrapping_add(part.len() as u32);
        }
    }

    /// Copies `data` to stream position `pos`. The ring must be at least as long as `data`.
    pub fn write(&mut self, pos: u32, data: &[u8]) {
        let at = self.index(pos);
        let first = data.len().min(self.bytes.len() - at);
        let (head, tail) = data.split_at(first);
        self.bytes[at..at + first].copy_from_slice(head);
        self.bytes[..tail.len()].copy_from_slice(tail);
    }

    /// Returns the `len` bytes at stream position `pos`, in two parts because the ring may wrap.
    pub fn slices(&self, pos: u32, len: u32) -> [&[u8]; 2] {
        let (at, len) = (self.index(pos), len as usize);
        let first = len.min(self.bytes.len() - at);
        [&self.bytes[at..at + first], &self.bytes[..len - first]]
    }

    fn index(&self, pos: u32) -> usize {
        pos as usize & self.bytes.len().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(buffer: &StreamBuffer, pos: u32, len: u32) -> Vec<u8> {
        buffer.slices(pos, len).concat()
    }

    #[test]
    fn positions_wrap_and_growth_keeps_the_data() {
        let mut buffer = StreamBuffer::default();
        assert_eq!(bytes(&buffer, 7, 0), []);
        let start = u32::MAX - 5000;
        buffer.reserve(start, 100);
        assert_eq!(buffer.capacity(), 512);
        buffer.reserve(start, 4096);
        let data: Vec<u8> = (0..4096).map(|n| (n % 251) as u8).collect();
        buffer.write(start, &data);
        assert_eq!(bytes(&buffer, start, 4096), data);
        // Stream positions wrap at 2^32.
        buffer.reserve(start, 9000);
        assert_eq!(buffer.capacity(), 16_384);
        buffer.write(start.wrapping_add(4096), &data);
        assert_eq!(bytes(&buffer, start, 8192), [&data[..], &data[..]].concat());
        buffer.reserve(start, 16_384);
        assert_eq!(buffer.capacity(), 16_384);
    }
}
