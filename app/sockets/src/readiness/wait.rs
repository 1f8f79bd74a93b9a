//! Threads that wait for events of sockets and of kernel descriptors.
//!
//! The service (the process `tidelaned`) reports events of accelerated sockets over channels. Each
//! channel has rings and a doorbell, an eventfd that wakes a sleeping thread. No wake-up is lost: a
//! thread first announces its sleep (`Channel::arm`), then checks its condition once more, and only
//! then sleeps. A thread that takes an event off a ring wakes the threads that wait for the event's
//! socket.

use std::{os::fd::RawFd, sync::atomic::Ordering};

use super::instance::Instance;
use crate::{
    service::{Channel, internal_events, outage::BoundedSleep},
    socket::{Inner, Socket, listening, sharing, thread_channel},
    sys::{self, Errno, Handled, Section, SignalMask, SmallVec},
};

/// Result of an attempt that cannot complete yet, and of a wait whose deadline has passed.
const WOULD_BLOCK: Errno = Errno(libc::EAGAIN);

/// The end of a wait in nanoseconds of CLOCK_MONOTONIC, or `None` for a wait without end.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<u64>);

impl Deadline {
    /// The deadline of a wait without end.
    pub const NEVER: Self = Self(None);

    /// The deadline of a call that does not wait.
    pub const NOW: Self = Self(Some(0));

    /// Returns true for a call that does not wait (`NOW`).
    pub(crate) fn is_now(self) -> bool {
        self.0 == Some(0)
    }

    /// Returns the deadline that is `timeout_ns` nanoseconds from now, or `NEVER` for `None`.
    pub fn after(timeout_ns: Option<u64>) -> Self {
        Self(timeout_ns.map(|ns| sys::monotonic_ns().saturating_add(ns)))
    }

    /// Returns the nanoseconds until the deadline, 0 after the deadline, and `None` without a
    /// deadline.
    pub(crate) fn left_ns(self) -> Option<u64> {
        self.0.map(|at| at.saturating_sub(sys::monotonic_ns()))
    }

    /// Returns true if the deadline has passed. `NEVER` does not pass.
    pub(crate) fn passed(self) -> bool {
        self.left_ns() == Some(0)
    }

    /// Returns true if the wait has a deadline.
    pub(crate) fn exists(self) -> bool {
        self.0.is_some()
    }
}

/// Repeats `attempt` as long as `attempt` returns EAGAIN. Between two attempts, makes a step of a
/// wait ([`Sleeper`]), whose sleep ends when the socket has an event or `kernel_fd` is readable.
///
/// Returns EAGAIN when the deadline passes, EINTR after a signal, and EBADF if `fd` was closed
/// meanwhile. Without a deadline, a signal does not end the wait if all handlers have SA_RESTART.
pub(crate) fn blocking(
    socket: &'static Socket,
    fd: RawFd,
    deadline: Deadline,
    kernel_fd: Option<RawFd>,
    mut attempt: impl FnMut(&mut Inner) -> Result<usize, Errno>,
) -> Handled {
    let _section = Section::enter();
    let mut sleeper = Sleeper::new(deadline);
    // The socket's event count before the previous attempt. `None` before the first attempt, and if
    // another process took the connection before the previous attempt.
    let mut seen = None;
    loop {
        {
            let mut inner = match socket.enter_without_migration(fd) {
                Some(inner) => inner,
                None => return Some(Err(Errno(libc::EBADF))),
            };
            let count = Some(socket.event_count());
            // If the count has changed, an event may have arrived in this process before the
            // connection moved to another process. Then take the connection back and look again.
            let must_look = inner.shared && (count != seen || inner.must_look_at_migrated());
            if must_look {
                sharing::migrate_here(socket, &mut inner);
            }
            match sharing::attempt(&mut inner, &mut attempt) {
                None if must_look => {
                    seen = None;
                    continue;
                }
                None | Some(Err(WOULD_BLOCK)) => sleeper.watch_events(socket, &mut inner),
                done => return done,
            }
            seen = count;
        }
        if let Some(fd) = kernel_fd {
            sleeper.watch_kernel(fd);
        }
        listening::seek_service();
        match sleeper.step() {
            Ok(()) => {}
            Err(Errno(libc::EINTR)) if !deadline.exists() && sys::handlers_restart() => {}
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Waits until `done` returns true, until the deadline, or until a signal. `close` with SO_LINGER
/// calls this function: the socket has no descriptor any more, so [`blocking`] cannot be used.
pub(crate) fn lingering(
    socket: &'static Socket,
    deadline: Deadline,
    mut done: impl FnMut(&mut Inner) -> bool,
) {
    let mut sleeper = Sleeper::new(deadline);
    loop {
        let channels = {
            let mut inner = socket.lock();
            if done(&mut inner) {
                return;
            }
            inner.channels()
        };
        sleeper.watch(socket, channels);
        if sleeper.step().is_err() {
            return;
        }
    }
}

/// The wait of one thread. A call of `step` polls the rings, and then may spin (poll the rings for
/// a limited time). If `step` finds events, it returns immediately. Otherwise, it announces the
/// sleep, and the next call of `step` sleeps. After each call, the caller checks its own condition.
#[derive(Debug)]
pub(crate) struct Sleeper {
    deadline: Deadline,
    /// Channels whose events end the sleep.
    channels: SmallVec<&'static Channel>,
    /// Sockets whose `waiters` count this thread.
    sockets: SmallVec<&'static Socket>,
    /// Kernel descriptors that end the sleep.
    kernel: Vec<libc::pollfd>,
    /// Signal mask during the sleep.
    mask: Option<SignalMask>,
    /// True after the sleep was announced to `channels`: the next step sleeps.
    armed: bool,
    /// True if the thread has spun since its last sleep.
    spun: bool,
}

impl Sleeper {
    pub(crate) fn new(deadline: Deadline) -> Self {
        Self {
            deadline,
            channels: SmallVec::new(),
            sockets: SmallVec::new(),
            kernel: Vec::new(),
            mask: None,
            armed: false,
            spun: false,
        }
    }

    /// Sets the signal mask during the sleep (ppoll, pselect).
    pub(crate) fn with_mask(mut self, mask: Option<SignalMask>) -> Self {
        self.mask = mask;
        self
    }

    /// Lets events of this socket end the sleep. The events arrive on `channels`.
    pub(crate) fn watch(&mut self, socket: &'static Socket, channels: SmallVec<&'static Channel>) {
        if !self.sockets.iter().any(|other| std::ptr::eq(other, socket)) {
            socket.waiters.fetch_add(1, Ordering::SeqCst);
            self.sockets.push(socket);
        }
        for channel in channels.iter() {
            self.watch_channel(channel);
        }
    }

    /// Lets events of this locked socket end the sleep. If no other thread waits for the socket,
    /// the socket's events may move to the channel of this thread, so that the events wake no other
    /// thread (module `thread_channel`).
    ///
    /// The caller holds the socket's lock until this function returns. Another thread therefore
    /// either sees that this thread waits for the socket, or moves the events before this function
    /// reads the channels.
    pub(crate) fn watch_events(&mut self, socket: &'static Socket, inner: &mut Inner) {
        thread_channel::move_events_here(socket, inner);
        self.watch(socket, inner.channels());
    }

    /// Lets events on this channel end the sleep. If the sleep was already announced to other
    /// channels, takes the announcement back. The next `step` announces the sleep to all channels.
    pub(crate) fn watch_channel(&mut self, channel: &'static Channel) {
        let is_same = |other: &Channel| std::ptr::eq(other, channel);
        if !self.channels.iter().any(is_same) {
            self.disarm();
            self.channels.push(channel);
        }
    }

    /// Lets input on this kernel descriptor end the sleep.
    pub(crate) fn watch_kernel(&mut self, fd: RawFd) {
        if !self.kernel.iter().any(|other| other.fd == fd) {
            self.kernel.push(libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
        }
    }

    /// Lets these kernel descriptors end the sleep, with the events that each entry asks for. Does
    /// nothing if the wait already has kernel descriptors, for example from an earlier call.
    pub(crate) fn watch_kernel_all(&mut self, fds: &[libc::pollfd]) {
        if self.kernel.is_empty() {
            self.kernel.extend_from_slice(fds);
        }
    }

    /// Does the next part of the wait. Returns EAGAIN if the deadline has passed, and EINTR if a
    /// signal has ended the sleep.
    pub(crate) fn step(&mut self) -> Result<(), Errno> {
        if self.armed {
            return self.sleep();
        }
        if self.pump() {
            return Ok(());
        }
        if self.deadline.passed() {
            return Err(WOULD_BLOCK);
        }
        if !self.spun {
            self.spun = true;
            if self.spin() {
                return Ok(());
            }
        }
        // The next step sleeps only if no channel had pending events when its doorbell was armed.
        self.armed = true;
        let mut quiet = true;
        for channel in self.channels.iter() {
            quiet &= channel.arm();
        }
        if !quiet {
            self.disarm();
            self.pump();
        }
        Ok(())
    }

    fn pump(&self) -> bool {
        let mut found = false;
        for channel in self.channels.iter() {
            found |= Instance::of(channel).pump();
        }
        found
    }

    /// Polls the rings for a while, if one of the channels advises it. Returns true if there were
    /// events.
    fn spin(&self) -> bool {
        let mut channels = self.channels.iter();
        let Some(channel) = channels.find(|channel| channel.should_spin()) else {
            return false;
        };
        channel.spin(self.deadline.left_ns(), || self.pump())
    }

    /// Sleeps on the doorbells of the channels and on the kernel descriptors.
    fn sleep(&mut self) -> Result<(), Errno> {
        let mut fds = self.kernel.clone();
        let first_channel = fds.len();
        let mut borrowed = Vec::new();
        for channel in self.channels.iter().filter(|channel| channel.is_active()) {
            let sleep = channel.borrow_sleep_fd()?;
            fds.push(libc::pollfd {
                fd: sleep.fd,
                events: libc::POLLIN,
                revents: 0,
            });
            borrowed.push(sleep);
        }
        let bound = BoundedSleep::begin();
        let left_ns = bound.limit(self.deadline.left_ns());
        let result = if first_channel == 0 && fds.len() == 1 {
            wait_for_doorbell(fds[0].fd, left_ns, self.mask.as_ref())
        } else {
            sleep_on_many(&mut fds, first_channel, left_ns, self.mask.as_ref())
        };
        drop(bound);
        drop(borrowed);
        self.disarm();
        self.pump();
        self.spun = false;
        result
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            for channel in self.channels.iter() {
                channel.disarm();
            }
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.disarm();
        for socket in self.sockets.iter() {
            socket.waiters.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Waits for a channel's doorbell or for the end of the service, with one system call. `fd` is a
/// kernel epoll instance with the doorbell and the control socket, the Unix socket over which this
/// process registered with the service. Records the end of the service.
fn wait_for_doorbell(
    fd: RawFd,
    timeout_ns: Option<u64>,
    mask: Option<&SignalMask>,
) -> Result<(), Errno> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
    let count = sys::epoll_wait(fd, &mut events, timeout_ns, mask)?;
    for event in &events[..count] {
        internal_events::is_internal_event(event);
    }
    Ok(())
}

/// Sleeps on the descriptors in `fds`. From index `first_channel` on, the descriptors are kernel
/// epoll instances with the doorbells of channels. Takes the events off these instances, so that
/// the same events do not end the next sleep on these instances, too.
fn sleep_on_many(
    fds: &mut [libc::pollfd],
    first_channel: usize,
    left_ns: Option<u64>,
    mask: Option<&SignalMask>,
) -> Result<(), Errno> {
    sys::ppoll(fds, left_ns, mask)?;
    for pollfd in &fds[first_channel..] {
        if pollfd.revents != 0 {
            wait_for_doorbell(pollfd.fd, Some(0), None)?;
        }
    }
    Ok(())
}
