//! Mappings of shared memory, with bounds-checked copies.
//!
//! Another process may write the bytes of a region at any time. The bytes are therefore copied by
//! pointer and never accessed through a reference. Typed views (`views_unsafe`) give references
//! only to atomics.

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

/// Page size in bytes, the unit of `punch_hole`.
pub(crate) const PAGE: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    /// A sealed memfd, whose pages are shared with other processes.
    Memfd,
    /// Anonymous memory of this process.
    Heap,
}

/// A mapping, which is unmapped on drop.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
    /// Range that this side cannot write: empty, the whole region, or one part.
    read_only: Range<u64>,
}

/// A memory that becomes a part of a region.
#[derive(Clone, Copy, Debug)]
pub struct Part<'fd> {
    /// The memory, which must be sealed against shrinking.
    pub memory: BorrowedFd<'fd>,
    /// Length of the memory in bytes, a multiple of the page size.
    pub len: u64,
    /// True if this side may write the memory.
    pub writable: bool,
}

// SAFETY: the mapping lives as long as the value, belongs to no thread, and all access to it is by
// raw copies or by atomics.
unsafe impl Send for Region {}
// SAFETY: as above; concurrent raw copies can at worst give torn bytes, which is what memory that
// another process writes gives anyway.
unsafe impl Sync for Region {}

impl Region {
    /// Creates a sparse memfd of `len` bytes and maps it read-write. The memfd cannot shrink, grow
    /// or be sealed further, and a receiver of the descriptor can only map it read-only.
    pub fn create_one_way(name: &str, len: u64) -> io::Result<(Region, OwnedFd)> {
        // The mapping precedes the seal, because FUTURE_WRITE forbids later writable mappings.
        create_sealed(name, len, SealFlags::FUTURE_WRITE)
    }

    /// Creates a sparse memfd of `len` bytes and maps it read-write. The memfd cannot shrink, grow
    /// or be sealed further. Children that fork share it, and its pages can be given back.
    pub fn create(name: &str, len: u64) -> io::Result<(Region, OwnedFd)> {
        create_sealed(name, len, SealFlags::empty())
    }

    /// Maps a memfd of another process. The memfd must have `len` bytes and be sealed against
    /// shrinking: otherwise its creator could turn our accesses into SIGBUS.
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

    /// Maps memories next to each other in one range of addresses, so that offsets run through all
    /// of them. At most one of them may be read-only.
    pub fn join(parts: &[Part<'_>]) -> io::Result<Region> {
        let total = parts.iter().try_fold(0u64, |sum, part| {
            let whole_pages = part.len.is_multiple_of(PAGE);
            sum.checked_add(part.len).filter(|_| whole_pages)
        });
        let len = length(total.unwrap_or(0))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
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
            // SAFETY: the range lies in the mapping that was just reserved, to which there are no
            // pointers yet. The memory cannot shrink: that is the part's premise.
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
                assert!(region.read_only.is_empty(), "one part is read-only");
                region.read_only = start..start + part.len;
            }
            start += part.len;
        }
        Ok(region)
    }

    /// Keeps the pages of `range` in memory after their first use, where the system allows it
    /// (RLIMIT_MEMLOCK, CAP_IPC_LOCK). A process that shares the pages then cannot force them to
    /// swap.
    pub fn keep_resident(&self, range: Range<u64>) {
        let within = range.start <= range.end && range.end <= self.len();
        assert!(within, "part of the region");
        // SAFETY: the range is within the mapping; the call changes no byte of it.
        let _ = unsafe {
            let start = self.base.as_ptr().add(range.start as usize);
            let len = (range.end - range.start) as usize;
            mlock_with(start.cast(), len, MlockFlags::ONFAULT)
        };
    }

    /// Maps sparse anonymous memory of this process, for the simulator and tests.
    pub fn heap(len: u64) -> io::Result<Region> {
        let len = length(len)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
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

    /// Returns true if this side may write the whole region.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.read_only.is_empty()
    }

    /// Keeps the mapping out of forked children.
    pub fn dont_fork(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping; the advice only affects children.
        unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontFork)? };
        Ok(())
    }

    /// Maps private zero memory in place of the mapping, in the child of a fork after
    /// [`Self::dont_fork`], so that a late access is harmless. Fails if the addresses are in use
    /// again.
    pub fn replace_after_fork(&self) -> io::Result<()> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let address = self.base.as_ptr().cast();
        // SAFETY: FIXED_NOREPLACE fails rather than overlap an existing mapping.
        let base = unsafe { mmap_anonymous(address, self.len, protection, flags)? };
        assert_eq!(
            base, address,
            "kernels before 4.17 take the address for a hint"
        );
        Ok(())
    }

    /// Releases the whole pages within `[offset, offset + len)`, which read as zero afterwards.
    /// Pages that are only partly in the range stay.
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
        // SAFETY: the range is within the mapping (checked above); its bytes are only ever accessed
        // by raw copies and as atomics, for which zero is a valid value.
        unsafe {
            let start_ptr = self.base.as_ptr().add(start as usize);
            madvise(start_ptr.cast(), (end - start) as usize, advice)?;
        }
        Ok(())
    }

    /// Copies `bytes` to `offset`. Returns false if the range is outside of the region or
    /// read-only.
    #[inline]
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.writable_range(offset, bytes.len()) else {
            return false;
        };
        // SAFETY: `range` checked that the destination is within the mapping. The source is a
        // borrowed slice: it cannot overlap a region, to which no references exist.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Returns the bytes at `offset` as atomics, because another process may change them at any
    /// time; None if the range is outside of the region or read-only.
    pub fn bytes(&self, offset: u64, len: usize) -> Option<&[AtomicU8]> {
        let start = self.writable_range(offset, len)?;
        // SAFETY: `range` checked that the bytes are within the mapping, which outlives the borrow,
        // and which can be written as an atomic asks for. An `AtomicU8` has the layout of a byte
        // and any value.
        Some(unsafe { slice::from_raw_parts(start.cast::<AtomicU8>(), len) })
    }

    /// Fills `bytes` from `offset`. Returns false if the range is outside of the region.
    #[inline]
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let Some(from) = self.range(offset, bytes.len()) else {
            return false;
        };
        // SAFETY: `range` checked that the source is within the mapping. The destination is a
        // mutably borrowed slice, which cannot overlap a region.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        true
    }

    /// Copies `len` bytes within the region. Returns false like `copy_in`.
    pub fn copy_within(&self, from: u64, to: u64, len: usize) -> bool {
        let (Some(from), Some(to)) = (self.range(from, len), self.writable_range(to, len)) else {
            return false;
        };
        // SAFETY: `range` checked both; `copy` allows them to overlap.
        unsafe { ptr::copy(from, to, len) };
        true
    }

    /// Returns the start of the mapping, which is page-aligned.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns a pointer to `T` at `offset`, if the range is within the region and aligned.
    #[inline]
    pub(crate) fn pointer<T>(&self, offset: u64) -> Option<NonNull<T>> {
        let at = self.range(offset, size_of::<T>())?;
        (at.addr().is_multiple_of(align_of::<T>())).then(|| non_null(at.cast()))
    }

    /// Returns `range`, if this side may write there.
    #[inline]
    fn writable_range(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let start = self.range(offset, len)?;
        self.may_write(offset, offset + len as u64).then_some(start)
    }

    #[inline]
    fn may_write(&self, start: u64, end: u64) -> bool {
        start >= self.read_only.end || end <= self.read_only.start
    }

    #[inline]
    fn range(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let in_bounds = len <= self.len && offset <= (self.len - len) as u64;
        // SAFETY: the offset is at most the mapping's length.
        in_bounds.then(|| unsafe { self.base.as_ptr().add(offset as usize) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: views borrow the region or hold an `Arc` of it, so nothing points here any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A new memfd, mapped read-write before it is sealed, with `seals` beside those of its length.
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
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing. The file cannot
    // shrink: it is sealed, or about to be, before anyone else has it.
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
