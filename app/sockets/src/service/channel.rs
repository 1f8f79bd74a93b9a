//! Channels, over which this process exchanges requests and events with the service (the process
//! `tidelaned`, which runs TCP).
//!
//! An active channel has a context: rings in shared memory, and a doorbell. The doorbell is an
//! eventfd by which the service wakes the threads that sleep on the channel. Each epoll instance
//! has its own channel. Sockets in no epoll instance use the default channel or a thread's channel.
//!
//! * A core is a polling thread of the service.
//! * A session is a registration of this process with the service. Fields named `session` contain
//!   its generation number, which is at least 1.
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
    batch_member::{Batch, BatchMember},
    connection::Connection,
    internal_events::internal_tag,
    outer_channels::{NESTING_MAX, OuterChannels, RungAgain, StaleSleepers, count_addition},
    ring::Ring,
    session::{self, ProcessSession},
    sleep_fds::{SleepFd, SleepFds},
    spin_record::SpinRecord,
};
use crate::{
    sys::{self, Errno, Guard, Lock, Rank, Sleepers},
    table,
};

/// Largest number of unpublished changes of a batch while the service's core shares this thread's
/// CPU: high, because the core cannot run before this thread sleeps.
const UNFLUSHED_MAX: u32 = 64;
/// Largest number of unpublished changes of a batch while the service's core runs on another CPU:
/// low, because this core could already work on the changes.
const UNFLUSHED_OTHER_CPU_MAX: u32 = 4;

/// A channel to the service. Its memory is never freed: the pool in `channels` reuses the channel.
#[derive(Debug)]
pub struct Channel {
    /// Number of the channel in this process.
    number: u32,
    /// Descriptor of the program's epoll instance to which the channel belongs. -1 if the channel
    /// belongs to no epoll instance.
    epfd: AtomicI32,
    ring: Lock<Ring>,
    /// Descriptor of the context's doorbell, or -1 without a context.
    doorbell: AtomicI32,
    /// Counts the threads that sleep on this channel or are about to. `arm` and `disarm` change the
    /// count under the lock of `ring`, `begin_kernel_sleep` without the lock.
    sleepers: Sleepers,
    /// Threads that sleep in an epoll instance that contains the instance of this channel.
    outer_sleepers: Sleepers,
    /// Channels of the epoll instances that contain the instance of this channel.
    outers: OuterChannels<Channel>,
    /// The sleeping threads that have to announce their sleep again.
    stale: StaleSleepers,
    /// Makes the doorbell ring again after threads in an outer instance have reset the doorbell.
    rung_again: RungAgain,
    /// The batch that the program works on.
    batch: Batch,
    /// True if the service's core may run on the CPU of the thread that last slept here.
    shares_cpu: AtomicBool,
    /// Records whether the recent polls before a sleep have found events.
    spin_record: SpinRecord,
    /// True if the threads of this channel poll the default channel, too. Then both channels have
    /// joined a listener, and the service delivers each new connection to one of the two channels.
    pub(super) polls_default: AtomicBool,
    /// The session whose doorbell and control socket this channel's epoll instance contains, or 0.
    registered: AtomicU32,
    /// The session of the default channel's doorbell, if this channel's epoll instance contains
    /// this doorbell. Otherwise 0.
    pub(super) default_doorbell_session: AtomicU32,
    /// Idle kernel epoll instances for threads that sleep on this channel's doorbell.
    sleep_fds: SleepFds,
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
            outer_sleepers: Sleepers::new(),
            outers: OuterChannels::new(),
            stale: StaleSleepers::new(),
            rung_again: RungAgain::default(),
            batch: Batch::new(),
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

    /// Creates the context of `session` if the channel does not have this context yet. Adds the
    /// context's doorbell to the epoll instance if the instance does not contain the doorbell yet.
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
            // This call follows the store, so that the session's `sleep_fds` have this doorbell.
            self.sleep_fds.begin_session(session.generation);
            if let Some(retired) = ring.retired.filter(|_| self.has_sleepers()) {
                sys::ring_eventfd(retired);
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
        self.outers.for_each(Self::wake_for_addition);
        Ok(())
    }

    /// Announces a sleep in the kernel's epoll instance of a channel without a context. If the
    /// channel has got a context meanwhile, announces nothing and returns false.
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

    /// Adds the doorbell and the session's control socket (a Unix socket) to the instance `epfd`.
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
    /// Several changes of a batch are published together, because publishing costs more than a
    /// change, and because a core on this thread's CPU cannot run before the thread sleeps.
    #[inline]
    pub(crate) fn submit(&self, socket: &BatchMember, connection: &mut Connection) {
        // `enter` fails in a signal handler that has interrupted the lock's holder: submit later.
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
        let in_batch = self.batch.goes_on_after(socket);
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

    /// Ends the batch. The caller then calls `take_events` or `arm`, which publish the changes.
    #[inline]
    pub(crate) fn end_batch(&self) {
        self.batch.end();
    }

    /// Adds a socket to the present batch, because the program is about to read or write.
    #[inline]
    pub(crate) fn add_to_batch(&self, socket: &BatchMember) {
        self.batch.add(socket);
    }

    /// Resets the doorbell, so that the kernel's epoll instances do not report it. Returns true if
    /// the doorbell had rung. The caller has to call [`announce_again`](Self::announce_again).
    pub(crate) fn drain_doorbell(&self) -> bool {
        let doorbell = self.doorbell.load(Ordering::Acquire);
        doorbell >= 0 && sys::read_bytes(doorbell, &mut [0; 8]).is_ok()
    }

    /// Makes up for a `drain_doorbell` that returned `rung`. If the doorbell had rung, may ring it
    /// again for the sleepers on this channel. Announces the sleep of the outer sleepers again.
    pub(crate) fn announce_again(&self, rung: bool) {
        if rung {
            let ring = || self.ring_doorbell();
            self.rung_again.ring(self.sleepers.count(), ring);
        }
        if self.outer_sleepers.any() && !self.ring.lock().prepare_to_sleep() {
            self.ring_doorbell();
        }
    }

    /// Returns true if a thread sleeps on this channel or in an outer instance, or is about to.
    pub(super) fn has_sleepers(&self) -> bool {
        self.sleepers.any() || self.outer_sleepers.any()
    }

    /// Wakes the threads that sleep on this channel, if there are any, and the threads that sleep
    /// in an epoll instance that contains the instance of this channel.
    pub(crate) fn wake_sleepers(&self) {
        self.wake_at_depth(0);
    }

    fn wake_at_depth(&self, depth: u32) {
        self.sleepers
            .wake(|| match self.doorbell.load(Ordering::Acquire) {
                -1 => self.wake_in_kernel(),
                _ => self.ring_doorbell(),
            });
        if depth < NESTING_MAX {
            self.outers.for_each(|outer| outer.wake_at_depth(depth + 1));
        }
    }

    /// Wakes all threads that sleep in the epoll instance of this channel, or in an instance that
    /// contains this instance. The caller has added a channel within this instance.
    pub(crate) fn wake_for_addition(&self) {
        count_addition();
        self.wake_stale(0);
    }

    fn wake_stale(&self, depth: u32) {
        let wake = || self.wake_at_depth(NESTING_MAX);
        self.stale.wake_all(self.sleepers.count(), wake);
        if depth < NESTING_MAX {
            self.outers.for_each(|outer| outer.wake_stale(depth + 1));
        }
    }

    /// Returns the sleeping threads that have to announce their sleep again.
    pub(crate) fn stale(&self) -> &StaleSleepers {
        &self.stale
    }

    fn ring_doorbell(&self) {
        let doorbell = self.doorbell.load(Ordering::Acquire);
        if doorbell >= 0 {
            sys::ring_eventfd(doorbell);
        }
    }

    /// Returns the channels of the epoll instances that contain the instance of this channel.
    pub(crate) fn outers(&self) -> &OuterChannels<Channel> {
        &self.outers
    }

    /// Wakes a thread that sleeps in the kernel's epoll instance of a channel without a doorbell.
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
    pub(crate) fn take_events(&self, each: impl FnMut(ClientEvent)) -> Option<u32> {
        self.ring.lock().take_events(each)
    }

    /// Returns the session that the context belongs to.
    pub(super) fn session(&self) -> u32 {
        self.ring.lock().session
    }

    /// Returns true if events are pending. Takes the lock, and loads up to two words for each core.
    pub(crate) fn has_events(&self) -> bool {
        self.ring.lock().has_events()
    }

    /// Returns true if the thread should poll before it sleeps: [`SpinRecord`] advises a poll, a
    /// core is awake, and no core shares the thread's CPU.
    pub(crate) fn should_spin(&self) -> bool {
        if !self.spin_record.is_promising() {
            return false;
        }
        let ring = self.ring.lock();
        let Some(context) = &ring.context else {
            return false;
        };
        context.should_poll(sys::current_cpu())
    }

    /// Polls with `poll` for `spin_ns` of the settings, but at most for `left_ns`.
    /// Returns true as soon as `poll` does.
    pub(crate) fn spin(&self, left_ns: Option<u64>, poll: impl FnMut() -> bool) -> bool {
        let spin_ns = session::settings().spin_ns;
        let end = sys::monotonic_ns() + spin_ns.min(left_ns.unwrap_or(u64::MAX));
        self.spin_record.spin(end, poll)
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
        let ring = self.ring.lock();
        self.end_sleep(ring, self.sleepers.leave() | self.outer_sleepers.any());
        self.rung_again.leave();
    }

    /// Cancels the request to ring the doorbell. If `others` is true, other threads still sleep, so
    /// makes the request again.
    fn end_sleep(&self, mut ring: Guard<'_, Ring>, others: bool) {
        let Some(context) = &mut ring.context else {
            return;
        };
        context.cancel_sleep();
        if others && !ring.prepare_to_sleep() {
            drop(ring);
            self.ring_doorbell();
        }
    }

    /// Like [`arm`](Self::arm), for a sleep in an epoll instance that contains the instance of this
    /// channel.
    pub(crate) fn arm_from_outer(&self) -> bool {
        let mut ring = self.ring.lock();
        self.outer_sleepers.announce();
        ring.prepare_to_sleep()
    }

    /// Ends a sleep that [`arm_from_outer`](Self::arm_from_outer) announced.
    pub(crate) fn disarm_from_outer(&self) {
        let ring = self.ring.lock();
        self.end_sleep(ring, self.outer_sleepers.leave() | self.sleepers.any());
    }

    /// Frees the send buffers of idle connections: calls `trim` with the slot number (a slot is the
    /// record of a connection in shared memory) of each connection that may have a buffer. `trim`
    /// returns true if no buffer remains, and must not wait for a socket's lock, because this
    /// function holds the ring's lock. Returns the number of connections that keep a buffer.
    pub(crate) fn trim(&self, trim: &mut dyn FnMut(u32) -> bool) -> usize {
        let Some(mut ring) = self.ring.try_lock() else {
            return 0;
        };
        ring.context
            .as_mut()
            .map_or(0, |context| context.trim(trim))
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
        self.outer_sleepers.reset_after_fork();
        self.outers.reset_after_fork();
        self.stale.reset();
        self.rung_again.reset();
        self.registered.store(0, Ordering::Relaxed);
        self.polls_default.store(false, Ordering::Relaxed);
        self.default_doorbell_session.store(0, Ordering::Relaxed);
    }
}
