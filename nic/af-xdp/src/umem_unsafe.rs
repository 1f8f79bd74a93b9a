//! The UMEM: the memory of all frames of an AF_XDP port.

use std::io;

use crate::{config::UmemLayout, sys::Mapping};

/// Size of a huge page in bytes.
const HUGE_PAGE: usize = 2 << 20;

/// Kind of pages of a UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UmemPages {
    /// Huge pages of 2 MiB.
    Huge,
    /// Normal pages, because huge pages were not requested.
    Normal,
    /// Normal pages, because the kernel did not map huge pages. Usually too few huge pages are free
    /// (see `sysctl vm.nr_hugepages`).
    NormalForLackOfHuge,
}

/// The mapping of a UMEM: the receive frames, then the transmit frames, then the shared frames
/// (`XdpConfig::shared_frames`).
pub(crate) struct Umem {
    mapping: Mapping,
    pages: UmemPages,
}

impl Umem {
    pub(crate) fn new(layout: &UmemLayout, huge_pages: bool) -> io::Result<Self> {
        let len = layout.umem_len();
        if huge_pages {
            if let Ok(mapping) = Mapping::anonymous(len.next_multiple_of(HUGE_PAGE), true) {
                return Ok(Self {
                    mapping,
                    pages: UmemPages::Huge,
                });
            }
            let mapping = Mapping::anonymous(len, false)?;
            return Ok(Self {
                mapping,
                pages: UmemPages::NormalForLackOfHuge,
            });
        }
        Ok(Self {
            mapping: Mapping::anonymous(len, false)?,
            pages: UmemPages::Normal,
        })
    }

    pub(crate) fn pages(&self) -> UmemPages {
        self.pages
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.mapping.start()
    }

    pub(crate) fn len(&self) -> usize {
        self.mapping.len()
    }

    fn pointer(&self, addr: u64, len: usize) -> *mut u8 {
        let end = (addr as usize).checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len()),
            "the bytes lie outside the UMEM"
        );
        // SAFETY: the offset was just found to lie within the mapping.
        unsafe { self.start().add(addr as usize) }
    }

    /// Returns the `len` bytes at offset `addr`.
    ///
    /// # Safety
    /// Until the borrow ends, nothing writes to these bytes: the kernel does not have the frame,
    /// and no other code borrows the bytes mutably.
    pub(crate) unsafe fn bytes(&self, addr: u64, len: usize) -> &[u8] {
        // SAFETY: `pointer` checked that the bytes are in the mapping, which was mapped as zeros.
        // The caller guarantees that the bytes do not change while they are borrowed.
        unsafe { std::slice::from_raw_parts(self.pointer(addr, len), len) }
    }

    /// Returns the `len` bytes at offset `addr` for writing.
    ///
    /// # Safety
    /// Until the borrow ends, neither the kernel nor other code reads or writes these bytes.
    #[allow(clippy::mut_from_ref)] // Several callers may each borrow a different frame.
    pub(crate) unsafe fn bytes_mut(&self, addr: u64, len: usize) -> &mut [u8] {
        // SAFETY: as for `bytes`. The caller also guarantees that no other code reads the bytes.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(addr, len), len) }
    }

    /// Prefetches the cache line at offset `addr`, on x86-64 only.
    pub(crate) fn prefetch(&self, addr: u64) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect that a program can observe, at any address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.start().wrapping_add(addr as usize).cast::<i8>());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = addr;
    }
}
