//! [`StreamBuffer`]: the data of one direction of a connection, and [`BufferPool`]: memory of ended
//! connections.

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
/// Number of ring lengths that a [`BufferPool`] keeps: 512 bytes, 1, 2 and 4 KiB.
const POOL_LENGTHS: usize = 4;
/// Largest number of rings of each length in a [`BufferPool`].
const POOL_EACH_MAX: usize = 64;

/// The rings of ended connections, which new connections reuse. A ring from the pool costs a short
/// connection less than an allocation, and is not filled with zeros again: a connection reads only
/// the bytes that it has written.
#[derive(Debug, Default)]
pub struct BufferPool {
    /// Rings by length: the place `n` has rings of `LEN_MIN << n` bytes.
    rings: [Vec<Box<[u8]>>; POOL_LENGTHS],
}

impl BufferPool {
    /// Returns the place for rings of `len` bytes. `len` is zero or a power of two. Returns `None`
    /// if the pool keeps no rings of this length.
    fn place(&mut self, len: usize) -> Option<&mut Vec<Box<[u8]>>> {
        self.rings
            .get_mut((len / LEN_MIN).checked_ilog2()? as usize)
    }

    /// Returns a ring of `len` bytes with any content. `len` is a power of two, and at least
    /// [`LEN_MIN`].
    fn take(&mut self, len: usize) -> Box<[u8]> {
        let pooled = self.place(len).and_then(Vec::pop);
        pooled.unwrap_or_else(|| vec![0; len].into_boxed_slice())
    }

    /// Adds the ring of a buffer that is no longer used. Frees a long ring, and a ring for which
    /// the pool has no room.
    pub fn give(&mut self, buffer: StreamBuffer) {
        if let Some(rings) = self.place(buffer.bytes.len())
            && rings.len() < POOL_EACH_MAX
        {
            rings.push(buffer.bytes);
        }
    }
}

impl StreamBuffer {
    /// Returns the length of the ring in bytes.
    #[cfg(test)]
    fn capacity(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Enlarges the ring to at least `len` bytes, if the ring is shorter. `start` is the stream
    /// position of the oldest byte in use. The bytes from `start` on keep their stream positions.
    #[inline]
    pub fn reserve(&mut self, start: u32, len: u32, pool: &mut BufferPool) {
        if len as usize > self.bytes.len() {
            self.grow(start, len, pool);
        }
    }

    #[inline(never)]
    fn grow(&mut self, start: u32, len: u32, pool: &mut BufferPool) {
        let old = self.bytes.len();
        let grown = (len as usize).next_power_of_two().max(LEN_MIN);
        let bytes = pool.take(grown);
        let before = std::mem::replace(self, Self { bytes });
        let mut pos = start;
        for part in before.slices(start, old as u32) {
            self.write(pos, part);
            pos = pos.wrapping_add(part.len() as u32);
        }
        pool.give(before);
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
        let (mut buffer, mut pool) = (StreamBuffer::default(), BufferPool::default());
        assert_eq!(bytes(&buffer, 7, 0), []);
        let start = u32::MAX - 5000;
        buffer.reserve(start, 100, &mut pool);
        assert_eq!(buffer.capacity(), 512);
        buffer.reserve(start, 4096, &mut pool);
        let data: Vec<u8> = (0..4096).map(|n| (n % 251) as u8).collect();
        buffer.write(start, &data);
        assert_eq!(bytes(&buffer, start, 4096), data);
        // Stream positions wrap at 2^32.
        buffer.reserve(start, 9000, &mut pool);
        assert_eq!(buffer.capacity(), 16_384);
        buffer.write(start.wrapping_add(4096), &data);
        assert_eq!(bytes(&buffer, start, 8192), [&data[..], &data[..]].concat());
        buffer.reserve(start, 16_384, &mut pool);
        assert_eq!(buffer.capacity(), 16_384);
    }

    #[test]
    fn a_pool_keeps_a_bounded_number_of_short_rings() {
        let mut pool = BufferPool::default();
        let mut buffer_of = |len| {
            let mut buffer = StreamBuffer::default();
            buffer.reserve(0, len, &mut pool);
            buffer
        };
        let short: Vec<_> = (0..POOL_EACH_MAX + 9).map(|_| buffer_of(2000)).collect();
        let others = [StreamBuffer::default(), buffer_of(512), buffer_of(4097)];
        short
            .into_iter()
            .chain(others)
            .for_each(|buffer| pool.give(buffer));
        assert_eq!(
            pool.rings.each_ref().map(Vec::len),
            [1, 0, POOL_EACH_MAX, 0]
        );
        let mut buffer = StreamBuffer::default();
        buffer.reserve(0, 1025, &mut pool);
        assert_eq!(buffer.capacity(), 2048);
        // The buffer has taken a ring of the pool. When the buffer grows, the ring returns.
        assert_eq!(pool.rings[2].len(), POOL_EACH_MAX - 1);
        buffer.reserve(0, 4000, &mut pool);
        assert_eq!(pool.rings[2].len(), POOL_EACH_MAX);
    }
}
