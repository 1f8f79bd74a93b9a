//! A tracked TCP socket: the state that this crate keeps for one open file description of the
//! program. The service (the process `tidelaned`) or the kernel carries the socket's connection.
//!
//! | module | contents |
//! |---|---|
//! | `state` | the state machine, and the effect of each call in each state |
//! | `inner` | the data that the socket's lock protects |
//! | `registry` | lookup of sockets by descriptor, by number, and by slot (a connection's record) |
//! | `registrations`, `registration_ref` | the epoll instances that the socket is registered with |
//! | `ready` | the readiness of the socket |
//! | `bytes`, `urgent`, `syn_data` | payload that the program reads and writes |
//! | `options`, `option_calls`, `option_values`, `kernel_options` | socket options |
//! | `tcp_info`, `cc_info` | TCP_INFO and TCP_CC_INFO |
//! | `listening` | listeners in the service and in the kernel |
//! | `groups` | SO_REUSEPORT groups that are left to the kernel |
//! | `arrive` | events about new connections |
//! | `sharing` | connections that several processes share after `fork` |
//! | `thread_channel` | moving a connection's events to the thread that waits for them |

pub(crate) mod arrive;
pub(crate) mod bytes;
pub(crate) mod cc_info;
pub(crate) mod groups;
pub(crate) mod inner;
pub(crate) mod kernel_options;
pub(crate) mod listening;
pub(crate) mod option_calls;
pub(crate) mod option_values;
pub(crate) mod options;
pub(crate) mod ready;
pub(crate) mod registration_ref;
pub(crate) mod registrations;
pub(crate) mod registry;
pub(crate) mod sharing;
pub(crate) mod state;
pub(crate) mod syn_data;
pub(crate) mod tcp_info;
pub(crate) mod thread_channel;
pub(crate) mod urgent;

use std::{
    os::fd::RawFd,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

pub(crate) use inner::Inner;
use registration_ref::RegistrationRef;
use state::State;

use crate::{
    service::batch_member::BatchMember,
    sys::{Guard, Lock, Rank},
};

/// A tracked TCP socket of the program. The program's descriptors lead to this value through
/// `registry`. Sockets are never freed, only reused.
#[derive(Debug)]
pub struct Socket {
    /// The number of the socket, and its membership in a batch. A batch is the set of ready sockets
    /// that one `epoll_wait` returned.
    pub(crate) member: BatchMember,
    /// O_NONBLOCK of the open file description, as the program sees it.
    pub(crate) nonblocking: AtomicBool,
    /// Number of threads that sleep until the socket has an event.
    pub(crate) waiters: AtomicU32,
    /// The first registration with an epoll instance, in the form of [`RegistrationRef::pack`], or
    /// 0 if there is none.
    pub(crate) registration: AtomicU64,
    /// True if `Inner::more_registrations` has further registrations.
    pub(crate) has_more_registrations: AtomicBool,
    /// Counts the events of this socket, modulo 2^32: events of the service, and calls of this
    /// process that may change the socket's readiness. If the socket has registrations, an event
    /// counts once for each of them. Concurrent events may count as one event.
    event_count: AtomicU32,
    /// The value that `event_count` had before the last read that emptied the receive buffer. This
    /// value equals `event_count` if no event has been counted since then.
    drained_at: AtomicU32,
    /// The data that the socket's lock protects.
    inner: Lock<Inner>,
}

impl Socket {
    /// Creates a free socket.
    pub(crate) const fn new(number: u32) -> Self {
        Self {
            member: BatchMember::new(number),
            nonblocking: AtomicBool::new(false),
            waiters: AtomicU32::new(0),
            registration: AtomicU64::new(0),
            has_more_registrations: AtomicBool::new(false),
            event_count: AtomicU32::new(1),
            drained_at: AtomicU32::new(0),
            inner: Lock::ranked(Rank::Socket, Inner::free(0)),
        }
    }

    /// Takes the socket's lock, if `fd` still refers to the socket. If several processes share the
    /// connection after `fork`, and another process has the connection, also migrates the
    /// connection to this process. The payload of a connection is in the memory of one process at a
    /// time.
    ///
    /// Returns `None` if the descriptor was closed meanwhile, or if the caller is a signal handler
    /// that interrupted this thread while the thread held the lock. The caller then makes the
    /// system call, which returns EBADF for a closed descriptor.
    #[inline]
    pub(crate) fn enter(&'static self, fd: RawFd) -> Option<Guard<'static, Inner>> {
        let mut inner = self.enter_without_migration(fd)?;
        if inner.shared {
            sharing::migrate_here(self, &mut inner);
        }
        Some(inner)
    }

    /// Takes the socket's lock as `enter` does, but does not migrate the connection to this
    /// process.
    #[inline]
    pub(crate) fn enter_without_migration(
        &'static self,
        fd: RawFd,
    ) -> Option<Guard<'static, Inner>> {
        let inner = self.inner.enter()?;
        if registry::refers(fd, self) {
            Some(inner)
        } else {
            None
        }
    }

    /// Takes the socket's lock, without checking a descriptor. Returns `None` if this thread
    /// already holds the lock.
    pub(crate) fn try_enter(&'static self) -> Option<Guard<'static, Inner>> {
        self.inner.enter()
    }

    /// Takes the socket's lock, without checking a descriptor. Aborts the process if this thread
    /// already holds the lock.
    #[inline]
    pub(crate) fn lock(&'static self) -> Guard<'static, Inner> {
        self.inner.lock()
    }

    /// Takes the socket's lock if the lock is free. Otherwise returns `None` without waiting.
    pub(crate) fn try_lock(&'static self) -> Option<Guard<'static, Inner>> {
        self.inner.try_lock()
    }

    /// Takes a free socket into use, with one descriptor. Returns the locked socket.
    pub(crate) fn start(&'static self, nonblocking: bool, state: State) -> Guard<'static, Inner> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        self.registration.store(0, Ordering::Relaxed);
        self.has_more_registrations.store(false, Ordering::Relaxed);
        self.member.leave_batch();
        self.note_event();
        // The caller may hold the lock of a listener.
        let mut inner = self.inner.lock_of_new();
        let generation = inner.generation.wrapping_add(1);
        *inner = Inner {
            state,
            descriptors: 1,
            ..Inner::free(generation)
        };
        inner
    }

    /// Returns the cookie that identifies the socket in the service's events. Sockets are reused,
    /// so the cookie also contains the generation, which counts the uses of the socket.
    pub(crate) fn cookie(&self, generation: u32) -> u64 {
        u64::from(self.member.number()) << 32 | u64::from(generation)
    }

    /// Returns the socket that a cookie identifies, locked. Returns `None` if the socket was closed
    /// or reused meanwhile.
    pub(crate) fn of_cookie(cookie: u64) -> Option<(&'static Socket, Guard<'static, Inner>)> {
        let socket = registry::numbered((cookie >> 32) as u32)?;
        let inner = socket.lock();
        let same = inner.generation == cookie as u32 && !matches!(inner.state, State::Free);
        same.then_some((socket, inner))
    }

    /// Returns the first registration with an epoll instance.
    #[inline]
    pub(crate) fn first_registration(&self) -> Option<RegistrationRef> {
        RegistrationRef::unpack(self.registration.load(Ordering::Acquire))
    }

    /// Returns true if there are more registrations than the first.
    #[inline]
    pub(crate) fn has_more_registrations(&self) -> bool {
        self.has_more_registrations.load(Ordering::Acquire)
    }

    /// Counts an event, so that the next wait checks the socket's readiness.
    #[inline]
    pub(crate) fn note_event(&self) {
        let event_count = self.event_count.load(Ordering::Relaxed);
        self.event_count
            .store(event_count.wrapping_add(1), Ordering::Release);
    }

    /// Returns the event count. The caller calls this function before a read, and passes the result
    /// to `note_drained` if the read returned all received bytes.
    #[inline]
    pub(crate) fn event_count(&self) -> u32 {
        // A read that follows sees the data of all events up to this count.
        self.event_count.load(Ordering::Acquire)
    }

    /// Records that the program has read all bytes of the events up to `event_count`.
    #[inline]
    pub(crate) fn note_drained(&self, event_count: u32) {
        self.drained_at.store(event_count, Ordering::Relaxed);
    }

    /// Returns true if no event has occurred since the program read all received bytes.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.drained_at.load(Ordering::Relaxed) == self.event_count.load(Ordering::Relaxed)
    }

    /// Returns true if calls on this socket block.
    #[inline]
    pub(crate) fn blocks(&self) -> bool {
        !self.nonblocking.load(Ordering::Relaxed)
    }

    /// In a child after fork, resets the lock, which a thread of the parent may have held during
    /// the fork, and then takes the lock. The locked value is a copy of the parent's value. The
    /// caller has to forget the streams in this value instead of dropping them, because the streams
    /// belong to the parent's session, whose memory the child does not have.
    pub(crate) fn unlock_after_fork(&'static self) -> Guard<'static, Inner> {
        self.waiters.store(0, Ordering::Relaxed);
        self.inner.unlock_after_fork();
        self.inner.lock()
    }
}
