//! Mappings of shared memory, with bounds-checked copies.
//!
//! Another process may write the bytes of a region at any time. The code therefore copies bytes by
//! pointer and never accesses them through a reference. Typed views (`views_unsafe`) return
//! references to atomics only. [`Region::address`] is the exception: its user may make references
//! to the bytes. These references are sound only if the protocol with the other process gives these
//! bytes to this process alone, and if no copy of this module writes them.

use std::{
    io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    slice,
    sync::atomic::AtomicU8,
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create},
    io::Errno,
    mm::{
        Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap, mmap_anonymous, munmap,
    },
};

/// Page size in bytes, which is the unit of `punch_hole`.
pub(crate) const PAGE: u64 = 4096;

/// Type of memory behind a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    /// A sealed memfd, whose pages are shared with other processes.
    Memfd,
    /// Anonymous memory of this process.
    Heap,
}

/// A mapping of shared memory in this process. Unmapped on drop.
#[derive(Debug)]
pub struct Region {
    /// Start of the mapping.
    base: NonNull<u8>,
    /// Length of the mapping in bytes.
    len: usize,
    backing: Backing,
    /// Range of offsets that this process cannot write: empty, the whole region, or one part of it.
    read_only: Range<u64>,
}

/// A memfd that [`Region::join`] maps as a part of a region.
#[derive(Clone, Copy, Debug)]
pub struct Part<'fd> {
    /// Descriptor of the memfd, which must be sealed against shrinking.
    pub memory: BorrowedFd<'fd>,
    /// Length of the memfd in bytes, a multiple of the page size.
    pub len: u64,
    /// True if this process may write the memfd.
    pub writable: bool,
}

// SAFETY: the mapping lives as long as the value and belongs to no thread. All accesses to it are
// raw copies, atomics, or references that a user of `address` answers for.
unsafe impl Send for Region {}
// SAFETY: as for `Send`. Concurrent raw copies can at worst return torn bytes. The same holds for
// any memory that another process writes.
unsafe impl Sync for Region {}

impl Region {
    /// Creates a sparse memfd of `len` bytes and maps it read-write. The memfd cannot shrink, grow
    /// or be sealed further. A process that receives the descriptor can only map it read-only.
    pub fn create_one_way(name: &str, len: u64) -> io::Result<(Region, OwnedFd)> {
        // The mapping precedes the seal, because FUTURE_WRITE forbids later writable mappings.
        create_sealed(name, len, SealFlags::FUTURE_WRITE)
    }

    /// Creates a sparse memfd of `len` bytes and maps it read-write. The memfd cannot shrink, grow
    /// or be sealed further. Forked children share the mapping. [`Self::punch_hole`] can release
    /// pages of this memfd, but not pages of a memfd of [`Self::create_one_way`].
    pub fn create(name: &str, len: u64) -> io::Result<(Region, OwnedFd)> {
        create_sealed(name, len, SealFlags::empty())
    }

    /// Maps a memfd of another process. Refuses a memfd that does not have `len` bytes, or that
    /// lacks one of the seals SHRINK and GROW. If the creator could shrink the memfd, an access
    /// could raise SIGBUS.
    pub fn map(fd: BorrowedFd<'_>, len: u64, writable: bool) -> io::Result<Region> {
        let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        if u64::try_from(fstat(fd)?.st_size) != Ok(len) {
            return refused("the shared memory has another size");
        }
        if !fcntl_get_seals(fd)?.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return refused("the shared memory is not sealed");
        }
        map_shared(fd, len, writable)
    }

    /// Maps memfds next to each other in one range of addresses. Region offsets count through all
    /// memfds. Panics if more than one memfd is read-only.
    pub fn join(parts: &[Part<'_>]) -> io::Result<Region> {
        let total = parts.iter().try_fold(0u64, |sum, part| {
            let whole_pages = part.len.is_multiple_of(PAGE);
            sum.checked_add(part.len).filter(|_| whole_pages)
        });
        let len = length(total.unwrap_or(0))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address of the new mapping, so it overlaps no other
        // mapping.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), flags)? };
        let mut region = Region {
            base: non_null(base.cast()),
            len,
            backing: Backing::Memfd,
            read_only: 0..0,
        };
        let mut start = 0;
        for part in parts {
            let mut protection = ProtFlags::READ;
            protection.set(ProtFlags::WRITE, part.writable);
            let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: the range lies in the mapping that was just reserved, and no pointers into it
            // exist yet. The memfd cannot shrink, as `Part` requires.
            unsafe {
                let at = region.base.as_ptr().add(start as usize);
                mmap(
                    at.cast(),
                    part.len as usize,
                    protection,
                    flags,
                    part.memory,
                    0,
                )?;
            }
            if !part.writable {
                assert!(
                    region.read_only.is_empty(),
                    "more than one part is read-only"
                );
                region.read_only = start..start + part.len;
            }
            start += part.len;
        }
        Ok(region)
    }

    /// Locks the pages of `range` in memory after their first use, if the system allows it
    /// (RLIMIT_MEMLOCK, CAP_IPC_LOCK). A process that shares the pages then cannot force them to
    /// swap. Panics if `range` is not within the region.
    pub fn keep_resident(&self, range: Range<u64>) {
        let within = range.start <= range.end && range.end <= self.len();
        assert!(within, "the range is not within the region");
        // SAFETY: the range is within the mapping, and the call changes no byte of it.
        let _ = unsafe {
            let start = self.base.as_ptr().add(range.start as usize);
            let len = (range.end - range.start) as usize;
            mlock_with(start.cast(), len, MlockFlags::ONFAULT)
        };
    }

    /// Maps sparse anonymous memory of this process, for the simulator and for tests.
    pub fn heap(len: u64) -> io::Result<Region> {
        let len = length(len)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address of the new mapping, so it overlaps no other
        // mapping.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, flags)? };
        Ok(Region {
            base: non_null(base.cast()),
            len,
            backing: Backing::Heap,
            read_only: 0..0,
        })
    }

    /// Returns the length of the region in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns true if this process may write the whole region.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.read_only.is_empty()
    }

    /// Excludes the mapping from forked children.
    pub fn dont_fork(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping, and the advice only affects children.
        unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontFork)? };
        Ok(())
    }

    /// Maps private zero memory in a forked child, at the addresses of a mapping that
    /// [`Self::dont_fork`] has excluded from the child. The pointers that the child inherited then
    /// refer to this memory. Fails if other memory is mapped at the addresses.
    pub fn replace_after_fork(&self) -> io::Result<()> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let address = self.base.as_ptr().cast();
        // SAFETY: FIXED_NOREPLACE makes the call fail if it would overlap a mapping.
        let base = unsafe { mmap_anonymous(address, self.len, protection, flags)? };
        assert_eq!(
            base, address,
            "kernels before 4.17 ignore MAP_FIXED_NOREPLACE"
        );
        Ok(())
    }

    /// Releases the whole pages within `[offset, offset + len)`, which read as zero afterwards.
    /// Pages that are only partly in the range are not released. Fails if the range is outside of
    /// the region, if this process may not write the range, or if pages of a memfd of
    /// [`Self::create_one_way`] would be released.
    pub fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        let Some(end) = offset
            .checked_add(len)
            .filter(|&end| end <= self.len() && self.may_write(offset, end))
        else {
            return Err(Errno::INVAL.into());
        };
        let (start, end) = (offset.next_multiple_of(PAGE), end / PAGE * PAGE);
        if start >= end {
            return Ok(());
        }
        let advice = match self.backing {
            Backing::Memfd => Advice::LinuxRemove,
            Backing::Heap => Advice::LinuxDontNeed,
        };
        // SAFETY: the range is within the mapping, as checked above. Zero is a valid value for raw
        // copies and atomics. A user of `address` must not keep a reference to bytes that are
        // released.
        unsafe {
            let start_ptr = self.base.as_ptr().add(start as usize);
            madvise(start_ptr.cast(), (end - start) as usize, advice)?;
        }
        Ok(())
    }

    /// Copies `bytes` to region offset `offset`. Returns true if the bytes were copied, and false
    /// if the range is outside of the region or this process may not write the range.
    #[inline]
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.writable_range(offset, bytes.len()) else {
            return false;
        };
        // SAFETY: `writable_range` checked that the destination is within the mapping. The source
        // is a borrowed slice. It cannot overlap the destination: references to a region's bytes
        // are atomics, or come from `address`, whose user makes sure that nothing writes these
        // bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Returns the bytes at `offset` as atomics, because another process may change them at any
    /// time. Returns `None` if the range is outside of the region, or if this process may not write
    /// the range.
    pub fn bytes(&self, offset: u64, len: usize) -> Option<&[AtomicU8]> {
        let start = self.writable_range(offset, len)?;
        // SAFETY: `writable_range` checked that the bytes are within the mapping, which outlives
        // the borrow. The bytes are writable, as atomics require. An `AtomicU8` has the layout of a
        // byte, and every value is valid.
        Some(unsafe { slice::from_raw_parts(start.cast::<AtomicU8>(), len) })
    }

    /// Copies bytes from region offset `offset` to `bytes`. Returns true if the bytes were copied,
    /// and false if the range is outside of the region.
    #[inline]
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let Some(from) = self.range(offset, bytes.len()) else {
            return false;
        };
        // SAFETY: `range` checked that the source is within the mapping. The destination is a
        // mutably borrowed slice. It cannot overlap the source: a mutable reference to a region's
        // bytes exists only by `address`, whose user makes sure that nothing reads these bytes.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        true
    }

    /// Returns the address of the `len` bytes at `offset`, for access in place. The address is
    /// valid until the region is dropped. Returns `None` if the range is outside of the region.
    ///
    /// A reference to the bytes is sound only while no other code of this process writes the bytes,
    /// and while the other process does not access the bytes. In a read-only part, this process can
    /// only read the bytes.
    pub fn address(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        self.range(offset, len).map(non_null)
    }

    /// Copies `len` bytes from offset `from` to offset `to`. Returns true if the bytes were copied,
    /// and false if a range is outside of the region or this process may not write the range at
    /// `to`.
    pub fn copy_within(&self, from: u64, to: u64, len: usize) -> bool {
        let (Some(from), Some(to)) = (self.range(from, len), self.writable_range(to, len)) else {
            return false;
        };
        // SAFETY: `range` checked both ranges, and `copy` allows them to overlap.
        unsafe { ptr::copy(from, to, len) };
        true
    }

    /// Returns the start of the mapping, which is page-aligned.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns a pointer to a `T` at `offset`, or `None` if the `T` would be misaligned or not
    /// within the region.
    #[inline]
    pub(crate) fn pointer<T>(&self, offset: u64) -> Option<NonNull<T>> {
        let at = self.range(offset, size_of::<T>())?;
        (at.addr().is_multiple_of(align_of::<T>())).then(|| non_null(at.cast()))
    }

    /// Returns a pointer to the bytes at `offset`, or `None` if this process may not write all of
    /// them.
    #[inline]
    fn writable_range(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let start = self.range(offset, len)?;
        self.may_write(offset, offset + len as u64).then_some(start)
    }

    /// Returns true if this process may write the offsets from `start` to `end`.
    #[inline]
    fn may_write(&self, start: u64, end: u64) -> bool {
        start >= self.read_only.end || end <= self.read_only.start
    }

    #[inline]
    fn range(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let in_bounds = len <= self.len && offset <= (self.len - len) as u64;
        // SAFETY: the offset is at most the length of the mapping.
        in_bounds.then(|| unsafe { self.base.as_ptr().add(offset as usize) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: views borrow the region or hold an `Arc` of it, so no pointers into it are left.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Creates a memfd and maps it read-write. Then seals its length and adds `seals`.
fn create_sealed(name: &str, len: u64, seals: SealFlags) -> io::Result<(Region, OwnedFd)> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len)?;
    let region = map_shared(fd.as_fd(), len, true)?;
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&fd, all | seals)?;
    Ok((region, fd))
}

fn map_shared(fd: BorrowedFd<'_>, len: u64, writable: bool) -> io::Result<Region> {
    let len = length(len)?;
    let mut protection = ProtFlags::READ;
    protection.set(ProtFlags::WRITE, writable);
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: the kernel chooses the address of the new mapping, so it overlaps no other mapping.
    // The file cannot shrink: it is sealed already, or it will be before another process has it.
    let base = unsafe { mmap(ptr::null_mut(), len, protection, flags, fd, 0)? };
    Ok(Region {
        base: non_null(base.cast()),
        len,
        backing: Backing::Memfd,
        read_only: 0..if writable { 0 } else { len as u64 },
    })
}

fn length(len: u64) -> io::Result<usize> {
    usize::try_from(len)
        .ok()
        .filter(|&len| len > 0)
        .ok_or_else(|| Errno::INVAL.into())
}

fn non_null<T>(pointer: *mut T) -> NonNull<T> {
    NonNull::new(pointer).expect("a mapping is never at address zero")
}

#[cfg(test)]
mod tests;
