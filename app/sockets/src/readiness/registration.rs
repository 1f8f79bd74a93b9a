//! The registration of a socket with an epoll instance, and the epoll semantics of reporting it:
//! level-triggered, edge-triggered, one-shot and exclusive.

use std::os::fd::RawFd;

use crate::{
    socket::{Inner, Socket, sharing},
    sys::Errno,
};

/// Events that epoll reports even if the program did not ask for them.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
pub(super) const EDGE: u32 = libc::EPOLLET as u32;
pub(super) const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
/// Bits of the events that a registration asks for. The bits above are flags, such as EPOLLET.
const EVENT_BITS: u32 = 0x0000_ffff;

/// Events and flags that EPOLLEXCLUSIVE can be combined with.
const ALLOWED_WITH_EXCLUSIVE: u32 = (libc::EPOLLIN
    | libc::EPOLLOUT
    | libc::EPOLLERR
    | libc::EPOLLHUP
    | libc::EPOLLWAKEUP
    | libc::EPOLLET
    | libc::EPOLLEXCLUSIVE) as u32;

/// Returns true if a registration asks for EPOLLEXCLUSIVE.
fn is_exclusive(events: u32) -> bool {
    events & libc::EPOLLEXCLUSIVE as u32 != 0
}

/// Checks the events of a new registration. Returns EINVAL if `epoll_ctl` must refuse the events.
pub(crate) fn may_add(events: u32) -> Result<(), Errno> {
    if is_exclusive(events) && events & !ALLOWED_WITH_EXCLUSIVE != 0 {
        return Err(Errno(libc::EINVAL));
    }
    Ok(())
}

/// An entry of an epoll instance's interest list: the registration of one socket.
#[derive(Debug)]
pub(crate) struct Registration {
    /// The registered socket, or `None` if this entry is free.
    pub(super) socket: Option<&'static Socket>,
    /// Descriptor under which the socket is registered.
    pub(super) fd: RawFd,
    /// EPOLL* bits that the program asked for.
    pub(super) events: u32,
    /// The program's data, which `epoll_wait` returns.
    pub(super) data: u64,
    /// True if the registration is in the ready list.
    pub(super) queued: bool,
    /// True if the registration has EPOLLONESHOT and was reported.
    pub(super) disabled: bool,
    /// True if the next wait must report an edge-triggered registration even without a new edge.
    pub(super) report_without_edge: bool,
    /// True if the registration is also in the kernel's epoll instance.
    pub(crate) in_kernel_epoll: bool,
    /// Number of bytes received until the last check of an edge-triggered registration. For a
    /// listener, the number of connections.
    pub(super) seen_received: u64,
    /// Ready events at the last check of an edge-triggered registration.
    pub(super) seen_bits: u32,
}

/// A ready registration, as `epoll_wait` reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    /// Ready events as EPOLL* bits.
    pub(crate) bits: u32,
    /// The program's data of the registration.
    pub(crate) data: u64,
    /// Descriptor under which `socket` is registered.
    pub(crate) fd: RawFd,
    pub(crate) socket: &'static Socket,
    /// True if a one-shot registration has to be disabled in the kernel's epoll instance, too.
    pub(crate) disarm_kernel: bool,
    /// True if the registration is also in the kernel's epoll instance, which may report the same
    /// socket. Only a listener can be ready in both the kernel and the service.
    pub(crate) in_kernel_epoll: bool,
}

impl Registration {
    /// Applies EPOLL_CTL_MOD. Returns EINVAL if the registration has EPOLLEXCLUSIVE, or if `events`
    /// contains this flag.
    pub(crate) fn modify(&mut self, fd: RawFd, events: u32, data: u64) -> Result<(), Errno> {
        if is_exclusive(events | self.events) {
            return Err(Errno(libc::EINVAL));
        }
        self.fd = fd;
        self.events = events;
        self.data = data;
        self.disabled = false;
        self.report_without_edge = true;
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

    /// Returns true if the registration need not be checked, because the program has read all
    /// received bytes. Usually this is so at the next wait after a report. Always returns false for
    /// an edge-triggered registration, for a registration that asks for other events than EPOLLIN,
    /// EPOLLRDNORM and EPOLLRDHUP, and if the socket has more than one registration.
    #[inline]
    pub(super) fn is_drained(&self, socket: &Socket) -> bool {
        const OTHERS: u32 = EVENT_BITS & !(IN | libc::EPOLLRDHUP as u32);
        const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
        // `Socket::is_drained` compares counts of the socket's events, and can miss an event if two
        // threads count at the same time. With one registration, threads count one after the other,
        // because they hold the lock of the interest list.
        self.events & (OTHERS | EDGE) == 0
            && socket.is_drained()
            && !socket.has_more_registrations()
    }

    /// Returns the events to report, or 0. Consumes the edge of an edge-triggered registration: the
    /// next call returns 0 unless there is a new edge.
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

    /// Returns true if a wait would report the registration. Does not consume an edge.
    pub(super) fn is_reported(&self) -> bool {
        let Some(socket) = self.socket else {
            return false;
        };
        if self.disabled || self.is_drained(socket) {
            return false;
        }
        let mut inner = socket.lock();
        if inner.shared {
            sharing::migrate_if_pending(socket, &mut inner);
        }
        let no_space = inner.no_space;
        let bits = Self { ..*self }.due(&mut inner);
        inner.no_space = no_space;
        bits != 0
    }

    /// Returns true if an edge-triggered registration has had an edge since the last check, or has
    /// to be reported without an edge. EPOLLRDHUP, EPOLLHUP and EPOLLERR are edges even if the
    /// program did not ask for them.
    fn edge(&mut self, all: u32, bits: u32, inner: &mut Inner) -> bool {
        const OUT: u32 = libc::EPOLLOUT as u32;
        const ENDS: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
        let received = inner.bytes_received();
        let room = inner.no_space && bits & OUT != 0;
        if room {
            inner.no_space = false;
        }
        let now = bits | all & ENDS;
        let changed = self.report_without_edge
            || room
            || received != self.seen_received
            || now & !self.seen_bits != 0;
        self.report_without_edge = false;
        self.seen_received = received;
        self.seen_bits = now;
        changed
    }
}

/// Error of `epoll_ctl` with EPOLL_CTL_ADD for a registration that already exists.
pub(crate) const EXISTS: Errno = Errno(libc::EEXIST);
/// Error of `epoll_ctl` with EPOLL_CTL_MOD or EPOLL_CTL_DEL for a registration that does not exist.
pub(crate) const MISSING: Errno = Errno(libc::ENOENT);
