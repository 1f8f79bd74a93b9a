//! A registration of a socket with an epoll instance: level, edge, once, exclusive.

use std::os::fd::RawFd;

use crate::{
    socket::{Inner, Socket, sharing},
    sys::Errno,
};

/// Events that are reported whether asked for or not.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
pub(super) const EDGE: u32 = libc::EPOLLET as u32;
pub(super) const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
/// Events that a registration asks for; the other bits say how they are reported.
const EVENT_BITS: u32 = 0x0000_ffff;

/// EPOLLEXCLUSIVE goes with these only.
const BESIDE_EXCLUSIVE: u32 = (libc::EPOLLIN
    | libc::EPOLLOUT
    | libc::EPOLLERR
    | libc::EPOLLHUP
    | libc::EPOLLWAKEUP
    | libc::EPOLLET
    | libc::EPOLLEXCLUSIVE) as u32;

/// Whether a registration asks for EPOLLEXCLUSIVE.
fn is_exclusive(events: u32) -> bool {
    events & libc::EPOLLEXCLUSIVE as u32 != 0
}

/// Whether a registration may ask for these events.
pub(crate) fn may_add(events: u32) -> Result<(), Errno> {
    if is_exclusive(events) && events & !BESIDE_EXCLUSIVE != 0 {
        return Err(Errno(libc::EINVAL));
    }
    Ok(())
}

/// One registration.
#[derive(Debug)]
pub(crate) struct Watch {
    /// None: this place is free.
    pub(super) socket: Option<&'static Socket>,
    pub(super) fd: RawFd,
    pub(super) events: u32,
    pub(super) data: u64,
    /// It is in the ready list.
    pub(super) queued: bool,
    /// EPOLLONESHOT, and it was reported.
    pub(super) disabled: bool,
    /// Report it even without a new edge.
    pub(super) fresh: bool,
    /// It is registered with the kernel's epoll instance too, or only there.
    pub(crate) in_kernel: bool,
    /// Edge-triggered: bytes received and events when it was last looked at.
    pub(super) seen_received: u64,
    pub(super) seen_bits: u32,
}

/// One ready registration, as `epoll_wait` reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) bits: u32,
    pub(crate) data: u64,
    pub(crate) fd: RawFd,
    pub(crate) socket: &'static Socket,
    /// The kernel's registration must be disabled too.
    pub(crate) disarm_kernel: bool,
    /// It is a listener: the kernel may report it as well.
    pub(crate) in_kernel: bool,
}

impl Watch {
    /// EPOLL_CTL_MOD. What is exclusive stays so.
    pub(crate) fn modify(&mut self, fd: RawFd, events: u32, data: u64) -> Result<(), Errno> {
        if is_exclusive(events | self.events) {
            return Err(Errno(libc::EINVAL));
        }
        self.fd = fd;
        self.events = events;
        self.data = data;
        self.disabled = false;
        self.fresh = true;
        Ok(())
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd
    }

    pub(crate) fn events(&self) -> u32 {
        self.events
    }

    pub(crate) fn data(&self) -> u64 {
        self.data
    }

    /// Whether there is nothing to report for sure, which is the rule for a level-triggered watch
    /// that was reported last time: its program has read everything.
    #[inline]
    pub(super) fn is_drained(&self, socket: &Socket) -> bool {
        const OTHERS: u32 = EVENT_BITS & !(IN | libc::EPOLLRDHUP as u32);
        const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
        // With several registrations two threads may have noted news as one.
        self.events & (OTHERS | EDGE) == 0 && socket.is_drained() && !socket.has_more_watches()
    }

    /// The events to report now, 0 if none.
    #[inline]
    pub(super) fn due(&mut self, inner: &mut Inner) -> u32 {
        let all = inner.readiness(self.events);
        let bits = all & (self.events & EVENT_BITS | ALWAYS);
        if self.events & EDGE == 0 || self.edge(all, bits, inner) {
            bits
        } else {
            0
        }
    }

    /// Returns true if a wait would report it now. Takes no edge away.
    pub(super) fn is_reported(&self) -> bool {
        let Some(socket) = self.socket else {
            return false;
        };
        if self.disabled || self.is_drained(socket) {
            return false;
        }
        let mut inner = socket.lock();
        if inner.shared {
            sharing::bring_news(socket, &mut inner);
        }
        let no_space = inner.no_space;
        let bits = Self { ..*self }.due(&mut inner);
        inner.no_space = no_space;
        bits != 0
    }

    /// Edge-triggered: whether something came since the last look. That the peer closed is an edge
    /// for whoever waits for anything.
    fn edge(&mut self, all: u32, bits: u32, inner: &mut Inner) -> bool {
        const OUT: u32 = libc::EPOLLOUT as u32;
        const ENDS: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
        let received = inner.bytes_received();
        let room = inner.no_space && bits & OUT != 0;
        if room {
            inner.no_space = false;
        }
        let now = bits | all & ENDS;
        let news =
            self.fresh || room || received != self.seen_received || now & !self.seen_bits != 0;
        self.fresh = false;
        self.seen_received = received;
        self.seen_bits = now;
        news
    }
}

/// The system call's error for a registration that is or is not there.
pub(crate) const EXISTS: Errno = Errno(libc::EEXIST);
pub(crate) const MISSING: Errno = Errno(libc::ENOENT);
