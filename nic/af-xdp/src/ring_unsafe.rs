//! A ring of an AF_XDP socket. A ring has one producer and one consumer: one of them is the kernel,
//! and the other is the port (`XdpPort`, which owns the socket).
//!
//! A ring has two indices, the producer index and the consumer index. Both are 32-bit counters that
//! wrap at 2^32. The port writes one index, and the kernel writes the other index. The port stores
//! its index once per batch, from a private copy, and loads the kernel's index once per batch. This
//! module does not validate the kernel's index and entries, because the kernel has full access to
//! the memory of the process anyway.

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
// SAFETY: all fields are integers.
unsafe impl Entry for Descriptor {}
// SAFETY: every bit pattern is a value of an integer.
unsafe impl Entry for u64 {}

/// A mapped ring. The port is the producer of the FILL and TX rings, and the consumer of the RX and
/// COMPLETION rings.
pub(crate) struct Ring<T> {
    mapping: Mapping,
    offsets: libc::xdp_ring_offset,
    /// Number of entries, minus one. The number masks an index to get the position of the entry in
    /// the ring.
    mask: u32,
    /// Producer index: the current value if the port is the producer, otherwise the value that the
    /// port read most recently.
    producer: u32,
    /// Consumer index: the current value if the port is the consumer, otherwise the value that the
    /// port read most recently.
    consumer: u32,
    entries: PhantomData<T>,
}

impl<T: Entry> Ring<T> {
    /// Maps a ring of `len` entries. `at` selects the ring (`XDP_PGOFF_*`, `XDP_UMEM_PGOFF_*`).
    /// `offsets` gives the layout of the mapped memory (`XDP_MMAP_OFFSETS`).
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
    /// The caller guarantees that the ring has space. The function does not check for space,
    /// because the consumer index of the FILL ring may be out of date. The kernel passes a received
    /// frame to the RX ring before the kernel publishes the consumption of the frame's FILL entry.
    pub(crate) fn push(&mut self, entry: T) {
        // SAFETY: `entry` returns a valid pointer. The caller guarantees that the position is free,
        // and the kernel does not read the position before `publish`.
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
        // SAFETY: `entry` returns a valid pointer. `available` has acquired the producer index, so
        // the kernel has written the entry. The kernel does not write to the position again before
        // `release`.
        let entry = unsafe { self.entry(self.consumer).read() };
        self.consumer = self.consumer.wrapping_add(1);
        entry
    }

    /// Returns the positions of all popped entries to the kernel.
    pub(crate) fn release(&mut self) {
        self.word(self.offsets.consumer)
            .store(self.consumer, Ordering::Release);
    }
}

#[cfg(test)]
impl<T: Entry> Ring<T> {
    /// Creates one ring and returns both of its sides: one for the port, and one for a test that
    /// plays the kernel.
    pub(crate) fn pair(len: u32) -> (Self, Self) {
        use std::{fs::File, os::fd::FromRawFd};

        const BYTES: usize = 1 << 16;
        // SAFETY: the name is a NUL-terminated string.
        let fd = unsafe { libc::memfd_create(c"ring".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the file descriptor is new, and no other code owns the descriptor.
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
            "entries are visible before `publish`"
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
            // SAFETY: `entry` returns a valid pointer, and the ring does not read the position
            // before the test stores the producer index.
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
