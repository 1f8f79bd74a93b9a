//! Typed views of the memory that programs share with the service (process `tidelaned`): references
//! to atomics, and copies of plain data.
//!
//! A slot holds the state of one connection. A ring set has the rings between one thread of a
//! program and one core (polling thread) of the service.

use std::{
    fmt, io,
    ops::Deref,
    os::fd::{BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

use tidelane_abi::{
    ABI_VERSION, CORES_MAX, ConnectionIds, CoreLine, Header, ProgramHalf, RING_SET_LEN,
    RING_SETS_MAX, RingSetHead, SERVICE_PAGE_MAGIC, ServiceHalf, ServicePage, Slot, SlotOptions,
    ring_set_offset,
};

use crate::{
    Layout, LayoutError, Memories, Region,
    layout::SLOT_LEN,
    memories::{self, MEMORIES},
};

// The views of slots and ring sets rely on these sizes and alignments.
const _: () = {
    assert!(size_of::<Slot>() as u64 == SLOT_LEN && align_of::<Slot>() as u64 <= SLOT_LEN);
    assert!(size_of::<RingSetHead>() as u64 <= RING_SET_LEN);
    let first = ring_set_offset(0);
    assert!((first | RING_SET_LEN).is_multiple_of(align_of::<RingSetHead>() as u64));
};

/// A program region, the memory that one program shares with the service: the mapping and its
/// validated layout.
#[derive(Debug)]
pub struct ProgramRegion {
    region: Region,
    layout: Layout,
}

/// Reason why shared memory from another process was refused.
#[derive(Debug)]
pub enum MapError {
    /// The memory cannot be mapped, or lacks a seal.
    Io(io::Error),
    /// The header has a wrong magic number or another version, or the layout is invalid.
    Layout(LayoutError),
}

impl ProgramRegion {
    /// Creates a region. The service calls this function and passes the descriptors to the program.
    pub fn create(name: &str, layout: &Layout) -> io::Result<(ProgramRegion, Memories)> {
        let (region, memories) = Memories::create(name, layout.parts())?;
        // The service polls the rings and slots, so the pages of rings and slots are locked in
        // memory. The pages of buffers are not locked, because locked pages cannot be released
        // (MADV_REMOVE).
        region.keep_resident(0..layout.rx_area().start);
        Ok((ProgramRegion::with_header(region, layout), memories))
    }

    /// Creates a region within this process, for the simulator and for tests.
    pub fn heap(layout: &Layout) -> io::Result<ProgramRegion> {
        let region = Region::heap(layout.region_len())?;
        Ok(ProgramRegion::with_header(region, layout))
    }

    /// Maps a region from the service, and seals the memories (memfds) that the program writes. The
    /// program calls this function.
    pub fn map(
        descriptors: [BorrowedFd<'_>; MEMORIES],
        len: u64,
    ) -> Result<ProgramRegion, MapError> {
        let (region, lens) = memories::map(descriptors).map_err(MapError::Io)?;
        let Some(header) = region.pointer::<Header>(0) else {
            return Err(MapError::Layout(LayoutError::Range));
        };
        // SAFETY: the pointer is aligned and in the mapping, and any bytes are a valid `Header`.
        // The header is read once.
        let header = unsafe { header.as_ptr().read_volatile() };
        let layout = Layout::from_header(&header, region.len()).map_err(MapError::Layout)?;
        if region.len() != len || layout.parts() != lens {
            return Err(MapError::Layout(LayoutError::Range));
        }
        memories::seal(descriptors).map_err(MapError::Io)?;
        Ok(ProgramRegion { region, layout })
    }

    fn with_header(region: Region, layout: &Layout) -> ProgramRegion {
        assert!(
            Layout::from_header(&layout.header(), region.len()).is_ok(),
            "the region does not fit the layout"
        );
        let header = region
            .pointer::<Header>(0)
            .expect("a region is larger than its header");
        // SAFETY: the pointer is aligned and in the mapping, which is writable and not yet shared.
        unsafe { header.as_ptr().write_volatile(layout.header()) };
        ProgramRegion {
            region,
            layout: *layout,
        }
    }

    /// Returns the layout, which is a private copy.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the mapping, for access to payload.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the head of ring set `n`, or `None` if `n` is not below [`RING_SETS_MAX`].
    pub fn ring_set(&self, n: u32) -> Option<RingSetView<'_>> {
        if n >= RING_SETS_MAX {
            return None;
        }
        // SAFETY: in a layout, all ring sets precede the slots, which lie in the mapping.
        // `ring_set_offset` is aligned, and `self` keeps the mapping. A `RingSetHead` consists of
        // atomics, and of padding that nobody reads. Other accesses to the head are atomic, too.
        let head = unsafe {
            let start = self.region.base().add(ring_set_offset(n) as usize);
            start.cast::<RingSetHead>().as_ref()
        };
        Some(RingSetView { head })
    }

    /// Returns a view of slot `n`, or `None` if the slot does not exist.
    #[inline]
    pub fn slot(&self, n: u32) -> Option<SlotView<'_>> {
        let slot = self.slot_pointer(n)?;
        Some(SlotView {
            slot,
            _region: &self.region,
        })
    }

    #[inline]
    fn slot_pointer(&self, n: u32) -> Option<NonNull<Slot>> {
        let offset = self.layout.slot_offset(n)?;
        // SAFETY: a `ProgramRegion` has a layout whose slots lie in the mapping, at multiples of
        // their length.
        Some(unsafe { self.region.base().add(offset as usize).cast() })
    }
}

impl Deref for ProgramRegion {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

/// A reference to the head of a ring set in a mapped region.
#[derive(Clone, Copy, Debug)]
pub struct RingSetView<'r> {
    /// Indices of the rings, and the words of the sleep protocol ([`crate::sleep`]).
    pub head: &'r RingSetHead,
}

/// A view of a slot in a mapped region.
#[derive(Clone, Copy, Debug)]
pub struct SlotView<'r> {
    slot: NonNull<Slot>,
    _region: &'r Region,
}

impl<'r> SlotView<'r> {
    /// Returns the service's half.
    #[inline]
    pub fn service(&self) -> &'r ServiceHalf {
        // SAFETY: the slot is aligned and in the mapping, which lives for 'r. The half consists of
        // atomics, and of padding that nobody reads.
        unsafe { &(*self.slot.as_ptr()).service }
    }

    /// Returns the program's half.
    #[inline]
    pub fn program(&self) -> &'r ProgramHalf {
        // SAFETY: as in `service`.
        unsafe { &(*self.slot.as_ptr()).program }
    }

    /// Returns the options that the program sets.
    #[inline]
    pub fn options(&self) -> &'r SlotOptions {
        // SAFETY: as in `service`.
        unsafe { &(*self.slot.as_ptr()).options }
    }

    /// Returns a copy of the addresses and ports.
    pub fn ids(&self) -> ConnectionIds {
        // SAFETY: the slot is aligned and in the mapping, which lives for 'r. Any bytes are a valid
        // `ConnectionIds`.
        unsafe { (&raw const (*self.slot.as_ptr()).ids).read_volatile() }
    }

    /// Writes the addresses and ports. The service calls this function before it announces the slot
    /// to the program.
    pub fn set_ids(&self, ids: &ConnectionIds) {
        // SAFETY: the slot is aligned and in the mapping, which lives for 'r. The slots of a
        // program region are always writable.
        unsafe { (&raw mut (*self.slot.as_ptr()).ids).write_volatile(*ids) };
    }
}

/// A reference to a slot. The reference keeps the region mapped.
#[derive(Clone, Debug)]
pub struct SlotHandle {
    slot: NonNull<Slot>,
    region: Arc<ProgramRegion>,
}

// SAFETY: the pointer refers to the mapping that the `Arc` keeps. All access is through `SlotView`.
unsafe impl Send for SlotHandle {}
// SAFETY: as above.
unsafe impl Sync for SlotHandle {}

impl SlotHandle {
    /// Returns slot `n` of `region`, or `None` if the slot does not exist.
    pub fn new(region: Arc<ProgramRegion>, n: u32) -> Option<SlotHandle> {
        let slot = region.slot_pointer(n)?;
        Some(SlotHandle { slot, region })
    }

    /// Returns a view of the slot.
    #[inline]
    pub fn view(&self) -> SlotView<'_> {
        SlotView {
            slot: self.slot,
            _region: &self.region.region,
        }
    }

    /// Returns the region of the slot.
    #[inline]
    pub fn region(&self) -> &Arc<ProgramRegion> {
        &self.region
    }
}

/// The mapped service page. The service writes the page. Programs read the page to learn the
/// routes, and to learn which cores (polling threads) of the service sleep.
#[derive(Debug)]
pub struct ServicePageMap {
    region: Region,
    page: NonNull<ServicePage>,
    /// Number of cores of the service: a private copy, which the service cannot change.
    cores: u32,
}

// SAFETY: the pointer refers to the mapping that the value owns. Each field of the page is an
// atomic, or was written before the page was shared and is constant since.
unsafe impl Send for ServicePageMap {}
// SAFETY: as above.
unsafe impl Sync for ServicePageMap {}

/// Length of the service page in bytes, in whole pages.
const SERVICE_PAGE_LEN: u64 = (size_of::<ServicePage>() as u64).next_multiple_of(4096);

impl ServicePageMap {
    /// Creates the page. The service calls this function and passes the descriptor to programs,
    /// which can only map the page read-only.
    pub fn create(cores: u32) -> io::Result<(ServicePageMap, OwnedFd)> {
        let (region, fd) = Region::create_one_way("tidelane-service-page", SERVICE_PAGE_LEN)?;
        Ok((ServicePageMap::with_header(region, cores), fd))
    }

    /// Creates a page within this process, for the simulator and for tests.
    pub fn heap(cores: u32) -> io::Result<ServicePageMap> {
        Ok(ServicePageMap::with_header(
            Region::heap(SERVICE_PAGE_LEN)?,
            cores,
        ))
    }

    /// Maps a page from the service. The program calls this function.
    pub fn map(fd: BorrowedFd<'_>) -> Result<ServicePageMap, MapError> {
        let region = Region::map(fd, SERVICE_PAGE_LEN, false).map_err(MapError::Io)?;
        let Some(page) = region.pointer::<ServicePage>(0) else {
            return Err(MapError::Layout(LayoutError::Range));
        };
        // SAFETY: the page is aligned and in the mapping. The fields are integers, and each is read
        // once.
        let (magic, version, cores) = unsafe {
            let page = page.as_ptr();
            (
                (&raw const (*page).magic).read_volatile(),
                (&raw const (*page).abi_version).read_volatile(),
                (&raw const (*page).cores).read_volatile(),
            )
        };
        if magic != SERVICE_PAGE_MAGIC {
            return Err(MapError::Layout(LayoutError::Magic));
        }
        if version != ABI_VERSION {
            return Err(MapError::Layout(LayoutError::Version(version)));
        }
        if !(1..=CORES_MAX).contains(&(cores as usize)) {
            return Err(MapError::Layout(LayoutError::Range));
        }
        Ok(ServicePageMap {
            region,
            page,
            cores,
        })
    }

    fn with_header(region: Region, cores: u32) -> ServicePageMap {
        assert!((1..=CORES_MAX).contains(&(cores as usize)));
        let page = region
            .pointer::<ServicePage>(0)
            .expect("the region has a page's size");
        // SAFETY: the page is aligned and in the mapping, which is writable and not yet shared.
        unsafe {
            let page = page.as_ptr();
            (&raw mut (*page).magic).write_volatile(SERVICE_PAGE_MAGIC);
            (&raw mut (*page).abi_version).write_volatile(ABI_VERSION);
            (&raw mut (*page).cores).write_volatile(cores);
        }
        ServicePageMap {
            region,
            page,
            cores,
        }
    }

    /// Returns the page. In a program, the mapping is read-only, and a store to an atomic of the
    /// page raises SIGSEGV. A function of this crate that writes the page therefore checks
    /// `is_writable` first.
    pub(crate) fn page(&self) -> &ServicePage {
        // SAFETY: the page is aligned and in the mapping that `self` owns. The plain fields were
        // written before the page was shared, and only the service can write them.
        unsafe { self.page.as_ref() }
    }

    /// Returns the mapping.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the number of cores (polling threads) of the service.
    pub fn cores(&self) -> u32 {
        self.cores
    }

    /// Returns the cache line of core `n`, or `None` if the service has no core `n`. A store to the
    /// line raises SIGSEGV in a program.
    pub fn core(&self, n: u32) -> Option<&CoreLine> {
        self.page().core[..self.cores as usize].get(n as usize)
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::Io(error) => error.fmt(f),
            MapError::Layout(LayoutError::Magic) => write!(f, "not shared memory of tidelane"),
            MapError::Layout(LayoutError::Version(peer_version)) => {
                write!(
                    f,
                    "shared-memory version mismatch: ours {ABI_VERSION}, theirs {peer_version}"
                )
            }
            MapError::Layout(LayoutError::Range) => write!(f, "impossible layout"),
        }
    }
}

impl std::error::Error for MapError {}
