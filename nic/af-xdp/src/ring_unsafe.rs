//! One of the four rings: single producer, single consumer, the kernel at the other end.
//!
//! Indices are 32 bits and run freely; they are only ever subtracted (wrapping) and masked. Each
//! side owns one index; ours is kept in a private copy and stored once per batch, the kernel's is
//! loaded once per batch. The kernel is trusted here: it is the one that hands out the frames.

use std::{
    io,
    marker::PhantomData,
    mem::{align_of, size_of},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::sys::{Mapping, XskSocket};

/// A frame in the RX or TX ring: `struct xdp_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    /// Offset of the data in the UMEM.
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) options: u32,
}

const _: () = assert!(size_of::<Descriptor>() == 16);
const _: () = assert!(size_of::<Descriptor>() == size_of::<libc::xdp_desc>());

/// Types that may be an entry of a ring.
///
/// # Safety
/// Plain data: any bytes are a value.
pub(crate) unsafe trait Entry: Copy {}
// SAFETY: integers.
unsafe impl Entry for Descriptor {}
// SAFETY: an integer.
unsafe impl Entry for u64 {}

/// A mapped ring. Which of the two roles it has is a matter of which methods its owner calls.
pub(crate) struct Ring<T> {
    mapping: Mapping,
    offsets: libc::xdp_ring_offset,
    mask: u32,
    /// The producer's index: ours when producing, the last seen when consuming.
    producer: u32,
    /// The consumer's index: ours when consuming, the last seen when producing.
    consumer: u32,
    entries: PhantomData<T>,
}

impl<T: Entry> Ring<T> {
    /// Maps the ring of `len` entries that lies at page offset `at` of the socket.
    pub(crate) fn map(
        socket: &XskSocket,
        len: u32,
        at: u64,
        offsets: libc::xdp_ring_offset,
    ) -> io::Result<Self> {
        let bytes = offsets.desc as usize + len as usize * size_of::<T>();
        Ok(Self::over(socket.map_ring(bytes, at)?, len, offsets))
    }

    /// The ring of `len` entries in a mapping.
    fn over(mapping: Mapping, len: u32, offsets: libc::xdp_ring_offset) -> Self {
        assert!(len.is_power_of_two());
        assert!(offsets.desc as usize + len as usize * size_of::<T>() <= mapping.len());
        assert_eq!(offsets.desc as usize % align_of::<T>(), 0);
        for word in [offsets.producer, offsets.consumer, offsets.flags] {
            assert!(word as usize + size_of::<AtomicU32>() <= mapping.len() && word % 4 == 0);
        }
        let (producer, consumer, mask) = (0, 0, len - 1);
        let mut ring = Self {
            mapping,
            offsets,
            mask,
            producer,
            consumer,
            entries: PhantomData,
        };
        ring.producer = ring.word(offsets.producer).load(Ordering::Acquire);
        ring.consumer = ring.word(offsets.consumer).load(Ordering::Acquire);
        ring
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: `map` checked that the word lies in the mapping and is aligned (mappings start
        // at pages); it is only ever accessed atomically, by us and by the kernel.
        unsafe {
            &*self
                .mapping
                .start()
                .add(offset as usize)
                .cast::<AtomicU32>()
        }
    }

    fn entry(&self, index: u32) -> *mut T {
        let place = (index & self.mask) as usize;
        // SAFETY: the masked index is below the length, and `map` mapped and aligned that many.
        unsafe {
            self.mapping
                .start()
                .add(self.offsets.desc as usize)
                .cast::<T>()
                .add(place)
        }
    }

    /// Whether the kernel wants a system call to notice what we produced.
    pub(crate) fn needs_wakeup(&self) -> bool {
        let flags = self.word(self.offsets.flags).load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }

    // -- producing ----------------------------------------------------------------------------

    /// Puts an entry behind those already there; [`publish`](Self::publish) shows it.
    ///
    /// The kernel's index does not tell whether there is a place: it hands a received frame over
    /// before it shows that it consumed that frame's entry of the fill ring.
    pub(crate) fn push(&mut self, entry: T) {
        // SAFETY: `entry` gives a valid place; the kernel does not read it before `publish`, and
        // the owner never has more entries than the ring has places.
        unsafe { self.entry(self.producer).write(entry) };
        self.producer = self.producer.wrapping_add(1);
    }

    /// Shows the kernel all pushed entries.
    pub(crate) fn publish(&mut self) {
        self.word(self.offsets.producer)
            .store(self.producer, Ordering::Release);
    }

    /// Entries that the kernel has not consumed yet.
    pub(crate) fn unconsumed(&mut self) -> u32 {
        self.consumer = self.word(self.offsets.consumer).load(Ordering::Acquire);
        self.producer.wrapping_sub(self.consumer)
    }

    // -- consuming ----------------------------------------------------------------------------

    /// Entries to take. Looks at the kernel's index only if fewer than `wanted` are known.
    pub(crate) fn available(&mut self, wanted: u32) -> u32 {
        if self.producer.wrapping_sub(self.consumer) < wanted {
            self.producer = self.word(self.offsets.producer).load(Ordering::Acquire);
        }
        self.producer.wrapping_sub(self.consumer)
    }

    /// Takes one of the [`available`](Self::available) entries.
    pub(crate) fn pop(&mut self) -> T {
        debug_assert_ne!(self.producer, self.consumer);
        // SAFETY: a valid place whose entry the kernel released by the index that `available`
        // acquired; it does not write there again before `release`.
        let entry = unsafe { self.entry(self.consumer).read() };
        self.consumer = self.consumer.wrapping_add(1);
        entry
    }

    /// Gives the places of all popped entries back.
    pub(crate) fn release(&mut self) {
        self.word(self.offsets.consumer)
            .store(self.consumer, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u32 = 8;

    /// A ring whose indices start close below the wrap at 2^32.
    fn ring_before_wrap() -> Ring<u64> {
        let mapping = Mapping::anonymous(4096, false).unwrap();
        let offsets = libc::xdp_ring_offset {
            producer: 0,
            consumer: 64,
            desc: 192,
            flags: 128,
        };
        for word in [0, 64] {
            // SAFETY: within the fresh page, aligned, and nobody else has it.
            unsafe { mapping.start().add(word).cast::<u32>().write(u32::MAX - 2) };
        }
        Ring::over(mapping, LEN, offsets)
    }

    /// Plays the kernel's part: stores its index.
    fn store(ring: &Ring<u64>, offset: u64, index: u32) {
        ring.word(offset).store(index, Ordering::Release);
    }

    #[test]
    fn producing_across_the_wrap() {
        let mut ring = ring_before_wrap();
        let start = u32::MAX - 2;
        for entry in 0..u64::from(LEN) {
            ring.push(entry);
        }
        assert_eq!(
            ring.word(0).load(Ordering::Relaxed),
            start,
            "nothing shows before publish"
        );
        ring.publish();
        assert_eq!(
            ring.word(0).load(Ordering::Relaxed),
            start.wrapping_add(LEN)
        );
        assert_eq!(ring.unconsumed(), LEN);
        store(&ring, 64, start.wrapping_add(5));
        assert_eq!(ring.unconsumed(), 3);
    }

    #[test]
    fn consuming_across_the_wrap() {
        let mut ring = ring_before_wrap();
        let start = u32::MAX - 2;
        assert_eq!(ring.available(1), 0);
        for n in 0..6u32 {
            let place = ring.entry(start.wrapping_add(n));
            // SAFETY: a place of the ring that the consumer does not have yet.
            unsafe { place.write(u64::from(n)) };
        }
        store(&ring, 0, start.wrapping_add(6));
        assert_eq!(ring.available(LEN), 6);
        for n in 0..6u64 {
            assert_eq!(ring.pop(), n);
        }
        assert_eq!(ring.available(1), 0);
        ring.release();
        assert_eq!(ring.word(64).load(Ordering::Relaxed), start.wrapping_add(6));
    }
}
