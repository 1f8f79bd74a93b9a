//! The rings of one thread.

use std::os::fd::BorrowedFd;

use crate::{ListenerHandle, Stream};

/// A program's rings for one thread, or for several under the caller's lock.
#[derive(Debug)]
pub struct Context {}

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
}

/// Why a request could not be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// The ring is full even after a flush: poll and try again.
    Full,
    /// The service is gone.
    ServiceGone,
}

#[allow(unused_variables)]
impl Context {
    /// Its number within the program.
    pub fn id(&self) -> u32 {
        unimplemented!()
    }

    /// Becomes readable when the service rings after `prepare_to_sleep`. None in memory.
    pub fn doorbell_fd(&self) -> Option<BorrowedFd<'_>> {
        unimplemented!()
    }

    /// Makes the doorbell unreadable again (one system call).
    pub fn drain_doorbell(&self) {
        unimplemented!()
    }

    /// Queues an active open.
    pub fn connect(&mut self, request: &Connect) -> Result<(), QueueError> {
        unimplemented!()
    }

    /// This context wants connections of `listener` from now on.
    pub fn listener_join(
        &mut self,
        listener: ListenerHandle,
        cookie: u64,
    ) -> Result<(), QueueError> {
        unimplemented!()
    }

    /// This context wants no more connections of `listener`. Events on their way still come.
    pub fn listener_leave(&mut self, listener: ListenerHandle) -> Result<(), QueueError> {
        unimplemented!()
    }

    /// `accept` handed out `count` connections of `listener`: makes room in the service's queue.
    pub fn accept_taken(&mut self, listener: ListenerHandle, count: u32) {
        unimplemented!()
    }

    /// Events of `slot` come to this context from now on; its present state is announced here.
    pub fn assign(&mut self, slot: u32) {
        unimplemented!()
    }

    /// Queues the stream's change, if there is one to tell, once per flush.
    pub fn submit(&mut self, stream: &mut Stream) {
        unimplemented!()
    }

    /// Whether something waits for `flush`.
    pub fn has_queued(&self) -> bool {
        unimplemented!()
    }

    /// Publishes what is queued and rings the service's doorbell if a core sleeps.
    pub fn flush(&mut self) {
        unimplemented!()
    }

    /// Reports all events that are there, control events first. Returns their number.
    pub fn poll(&mut self, on_event: &mut dyn FnMut(ClientEvent)) -> usize {
        unimplemented!()
    }

    /// Whether `poll` would report something. Two loads.
    pub fn has_events(&self) -> bool {
        unimplemented!()
    }

    /// Flushes and asks the service to ring the doorbell at the next event. True: sleep on
    /// `doorbell_fd` (and on `Program::control_fd`). False: events are there already, `poll`.
    pub fn prepare_to_sleep(&mut self) -> bool {
        unimplemented!()
    }

    /// Takes `prepare_to_sleep` back, after waking up for whatever reason.
    pub fn cancel_sleep(&mut self) {
        unimplemented!()
    }

    /// The CPU of the service's core, if it is pinned: spinning is for other CPUs only.
    pub fn core_cpu(&self) -> Option<u32> {
        unimplemented!()
    }

    /// Whether a core of the service sleeps: spinning for its answer is then in vain.
    pub fn core_sleeps(&self) -> bool {
        unimplemented!()
    }

    /// Tells the service on which CPU this context's thread runs.
    pub fn set_cpu_hint(&self, cpu: Option<u32>) {
        unimplemented!()
    }

    /// Calls `trim` for each slot that was submitted since it last answered true. It answers
    /// `stream.trim()`, or true if it knows no such stream. For moments of rest.
    pub fn trim(&mut self, trim: &mut dyn FnMut(u32) -> bool) {
        unimplemented!()
    }
}
