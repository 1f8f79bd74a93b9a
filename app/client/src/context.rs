//! A context: the rings over which one thread of the program exchanges requests and events with the
//! cores (polling threads) of the service, the process `tidelaned`.
//!
//! Most requests and events concern a *slot*, which is the record of one connection in the memory
//! that program and service share. Each slot belongs to one core.

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tidelane_abi::{ControlRequest, OpenOptions, control_request, data_request};
use tidelane_ring::{
    Corrupt, Doorbell, PushError, core_of, new_control_request, sleep, words::DataWord,
};

use crate::{
    Stream,
    client_event::ClientEvent,
    listener_handle::ListenerHandle,
    rings::{Rings, submitted_bits},
    session::ClientSession,
};

/// The rings of a program for one thread, or for several threads under the caller's lock.
///
/// Requests stay queued until `flush` publishes them. Events stay in the rings until `poll` reports
/// them.
#[derive(Debug)]
pub struct Context {
    /// Number of the context within the program.
    id: u32,
    session: Arc<ClientSession>,
    /// The eventfd that the service rings for this context, or `None` in a simulation.
    doorbell: Option<Doorbell>,
    /// For each core of the service, the rings between this context and the core.
    cores: Vec<Rings>,
    /// Counter that distributes active opens from ephemeral ports over the cores. The counter
    /// begins at `ClientSession::first_core_rotation`. The counter modulo the number of cores is
    /// the core of the most recent of these active opens.
    core_rotation: u32,
    /// One word for each slot (format: `submitted_bits`). The word contains the bit `UNTRIMMED`,
    /// and the number of the flush for which the slot's most recent ADVANCE request was queued.
    /// ADVANCE makes the service read the program's changes of the slot.
    submitted: Vec<u64>,
    /// Number of the next flush. An ADVANCE request for a slot is queued at most once per flush.
    flush_count: u64,
    /// Number of doorbells that this context has rung, each by one system call.
    doorbells_rung: u64,
    /// Slots whose bit `UNTRIMMED` is set in `submitted`. The stream of such a slot may have a send
    /// buffer, because the slot was submitted after `trim` last freed the stream's send buffer.
    untrimmed: Vec<u32>,
}

/// The parameters of an active open ([`Context::connect`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Connect {
    /// Number of the program's choice that identifies the connection in events.
    pub cookie: u64,
    /// Address of the peer. An IPv4 address has the form `::ffff:a.b.c.d`.
    pub peer_addr: [u8; 16],
    /// Port of the peer in host byte order.
    pub peer_port: u16,
    /// Local address, or zero to let the service choose.
    pub local_addr: [u8; 16],
    /// Local port that `Program::reserve` has returned, or zero to let the service choose.
    pub local_port: u16,
    /// Initial [`tidelane_abi::program_flags`] of the connection.
    pub flags: u32,
    /// Bits of [`tidelane_abi::fast_open`], or 0 for no Fast Open.
    pub fast_open: u32,
    /// Options that the SYN depends on.
    pub options: OpenOptions,
}

/// The error of a request that could not be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// The ring is full, and the service was told to empty it. The caller has to call `poll` and
    /// try again.
    Full,
    /// The service is gone.
    ServiceGone,
}

impl Context {
    pub(crate) fn new(
        session: Arc<ClientSession>,
        id: u32,
        doorbell: Option<Doorbell>,
    ) -> Option<Context> {
        let cores = session.page.cores();
        let rings = |core| {
            let number = session.region.layout().share(core, cores).ring_set(id)?;
            Rings::new(&session.region, number)
        };
        Some(Context {
            id,
            doorbell,
            cores: (0..cores).map(rings).collect::<Option<_>>()?,
            core_rotation: session.first_core_rotation(id),
            submitted: Vec::new(),
            flush_count: 1,
            doorbells_rung: 0,
            untrimmed: Vec::new(),
            session,
        })
    }

    /// Returns the number of the context within the program.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the doorbell's eventfd, which the service rings at the next event after
    /// `prepare_to_sleep`. Returns `None` if the service is in this process.
    ///
    /// Wait for the eventfd edge-triggered, or call `drain_doorbell` whenever the eventfd is
    /// readable.
    pub fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        self.doorbell.as_ref().map(Doorbell::fd)
    }

    /// Resets the doorbell's eventfd to 0, so that it is not readable. Makes one system call.
    pub fn drain_doorbell(&self) {
        if let Some(doorbell) = &self.doorbell {
            doorbell.drain();
        }
    }

    /// Queues an active open. The service answers with the event `ConnectStarted`, `ConnectFailed`
    /// or `ConnectKernel`.
    pub fn connect(&mut self, request: &Connect) -> Result<(), QueueError> {
        let cores = self.cores.len() as u32;
        let core = if request.local_port == 0 {
            self.core_rotation = self.core_rotation.wrapping_add(1);
            self.core_rotation % cores
        } else {
            core_of(request.local_port, request.peer_port, cores)
        };
        self.request(
            core as usize,
            ControlRequest {
                flags: request.flags,
                cookie: request.cookie,
                peer_addr: request.peer_addr,
                local_addr: request.local_addr,
                peer_port: request.peer_port,
                local_port: request.local_port,
                fast_open: request.fast_open,
                options: request.options,
                ..new_control_request(control_request::CONNECT)
            },
        )
    }

    /// Asks the service to deliver connections of `listener` to this context. The connections'
    /// `Accepted` events carry `cookie`.
    pub fn listener_join(
        &mut self,
        listener: ListenerHandle,
        cookie: u64,
    ) -> Result<(), QueueError> {
        self.request_all(ControlRequest {
            listener: listener.0,
            cookie,
            ..new_control_request(control_request::LISTENER_JOIN)
        })
    }

    /// Asks the service to deliver no more connections of `listener` to this context. Events that
    /// the service has already sent still arrive.
    pub fn listener_leave(&mut self, listener: ListenerHandle) -> Result<(), QueueError> {
        self.request_all(ControlRequest {
            listener: listener.0,
            ..new_control_request(control_request::LISTENER_LEAVE)
        })
    }

    /// Queues a request for all cores. If the ring of a core is full, the caller repeats the call,
    /// and a core that already has the request ignores the repetition.
    fn request_all(&mut self, request: ControlRequest) -> Result<(), QueueError> {
        (0..self.cores.len()).try_for_each(|core| self.request(core, request))
    }

    /// Queues a control request for a core.
    fn request(&mut self, core: usize, request: ControlRequest) -> Result<(), QueueError> {
        if self.session.is_gone() {
            return Err(QueueError::ServiceGone);
        }
        match self.cores[core].control_requests.push(request) {
            Ok(()) => Ok(()),
            Err(PushError::Full) => {
                self.flush();
                Err(QueueError::Full)
            }
            Err(PushError::Corrupt) => {
                self.session.set_gone();
                Err(QueueError::ServiceGone)
            }
        }
    }

    /// Tells the service that `accept` returned the connection in `slot`, so that the accept queue
    /// of `listener` has room for another connection.
    pub fn accept_taken(&mut self, listener: ListenerHandle, slot: u32) {
        let word = DataWord::with_arg(data_request::ACCEPT_TAKEN, 1, listener.0);
        self.queue(slot, word);
    }

    /// Makes the service report events of `slot` to this context. The first event reports the
    /// present state of the slot.
    pub fn assign(&mut self, slot: u32) {
        self.assign_to(slot, self.id);
    }

    /// Makes the service report events of `slot` to another context of the program.
    ///
    /// The service carries out the requests of one context in order, but the requests of different
    /// contexts in any order.
    pub fn assign_to(&mut self, slot: u32, context: u32) {
        let word = DataWord::with_arg(data_request::ASSIGN, context, slot);
        self.queue(slot, word);
    }

    /// Queues a request about `slot` for the core that owns the slot.
    #[inline]
    fn queue(&mut self, slot: u32, word: DataWord) {
        let core = self.session.core_of_slot(slot);
        if let Some(rings) = self.cores.get_mut(core) {
            rings.queue(word.encode());
        }
    }

    /// Queues an ADVANCE request for a changed stream, so that the service reads the stream's new
    /// positions and flags from its slot. Queues at most one request per stream and flush. Does
    /// nothing if the stream is unchanged.
    #[inline(always)]
    pub fn submit(&mut self, stream: &mut Stream) {
        if !stream.take_due() {
            return;
        }
        let slot = stream.slot();
        let core = self.session.core_of_slot(slot);
        match (
            self.submitted.get_mut(slot as usize),
            self.cores.get_mut(core),
        ) {
            (Some(submitted), Some(rings)) if *submitted & submitted_bits::UNTRIMMED != 0 => {
                let now = submitted_bits::UNTRIMMED | self.flush_count;
                if *submitted != now {
                    *submitted = now;
                    rings.queue(DataWord::new(data_request::ADVANCE, slot).encode());
                }
            }
            _ => self.submit_first(slot),
        }
    }

    /// Does the work of `submit` for a slot whose bit `UNTRIMMED` is not set.
    #[inline(never)]
    fn submit_first(&mut self, slot: u32) {
        if self.submitted.len() <= slot as usize {
            // The number of slots in shared memory limits the size of the table.
            self.submitted
                .resize((slot as usize + 1).next_multiple_of(256), 0);
        }
        let now = submitted_bits::UNTRIMMED | self.flush_count;
        let before = std::mem::replace(&mut self.submitted[slot as usize], now);
        if before & submitted_bits::FLUSH != self.flush_count {
            self.queue(slot, DataWord::new(data_request::ADVANCE, slot));
        }
        if before & submitted_bits::UNTRIMMED == 0 {
            self.untrimmed.push(slot);
        }
    }

    /// Returns true if a request is queued for `flush`.
    #[inline]
    pub fn has_queued(&self) -> bool {
        self.cores.iter().any(Rings::has_queued)
    }

    /// Publishes the queued requests, and rings the doorbell of each sleeping core that has a
    /// request. Requests that do not fit into a full ring stay queued.
    #[inline(always)]
    pub fn flush(&mut self) {
        self.flush_count += 1;
        for (core, rings) in self.cores.iter_mut().enumerate() {
            if rings.flush(&self.session) && self.session.core_sleeps_after_publish(core) {
                self.doorbells_rung += 1;
                self.session.ring_service(core);
            }
        }
    }

    /// Returns the number of doorbells that `flush` has rung. Each ring costs a system call.
    pub fn doorbells_rung(&self) -> u64 {
        self.doorbells_rung
    }

    /// Calls `on_event` with all pending events, core by core. For each core, reports the control
    /// events (connections that were opened or accepted) before the data events (slots that changed
    /// or were released). Ignores events with impossible values. Returns the number of reported
    /// events.
    #[inline(always)]
    pub fn poll(&mut self, on_event: &mut dyn FnMut(ClientEvent)) -> usize {
        let mut count = 0;
        for rings in &mut self.cores {
            match rings.poll(&self.session, on_event) {
                Ok(events) => count += events,
                Err(Corrupt) => {
                    self.session.set_gone();
                    break;
                }
            }
        }
        count
    }

    /// Returns true if a ring contains an event. Costs at most two atomic loads for each core.
    #[inline]
    pub fn has_events(&self) -> bool {
        self.cores.iter().any(Rings::has_events)
    }

    /// Flushes and asks the service to ring the doorbell at the next event.
    ///
    /// Returns true if the caller may sleep on `doorbell_fd` and `Program::control_fd`. Returns
    /// false if the caller has to `poll` because events are pending, if the caller has to try again
    /// because a request ring is full, or if the service is gone.
    pub fn prepare_to_sleep(&mut self) -> bool {
        self.flush();
        let waits = self.cores.iter().any(|rings| !rings.queued.is_empty());
        if waits || self.session.is_gone() {
            return false;
        }
        self.sleep_words().for_each(sleep::prepare_to_sleep);
        if self.has_events() {
            self.cancel_sleep();
            return false;
        }
        true
    }

    /// Returns the words in which the cores check whether this context sleeps, one for each core.
    fn sleep_words(&self) -> impl Iterator<Item = &AtomicU32> {
        let heads = self.cores.iter().filter_map(|rings| {
            let view = self.session.region.ring_set(rings.number)?;
            Some(view.head)
        });
        heads.map(|head| &head.needs_wakeup)
    }

    /// Undoes `prepare_to_sleep` after a wake-up, so that events do not ring the doorbell.
    pub fn cancel_sleep(&mut self) {
        self.sleep_words().for_each(sleep::cancel_sleep);
    }

    /// Returns true if a core of the service may run on `cpu`, the thread's CPU, so that spinning
    /// would delay the core, or if the CPU is unknown (`None`). A core that is not pinned may run
    /// on any CPU.
    pub fn shares_cpu(&self, cpu: Option<u32>) -> bool {
        self.session.page.may_run_on(cpu)
    }

    /// Returns true if a thread on `cpu` should poll before it sleeps: a core is awake, and no core
    /// may run on `cpu`.
    pub fn should_poll(&self, cpu: Option<u32>) -> bool {
        self.session.page.should_poll(cpu)
    }

    /// Polls for an event for at most `time`. Looks only once if this thread should not poll
    /// ([`should_poll`](Self::should_poll)). Returns true if an event has arrived.
    pub fn poll_for(&self, time: Duration) -> bool {
        self.session.page.poll(time, || self.has_events())
    }

    /// Tells the service on which CPU this context's thread runs. `None` means that the CPU is
    /// unknown.
    pub fn set_cpu_hint(&self, cpu: Option<u32>) {
        let hint = cpu.map_or(0, |cpu| cpu.wrapping_add(1));
        for rings in &self.cores {
            if let Some(view) = self.session.region.ring_set(rings.number)
                && view.head.cpu_hint.load(Ordering::Relaxed) != hint
            {
                view.head.cpu_hint.store(hint, Ordering::Relaxed);
            }
        }
    }

    /// Frees the send buffers of idle streams. Calls the closure `trim` for each slot that was
    /// submitted after the closure last returned true for the slot. Returns the number of slots for
    /// which the closure returned false.
    ///
    /// The closure has to call `Stream::trim` on the slot's stream and return the result. If the
    /// slot has no stream, the closure has to return true. Call this function when the program is
    /// idle.
    pub fn trim(&mut self, trim: &mut dyn FnMut(u32) -> bool) -> usize {
        self.untrimmed.retain(|&slot| {
            let done = trim(slot);
            if done {
                self.submitted[slot as usize] &= !submitted_bits::UNTRIMMED;
            }
            !done
        });
        self.untrimmed.len()
    }
}
