//! Typed views of shared memory: references to atomics, and plain data by copy.

use std::{
    fmt, io,
    ops::Deref,
    os::fd::{BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

use tidelane_abi::{
    ABI_VERSION, CONTEXT_LEN, CONTEXTS_MAX, CORES_MAX, ContextHead, CoreLine, Header, ProgramHalf,
    SERVICE_PAGE_MAGIC, ServiceHalf, ServicePage, Slot, SlotNames, SlotOptions, context_offset,
};

use crate::{
    Layout, LayoutError, Memories, Region,
    layout::SLOT_LEN,
    memories::{self, MEMORIES},
};

// What views of slots and contexts rely on, beside the layout.
const _: () = {
    assert!(size_of::<Slot>() as u64 == SLOT_LEN && align_of::<Slot>() as u64 <= SLOT_LEN);
    assert!(size_of::<ContextHead>() as u64 <= CONTEXT_LEN);
    let first = context_offset(0);
    assert!((first | CONTEXT_LEN).is_multiple_of(align_of::<ContextHead>() as u64));
};

/// A program region: a mapping and its validated layout.
#[derive(Debug)]
pub struct ProgramRegion {
    region: Region,
    layout: Layout,
}

/// Why shared memory that the other side sent was not accepted.
#[derive(Debug)]
pub enum MapError {
    /// It cannot be mapped, or is not sealed as it must be.
    Io(io::Error),
    /// It is no program region or service page, or of another version.
    Layout(LayoutError),
}

impl ProgramRegion {
    /// The service makes a new region; the descriptors are for the program.
    pub fn create(name: &str, layout: &Layout) -> io::Result<(ProgramRegion, Memories)> {
        let (region, memories) = Memories::create(name, layout.parts())?;
        // Rings and slots are looked at in each turn. Of what is locked, nothing could be given
        // back (MADV_REMOVE), so buffers are not.
        region.keep_resident(0..layout.rx_area().start);
        Ok((ProgramRegion::with_header(region, layout), memories))
    }

    /// A region within this process (simulator, tests).
    pub fn heap(layout: &Layout) -> io::Result<ProgramRegion> {
        let region = Region::heap(layout.region_len())?;
        Ok(ProgramRegion::with_header(region, layout))
    }

    /// The program maps the region that it was sent, and seals what it will write.
    pub fn map(
        descriptors: [BorrowedFd<'_>; MEMORIES],
        len: u64,
    ) -> Result<ProgramRegion, MapError> {
        let (region, lens) = memories::map(descriptors).map_err(MapError::Io)?;
        let Some(header) = region.pointer::<Header>(0) else {
            return Err(MapError::Layout(LayoutError::Range));
        };
        // SAFETY: the pointer is aligned and in the mapping; any bytes are a `Header`. Read once.
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
            "the region was made for the layout"
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

    /// The private copy of the layout.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The mapping, for payload.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The head of context `n`, if there can be such a context.
    pub fn context(&self, n: u32) -> Option<ContextView<'_>> {
        if n >= CONTEXTS_MAX {
            return None;
        }
        // SAFETY: a layout has all contexts before its slots, which lie in the mapping, and
        // `context_offset` is aligned. The mapping is kept by `self`. A `ContextHead` is of atomics
        // and of padding that nobody reads; other accesses to it are atomic too.
        let head = unsafe {
            let start = self.region.base().add(context_offset(n) as usize);
            start.cast::<ContextHead>().as_ref()
        };
        Some(ContextView { head })
    }

    /// Slot `n`, if there is one.
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
        // SAFETY: a layout is only taken into a `ProgramRegion` if its slots lie in the mapping, in
        // places that are multiples of their length.
        Some(unsafe { self.region.base().add(offset as usize).cast() })
    }
}

impl Deref for ProgramRegion {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

/// The head of a context.
#[derive(Clone, Copy, Debug)]
pub struct ContextView<'r> {
    /// Indices and sleep words.
    pub head: &'r ContextHead,
}

/// A slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotView<'r> {
    slot: NonNull<Slot>,
    _region: &'r Region,
}

impl<'r> SlotView<'r> {
    /// The service's half.
    #[inline]
    pub fn service(&self) -> &'r ServiceHalf {
        // SAFETY: the slot is aligned and in the mapping, which lives for 'r. The half is of
        // atomics and of padding that nobody reads.
        unsafe { &(*self.slot.as_ptr()).service }
    }

    /// The program's half.
    #[inline]
    pub fn program(&self) -> &'r ProgramHalf {
        // SAFETY: as in `service`.
        unsafe { &(*self.slot.as_ptr()).program }
    }

    /// The program's options.
    #[inline]
    pub fn options(&self) -> &'r SlotOptions {
        // SAFETY: as in `service`.
        unsafe { &(*self.slot.as_ptr()).options }
    }

    /// A copy of the names.
    pub fn names(&self) -> SlotNames {
        // SAFETY: aligned and in the mapping, which lives for 'r; any bytes are a `SlotNames`.
        unsafe { (&raw const (*self.slot.as_ptr()).names).read_volatile() }
    }

    /// Writes the names: by the service, before it announces the slot.
    pub fn set_names(&self, names: &SlotNames) {
        // SAFETY: aligned and in the mapping, which lives for 'r and, of a program region, is
        // always writable.
        unsafe { (&raw mut (*self.slot.as_ptr()).names).write_volatile(*names) };
    }
}

/// A slot that keeps its region mapped.
#[derive(Clone, Debug)]
pub struct SlotHandle {
    slot: NonNull<Slot>,
    region: Arc<ProgramRegion>,
}

// SAFETY: the pointer is into the mapping that the `Arc` keeps; access is as through `SlotView`.
unsafe impl Send for SlotHandle {}
// SAFETY: as above.
unsafe impl Sync for SlotHandle {}

impl SlotHandle {
    /// Slot `n` of `region`, if there is one.
    pub fn new(region: Arc<ProgramRegion>, n: u32) -> Option<SlotHandle> {
        let slot = region.slot_pointer(n)?;
        Some(SlotHandle { slot, region })
    }

    /// A view of the slot.
    #[inline]
    pub fn view(&self) -> SlotView<'_> {
        SlotView {
            slot: self.slot,
            _region: &self.region.region,
        }
    }

    /// The region.
    #[inline]
    pub fn region(&self) -> &Arc<ProgramRegion> {
        &self.region
    }
}

/// The service page: written by the service, read by programs.
#[derive(Debug)]
pub struct ServicePageMap {
    region: Region,
    page: NonNull<ServicePage>,
    cores: u32,
}

// SAFETY: the pointer is into the mapping that the value owns; its fields are atomics, or constant
// since before it was shared.
unsafe impl Send for ServicePageMap {}
// SAFETY: as above.
unsafe impl Sync for ServicePageMap {}

const SERVICE_PAGE_LEN: u64 = (size_of::<ServicePage>() as u64).next_multiple_of(4096);

impl ServicePageMap {
    /// The service makes its page; the descriptor is for programs, who can only read it.
    pub fn create(cores: u32) -> io::Result<(ServicePageMap, OwnedFd)> {
        let (region, fd) = Region::create_one_way("tidelane-service-page", SERVICE_PAGE_LEN)?;
        Ok((ServicePageMap::with_header(region, cores), fd))
    }

    /// A page within this process (simulator, tests).
    pub fn heap(cores: u32) -> io::Result<ServicePageMap> {
        Ok(ServicePageMap::with_header(
            Region::heap(SERVICE_PAGE_LEN)?,
            cores,
        ))
    }

    /// A program maps the page that it was sent.
    pub fn map(fd: BorrowedFd<'_>) -> Result<ServicePageMap, MapError> {
        let region = Region::map(fd, SERVICE_PAGE_LEN, false).map_err(MapError::Io)?;
        let Some(page) = region.pointer::<ServicePage>(0) else {
            return Err(MapError::Layout(LayoutError::Range));
        };
        // SAFETY: aligned and in the mapping; any bytes are integers. Each is read once.
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
        // SAFETY: aligned and in the mapping, which is writable and not yet shared.
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

    /// The page. A program's is read-only: storing to its atomics is a SIGSEGV, so writers are
    /// offered by this crate only where `is_writable`.
    pub(crate) fn page(&self) -> &ServicePage {
        // SAFETY: aligned and in the mapping that `self` owns. The plain fields are constant since
        // before the page was shared, and only the service can write it.
        unsafe { self.page.as_ref() }
    }

    /// The mapping.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Fast-path cores in use.
    pub fn cores(&self) -> u32 {
        self.cores
    }

    /// What may be known of core `n`. Programs must not store to it.
    pub fn core(&self, n: u32) -> Option<&CoreLine> {
        self.page().core[..self.cores as usize].get(n as usize)
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::Io(error) => error.fmt(f),
            MapError::Layout(LayoutError::Magic) => write!(f, "not shared memory of tidelane"),
            MapError::Layout(LayoutError::Version(theirs)) => {
                write!(
                    f,
                    "shared-memory version mismatch: ours {ABI_VERSION}, theirs {theirs}"
                )
            }
            MapError::Layout(LayoutError::Range) => write!(f, "impossible layout"),
        }
    }
}

impl std::error::Error for MapError {}
