//! One open description of a TCP socket, as the program sees it.
//!
//! | module | what |
//! |---|---|
//! | `state` | what a socket is, and what each call does then |
//! | `inner` | what its lock protects |
//! | `registry` | descriptor, slot and number -> socket |
//! | `registrations` | the epoll instances that it is registered with |
//! | `ready` | what it is ready for |
//! | `bytes`, `urgent`, `syn_text` | what the program reads and writes |
//! | `options`, `option_values`, `kernel_options` | what was set |
//! | `tcp_info`, `cc_info` | what is told |
//! | `listening`, `groups` | a listener in both stacks, and SO_REUSEPORT groups that are not |
//! | `arrive` | the service's reports of connections that come into being |
//! | `sharing` | connections that several processes hold |

pub(crate) mod arrive;
pub(crate) mod bytes;
pub(crate) mod cc_info;
pub(crate) mod groups;
pub(crate) mod inner;
pub(crate) mod kernel_options;
pub(crate) mod listening;
pub(crate) mod option_values;
pub(crate) mod options;
pub(crate) mod ready;
pub(crate) mod registrations;
pub(crate) mod registry;
pub(crate) mod sharing;
pub(crate) mod state;
pub(crate) mod syn_text;
pub(crate) mod tcp_info;
pub(crate) mod urgent;

use std::{
    os::fd::RawFd,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

pub(crate) use inner::Inner;
use registrations::WatchRef;
use state::State;

use crate::{
    service::lane::Member,
    sys::{Guard, Lock, Rank},
};

/// A socket that the program made under our eyes. Never freed, only used again.
#[derive(Debug)]
pub struct Socket {
    /// Its place in the table of sockets, and the batch that it is part of.
    pub(crate) member: Member,
    /// O_NONBLOCK of the open description.
    pub(crate) nonblocking: AtomicBool,
    /// Threads that sleep until something happens to this socket.
    pub(crate) waiters: AtomicU32,
    /// The first registration with an epoll instance ([`WatchRef::pack`]), 0 if there is none.
    pub(crate) watch: AtomicU64,
    /// There are more registrations, in `Inner::more_watches`.
    pub(crate) watched_more: AtomicBool,
    /// Counts the service's reports about it (several at once may count as one).
    news: AtomicU32,
    /// What `news` was before the program read all that was there.
    drained_at: AtomicU32,
    inner: Lock<Inner>,
}

impl Socket {
    /// A free socket.
    pub(crate) const fn new(number: u32) -> Self {
        Self {
            member: Member::new(number),
            nonblocking: AtomicBool::new(false),
            waiters: AtomicU32::new(0),
            watch: AtomicU64::new(0),
            watched_more: AtomicBool::new(false),
            news: AtomicU32::new(1),
            drained_at: AtomicU32::new(0),
            inner: Lock::ranked(Rank::Socket, Inner::free(0)),
        }
    }

    /// Takes the socket's lock, provided that `fd` refers to it.
    ///
    /// None if the descriptor was closed meanwhile, or if a signal handler interrupted its own
    /// thread within this socket: the system call then says what there is to say.
    ///
    /// A connection that another process has at the moment is taken back.
    #[inline]
    pub(crate) fn enter(&'static self, fd: RawFd) -> Option<Guard<'static, Inner>> {
        let mut inner = self.find(fd)?;
        if inner.shared {
            sharing::bring_here(self, &mut inner);
        }
        Some(inner)
    }

    /// As `enter`, but the connection stays where it is.
    #[inline]
    pub(crate) fn find(&'static self, fd: RawFd) -> Option<Guard<'static, Inner>> {
        let inner = self.inner.enter()?;
        if registry::refers(fd, self) {
            Some(inner)
        } else {
            None
        }
    }

    /// Takes the socket's lock, unless this thread was interrupted while it had it.
    pub(crate) fn visit(&'static self) -> Option<Guard<'static, Inner>> {
        self.inner.enter()
    }

    /// Takes the socket's lock, whatever descriptors it has.
    #[inline]
    pub(crate) fn lock(&'static self) -> Guard<'static, Inner> {
        self.inner.lock()
    }

    /// Takes the socket's lock if it is free.
    pub(crate) fn try_lock(&'static self) -> Option<Guard<'static, Inner>> {
        self.inner.try_lock()
    }

    /// A socket in use: one descriptor, fresh.
    pub(crate) fn start(&'static self, nonblocking: bool, state: State) -> Guard<'static, Inner> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        self.watch.store(0, Ordering::Relaxed);
        self.watched_more.store(false, Ordering::Relaxed);
        self.member.leave_batch();
        self.note_news();
        // A listener's lock may be held.
        let mut inner = self.inner.lock_of_new();
        let generation = inner.generation.wrapping_add(1);
        *inner = Inner {
            state,
            descriptors: 1,
            ..Inner::free(generation)
        };
        inner
    }

    /// What the service gives back in events: the socket and which of its uses.
    pub(crate) fn cookie(&self, generation: u32) -> u64 {
        u64::from(self.member.number()) << 32 | u64::from(generation)
    }

    /// The socket of a cookie, locked, if it is still the same use.
    pub(crate) fn of_cookie(cookie: u64) -> Option<(&'static Socket, Guard<'static, Inner>)> {
        let socket = registry::numbered((cookie >> 32) as u32)?;
        let inner = socket.lock();
        let same = inner.generation == cookie as u32 && !matches!(inner.state, State::Free);
        same.then_some((socket, inner))
    }

    /// The first registration with an epoll instance.
    #[inline]
    pub(crate) fn first_watch(&self) -> Option<WatchRef> {
        WatchRef::unpack(self.watch.load(Ordering::Acquire))
    }

    /// Returns true if there are more registrations than the first.
    #[inline]
    pub(crate) fn has_more_watches(&self) -> bool {
        self.watched_more.load(Ordering::Acquire)
    }

    /// There is something to look at.
    #[inline]
    pub(crate) fn note_news(&self) {
        let news = self.news.load(Ordering::Relaxed);
        self.news.store(news.wrapping_add(1), Ordering::Release);
    }

    /// To be called before reading; give it to `note_drained` if all was read.
    #[inline]
    pub(crate) fn news(&self) -> u32 {
        // What was reported up to here is read by whoever reads after this.
        self.news.load(Ordering::Acquire)
    }

    /// All was read that was there after `news` was called.
    #[inline]
    pub(crate) fn note_drained(&self, news: u32) {
        self.drained_at.store(news, Ordering::Relaxed);
    }

    /// Whether the program has read everything that was ever reported.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.drained_at.load(Ordering::Relaxed) == self.news.load(Ordering::Relaxed)
    }

    /// Whether a call that must wait, waits.
    #[inline]
    pub(crate) fn blocks(&self) -> bool {
        !self.nonblocking.load(Ordering::Relaxed)
    }

    /// For the child after fork: the value as the parent left it. Its streams refer to memory that
    /// is not mapped here: forget them, do not drop them.
    pub(crate) fn unlock_after_fork(&'static self) -> Guard<'static, Inner> {
        self.waiters.store(0, Ordering::Relaxed);
        self.inner.unlock_after_fork();
        self.inner.lock()
    }
}
