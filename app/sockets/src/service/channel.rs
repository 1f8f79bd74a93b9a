//! Channels, over which this process exchanges requests and events with the service (the process
//! `tidelaned`, which runs TCP).
//!
//! An active channel has a context, which consists of rings in shared memory and a doorbell. The
//! doorbell is an eventfd by which the service wakes the threads that sleep on the channel. Each
//! epoll instance has its own channel. Sockets in no epoll instance use the default channel.
//!
//! * A core is a polling thread of the service.
//! * A session is a registration of this process with the service. Fields named `session` contain
//!   its generation number, which is 1 for the first session of the process.
//! * A change is a new read or write position of a connection, or another request about it.
//! * A batch is the set of ready sockets that one `epoll_wait` returned.
//!
//! ```text
//! program -> submit -> request ring -> service -> event ring -> take_events -> socket
//!                                         \-> doorbell -> threads that announced a sleep
//! ```

use std::{
    os::fd::{AsRawFd, RawFd},
    sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
};

use tidelane_client::{ClientEvent, Context, Program};

use super::{
    batch_member::BatchMember,
    connection::Connection,
    internal_events::internal_tag,
    session::{self, ProcessSession},
    sleep_fds::{SleepFd, SleepFds},
    spin_record::SpinRecord,
};
use crate::{
    sys::{self, Errno, Lock, Rank, Sleepers},
    table,
};

/// Largest number of unpublished changes of a batch while the service's core shares this thread's
/// CPU: high, because the core cannot run before this thread sleeps.
const UNFLUSHED_MAX: u32 = 64;
/// Largest number of unpublished changes of a batch while the service's core runs on another CPU:
/// low, because this core could already work on the changes.
const UNFLUSHED_OTHER_CPU_MAX: u32 = 4;
/// Value of `batch_last` for "no socket".
const NO_SOCKET: u32 = u32::MAX;

/// A channel to the service. Its memory is never freed: the pool in `channels` reuses the channel.
#[derive(Debug)]
pub struct Channel {
    /// Number of the channel in this process.
    number: u32,
    /// Descriptor of the program's epoll instance. -1 for the default channel and for a channel in
    /// the pool.
    epfd: AtomicI32,
    ring: Lock<Ring>,
    /// Descriptor of the context's doorbell, or -1 without a context.
    doorbell: AtomicI32,
    /// Counts the threads that sleep on this channel or are about to. `arm` and `disarm` change the
    /// count under the lock of `ring`, `begin_kernel_sleep` without the lock.
    sleepers: Sleepers,
    /// Number of the batch that the program works on. Never 0, which means "no batch".
    batch: AtomicU32,
    /// Number of the batch's last socket, whose `submit` publishes the changes of the batch.
    batch_last: AtomicU32,
    /// True if the service's core may run on the CPU of the thread that last slept here.
    shares_cpu: AtomicBool,
    /// The success of the latest polls before a sleep.
    spin_record: SpinRecord,
    /// True if the threads of this channel poll the default channel, too. Then both channels have
    /// joined the same listener, and the service delivers each of its connections to one of them.
    pub(super) polls_default: AtomicBool,
    /// The session whose doorbell and control socket this channel's epoll instance contains, or 0.
    registered: AtomicU32,
    /// The session that the default channel's doorbell in this channel's epoll instance belongs
    /// to, or 0 if the epoll instance does not contain this doorbell.
    pub(super) default_doorbell_session: AtomicU32,
    /// Idle kernel epoll instances for threads that sleep on this channel's doorbell.
    sleep_fds: SleepFds,
}

/// The context of a channel, and the state that belongs to it. The ring's lock protects both.
#[derive(Debug, Default)]
struct Ring {
    context: Option<Context>,
    /// The session that the context belongs to.
    session: u32,
    /// Number of changes since `submit` last published. Other functions do not reset the count.
    unflushed: u32,
    /// A duplicate of the previous session's doorbell. Threads that still sleep on that doorbell
    /// are woken through the duplicate.
    retired: Option<RawFd>,
}

impl Ring {
    /// Keeps a duplicate of `doorbell`, the previous session's doorbell, unless it is -1. Closes
    /// the duplicate from an earlier call. The caller then drops the old context, which closes the
    /// doorbell itself.
    fn retire(&mut self, doorbell: RawFd) {
        if let Some(before) = self.retired.take() {
            session::close_internal(before);
        }
        if doorbell >= 0 {
            let copy = sys::fcntl(doorbell, libc::F_DUPFD_CLOEXEC, 0);
            self.retired = copy.ok().map(|fd| session::make_internal(fd as RawFd));
        }
    }

    /// Asks the service to ring the doorbell. Returns true if the thread may sleep.
    ///
    /// If the service is gone, the thread may also sleep, because the kernel's events still arrive.
    /// The channel may belong to an older session than the process, because another channel may
    /// have found the next service first.
    fn prepare_to_sleep(&mut self) -> bool {
        let is_gone = self.session <= session::last_gone();
        let Some(context) = &mut self.context else {
            return true;
        };
        context.prepare_to_sleep() || (is_gone && !context.has_events())
    }
}

impl Channel {
    /// Creates a channel without a context.
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
            spin_record: SpinRecord::new(),
            polls_default: AtomicBool::new(false),
            registered: AtomicU32::new(0),
            default_doorbell_session: AtomicU32::new(0),
            sleep_fds: SleepFds::new(),
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

    /// Returns true if the channel has a context.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.doorbell.load(Ordering::SeqCst) >= 0
    }

    /// Creates the context of `session`, and adds its doorbell to the epoll instance. Does nothing
    /// if the channel already has a context of `session`.
    pub(crate) fn activate(&'static self, session: &ProcessSession) -> Result<(), Errno> {
        let mut ring = self.ring.lock();
        if ring.context.is_none() || ring.session != session.generation {
            let program = session.program().ok_or(Errno(libc::EMFILE))?;
            let context = program.new_context().map_err(|_| Errno(libc::EMFILE))?;
            let last = self.doorbell.load(Ordering::Acquire);
            ring.retire(last);
            // Dropping the old context closes its doorbell.
            table::set_internal(last, false);
            let doorbell = context.doorbell_fd().map_or(-1, |fd| fd.as_raw_fd());
            if doorbell >= 0 {
                table::set_internal(doorbell, true);
            }
            ring.session = session.generation;
            ring.context = Some(context);
            self.doorbell.store(doorbell, Ordering::SeqCst);
            // After the store, so that an epoll instance of this session has this doorbell.
            self.sleep_fds.begin_session(session.generation);
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
        // Threads that already sleep in the epoll instance have not armed the new doorbell.
        self.wake_sleepers();
        Ok(())
    }

    /// Announces a sleep in the kernel's epoll instance of a channel without a context. Returns
    /// false if the channel has a context by now.
    pub(crate) fn begin_kernel_sleep(&self) -> bool {
        self.sleepers.announce();
        if self.is_active() {
            self.end_kernel_sleep();
            return false;
        }
        true
    }

    /// Ends a sleep that `begin_kernel_sleep` announced.
    pub(crate) fn end_kernel_sleep(&self) {
        self.sleepers.leave();
    }

    /// Registers the doorbell and the session's control socket in a kernel epoll instance.
    pub(super) fn register_doorbells(
        &self,
        epfd: RawFd,
        session: &ProcessSession,
    ) -> Result<(), Errno> {
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
        let doorbell = self.doorbell.load(Ordering::Acquire);
        let program = session.program();
        let control = program.as_ref().and_then(Program::control_fd);
        let control = control.map_or(-1, |fd| fd.as_raw_fd());
        for (which, fd) in [doorbell, control].into_iter().enumerate() {
            let event = libc::epoll_event {
                events,
                u64: internal_tag(which),
            };
            match sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(event)) {
                Ok(_) | Err(Errno(libc::EEXIST)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Queues a change of `connection` for the service.
    ///
    /// Changes within a batch are published together, because publishing costs more than a change,
    /// and because a core on the same CPU cannot run before the batch ends.
    #[inline]
    pub(crate) fn submit(&self, socket: &BatchMember, connection: &mut Connection) {
        // `enter` fails if this signal handler interrupted the lock's holder: publish later.
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
        let in_batch = socket.is_in(self.batch.load(Ordering::Relaxed))
            && self.batch_last.load(Ordering::Relaxed) != socket.number();
        let may_wait = if self.shares_cpu.load(Ordering::Relaxed) {
            UNFLUSHED_MAX
        } else {
            UNFLUSHED_OTHER_CPU_MAX
        };
        if in_batch && ring.unflushed < may_wait {
            ring.unflushed += 1;
        } else {
            ring.unflushed = 0;
            context.flush();
        }
    }

    /// Queues a change of `connection` and publishes it immediately.
    pub(crate) fn submit_now(&self, connection: &mut Connection) {
        let session = connection.session;
        self.with_context(session, |context| {
            context.submit(&mut connection.stream);
            context.flush();
        });
    }

    /// Calls `work` with the context if the context belongs to `session`. Otherwise returns `None`.
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

    /// Ends the batch. The next call is `take_events` or `arm`, which publishes the changes.
    #[inline]
    pub(crate) fn end_batch(&self) {
        self.batch_last.store(NO_SOCKET, Ordering::Relaxed);
        let batch = self.batch.load(Ordering::Relaxed);
        self.batch.store(batch.wrapping_add(2), Ordering::Relaxed);
    }

    /// Adds a socket to the present batch, because the program is about to read or write.
    #[inline]
    pub(crate) fn add_to_batch(&self, socket: &BatchMember) {
        socket.join(self.batch.load(Ordering::Relaxed));
        self.batch_last.store(socket.number(), Ordering::Relaxed);
    }

    /// Resets the doorbell, so that the kernel's epoll instances do not report it.
    pub(crate) fn drain_doorbell(&self) {
        let doorbell = self.doorbell.load(Ordering::Acquire);
        if doorbell >= 0 {
            let _ = sys::read_bytes(doorbell, &mut [0; 8]);
        }
    }

    /// Returns true if a thread sleeps on this channel, or is about to.
    pub(super) fn has_sleepers(&self) -> bool {
        self.sleepers.any()
    }

    /// Wakes the threads that sleep on this channel, if there are any.
    pub(crate) fn wake_sleepers(&self) {
        self.sleepers
            .wake(|| match self.doorbell.load(Ordering::Acquire) {
                -1 => self.wake_in_kernel(),
                doorbell => sys::ring_eventfd(doorbell),
            });
    }

    /// Wakes the threads that sleep in the kernel's epoll instance of a channel without a doorbell.
    /// Arms a one-shot registration of the template, an unconnected socket, which the kernel
    /// reports immediately.
    #[cold]
    fn wake_in_kernel(&self) {
        let Ok(fd) = session::template() else {
            return;
        };
        let event = Some(libc::epoll_event {
            events: libc::EPOLLONESHOT as u32,
            u64: internal_tag(0),
        });
        if sys::epoll_ctl(self.epfd(), libc::EPOLL_CTL_MOD, fd, event) == Err(Errno(libc::ENOENT)) {
            let _ = sys::epoll_ctl(self.epfd(), libc::EPOLL_CTL_ADD, fd, event);
        }
    }

    /// Publishes queued requests, then calls `each` with every pending event of the service, while
    /// holding the ring's lock. Returns the session of the events, or `None` without events.
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

    /// Returns the session that the context belongs to.
    pub(super) fn session(&self) -> u32 {
        self.ring.lock().session
    }

    /// Returns true if events are pending. The check takes the ring's lock and costs two loads.
    pub(crate) fn has_events(&self) -> bool {
        self.ring
            .lock()
            .context
            .as_ref()
            .is_some_and(Context::has_events)
    }

    /// Returns true if polling is better than sleeping: recent polls have found events, a core is
    /// awake, and none shares this CPU.
    pub(crate) fn should_spin(&self) -> bool {
        if !self.spin_record.is_promising() {
            return false;
        }
        let ring = self.ring.lock();
        let Some(context) = &ring.context else {
            return false;
        };
        !context.shares_cpu(sys::current_cpu()) && !context.cores_sleep()
    }

    /// Polls with `poll` for `spin_ns` of the settings, but at most for `left_ns`.
    /// Returns true as soon as `poll` does.
    pub(crate) fn spin(&self, left_ns: Option<u64>, mut poll: impl FnMut() -> bool) -> bool {
        let spin_ns = session::settings().spin_ns;
        let end = sys::monotonic_ns() + spin_ns.min(left_ns.unwrap_or(u64::MAX));
        let mut found = false;
        while !found && sys::monotonic_ns() < end {
            for _ in 0..16 {
                sys::spin_hint();
            }
            found = poll();
        }
        self.spin_record.add(found);
        found
    }

    /// Announces that this thread is about to sleep, and publishes all changes. Returns false if
    /// the thread must not sleep, mostly because events are pending.
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

    /// Ends the sleep of a thread. The doorbell stays armed for the other sleeping threads.
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

    /// Frees the send buffers of idle connections: calls `trim` for each connection that may have a
    /// send buffer, with the number of the connection's slot (its record in shared memory). Returns
    /// the number of connections that keep a buffer.
    ///
    /// This function holds the ring's lock, so `trim` must not wait for a socket's lock.
    pub(crate) fn trim(&self, trim: &mut dyn FnMut(u32) -> bool) -> usize {
        let Some(mut ring) = self.ring.try_lock() else {
            return 0;
        };
        let context = ring.context.as_mut();
        context.map_or(0, |context| context.trim(trim))
    }

    /// Lends a kernel epoll instance, which the doorbell makes readable, to one sleeping thread.
    pub(crate) fn borrow_sleep_fd(&self) -> Result<SleepFd<'_>, Errno> {
        self.sleep_fds.lend(|| self.new_sleep_fd())
    }

    fn new_sleep_fd(&self) -> Result<RawFd, Errno> {
        let fd = session::make_internal(sys::epoll_create()?);
        if let Some(last) = session::last()
            && let Err(error) = self.register_doorbells(fd, last)
        {
            session::close_internal(fd);
            return Err(error);
        }
        Ok(fd)
    }

    /// Resets the channel in a child after fork. The caller has abandoned the parent's session, so
    /// that dropping the context does not affect the parent.
    pub(crate) fn reset_after_fork(&self) {
        self.ring.unlock_after_fork();
        let ring = std::mem::take(&mut *self.ring.lock());
        ring.retired.into_iter().for_each(session::close_internal);
        drop(ring.context);
        let doorbell = self.doorbell.swap(-1, Ordering::AcqRel);
        if doorbell >= 0 {
            table::set_internal(doorbell, false);
        }
        self.sleep_fds.reset_after_fork();
        self.sleepers.reset_after_fork();
        self.registered.store(0, Ordering::Relaxed);
        self.polls_default.store(false, Ordering::Relaxed);
        self.default_doorbell_session.store(0, Ordering::Relaxed);
    }
}
