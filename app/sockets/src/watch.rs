//! Registrations of sockets with an epoll instance, and which of them may be ready.

use std::{os::fd::RawFd, sync::atomic::Ordering};

use tidelane_client::ClientEvent;

use crate::{
    errno::Errno,
    fork,
    socket::{Inner, Socket, State},
    urgent,
};

/// Events that are reported whether asked for or not.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
/// What can be asked for; the other bits say how.
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

/// A registration's place: which lane, which of its watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchRef {
    pub(crate) lane: u32,
    pub(crate) index: u32,
}

impl WatchRef {
    /// In one word that is never 0.
    pub(crate) const fn pack(self) -> u64 {
        (self.lane as u64) << 32 | (self.index as u64 + 1)
    }

    /// The reverse of `pack`; None for 0.
    #[inline]
    pub(crate) const fn unpack(word: u64) -> Option<Self> {
        if word == 0 {
            return None;
        }
        Some(Self {
            lane: (word >> 32) as u32,
            index: word as u32 - 1,
        })
    }
}

/// One registration.
#[derive(Debug)]
pub(crate) struct Watch {
    /// None: this place is free.
    socket: Option<&'static Socket>,
    fd: RawFd,
    events: u32,
    data: u64,
    /// It is in the ready list.
    queued: bool,
    /// EPOLLONESHOT, and it was reported.
    disabled: bool,
    /// Report it even without a new edge.
    fresh: bool,
    /// It is registered with the kernel's epoll instance too, or only there.
    pub(crate) in_kernel: bool,
    /// Edge-triggered: bytes received and events when it was last looked at.
    seen_received: u64,
    seen_bits: u32,
}

/// The registrations of one epoll instance and its ready list.
#[derive(Debug, Default)]
pub(crate) struct LaneState {
    watches: Vec<Watch>,
    free: Vec<u32>,
    ready: Vec<u32>,
    /// Empty; kept for its memory.
    spare: Vec<u32>,
    /// Events taken off the ring, not yet looked at. Empty between calls; kept for its memory.
    pub(crate) arrivals: Vec<ClientEvent>,
    /// Sockets with news that are registered elsewhere.
    pub(crate) foreign: Vec<&'static Socket>,
    /// A socket that some thread sleeps for has news.
    pub(crate) wake: bool,
    /// Descriptors that refer to this epoll instance.
    pub(crate) descriptors: u32,
    /// Calls since the kernel's epoll instance was looked at.
    pub(crate) calls_without_kernel: u32,
    /// Times that a thread was about to sleep here.
    pub(crate) sleeps: u32,
    /// When memory is looked after again.
    pub(crate) trim_at_ns: u64,
    /// The session whose end was told to all registered sockets, 0 if none.
    pub(crate) death_told: u32,
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

impl LaneState {
    /// Registers `socket` under `fd`; it is looked at by the next wait.
    pub(crate) fn add(
        &mut self,
        socket: &'static Socket,
        fd: RawFd,
        events: u32,
        data: u64,
    ) -> u32 {
        let watch = Watch {
            socket: Some(socket),
            fd,
            events,
            data,
            queued: false,
            disabled: false,
            fresh: true,
            in_kernel: false,
            seen_received: 0,
            seen_bits: 0,
        };
        match self.free.pop() {
            Some(index) => {
                // A place that is still in the ready list stays there: its watch is looked at.
                let queued = self.watches[index as usize].queued;
                self.watches[index as usize] = Watch { queued, ..watch };
                index
            }
            None => {
                self.watches.push(watch);
                self.watches.len() as u32 - 1
            }
        }
    }

    /// The watch of `socket` under `fd`.
    pub(crate) fn find(&mut self, index: u32, socket: &'static Socket) -> Option<&mut Watch> {
        let watch = self.watches.get_mut(index as usize)?;
        watch
            .socket
            .is_some_and(|other| std::ptr::eq(other, socket))
            .then_some(watch)
    }

    /// Removes a registration. Returns whether the kernel has it too.
    pub(crate) fn remove(&mut self, index: u32, socket: &'static Socket) -> bool {
        let Some(watch) = self.find(index, socket) else {
            return false;
        };
        let in_kernel = watch.in_kernel;
        watch.socket = None;
        self.free.push(index);
        in_kernel
    }

    /// The kernel reported `data`: registrations with it that are the kernel's, too, and are to be
    /// reported once, are disabled, if `was_it` says so of their descriptor.
    pub(crate) fn disable_one_shots(&mut self, data: u64, was_it: impl Fn(RawFd) -> bool) {
        for watch in &mut self.watches {
            let once = watch.in_kernel && watch.events & ONE_SHOT != 0 && watch.socket.is_some();
            if once && !watch.disabled && watch.data == data && was_it(watch.fd) {
                watch.disabled = true;
            }
        }
    }

    /// All registered sockets with their descriptors.
    pub(crate) fn registered(&self) -> impl Iterator<Item = (u32, &'static Socket)> {
        let with_index = self.watches.iter().enumerate();
        with_index.filter_map(|(index, watch)| Some((index as u32, watch.socket?)))
    }

    /// Puts a registration into the ready list: the next wait looks at it.
    #[inline]
    pub(crate) fn push_ready(&mut self, index: u32) {
        let Some(watch) = self.watches.get_mut(index as usize) else {
            return;
        };
        if let Some(socket) = watch.socket {
            socket.note_news();
        }
        if !watch.queued {
            watch.queued = true;
            self.ready.push(index);
        }
    }

    /// As `push_ready`, and reports it even if nothing else changed.
    pub(crate) fn push_fresh(&mut self, index: u32) {
        if let Some(watch) = self.watches.get_mut(index as usize) {
            watch.fresh = true;
        }
        self.push_ready(index);
    }

    /// Whether a wait would have something to look at.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Looks at each registration of the ready list once, until `max` are reported. Those that are
    /// level-triggered and ready go to the end of the list: round robin. Returns true if some were
    /// not looked at.
    pub(crate) fn harvest(&mut self, mut report: impl FnMut(Report), max: usize) -> bool {
        let mut list = std::mem::take(&mut self.ready);
        let mut kept = std::mem::take(&mut self.spare);
        let mut reported = 0;
        let mut looked = 0;
        for &index in &list {
            if reported == max {
                break;
            }
            looked += 1;
            let watch = &mut self.watches[index as usize];
            watch.queued = false;
            let Some(socket) = watch.socket else { continue };
            if watch.disabled || watch.is_drained(socket) {
                continue;
            }
            let mut inner = socket.lock();
            if inner.shared {
                fork::bring_news(socket, &mut inner);
            }
            let bits = watch.due(&mut inner);
            drop(inner);
            if bits == 0 {
                continue;
            }
            watch.disabled = watch.events & ONE_SHOT != 0;
            report(Report {
                bits,
                data: watch.data,
                fd: watch.fd,
                socket,
                disarm_kernel: watch.disabled && watch.in_kernel,
                in_kernel: watch.in_kernel,
            });
            reported += 1;
            if watch.events & (EDGE | ONE_SHOT) == 0 {
                watch.queued = true;
                kept.push(index);
            }
        }
        let left = looked < list.len();
        if left {
            list.drain(..looked);
            list.append(&mut kept);
            self.ready = list;
            self.spare = kept;
        } else {
            list.clear();
            self.ready = kept;
            self.spare = list;
        }
        left
    }
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
    fn is_drained(&self, socket: &Socket) -> bool {
        const OTHERS: u32 = EVENT_BITS & !(IN | libc::EPOLLRDHUP as u32);
        const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
        // With several registrations two threads may have noted news as one.
        self.events & (OTHERS | EDGE) == 0
            && socket.is_drained()
            && !socket.watched_more.load(Ordering::Acquire)
    }

    /// The events to report now, 0 if none.
    #[inline]
    fn due(&mut self, inner: &mut Inner) -> u32 {
        let all = inner.readiness(self.events);
        let bits = all & (self.events & EVENT_BITS | ALWAYS);
        if self.events & EDGE == 0 || self.edge(all, bits, inner) {
            bits
        } else {
            0
        }
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

impl Inner {
    /// Bytes that the peer sent so far; connections that came, for a listener.
    fn bytes_received(&mut self) -> u64 {
        let bytes_read = self.bytes_read;
        match &mut self.state {
            State::Stream(connection) => bytes_read + urgent::ungiven(&mut connection.stream),
            State::Listening(listening) => listening.arrivals,
            _ => 0,
        }
    }

    /// Finds the registration with `lane` under `fd`.
    pub(crate) fn watches(&self, socket: &Socket) -> impl Iterator<Item = WatchRef> {
        let first = WatchRef::unpack(socket.watch.load(Ordering::Acquire));
        first.into_iter().chain(self.more_watches.iter().copied())
    }

    /// Remembers a registration.
    pub(crate) fn add_watch(&mut self, socket: &Socket, watch: WatchRef) {
        if socket.watch.load(Ordering::Acquire) == 0 {
            socket.watch.store(watch.pack(), Ordering::Release);
        } else {
            self.more_watches.push(watch);
            socket.watched_more.store(true, Ordering::Release);
        }
    }

    /// Forgets a registration.
    pub(crate) fn remove_watch(&mut self, socket: &Socket, watch: WatchRef) {
        if socket.watch.load(Ordering::Acquire) == watch.pack() {
            let next = self.more_watches.pop();
            socket
                .watch
                .store(next.map_or(0, WatchRef::pack), Ordering::Release);
        } else {
            self.more_watches.retain(|other| *other != watch);
        }
        socket
            .watched_more
            .store(!self.more_watches.is_empty(), Ordering::Release);
    }
}

/// The system call's error for a registration that is or is not there.
pub(crate) const EXISTS: Errno = Errno(libc::EEXIST);
pub(crate) const MISSING: Errno = Errno(libc::ENOENT);
