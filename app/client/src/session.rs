//! What a program's contexts and streams share.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use tidelane_abi::CoreLine;
use tidelane_ring::{
    BufferAllocator, Doorbell, ProgramRegion, ServicePageMap, StreamBuffer, sleep,
};

use crate::control::Control;

/// How to wake the cores of the service.
pub(crate) enum ServiceBell {
    /// One for each.
    Doorbells(Vec<Doorbell>),
    InMemory(Box<dyn Fn() + Send + Sync>),
}

/// The session of this process with the service.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) region: Arc<ProgramRegion>,
    pub(crate) page: Arc<ServicePageMap>,
    pub(crate) control: Option<Control>,
    pub(crate) bell: ServiceBell,
    pub(crate) next_context: AtomicU32,
    /// A slot's number shifted right by this is its core's.
    slots_shift: u32,
    gone: AtomicBool,
    /// The same, for those that do not hold the session.
    pub(crate) told_gone: Arc<AtomicBool>,
    buffers: Mutex<Buffers>,
}

/// The send-buffer area.
#[derive(Debug)]
pub(crate) struct Buffers {
    pub(crate) allocator: BufferAllocator,
    /// By slot: buffers of closed streams, which the service may use until it releases the slot.
    orphans: Vec<Orphans>,
}

/// The present buffer of a closed stream, and those that it outgrew (hardly ever any).
#[derive(Clone, Debug, Default)]
struct Orphans {
    /// Of the use of the slot that they belong to.
    generation: u32,
    present: Option<StreamBuffer>,
    outgrown: Vec<StreamBuffer>,
}

impl Session {
    pub(crate) fn new(
        region: Arc<ProgramRegion>,
        page: Arc<ServicePageMap>,
        control: Option<Control>,
        bell: ServiceBell,
    ) -> Session {
        let allocator = BufferAllocator::new(region.layout().tx_area());
        let slots_shift = region.layout().slots_shift(page.cores());
        Session {
            // Without slots there are no connections to look up.
            slots_shift: slots_shift.unwrap_or(0),
            region,
            page,
            control,
            bell,
            next_context: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            told_gone: Arc::default(),
            buffers: Mutex::new(Buffers {
                allocator,
                orphans: Vec::new(),
            }),
        }
    }

    /// Whether the service is known to be gone.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.told_gone.store(true, Ordering::Relaxed);
    }

    /// The number of the core that has `slot`.
    #[inline]
    pub(crate) fn core_of_slot(&self, slot: u32) -> usize {
        (slot >> self.slots_shift) as usize
    }

    /// What `context` begins to count cores with. Programs with one connection each do not all
    /// begin with the first core; in memory, though, nothing depends on the process.
    pub(crate) fn first_core(&self, context: u32) -> u32 {
        match self.bell {
            ServiceBell::Doorbells(_) => std::process::id(),
            ServiceBell::InMemory(_) => context,
        }
    }

    /// What the service says of a core.
    pub(crate) fn core(&self, core: usize) -> Option<&CoreLine> {
        self.page.core(core as u32)
    }

    /// After publishing: whether `core` must be rung.
    pub(crate) fn core_sleeps_after_publish(&self, core: usize) -> bool {
        self.core(core)
            .is_some_and(|core| sleep::sleeps(&core.needs_wakeup))
    }

    pub(crate) fn ring_service(&self, core: usize) {
        match &self.bell {
            // A broken doorbell needs no report: the control socket hangs up with the service.
            ServiceBell::Doorbells(bells) => {
                bells.get(core).map(Doorbell::ring);
            }
            ServiceBell::InMemory(ring) => ring(),
        }
    }

    pub(crate) fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.buffers
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Buffers {
    /// Keeps the buffers of a stream that was closed until its slot is released.
    pub(crate) fn orphan(
        &mut self,
        slot: u32,
        generation: u32,
        present: Option<StreamBuffer>,
        outgrown: Vec<StreamBuffer>,
    ) {
        // An earlier use of the slot is over, whether its release was seen or not.
        self.free_orphans(slot);
        let slot = slot as usize;
        if self.orphans.len() <= slot {
            self.orphans.resize(slot + 1, Orphans::default());
        }
        self.orphans[slot] = Orphans {
            generation,
            present,
            outgrown,
        };
    }

    /// The service released the slot, whose generation is now `generation`. The news may be late:
    /// another context may have had the slot's next connection, and closed it, before.
    pub(crate) fn released(&mut self, slot: u32, generation: u32) {
        let orphans = self.orphans.get(slot as usize);
        if orphans.is_some_and(|orphans| orphans.generation != generation) {
            self.free_orphans(slot);
        }
    }

    /// The use of the slot that its orphans belong to is over.
    fn free_orphans(&mut self, slot: u32) {
        let Some(orphans) = self.orphans.get_mut(slot as usize) else {
            return;
        };
        let Orphans {
            present, outgrown, ..
        } = std::mem::take(orphans);
        for buffer in present.into_iter().chain(outgrown) {
            self.allocator.free(buffer);
        }
    }
}

impl fmt::Debug for ServiceBell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceBell::Doorbells(bells) => bells.fmt(f),
            ServiceBell::InMemory(_) => write!(f, "InMemory"),
        }
    }
}
