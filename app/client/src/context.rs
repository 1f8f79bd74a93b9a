//! The rings of one thread.

use std::{
    os::fd::BorrowedFd,
    sync::{Arc, atomic::Ordering},
};

use tidelane_abi::{
    ControlEvent, ControlRequest, OpenOptions, control_event, control_request, data_event,
    data_request,
};
use tidelane_ring::{
    ControlEventConsumer, ControlRequestProducer, DataEventConsumer, DataRequestProducer, Doorbell,
    PushError, sleep,
    words::{ARG_MAX, DataWord},
};

use crate::{ListenerHandle, Stream, session::Session};

/// A program's rings for one thread, or for several under the caller's lock.
#[derive(Debug)]
pub struct Context {
    id: u32,
    session: Arc<Session>,
    bell: Option<Doorbell>,
    data_requests: DataRequestProducer,
    data_events: DataEventConsumer,
    control_requests: ControlRequestProducer,
    control_events: ControlEventConsumer,
    /// Words for the data-request ring, in order.
    queued: Vec<u64>,
    /// By slot: bits of `mark`.
    marks: Vec<u8>,
    /// Slots with the mark `TOUCHED`.
    touched: Vec<u32>,
}

/// What a context remembers of a slot.
mod mark {
    /// Its ADVANCE is among the queued words.
    pub const QUEUED: u8 = 1;
    /// It was submitted since it was last trimmed.
    pub const TOUCHED: u8 = 2;
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
        let region = &session.region;
        Some(Context {
            id,
            bell,
            data_requests: DataRequestProducer::new(region.clone(), id)?,
            data_events: DataEventConsumer::new(region.clone(), id)?,
            control_requests: ControlRequestProducer::new(region.clone(), id)?,
            control_events: ControlEventConsumer::new(region.clone(), id)?,
            queued: Vec::with_capacity(64),
            marks: Vec::new(),
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
        self.request(ControlRequest {
            flags: request.flags,
            cookie: request.cookie,
            peer_addr: request.peer_addr,
            local_addr: request.local_addr,
            peer_port: request.peer_port,
            local_port: request.local_port,
            options: request.options,
            ..control(control_request::CONNECT)
        })
    }

    /// This context wants connections of `listener` from now on.
    pub fn listener_join(
        &mut self,
        listener: ListenerHandle,
        cookie: u64,
    ) -> Result<(), QueueError> {
        let kind = control_request::LISTENER_JOIN;
        self.request(ControlRequest {
            listener: listener.0,
            cookie,
            ..control(kind)
        })
    }

    /// This context wants no more connections of `listener`. Events on their way still come.
    pub fn listener_leave(&mut self, listener: ListenerHandle) -> Result<(), QueueError> {
        let kind = control_request::LISTENER_LEAVE;
        self.request(ControlRequest {
            listener: listener.0,
            ..control(kind)
        })
    }

    fn request(&mut self, request: ControlRequest) -> Result<(), QueueError> {
        if self.session.is_gone() {
            return Err(QueueError::ServiceGone);
        }
        match self.control_requests.push(request) {
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

    /// `accept` handed out `count` connections of `listener`: makes room in the service's queue.
    pub fn accept_taken(&mut self, listener: ListenerHandle, count: u32) {
        let mut left = count;
        while left > 0 {
            let now = left.min(ARG_MAX);
            let word = DataWord::with_arg(data_request::ACCEPT_TAKEN, now, listener.0);
            self.queued.push(word.encode());
            left -= now;
        }
    }

    /// Events of `slot` come to this context from now on; its present state is announced here.
    pub fn assign(&mut self, slot: u32) {
        self.queued
            .push(DataWord::with_arg(data_request::ASSIGN, self.id, slot).encode());
    }

    /// Queues the stream's change, if there is one to tell, once per flush.
    #[inline]
    pub fn submit(&mut self, stream: &mut Stream) {
        if !stream.take_due() {
            return;
        }
        let slot = stream.slot();
        let has_room = self.queued.len() < self.queued.capacity();
        match self.marks.get_mut(slot as usize) {
            Some(marks) if *marks == mark::TOUCHED && has_room => {
                *marks |= mark::QUEUED;
                self.queued
                    .push(DataWord::new(data_request::ADVANCE, slot).encode());
            }
            _ => self.submit_anew(slot),
        }
    }

    /// `submit` where something must be made room for, or is there already.
    #[inline(never)]
    fn submit_anew(&mut self, slot: u32) {
        if self.marks.len() <= slot as usize {
            // Bounded by the region's number of slots: a stream has one of them.
            self.marks
                .resize((slot as usize + 1).next_multiple_of(256), 0);
        }
        let marks = &mut self.marks[slot as usize];
        let before = std::mem::replace(marks, mark::QUEUED | mark::TOUCHED);
        if before & mark::QUEUED == 0 {
            self.queued
                .push(DataWord::new(data_request::ADVANCE, slot).encode());
        }
        if before & mark::TOUCHED == 0 {
            self.touched.push(slot);
        }
    }

    /// Whether something waits for `flush`.
    #[inline]
    pub fn has_queued(&self) -> bool {
        !self.queued.is_empty() || self.control_requests.unpublished() > 0
    }

    /// Publishes what is queued and rings the service's doorbell if a core sleeps. What finds the
    /// ring full stays queued.
    pub fn flush(&mut self) {
        let mut taken = 0;
        for &word in &self.queued {
            match self.data_requests.push(word) {
                Ok(()) => taken += 1,
                Err(PushError::Full) => break,
                Err(PushError::Corrupt) => {
                    self.session.set_gone();
                    break;
                }
            }
            let word = DataWord::decode(word);
            if word.kind == data_request::ADVANCE {
                self.marks[word.slot as usize] &= !mark::QUEUED;
            }
        }
        if taken == self.queued.len() {
            self.queued.clear();
        } else {
            self.queued.drain(..taken);
        }
        // Control first: an ADVANCE may concern what a control request asked for.
        let control = self.control_requests.publish();
        let data = self.data_requests.publish();
        let full = !self.queued.is_empty();
        if (control || data || full) && self.core_sleeps_after_publish() {
            self.session.ring_service();
        }
    }

    fn core_sleeps_after_publish(&self) -> bool {
        sleep::any_sleeps(self.session.page.sleep_words())
    }

    /// Reports all events that are there, control events first. Returns their number.
    pub fn poll(&mut self, on_event: &mut dyn FnMut(ClientEvent)) -> usize {
        let mut count = 0;
        if !self.control_events.is_empty() {
            count = self.poll_control(on_event);
        }
        // What comes in the meantime is there at the next poll.
        let Ok(known) = self.data_events.known() else {
            return self.give_up(count);
        };
        for _ in 0..known {
            let Ok(Some(word)) = self.data_events.pop() else {
                return self.give_up(count);
            };
            if let Some(event) = self.data_event(DataWord::decode(word)) {
                on_event(event);
                count += 1;
            }
        }
        self.data_events.release();
        count
    }

    #[inline(never)]
    fn poll_control(&mut self, on_event: &mut dyn FnMut(ClientEvent)) -> usize {
        let mut count = 0;
        loop {
            match self.control_events.pop() {
                Ok(Some(event)) => {
                    if let Some(event) = self.control_event(&event) {
                        on_event(event);
                        count += 1;
                    }
                }
                Ok(None) => break,
                Err(_) => return self.give_up(count),
            }
        }
        self.control_events.release();
        count
    }

    #[cold]
    fn give_up(&self, count: usize) -> usize {
        self.session.set_gone();
        count
    }

    fn control_event(&self, event: &ControlEvent) -> Option<ClientEvent> {
        let &ControlEvent {
            slot,
            cookie,
            generation,
            cause,
            ..
        } = event;
        let listener = ListenerHandle(event.listener);
        let slot_exists = slot < self.session.region.layout().slots_max();
        match event.kind {
            control_event::CONNECT_STARTED if slot_exists => Some(ClientEvent::ConnectStarted {
                cookie,
                slot,
                generation,
            }),
            control_event::CONNECT_FAILED => Some(ClientEvent::ConnectFailed { cookie, cause }),
            control_event::CONNECT_KERNEL => Some(ClientEvent::ConnectKernel { cookie }),
            control_event::ACCEPTED if slot_exists => Some(ClientEvent::Accepted {
                cookie,
                listener,
                slot,
                generation,
            }),
            _ => None,
        }
    }

    #[inline]
    fn data_event(&self, word: DataWord) -> Option<ClientEvent> {
        let slot = word.slot;
        if slot >= self.session.region.layout().slots_max() {
            return None;
        }
        match word.kind {
            data_event::READY => Some(ClientEvent::Ready { slot }),
            data_event::RELEASED => {
                let view = self.session.region.slot(slot)?;
                let generation = view.service().generation.load(Ordering::Acquire);
                self.session.buffers().released(slot, generation);
                Some(ClientEvent::Released { slot })
            }
            _ => None,
        }
    }

    /// Whether `poll` would report something. Two loads.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.data_events.is_empty() || !self.control_events.is_empty()
    }

    /// Flushes and asks the service to ring the doorbell at the next event. True: sleep on
    /// `doorbell_fd` (and on `Program::control_fd`). False: events are there already (`poll`), the
    /// request ring is full (the service was rung, try again), or the service is gone.
    pub fn prepare_to_sleep(&mut self) -> bool {
        self.flush();
        if !self.queued.is_empty() || self.session.is_gone() {
            return false;
        }
        let Some(view) = self.session.region.context(self.id) else {
            return false;
        };
        sleep::prepare_to_sleep(&view.head.needs_wakeup);
        if self.has_events() {
            sleep::cancel_sleep(&view.head.needs_wakeup);
            return false;
        }
        true
    }

    /// Takes `prepare_to_sleep` back, after waking up for whatever reason.
    pub fn cancel_sleep(&mut self) {
        if let Some(view) = self.session.region.context(self.id) {
            sleep::cancel_sleep(&view.head.needs_wakeup);
        }
    }

    /// The CPU of the service's first core, if it is pinned: spinning is for other CPUs only.
    pub fn core_cpu(&self) -> Option<u32> {
        self.session
            .page
            .core(0)?
            .cpu
            .load(Ordering::Relaxed)
            .checked_sub(1)
    }

    /// Whether a core of the service sleeps: spinning for its answer is then in vain.
    pub fn core_sleeps(&self) -> bool {
        self.session
            .page
            .sleep_words()
            .any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Tells the service on which CPU this context's thread runs.
    pub fn set_cpu_hint(&self, cpu: Option<u32>) {
        if let Some(view) = self.session.region.context(self.id) {
            let hint = cpu.map_or(0, |cpu| cpu.wrapping_add(1));
            if view.head.cpu_hint.load(Ordering::Relaxed) != hint {
                view.head.cpu_hint.store(hint, Ordering::Relaxed);
            }
        }
    }

    /// Calls `trim` for each slot that was submitted since it last answered true. It answers
    /// `stream.trim()`, or true if it knows no such stream. For moments of rest.
    pub fn trim(&mut self, trim: &mut dyn FnMut(u32) -> bool) {
        self.touched.retain(|&slot| {
            let done = trim(slot);
            if done {
                self.marks[slot as usize] &= !mark::TOUCHED;
            }
            !done
        });
    }
}

fn control(kind: u32) -> ControlRequest {
    ControlRequest {
        kind,
        flags: 0,
        cookie: 0,
        peer_addr: [0; 16],
        local_addr: [0; 16],
        peer_port: 0,
        local_port: 0,
        listener: 0,
        options: OpenOptions::default(),
        reserved: [0; 5],
    }
}
