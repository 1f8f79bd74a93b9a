//! Mappings of shared memory, with bounds-checked copies.
//!
//! The bytes of a region may change under our hands at any time: another process may write them.
//! They are therefore copied in and out by pointer and never seen through a reference. Typed views
//! (`views_unsafe`) give references to atomics only.

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

/// Bytes of a page, the unit of `punch_hole`.
pub(crate) const PAGE: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    /// A sealed memfd: pages are shared with other processes.
    Memfd,
    /// Anonymous memory of this process.
    Heap,
}

/// One mapping. Unmapped when dropped.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
    /// Parts that this side cannot write: none, all, or one.
    read_only: Range<u64>,
}

/// A memory that becomes a part of a region.
#[derive(Clone, Copy, Debug)]
pub struct Part<'fd> {
    /// The memory, which cannot shrink.
    pub memory: BorrowedFd<'fd>,
    /// Its length: whole pages.
    pub len: u64,
    /// This side may write it.
    pub writable: bool,
}

// SAFETY: the mapping lives as long as the value, belongs to no thread, and all access to it is by
// raw copies or by atomics.
unsafe impl Send for Region {}
// SAFETY: as above; concurrent raw copies can at worst give torn bytes, which is what memory that
// another process writes gives anyway.
unsafe impl Sync for Region {}

impl Region {
    /// A new memfd of `len` bytes that can neither shrink, grow nor be sealed further, mapped
    /// read-write. Whoever gets the descriptor can only map it read-only. It is sparse: pages come
    /// with use.
    pub fn create_one_way(name: &str, len: u64) -> io::Result<(Region, OwnedFd)> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len)?;
        // Mapped before it is sealed: FUTURE_WRITE forbids later writable mappings, ours too.
        let region = map_shared(fd.as_fd(), len, true)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals | SealFlags::FUTURE_WRITE)?;
        Ok((region, fd))
    }

    /// Maps a memfd that another process made. It must have `len` bytes and be unable to shrink:
    /// otherwise its maker could turn our accesses into SIGBUS.
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

    /// Maps memories side by side in one range of addresses, so that offsets run through them. No
    /// more than one of them is read-only.
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

    /// Keeps the pages of `range` in memory once this side has used them, where the system allows
    /// that (RLIMIT_MEMLOCK, CAP_IPC_LOCK): whoever shares them cannot have them written to a swap
    /// device then.
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

    /// Anonymous zero memory of this process, sparse: for the simulator and for tests.
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

    /// Bytes of the region.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns true if this side may write all of it.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.read_only.is_empty()
    }

    /// Keeps the mapping out of children that fork.
    pub fn dont_fork(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping; the advice only affects children.
        unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontFork)? };
        Ok(())
    }

    /// In the child of a fork, after [`Self::dont_fork`]: puts private zero memory where the
    /// mapping was, so that a late access is harmless. Fails if something else is there by now.
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

    /// Gives the whole pages within `[offset, offset + len)` back to the system; they read as zero
    /// afterwards. Pages that are only partly in the range stay.
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

    /// Copies `bytes` to `offset`. False if they do not lie in the region or it is read-only.
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

    /// The bytes at `offset`, as what they are: atomics that anybody may change at any time. `None`
    /// if they do not lie in the region or it is read-only.
    pub fn bytes(&self, offset: u64, len: usize) -> Option<&[AtomicU8]> {
        let start = self.writable_range(offset, len)?;
        // SAFETY: `range` checked that the bytes are within the mapping, which outlives the borrow,
        // and which can be written as an atomic asks for. An `AtomicU8` has the layout of a byte
        // and any value.
        Some(unsafe { slice::from_raw_parts(start.cast::<AtomicU8>(), len) })
    }

    /// Fills `bytes` from `offset`. False if they do not lie in the region.
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

    /// Copies `len` bytes from one place of the region to another. False as in `copy_in`.
    pub fn copy_within(&self, from: u64, to: u64, len: usize) -> bool {
        let (Some(from), Some(to)) = (self.range(from, len), self.writable_range(to, len)) else {
            return false;
        };
        // SAFETY: `range` checked both; `copy` allows them to overlap.
        unsafe { ptr::copy(from, to, len) };
        true
    }

    /// Where the mapping starts: at a page.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// A pointer to `T` at `offset`, if it lies in the region and is aligned.
    #[inline]
    pub(crate) fn pointer<T>(&self, offset: u64) -> Option<NonNull<T>> {
        let at = self.range(offset, size_of::<T>())?;
        (at.addr().is_multiple_of(align_of::<T>())).then(|| non_null(at.cast()))
    }

    /// As `range`, if this side may write there.
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
