//! A ring of an AF_XDP socket: single producer, single consumer, with the kernel at the other end.
//!
//! Indices are free-running 32-bit numbers, which are only subtracted (wrapping) and masked. The
//! port owns one index, and the kernel owns the other. The port stores its index once per batch,
//! from a private copy, and loads the kernel's index once per batch. The code trusts the kernel's
//! index and entries, because the kernel has full access to the machine anyway.

use std::{
    io,
    marker::PhantomData,
    mem::{align_of, size_of},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::sys::{Mapping, XskSocket};

/// An entry of the RX or TX ring: `struct xdp_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    /// Offset of the data in the UMEM.
    pub(crate) addr: u64,
    /// Length of the data in bytes.
    pub(crate) len: u32,
    /// Flags: `XDP_PKT_CONTD` if the packet continues in the next descriptor, `XDP_TX_METADATA` if
    /// metadata precedes the data.
    pub(crate) options: u32,
}

const _: () = assert!(size_of::<Descriptor>() == 16);
const _: () = assert!(size_of::<Descriptor>() == size_of::<libc::xdp_desc>());

/// Types that may be an entry of a ring.
///
/// # Safety
/// Every bit pattern is a value of the type.
pub(crate) unsafe trait Entry: Copy {}
// SAFETY: integers.
unsafe impl Entry for Descriptor {}
// SAFETY: an integer.
unsafe impl Entry for u64 {}

/// A mapped ring. The owner uses it either as producer or as consumer.
pub(crate) struct Ring<T> {
    mapping: Mapping,
    offsets: libc::xdp_ring_offset,
    /// Number of entries, minus one: selects the place of an index.
    mask: u32,
    /// Producer index: the current value if the port produces the ring, otherwise the last value
    /// read.
    producer: u32,
    /// Consumer index: the current value if the port consumes the ring, otherwise the last value
    /// read.
    consumer: u32,
    entries: PhantomData<T>,
}

impl<T: Entry> Ring<T> {
    /// Maps the ring of `len` entries at page offset `at` of the socket.
    pub(crate) fn map(
        socket: &XskSocket,
        len: u32,
        at: u64,
        offsets: libc::xdp_ring_offset,
    ) -> io::Result<Self> {
        let bytes = offsets.desc as usize + len as usize * size_of::<T>();
        Ok(Self::over(socket.map_ring(bytes, at)?, len, offsets))
    }

    /// Creates the ring of `len` entries in a mapping.
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
        // SAFETY: `over` checked that the word lies in the mapping and is aligned (mappings start
        // at pages). Port and kernel access the word only atomically.
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
        // SAFETY: the masked index is below the length of the ring. `over` checked that the mapping
        // has this many entries and that the entries are aligned.
        unsafe {
            self.mapping
                .start()
                .add(self.offsets.desc as usize)
                .cast::<T>()
                .add(place)
        }
    }

    /// Returns true if the kernel needs a system call to notice new entries.
    pub(crate) fn needs_wakeup(&self) -> bool {
        let flags = self.word(self.offsets.flags).load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }

    // Functions for the producer of a ring.

    /// Appends an entry. [`publish`](Self::publish) makes the entry visible to the kernel.
    ///
    /// The function does not compare the entry with the kernel's consumer index, because this index
    /// lags behind on the FILL ring. The kernel hands over a received frame first, and only then
    /// publishes that it has consumed the frame's FILL entry. The caller guarantees that the ring
    /// has space.
    pub(crate) fn push(&mut self, entry: T) {
        // SAFETY: `entry` gives a valid place, which the kernel does not read before `publish`. The
        // owner never has more entries than the ring has places.
        unsafe { self.entry(self.producer).write(entry) };
        self.producer = self.producer.wrapping_add(1);
    }

    /// Makes all pushed entries visible to the kernel.
    pub(crate) fn publish(&mut self) {
        self.word(self.offsets.producer)
            .store(self.producer, Ordering::Release);
    }

    /// Returns the number of entries that the kernel has not consumed.
    pub(crate) fn unconsumed(&mut self) -> u32 {
        self.consumer = self.word(self.offsets.consumer).load(Ordering::Acquire);
        self.producer.wrapping_sub(self.consumer)
    }

    // Functions for the consumer of a ring.

    /// Returns the number of entries that can be popped. Loads the kernel's index only if fewer
    /// than `wanted` entries are known.
    pub(crate) fn available(&mut self, wanted: u32) -> u32 {
        if self.producer.wrapping_sub(self.consumer) < wanted {
            self.producer = self.word(self.offsets.producer).load(Ordering::Acquire);
        }
        self.producer.wrapping_sub(self.consumer)
    }

    /// Pops one of the [`available`](Self::available) entries.
    pub(crate) fn pop(&mut self) -> T {
        debug_assert_ne!(self.producer, self.consumer);
        // SAFETY: `entry` gives a valid place. `available` has acquired the producer index, so the
        // kernel has finished this entry. The kernel does not write to the place before `release`.
        let entry = unsafe { self.entry(self.consumer).read() };
        self.consumer = self.consumer.wrapping_add(1);
        entry
    }

    /// Returns the places of all popped entries to the kernel.
    pub(crate) fn release(&mut self) {
        self.word(self.offsets.consumer)
            .store(self.consumer, Ordering::Release);
    }
}

#[cfg(test)]
impl<T: Entry> Ring<T> {
    /// Creates two values over one ring: the port's side and, in place of the kernel, the other
    /// side.
    pub(crate) fn pair(len: u32) -> (Self, Self) {
        use std::{fs::File, os::fd::FromRawFd};

        const BYTES: usize = 1 << 16;
        // SAFETY: the name is a string with an end.
        let fd = unsafe { libc::memfd_create(c"ring".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the descriptor is new, and nobody else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(BYTES as u64).unwrap();
        let file = file.into();
        let offsets = libc::xdp_ring_offset {
            producer: 0,
            consumer: 64,
            desc: 192,
            flags: 128,
        };
        let side = || Self::over(Mapping::of_file(&file, BYTES).unwrap(), len, offsets);
        (side(), side())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u32 = 8;

    /// Returns a ring whose indices start just below the wrap at 2^32.
    fn ring_before_wrap() -> Ring<u64> {
        let mapping = Mapping::anonymous(4096, false).unwrap();
        let offsets = libc::xdp_ring_offset {
            producer: 0,
            consumer: 64,
            desc: 192,
            flags: 128,
        };
        for word in [0, 64] {
            // SAFETY: the word is aligned and lies in the page that was just mapped for this test.
            unsafe { mapping.start().add(word).cast::<u32>().write(u32::MAX - 2) };
        }
        Ring::over(mapping, LEN, offsets)
    }

    /// Stores the index that the kernel would store in a ring.
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
