//! A lane: a context, its rings and its doorbell, of an epoll instance or of the process.
//!
//! ```text
//! program -> submit -> request ring -> service -> event ring -> take_events -> who asked
//!                                         \-> doorbell -> whoever announced a sleep here
//! ```

use std::{
    os::fd::{AsRawFd, RawFd},
    sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
};

use tidelane_client::{ClientEvent, Context, Program};

use super::{
    connection::Connection,
    marks::internal_mark,
    session::{self, Session},
};
use crate::{
    sys::{self, Errno, Lock, Rank, Sleepers},
    table,
};

/// Changes of a batch that wait for its end, while the service cannot run anyway.
const UNFLUSHED_MAX: u32 = 64;
/// As before, while the service runs elsewhere and could begin.
const UNFLUSHED_ELSEWHERE_MAX: u32 = 4;
/// No socket: `batch_last`.
const NO_SOCKET: u32 = u32::MAX;

/// See the module. Never freed, only used again.
#[derive(Debug)]
pub struct Lane {
    number: u32,
    /// The program's epoll instance; -1 for the default lane.
    epfd: AtomicI32,
    ring: Lock<Ring>,
    /// The context's doorbell, -1 if there is no context.
    doorbell: AtomicI32,
    /// Threads that sleep, or are about to. Changes under `ring`.
    sleepers: Sleepers,
    /// Number of the batch of ready sockets that the program works on (never 0), and the last of
    /// them.
    batch: AtomicU32,
    batch_last: AtomicU32,
    /// The service's core runs on the CPU of the thread that last slept here, or on none for sure.
    shares_cpu: AtomicBool,
    /// The default lane joined a listener that is registered here, too: its connections come there
    /// or here.
    pub(super) beside: AtomicBool,
    /// The session whose doorbells are in this lane's epoll instance, 0 if none.
    registered: AtomicU32,
    /// The session whose default lane has its doorbell in this epoll instance, 0 if none.
    pub(super) beside_session: AtomicU32,
    /// Kernel epoll instances for threads that sleep on this lane's doorbell, not in use.
    sleep_fds: Lock<Vec<SleepFd>>,
}

/// A kernel epoll instance with the doorbell of a lane, for one sleeper.
#[derive(Debug)]
pub(crate) struct SleepFd {
    pub(crate) fd: RawFd,
    /// The session of the doorbell.
    session: u32,
}

/// The context and what belongs to it.
#[derive(Debug, Default)]
struct Ring {
    context: Option<Context>,
    /// The session of the context.
    session: u32,
    /// Changes since the last flush, roughly.
    unflushed: u32,
    /// The doorbell of the session before. Threads that sleep on it are woken by it, which only an
    /// open descriptor does.
    retired: Option<RawFd>,
}

impl Ring {
    /// Keeps the doorbell of a session that is over, -1 if none, beyond its context.
    fn retire(&mut self, doorbell: RawFd) {
        if let Some(before) = self.retired.take() {
            session::close_internal(before);
        }
        if doorbell >= 0 {
            let copy = sys::fcntl(doorbell, libc::F_DUPFD_CLOEXEC, 0);
            self.retired = copy.ok().map(|fd| session::make_internal(fd as RawFd));
        }
    }

    /// Asks the service to ring the doorbell. Returns true if a thread may sleep.
    ///
    /// Of a service that is gone nothing comes any more: the kernel's events are still there. The
    /// session may be an earlier one, for another lane finds the next service first.
    fn prepare_to_sleep(&mut self) -> bool {
        let is_gone = self.session <= session::last_gone();
        let Some(context) = &mut self.context else {
            return true;
        };
        context.prepare_to_sleep() || (is_gone && !context.has_events())
    }
}

/// A socket as the batches of lanes know it.
#[derive(Debug)]
pub(crate) struct Member {
    number: u32,
    /// The batch of ready descriptors that it was last part of, see [`Lane::submit`].
    batch: AtomicU32,
}

impl Member {
    /// The socket with this number, in no batch.
    pub(crate) const fn new(number: u32) -> Self {
        Self {
            number,
            batch: AtomicU32::new(0),
        }
    }

    /// The socket's number.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The socket is part of no batch any more.
    pub(crate) fn leave_batch(&self) {
        self.batch.store(0, Ordering::Relaxed);
    }
}

impl Lane {
    /// A lane without context.
    pub(crate) fn new(number: u32) -> Self {
        Self {
            number,
            epfd: AtomicI32::new(-1),
            ring: Lock::ranked(Rank::Ring, Ring::default()),
            doorbell: AtomicI32::new(-1),
            sleepers: Sleepers::new(),
            batch: AtomicU32::new(1),
            batch_last: AtomicU32::new(NO_SOCKET),
            shares_cpu: AtomicBool::new(true),
            beside: AtomicBool::new(false),
            registered: AtomicU32::new(0),
            beside_session: AtomicU32::new(0),
            sleep_fds: Lock::new(Vec::new()),
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn epfd(&self) -> RawFd {
        self.epfd.load(Ordering::Relaxed)
    }

    pub(crate) fn set_epfd(&self, epfd: RawFd) {
        self.epfd.store(epfd, Ordering::Relaxed);
        self.registered.store(0, Ordering::Release);
    }

    /// Whether it has a context.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.doorbell.load(Ordering::SeqCst) >= 0
    }

    /// Makes the context, unless it is there.
    pub(crate) fn activate(&'static self, session: &Session) -> Result<(), Errno> {
        let mut ring = self.ring.lock();
        if ring.context.is_none() || ring.session != session.generation {
            let program = session.program().ok_or(Errno(libc::EMFILE))?;
            let context = program.new_context().map_err(|_| Errno(libc::EMFILE))?;
            for sleep in std::mem::take(&mut *self.sleep_fds.lock()) {
                session::close_internal(sleep.fd);
            }
            let last = self.doorbell.load(Ordering::Acquire);
            ring.retire(last);
            // It is closed with its context.
            table::set_internal(last, false);
            let doorbell = context.doorbell_fd().map_or(-1, |fd| fd.as_raw_fd());
            if doorbell >= 0 {
                table::set_internal(doorbell, true);
            }
            ring.session = session.generation;
            ring.context = Some(context);
            self.doorbell.store(doorbell, Ordering::SeqCst);
            if let Some(retired) = ring.retired {
                self.sleepers.wake(|| sys::ring_eventfd(retired));
            }
        }
        drop(ring);
        let generation = session.generation;
        if self.epfd() < 0 || self.registered.load(Ordering::Acquire) == generation {
            return Ok(());
        }
        self.register_doorbells(self.epfd(), session)?;
        self.registered.store(generation, Ordering::Release);
        // Threads that sleep there already do not know of the context.
        self.wake_sleepers();
        Ok(())
    }

    /// A thread sleeps in the kernel's epoll instance, and there is no context. False: there is.
    pub(crate) fn begin_kernel_sleep(&self) -> bool {
        self.sleepers.announce();
        if self.is_active() {
            self.end_kernel_sleep();
            return false;
        }
        true
    }

    /// The reverse of `begin_kernel_sleep`.
    pub(crate) fn end_kernel_sleep(&self) {
        self.sleepers.leave();
    }

    /// Puts the doorbell and the session's control socket into a kernel epoll instance.
    pub(super) fn register_doorbells(&self, epfd: RawFd, session: &Session) -> Result<(), Errno> {
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
        let doorbell = self.doorbell.load(Ordering::Acquire);
        let program = session.program();
        let control = program.as_ref().and_then(Program::control_fd);
        let control = control.map_or(-1, |fd| fd.as_raw_fd());
        for (which, fd) in [doorbell, control].into_iter().enumerate() {
            let event = libc::epoll_event {
                events,
                u64: internal_mark(which),
            };
            match sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(event)) {
                Ok(_) | Err(Errno(libc::EEXIST)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tells the service what changed. Within a batch of ready sockets a few changes are told
    /// together: a flush costs more than the change, and on a shared CPU the service cannot run.
    #[inline]
    pub(crate) fn submit(&self, socket: &Member, connection: &mut Connection) {
        // Within a signal handler that interrupted this very lock: the next submit tells it.
        let Some(mut ring) = self.ring.enter() else {
            return;
        };
        let ring = &mut *ring;
        if ring.session != connection.session {
            return;
        }
        let Some(context) = &mut ring.context else {
            return;
        };
        context.submit(&mut connection.stream);
        let in_batch = self.batch.load(Ordering::Relaxed) == socket.batch.load(Ordering::Relaxed)
            && self.batch_last.load(Ordering::Relaxed) != socket.number;
        let may_wait = if self.shares_cpu.load(Ordering::Relaxed) {
            UNFLUSHED_MAX
        } else {
            UNFLUSHED_ELSEWHERE_MAX
        };
        if in_batch && ring.unflushed < may_wait {
            ring.unflushed += 1;
        } else {
            ring.unflushed = 0;
            context.flush();
        }
    }

    /// Tells the service at once.
    pub(crate) fn submit_now(&self, connection: &mut Connection) {
        let session = connection.session;
        self.with_context(session, |context| {
            context.submit(&mut connection.stream);
            context.flush();
        });
    }

    /// Works with the context, if it belongs to the given session.
    pub(crate) fn with_context<R>(
        &self,
        session: u32,
        work: impl FnOnce(&mut Context) -> R,
    ) -> Option<R> {
        let mut ring = self.ring.enter()?;
        if ring.session != session {
            return None;
        }
        ring.context.as_mut().map(work)
    }

    /// The program works on no batch any more. `drain` or `arm`, which follow, flush.
    #[inline]
    pub(crate) fn end_batch(&self) {
        self.batch_last.store(NO_SOCKET, Ordering::Relaxed);
        let batch = self.batch.load(Ordering::Relaxed);
        self.batch.store(batch.wrapping_add(2), Ordering::Relaxed);
    }

    /// The program gets a socket to work on, as part of the present batch.
    #[inline]
    pub(crate) fn add_to_batch(&self, socket: &Member) {
        socket
            .batch
            .store(self.batch.load(Ordering::Relaxed), Ordering::Relaxed);
        self.batch_last.store(socket.number, Ordering::Relaxed);
    }

    /// Takes the doorbell's rings away, of which the kernel's epoll instances would tell.
    pub(crate) fn silence(&self) {
        let doorbell = self.doorbell.load(Ordering::Acquire);
        if doorbell >= 0 {
            let _ = sys::read_bytes(doorbell, &mut [0; 8]);
        }
    }

    /// Wakes the threads that sleep on this lane, if there are any.
    pub(crate) fn wake_sleepers(&self) {
        self.sleepers
            .wake(|| match self.doorbell.load(Ordering::Acquire) {
                -1 => self.ring_without_context(),
                doorbell => sys::ring_eventfd(doorbell),
            });
    }

    /// Without a context there is no doorbell, and threads sleep in the kernel's epoll instance:
    /// that reports a socket of the library's own, once.
    #[cold]
    fn ring_without_context(&self) {
        let Ok(fd) = session::template() else {
            return;
        };
        let event = Some(libc::epoll_event {
            events: libc::EPOLLONESHOT as u32,
            u64: internal_mark(0),
        });
        if sys::epoll_ctl(self.epfd(), libc::EPOLL_CTL_MOD, fd, event) == Err(Errno(libc::ENOENT)) {
            let _ = sys::epoll_ctl(self.epfd(), libc::EPOLL_CTL_ADD, fd, event);
        }
    }

    /// Flushes, and gives `each` what the service reported, under the ring's lock. Returns the
    /// session that it belongs to; None if there was nothing.
    #[inline]
    pub(crate) fn take_events(&self, mut each: impl FnMut(ClientEvent)) -> Option<u32> {
        let mut ring = self.ring.lock();
        let session = ring.session;
        let context = ring.context.as_mut()?;
        if context.has_queued() {
            context.flush();
        }
        if !context.has_events() {
            return None;
        }
        context.poll(&mut each);
        Some(session)
    }

    /// The session of the context.
    pub(super) fn session(&self) -> u32 {
        self.ring.lock().session
    }

    /// Whether events are there. Two loads under the ring's lock.
    pub(crate) fn has_events(&self) -> bool {
        self.ring
            .lock()
            .context
            .as_ref()
            .is_some_and(Context::has_events)
    }

    /// Whether looking at the rings for a while is better than sleeping at once.
    pub(crate) fn spinning_pays(&self) -> bool {
        let ring = self.ring.lock();
        let Some(context) = &ring.context else {
            return false;
        };
        !context.shares_cpu(sys::current_cpu()) && !context.cores_sleep()
    }

    /// Announces a sleeper, and flushes. False: events are there.
    pub(crate) fn arm(&self) -> bool {
        let mut ring = self.ring.lock();
        self.sleepers.announce();
        if let Some(context) = &mut ring.context {
            let cpu = sys::current_cpu();
            context.set_cpu_hint(cpu);
            self.shares_cpu
                .store(context.shares_cpu(cpu), Ordering::Relaxed);
        }
        ring.prepare_to_sleep()
    }

    /// The sleeper woke up. The others still want the doorbell.
    pub(crate) fn disarm(&self) {
        let mut ring = self.ring.lock();
        let others = self.sleepers.leave();
        let Some(context) = &mut ring.context else {
            return;
        };
        context.cancel_sleep();
        if others && !ring.prepare_to_sleep() {
            drop(ring);
            self.wake_sleepers();
        }
    }

    /// Gives back send buffers of connections with nothing to send, as `trim` says of each slot.
    /// The ring's lock is held: `trim` may not wait for a socket's.
    /// Returns how many connections keep their send buffers.
    pub(crate) fn trim(&self, trim: &mut dyn FnMut(u32) -> bool) -> usize {
        let Some(mut ring) = self.ring.try_lock() else {
            return 0;
        };
        let context = ring.context.as_mut();
        context.map_or(0, |context| context.trim(trim))
    }

    /// A kernel epoll instance that becomes readable when the doorbell rings; for one sleeper.
    pub(crate) fn borrow_sleep_fd(&self) -> Result<SleepFd, Errno> {
        if let Some(sleep) = self.sleep_fds.lock().pop() {
            return Ok(sleep);
        }
        let session = self.session();
        let fd = session::make_internal(sys::epoll_create()?);
        if let Some(last) = session::last() {
            self.register_doorbells(fd, last)?;
        }
        Ok(SleepFd { fd, session })
    }

    /// Gives a sleeper's epoll instance back.
    pub(crate) fn return_sleep_fd(&self, sleep: SleepFd) {
        if sleep.session == self.session() {
            self.sleep_fds.lock().push(sleep);
        } else {
            session::close_internal(sleep.fd);
        }
    }

    /// For the child after fork: the context is the parent's, and given up already.
    pub(crate) fn reset_after_fork(&self) {
        self.ring.unlock_after_fork();
        let ring = std::mem::take(&mut *self.ring.lock());
        ring.retired.into_iter().for_each(session::close_internal);
        drop(ring.context);
        let doorbell = self.doorbell.swap(-1, Ordering::AcqRel);
        if doorbell >= 0 {
            table::set_internal(doorbell, false);
        }
        self.sleep_fds.unlock_after_fork();
        for sleep in std::mem::take(&mut *self.sleep_fds.lock()) {
            session::close_internal(sleep.fd);
        }
        self.sleepers.reset_after_fork();
        self.registered.store(0, Ordering::Relaxed);
        self.beside.store(false, Ordering::Relaxed);
        self.beside_session.store(0, Ordering::Relaxed);
    }
}
