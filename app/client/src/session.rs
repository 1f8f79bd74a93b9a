//! The state that the contexts and streams of a program share. The state belongs to the program's
//! session, which is the program's registration with the service (the process `tidelaned`).

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use tidelane_ring::{
    BufferAllocator, Doorbell, ProgramRegion, ServicePageMap, StreamBuffer, sleep,
};

use crate::control::Control;

/// The doorbells of the service's cores (polling threads), by which the program wakes a sleeping
/// core.
pub(crate) enum ServiceDoorbells {
    /// One eventfd for each core.
    PerCore(Vec<Doorbell>),
    /// A function that tells a service in this process (simulator) about requests.
    InMemory(Box<dyn Fn() + Send + Sync>),
}

/// The state of a session that a program's contexts and streams share.
#[derive(Debug)]
pub(crate) struct ClientSession {
    /// The memory that the program shares with the service: slots (records of connections), rings
    /// and buffers.
    pub(crate) region: Arc<ProgramRegion>,
    /// The page in which the service publishes its route table and the state of its cores.
    pub(crate) page: Arc<ServicePageMap>,
    /// The registration socket, or `None` if the service is in this process.
    pub(crate) control: Option<Control>,
    pub(crate) doorbell: ServiceDoorbells,
    /// Number of the next context.
    pub(crate) next_context: AtomicU32,
    /// The number of a slot, shifted right by this number of bits, is the number of its core.
    slots_shift: u32,
    /// True if the service is gone or has written an impossible value, or if the program has given
    /// up the session (`Program::abandon`).
    gone: AtomicBool,
    /// A copy of `gone` that may outlive the session.
    pub(crate) gone_flag: Arc<AtomicBool>,
    buffers: Mutex<Buffers>,
}

/// The program's send buffers: the allocator, and the buffers of closed streams.
#[derive(Debug)]
pub(crate) struct Buffers {
    pub(crate) allocator: BufferAllocator,
    /// For each slot, the buffers of a closed stream. The service may read the buffers until the
    /// service releases the slot.
    closed: Vec<ClosedBuffers>,
}

/// The send buffers of a closed stream: the buffer that the stream had when it was closed (the
/// present buffer), and earlier buffers that were replaced (outgrown).
#[derive(Clone, Debug, Default)]
struct ClosedBuffers {
    /// Generation of the slot when the stream used the slot. The generation counts the uses and the
    /// releases of the slot.
    generation: u32,
    present: Option<StreamBuffer>,
    outgrown: Vec<StreamBuffer>,
}

impl ClientSession {
    pub(crate) fn new(
        region: Arc<ProgramRegion>,
        page: Arc<ServicePageMap>,
        control: Option<Control>,
        doorbell: ServiceDoorbells,
    ) -> ClientSession {
        let allocator = BufferAllocator::new(region.layout().tx_area());
        let slots_shift = region.layout().slots_shift(page.cores());
        ClientSession {
            // `slots_shift` is `None` if there are fewer slots than cores. The service then uses no
            // slot, so the 0 has no effect.
            slots_shift: slots_shift.unwrap_or(0),
            region,
            page,
            control,
            doorbell,
            next_context: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            gone_flag: Arc::default(),
            buffers: Mutex::new(Buffers {
                allocator,
                closed: Vec::new(),
            }),
        }
    }

    /// Returns true if the service is known to be gone.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.gone_flag.store(true, Ordering::Relaxed);
    }

    /// Returns the number of the core of the service that owns `slot`.
    #[inline]
    pub(crate) fn core_of_slot(&self, slot: u32) -> usize {
        (slot >> self.slots_shift) as usize
    }

    /// Returns the first value of the counter by which `context` distributes its active opens over
    /// the cores. The value is the process id, so that programs with one connection each use
    /// different cores. In the simulator, the value must not depend on the process, and is the
    /// number of the context.
    pub(crate) fn first_core_rotation(&self, context: u32) -> u32 {
        match self.doorbell {
            ServiceDoorbells::PerCore(_) => std::process::id(),
            ServiceDoorbells::InMemory(_) => context,
        }
    }

    /// Returns true if `core` sleeps, so that its doorbell has to be rung after requests were
    /// published.
    pub(crate) fn core_sleeps_after_publish(&self, core: usize) -> bool {
        self.page
            .core(core as u32)
            .is_some_and(|core| sleep::sleeps(&core.needs_wakeup))
    }

    pub(crate) fn ring_service(&self, core: usize) {
        match &self.doorbell {
            // Ignore errors: the registration socket hangs up when the service dies.
            ServiceDoorbells::PerCore(doorbells) => {
                doorbells.get(core).map(Doorbell::ring);
            }
            ServiceDoorbells::InMemory(ring) => ring(),
        }
    }

    pub(crate) fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.buffers
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Buffers {
    /// Keeps the buffers of a closed stream until the service releases the stream's slot.
    pub(crate) fn keep_until_released(
        &mut self,
        slot: u32,
        generation: u32,
        present: Option<StreamBuffer>,
        outgrown: Vec<StreamBuffer>,
    ) {
        // The previous use of the slot has ended, even if this process has not yet seen the event
        // RELEASED (the service has released the slot).
        self.free_closed(slot);
        let slot = slot as usize;
        if self.closed.len() <= slot {
            self.closed.resize(slot + 1, ClosedBuffers::default());
        }
        self.closed[slot] = ClosedBuffers {
            generation,
            present,
            outgrown,
        };
    }

    /// Frees the buffers of a closed stream after the service has released the slot. `generation`
    /// is the slot's present generation.
    ///
    /// If the event RELEASED is late, another context may already have closed the slot's next
    /// connection. The buffers of that connection have the present generation, and are not freed.
    pub(crate) fn released(&mut self, slot: u32, generation: u32) {
        let closed = self.closed.get(slot as usize);
        if closed.is_some_and(|closed| closed.generation != generation) {
            self.free_closed(slot);
        }
    }

    /// Frees the buffers of the closed stream of `slot`.
    fn free_closed(&mut self, slot: u32) {
        let Some(closed) = self.closed.get_mut(slot as usize) else {
            return;
        };
        let ClosedBuffers {
            present, outgrown, ..
        } = std::mem::take(closed);
        for buffer in present.into_iter().chain(outgrown) {
            self.allocator.free(buffer);
        }
    }
}

impl fmt::Debug for ServiceDoorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceDoorbells::PerCore(doorbells) => doorbells.fmt(f),
            ServiceDoorbells::InMemory(_) => write!(f, "InMemory"),
        }
    }
}
