//! [`StreamBuffer`], which holds the data of one direction of a connection, and [`BufferPool`],
//! which keeps the memory of ended connections for new connections.

/// A ring buffer that is addressed by stream positions. A stream position counts the bytes of one
/// direction, modulo 2^32. The ring has no memory until the first [`reserve`](Self::reserve).
#[derive(Debug, Default)]
pub struct StreamBuffer {
    /// The ring. Its length is zero or a power of two.
    bytes: Box<[u8]>,
}

/// Length of the smallest ring in bytes. A new ring is filled with zeros, and a longer fill would
/// slow down a connection with little data. A connection with much data pays for the growth of its
/// ring, but this costs less in total than a longer fill on every connection.
const LEN_MIN: usize = 512;
/// Number of different ring lengths in a [`BufferPool`]: the powers of two from 512 bytes to 64
/// KiB.
const POOL_LENGTHS: usize = 8;
/// Largest number of rings that a [`BufferPool`] keeps of each length. The rings of all lengths
/// together have less than 8 MiB.
const POOL_EACH_MAX: usize = 64;

/// The rings of ended connections, which new connections reuse. To take a ring from the pool costs
/// less time than an allocation. The ring is not filled with zeros again, because a connection
/// reads only bytes that were written for this connection.
#[derive(Debug, Default)]
pub struct BufferPool {
    /// Rings by length: the vector at index `n` has the rings of `LEN_MIN << n` bytes.
    rings: [Vec<Box<[u8]>>; POOL_LENGTHS],
}

impl BufferPool {
    /// Returns the vector for rings of `len` bytes. `len` is zero or a power of two. Returns `None`
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

    /// Adds the ring of `buffer` to the pool. Frees the ring if it is longer than 64 KiB, or if the
    /// pool has [`POOL_EACH_MAX`] rings of this length.
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

    /// Returns the `len` bytes from stream position `pos` on. The result has two parts, because the
    /// bytes may continue at the start of the ring.
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
        // The stream positions of the second copy of `data` wrap at 2^32.
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
        let others = [StreamBuffer::default(), buffer_of(512), buffer_of(65_537)];
        short
            .into_iter()
            .chain(others)
            .for_each(|buffer| pool.give(buffer));
        assert_eq!(
            pool.rings.each_ref().map(Vec::len),
            [1, 0, POOL_EACH_MAX, 0, 0, 0, 0, 0]
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
