//! One open description of a TCP socket, as the program sees it.

use std::{
    collections::VecDeque,
    os::fd::RawFd,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use tidelane_abi::{OpenOptions, service_flags};
use tidelane_client::{ListenerHandle, Stream};

use crate::{
    errno::{self, Errno},
    few::Few,
    fork,
    lane::Lane,
    lock_unsafe::{Guard, Lock},
    options::Options,
    table, urgent,
    watch::WatchRef,
};

const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
/// How the address of an IPv4 peer begins.
const V4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;

/// A socket that the program made under our eyes. Never freed, only used again.
#[derive(Debug)]
pub struct Socket {
    /// Its place in the table of sockets.
    number: u32,
    /// O_NONBLOCK of the open description.
    pub(crate) nonblocking: AtomicBool,
    /// Threads that sleep until something happens to this socket.
    pub(crate) waiters: AtomicU32,
    /// The first registration with an epoll instance ([`WatchRef::pack`]), 0 if there is none.
    pub(crate) watch: AtomicU64,
    /// There are more registrations, in `Inner::more_watches`.
    pub(crate) watched_more: AtomicBool,
    /// The batch of ready descriptors that it was last part of, see [`Lane::submit`].
    pub(crate) batch: AtomicU32,
    /// Counts the service's reports about it (several at once may count as one).
    news: AtomicU32,
    /// What `news` was before the program read all that was there.
    drained_at: AtomicU32,
    inner: Lock<Inner>,
}

/// What a socket is at the moment.
#[derive(Debug, Default)]
pub(crate) enum State {
    /// In the pool.
    #[default]
    Free,
    /// Made, perhaps bound; the kernel's so far.
    Fresh,
    /// `connect` is under way.
    Connecting(Connecting),
    /// A connection.
    Stream(Connection),
    /// `connect` failed; it may be tried again.
    Failed,
    /// Listens in both stacks.
    Listening(Listening),
    /// The kernel's for good, as far as we are concerned.
    Kernel,
    /// A connection of the parent process, which this one may take: its number.
    Inherited(u64),
    /// A connection of another process, which this one cannot have.
    Forked,
}

/// An active open.
#[derive(Debug, Default)]
pub(crate) struct Connecting {
    /// From CONNECT_STARTED on.
    pub(crate) connection: Option<Connection>,
    /// The service sent the connect back: it is the kernel's, for this reason.
    pub(crate) kernel: Option<u32>,
    /// SYN waits for the first write, and carries so much of it. 0: it is out.
    pub(crate) syn_room: u32,
}

/// A connection and the session that it belongs to.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// [`crate::session::Session::generation`].
    pub(crate) session: u32,
}

/// A listener.
#[derive(Debug)]
pub(crate) struct Listening {
    /// The service's listener and the session that it belongs to.
    pub(crate) handle: Option<(ListenerHandle, u32)>,
    pub(crate) backlog: i32,
    /// What the service was told of its connections.
    pub(crate) opening: OpenOptions,
    /// Lanes that joined it.
    pub(crate) joined: Few<&'static Lane>,
    /// Accepted by the service, not yet by the program; and the lane that got each.
    pub(crate) queue: VecDeque<(Connection, &'static Lane)>,
    /// Counts all that ever came into the queue.
    pub(crate) arrivals: u64,
    /// The service refused, or is not there: do not ask before this time.
    pub(crate) retry_at_ns: u64,
}

/// What the socket's lock protects.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: State,
    /// Counts the socket's uses, so that late events of an earlier one are recognised.
    pub(crate) generation: u32,
    /// Descriptors of this process that refer to it.
    pub(crate) descriptors: u32,
    /// Where its events go to, and its requests come from.
    pub(crate) lane: Option<&'static Lane>,
    pub(crate) options: Options,
    /// SO_ERROR.
    pub(crate) error: i32,
    /// What SO_ERROR says if there is no other: an error that ended nothing.
    pub(crate) soft_error: i32,
    /// The end of the connection was turned into `error`.
    pub(crate) cause_seen: bool,
    /// It is of AF_INET6: its names are written as such.
    pub(crate) inet6: bool,
    /// `bind` was called.
    pub(crate) bound: bool,
    /// `connect` began, and its result was not reported by another `connect`.
    pub(crate) connect_pending: bool,
    pub(crate) shut_read: bool,
    pub(crate) shut_write: bool,
    /// Other processes hold the connection too, or did when this was last looked at.
    pub(crate) shared: bool,
    /// The last write had MSG_MORE.
    pub(crate) corked_once: bool,
    /// A write did not find room: the next room is an event.
    pub(crate) no_space: bool,
    /// Bytes that the program has read.
    pub(crate) bytes_read: u64,
    pub(crate) more_watches: Vec<WatchRef>,
}

impl Socket {
    /// A free socket.
    pub(crate) const fn new(number: u32) -> Self {
        Self {
            number,
            nonblocking: AtomicBool::new(false),
            waiters: AtomicU32::new(0),
            watch: AtomicU64::new(0),
            watched_more: AtomicBool::new(false),
            batch: AtomicU32::new(0),
            news: AtomicU32::new(1),
            drained_at: AtomicU32::new(0),
            inner: Lock::new(Inner::free(0)),
        }
    }

    /// Its place in the table of sockets.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
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
            fork::bring_here(self, &mut inner);
        }
        Some(inner)
    }

    /// As `enter`, but the connection stays where it is.
    #[inline]
    pub(crate) fn find(&'static self, fd: RawFd) -> Option<Guard<'static, Inner>> {
        let inner = self.inner.enter()?;
        if table::refers(fd, self) {
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
    pub(crate) fn start(&'static self, nonblocking: bool, state: State) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        self.watch.store(0, Ordering::Relaxed);
        self.watched_more.store(false, Ordering::Relaxed);
        self.batch.store(0, Ordering::Relaxed);
        self.note_news();
        let mut inner = self.lock();
        let generation = inner.generation.wrapping_add(1);
        *inner = Inner {
            state,
            descriptors: 1,
            ..Inner::free(generation)
        };
    }

    /// What the service gives back in events: the socket and which of its uses.
    pub(crate) fn cookie(&self, generation: u32) -> u64 {
        u64::from(self.number) << 32 | u64::from(generation)
    }

    /// The socket of a cookie, locked, if it is still the same use.
    pub(crate) fn of_cookie(cookie: u64) -> Option<(&'static Socket, Guard<'static, Inner>)> {
        let socket = table::socket_number((cookie >> 32) as u32)?;
        let inner = socket.lock();
        let same = inner.generation == cookie as u32 && !matches!(inner.state, State::Free);
        same.then_some((socket, inner))
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

impl Inner {
    pub(crate) const fn free(generation: u32) -> Self {
        Self {
            state: State::Free,
            generation,
            descriptors: 0,
            lane: None,
            options: Options::DEFAULT,
            error: 0,
            soft_error: 0,
            cause_seen: false,
            inet6: false,
            bound: false,
            connect_pending: false,
            shut_read: false,
            shut_write: false,
            shared: false,
            corked_once: false,
            no_space: false,
            bytes_read: 0,
            more_watches: Vec::new(),
        }
    }

    /// The connection, established or not.
    #[inline]
    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.state {
            State::Stream(connection) => Some(connection),
            State::Connecting(connecting) => connecting.connection.as_mut(),
            _ => None,
        }
    }

    /// Turns the handshake's end and the connection's end into state and error, as the slot has it.
    pub(crate) fn refresh(&mut self) {
        if matches!(self.state, State::Connecting(_)) {
            self.refresh_connecting();
        }
        self.note_soft_error();
        if let State::Stream(connection) = &self.state
            && !self.cause_seen
            && let Some(cause) = connection.stream.closed()
        {
            self.cause_seen = true;
            let fin = connection.stream.service_flags() & service_flags::FIN_RECEIVED != 0;
            let in_close_wait = fin && !self.shut_write;
            self.error = match errno::from_cause(cause) {
                libc::ECONNRESET if in_close_wait => libc::EPIPE,
                number => number,
            };
        }
    }

    /// An error of the path is one of the connection if the program asked for that (IP_RECVERR);
    /// else only SO_ERROR tells it.
    fn note_soft_error(&mut self) {
        let State::Stream(connection) = &mut self.state else {
            return;
        };
        let Some(cause) = connection.stream.soft_error() else {
            return;
        };
        let is_v4 = connection.stream.names().peer_addr[..12] == V4_MAPPED;
        let number = errno::from_cause(cause);
        if self.options.tells_errors(is_v4) {
            self.error = number;
        } else {
            self.soft_error = number;
        }
    }

    fn refresh_connecting(&mut self) {
        let State::Connecting(connecting) = &mut self.state else {
            return;
        };
        let Some(connection) = &mut connecting.connection else {
            return;
        };
        if connection.stream.established() {
            let connection = connecting.connection.take();
            self.state = connection.map_or(State::Failed, State::Stream);
        } else if let Some(cause) = connection.stream.closed() {
            self.fail_connect(cause);
        }
    }

    /// The active open failed.
    pub(crate) fn fail_connect(&mut self, cause: u32) {
        let number = errno::from_cause(cause);
        self.error = if number == 0 {
            libc::ECONNRESET
        } else {
            number
        };
        if let State::Connecting(Connecting {
            connection: Some(mut connection),
            ..
        }) = std::mem::replace(&mut self.state, State::Failed)
        {
            connection.stream.close(true, None);
            if let Some(lane) = self.lane {
                lane.submit_now(&mut connection);
            }
        }
    }

    /// SO_ERROR, which clears it.
    pub(crate) fn take_error(&mut self) -> Option<Errno> {
        match std::mem::take(&mut self.error) {
            0 => None,
            number => Some(Errno(number)),
        }
    }

    /// What the kernel's poll would report: bits of EPOLL*, which are those of POLL*. Of EPOLLOUT
    /// only if it is `wanted`, for it costs a look at another cache line.
    #[inline]
    pub(crate) fn readiness(&mut self, wanted: u32) -> u32 {
        if self.shared && self.is_elsewhere() {
            return 0;
        }
        const ENDS: u32 = service_flags::CLOSED
            | service_flags::FIN_RECEIVED
            | service_flags::SOFT_ERROR
            | service_flags::URGENT;
        let plain = self.error == 0 && !(self.cause_seen | self.shut_read | self.shut_write);
        if let State::Stream(connection) = &mut self.state
            && plain
            && connection.stream.service_flags() & ENDS == 0
        {
            let stream = &mut connection.stream;
            let enough = has_enough(stream, self.options.receive_low);
            let mut bits = if enough { IN } else { 0 };
            if wanted & OUT != 0 && has_room(stream) {
                bits |= OUT;
            }
            return bits;
        }
        self.readiness_slow()
    }

    #[inline(never)]
    fn readiness_slow(&mut self) -> u32 {
        const ERR: u32 = libc::EPOLLERR as u32;
        const HUP: u32 = libc::EPOLLHUP as u32;
        const RDHUP: u32 = libc::EPOLLRDHUP as u32;
        self.refresh();
        let error = if self.error != 0 { ERR } else { 0 };
        match &mut self.state {
            State::Stream(connection) => {
                let stream = &mut connection.stream;
                let mut bits = error | urgent::readiness(stream);
                if self.cause_seen {
                    return bits | IN | OUT | HUP | RDHUP;
                }
                let ended = self.shut_read || stream.peer_closed();
                if ended {
                    bits |= IN | RDHUP;
                } else {
                    let pollable = stream.pollable();
                    if enough(pollable, stream, self.options.receive_low) {
                        bits |= IN;
                    }
                }
                if self.shut_write {
                    bits |= OUT;
                    if ended {
                        bits |= HUP;
                    }
                } else if has_room(stream) {
                    bits |= OUT;
                }
                bits
            }
            State::Connecting(connecting) if connecting.syn_room > 0 => error | OUT,
            State::Connecting(_) => error,
            State::Failed if error != 0 => error | IN | OUT | HUP | RDHUP,
            State::Fresh | State::Failed => OUT | HUP,
            State::Listening(listening) if listening.queue.is_empty() => 0,
            State::Listening(_) => IN,
            State::Inherited(_) => 0,
            State::Forked => ERR | IN | OUT | HUP | RDHUP,
            State::Free | State::Kernel => 0,
        }
    }
}

/// Whether there is so much room that a writer should be woken: a third, as Linux has it, and
/// TCP_NOTSENT_LOWAT.
fn has_room(stream: &mut Stream) -> bool {
    let (unacked, limit) = (stream.unacked(), stream.tx_limit());
    let room = limit.saturating_sub(unacked);
    room > 0 && room >= limit / 3 && stream.is_low()
}

/// Whether there is so much to read that a reader should be woken: SO_RCVLOWAT, or as much as can
/// come at all.
#[inline]
fn has_enough(stream: &mut Stream, low: u32) -> bool {
    enough(stream.readable(), stream, low)
}

#[inline]
fn enough(readable: usize, stream: &Stream, low: u32) -> bool {
    readable >= low as usize || readable > 0 && readable >= stream.rx_window() as usize / 2
}
