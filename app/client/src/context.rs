//! The rings of one thread.

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use tidelane_abi::{ControlRequest, OpenOptions, control_request, data_request};
use tidelane_ring::{
    Corrupt, Doorbell, PushError, core_of, new_control_request, sleep, words::DataWord,
};

use crate::{
    ListenerHandle, Stream,
    rings::{Rings, mark},
    session::Session,
};

/// A program's rings for one thread, or for several under the caller's lock.
#[derive(Debug)]
pub struct Context {
    id: u32,
    session: Arc<Session>,
    bell: Option<Doorbell>,
    /// By core of the service.
    cores: Vec<Rings>,
    /// Gets the next active open from a port that the service chooses.
    next_core: u32,
    /// By slot: bits of `mark`.
    marks: Vec<u64>,
    /// Number of the next flush: before it, a slot's ADVANCE is queued once.
    round: u64,
    /// Slots with the mark `TOUCHED`.
    touched: Vec<u32>,
}

/// What `Context::poll` reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The SYN is on its way: take it up with `Program::stream(slot, generation, flags)`.
    ConnectStarted {
        /// The request's cookie.
        cookie: u64,
        /// The connection's slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
        /// Not 0: SYN waits for what is written, or for `OPEN_NOW`, and carries so many bytes.
        syn_room: u32,
    },
    /// There is no connection.
    ConnectFailed {
        /// The request's cookie.
        cookie: u64,
        /// One of [`tidelane_abi::close_cause`].
        cause: u32,
    },
    /// The service does not carry this destination: connect with the kernel.
    ConnectKernel {
        /// The request's cookie.
        cookie: u64,
        /// Why: one of [`tidelane_abi::not_accelerated`].
        reason: u32,
    },
    /// An established connection of a listener: take it up with `Program::stream`, put it into the
    /// accept queue; when `accept` hands it out, set `TAKEN` and call `Context::accept_taken`.
    Accepted {
        /// The listener's cookie.
        cookie: u64,
        /// The listener.
        listener: ListenerHandle,
        /// The connection's slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
    },
    /// Something changed in the slot: look at the stream.
    Ready {
        /// The connection's slot.
        slot: u32,
    },
    /// The slot is free (its stream was closed before). Its send buffers are freed already.
    Released {
        /// The slot.
        slot: u32,
    },
}

/// An active open.
#[derive(Clone, Copy, Debug, Default)]
pub struct Connect {
    /// Comes back in events.
    pub cookie: u64,
    /// The peer, IPv4 as `::ffff:a.b.c.d`.
    pub peer_addr: [u8; 16],
    /// The peer's port, host byte order.
    pub peer_port: u16,
    /// Local address, zero to let the service choose.
    pub local_addr: [u8; 16],
    /// Local port of an earlier `Program::reserve`, zero to choose.
    pub local_port: u16,
    /// [`tidelane_abi::program_flags`] that hold from the start.
    pub flags: u32,
    /// Bits of [`tidelane_abi::fast_open`]; 0: none of it.
    pub fast_open: u32,
    /// What the SYN depends on.
    pub options: OpenOptions,
}

/// Why a request could not be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// The ring is full and the service was rung: poll and try again.
    Full,
    /// The service is gone.
    ServiceGone,
}

impl Context {
    pub(crate) fn new(session: Arc<Session>, id: u32, bell: Option<Doorbell>) -> Option<Context> {
        let cores = session.page.cores();
        let rings = |core| {
            let number = session.region.layout().share(core, cores).rings(id)?;
            Rings::new(&session.region, number)
        };
        Some(Context {
            id,
            bell,
            cores: (0..cores).map(rings).collect::<Option<_>>()?,
            next_core: session.first_core(id),
            marks: Vec::new(),
            round: 1,
            touched: Vec::new(),
            session,
        })
    }

    /// Its number within the program.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Rung by the service after `prepare_to_sleep`. None in memory. Wait for it edge-triggered, or
    /// call `drain_doorbell` whenever it is readable.
    pub fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(Doorbell::fd)
    }

    /// Makes the doorbell unreadable again (one system call).
    pub fn drain_doorbell(&self) {
        if let Some(bell) = &self.bell {
            bell.drain();
        }
    }

    /// Queues an active open.
    pub fn connect(&mut self, request: &Connect) -> Result<(), QueueError> {
        let cores = self.cores.len() as u32;
        let core = if request.local_port == 0 {
            self.next_core = self.next_core.wrapping_add(1);
            self.next_core % cores
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

    /// This context wants connections of `listener` from now on.
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

    /// This context wants no more connections of `listener`. Events on their way still come.
    pub fn listener_leave(&mut self, listener: ListenerHandle) -> Result<(), QueueError> {
        self.request_all(ControlRequest {
            listener: listener.0,
            ..new_control_request(control_request::LISTENER_LEAVE)
        })
    }

    /// To all cores. Said to a core for a second time, it changes nothing.
    fn request_all(&mut self, request: ControlRequest) -> Result<(), QueueError> {
        (0..self.cores.len()).try_for_each(|core| self.request(core, request))
    }

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

    /// `accept` handed out the connection of `listener` in `slot`: makes room in the service's
    /// queue.
    pub fn accept_taken(&mut self, listener: ListenerHandle, slot: u32) {
        let word = DataWord::with_arg(data_request::ACCEPT_TAKEN, 1, listener.0);
        self.queue(slot, word);
    }

    /// Events of `slot` come to this context from now on; its present state is announced here.
    pub fn assign(&mut self, slot: u32) {
        self.assign_to(slot, self.id);
    }

    /// As `assign`, to another context of the program. What one context is told happens in order;
    /// the service looks at several contexts in any order.
    pub fn assign_to(&mut self, slot: u32, context: u32) {
        let word = DataWord::with_arg(data_request::ASSIGN, context, slot);
        self.queue(slot, word);
    }

    /// Queues a request about `slot` for the core that has it.
    #[inline]
    fn queue(&mut self, slot: u32, word: DataWord) {
        let core = self.session.core_of_slot(slot);
        if let Some(rings) = self.cores.get_mut(core) {
            rings.queue(word.encode());
        }
    }

    /// Queues the stream's change, if there is one to tell, once per flush.
    #[inline(always)]
    pub fn submit(&mut self, stream: &mut Stream) {
        if !stream.take_due() {
            return;
        }
        let slot = stream.slot();
        let core = self.session.core_of_slot(slot);
        match (self.marks.get_mut(slot as usize), self.cores.get_mut(core)) {
            (Some(marks), Some(rings)) if *marks & mark::TOUCHED != 0 => {
                let now = mark::TOUCHED | self.round;
                if *marks != now {
                    *marks = now;
                    rings.queue(DataWord::new(data_request::ADVANCE, slot).encode());
                }
            }
            _ => self.submit_anew(slot),
        }
    }

    /// `submit` of a slot that was not submitted since it was trimmed, or never.
    #[inline(never)]
    fn submit_anew(&mut self, slot: u32) {
        if self.marks.len() <= slot as usize {
            // Bounded by the region's number of slots: a stream has one of them.
            self.marks
                .resize((slot as usize + 1).next_multiple_of(256), 0);
        }
        let now = mark::TOUCHED | self.round;
        let before = std::mem::replace(&mut self.marks[slot as usize], now);
        if before & mark::ROUND != self.round {
            self.queue(slot, DataWord::new(data_request::ADVANCE, slot));
        }
        if before & mark::TOUCHED == 0 {
            self.touched.push(slot);
        }
    }

    /// Whether something waits for `flush`.
    #[inline]
    pub fn has_queued(&self) -> bool {
        self.cores.iter().any(Rings::has_queued)
    }

    /// Publishes what is queued and rings the doorbell of each core that sleeps and has to look.
    /// What finds the ring full stays queued.
    #[inline(always)]
    pub fn flush(&mut self) {
        self.round += 1;
        for (core, rings) in self.cores.iter_mut().enumerate() {
            if rings.flush(&self.session) && self.session.core_sleeps_after_publish(core) {
                self.session.ring_service(core);
            }
        }
    }

    /// Reports all events that are there, of each core control events first. Returns their number.
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

    /// Whether `poll` would report something. Two loads for each core.
    #[inline]
    pub fn has_events(&self) -> bool {
        self.cores.iter().any(Rings::has_events)
    }

    /// Flushes and asks the service to ring the doorbell at the next event. True: sleep on
    /// `doorbell_fd` (and on `Program::control_fd`). False: events are there already (`poll`), the
    /// request ring is full (the service was rung, try again), or the service is gone.
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

    /// Where each core looks whether this context sleeps.
    fn sleep_words(&self) -> impl Iterator<Item = &AtomicU32> {
        let heads = self.cores.iter().filter_map(|rings| {
            let view = self.session.region.context(rings.number)?;
            Some(view.head)
        });
        heads.map(|head| &head.needs_wakeup)
    }

    /// Takes `prepare_to_sleep` back, after waking up for whatever reason.
    pub fn cancel_sleep(&mut self) {
        self.sleep_words().for_each(sleep::cancel_sleep);
    }

    /// Whether a core of the service may run on this CPU: spinning is for other CPUs only. One
    /// that is not pinned may run anywhere.
    pub fn shares_cpu(&self, cpu: Option<u32>) -> bool {
        let mut cores = (0..self.cores.len()).filter_map(|core| self.session.core(core));
        cores.any(|core| {
            let theirs = core.cpu.load(Ordering::Relaxed).checked_sub(1);
            theirs.is_none() || theirs == cpu
        })
    }

    /// Whether all cores of the service sleep: spinning for an answer is then in vain.
    pub fn cores_sleep(&self) -> bool {
        let mut cores = (0..self.cores.len()).filter_map(|core| self.session.core(core));
        cores.all(|core| core.needs_wakeup.load(Ordering::Relaxed) != 0)
    }

    /// Tells the service on which CPU this context's thread runs.
    pub fn set_cpu_hint(&self, cpu: Option<u32>) {
        let hint = cpu.map_or(0, |cpu| cpu.wrapping_add(1));
        for rings in &self.cores {
            if let Some(view) = self.session.region.context(rings.number)
                && view.head.cpu_hint.load(Ordering::Relaxed) != hint
            {
                view.head.cpu_hint.store(hint, Ordering::Relaxed);
            }
        }
    }

    /// Calls `trim` for each slot that was submitted since it last answered true. It answers
    /// `stream.trim()`, or true if it knows no such stream. For moments of rest. Returns how many
    /// answered false.
    pub fn trim(&mut self, trim: &mut dyn FnMut(u32) -> bool) -> usize {
        self.touched.retain(|&slot| {
            let done = trim(slot);
            if done {
                self.marks[slot as usize] &= !mark::TOUCHED;
            }
            !done
        });
        self.touched.len()
    }
}
