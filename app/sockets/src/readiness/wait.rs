//! Threads that wait: for a socket, for several, with the kernel's descriptors beside them.
//!
//! Nobody misses an event: a sleeper first announces itself (`Lane::arm`), then looks once more,
//! then sleeps; and whoever takes an event off a ring wakes the sleepers that it concerns.

use std::{os::fd::RawFd, sync::atomic::Ordering};

use super::instance::Instance;
use crate::{
    service::{Lane, marks, outage::Nap, session},
    socket::{Inner, Socket, listening, sharing},
    sys::{self, Errno, Few, Handled, Section, SignalMask},
};

const WOULD_BLOCK: Errno = Errno(libc::EAGAIN);

/// When to give up, CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<u64>);

impl Deadline {
    /// Wait for ever.
    pub const NEVER: Self = Self(None);

    /// Do not wait.
    pub const NOW: Self = Self(Some(0));

    pub(crate) fn is_now(self) -> bool {
        self.0 == Some(0)
    }

    /// After so many nanoseconds, none for never.
    pub fn after(timeout_ns: Option<u64>) -> Self {
        Self(timeout_ns.map(|ns| sys::monotonic_ns().saturating_add(ns)))
    }

    /// Nanoseconds that are left, None for ever.
    pub(crate) fn left_ns(self) -> Option<u64> {
        self.0.map(|at| at.saturating_sub(sys::monotonic_ns()))
    }

    pub(crate) fn passed(self) -> bool {
        self.left_ns() == Some(0)
    }

    /// Whether there is one.
    pub(crate) fn exists(self) -> bool {
        self.0.is_some()
    }
}

/// Repeats `attempt` until it does not say EAGAIN; in between, sleeps until something happens to
/// the socket. EAGAIN when the deadline passes, EINTR after a signal.
pub(crate) fn blocking(
    socket: &'static Socket,
    fd: RawFd,
    deadline: Deadline,
    kernel_fd: Option<RawFd>,
    mut attempt: impl FnMut(&mut Inner) -> Result<usize, Errno>,
) -> Handled {
    let _section = Section::enter();
    let mut sleeper = Sleeper::new(deadline);
    loop {
        let lanes = {
            let mut inner = match socket.find(fd) {
                Some(inner) => inner,
                None => return Some(Err(Errno(libc::EBADF))),
            };
            if inner.shared {
                sharing::bring_news(socket, &mut inner);
            }
            match sharing::attempt(&mut inner, &mut attempt) {
                Err(WOULD_BLOCK) => inner.lanes(),
                done => return Some(done),
            }
        };
        sleeper.watch(socket, lanes);
        if let Some(fd) = kernel_fd {
            sleeper.watch_kernel(fd);
        }
        listening::look_for_service();
        match sleeper.step() {
            Ok(()) => {}
            Err(Errno(libc::EINTR)) if !deadline.exists() && sys::handlers_restart() => {}
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Waits until `done` holds, for a socket that has no descriptor any more.
pub(crate) fn lingering(
    socket: &'static Socket,
    deadline: Deadline,
    mut done: impl FnMut(&mut Inner) -> bool,
) {
    let mut sleeper = Sleeper::new(deadline);
    loop {
        let lanes = {
            let mut inner = socket.lock();
            if done(&mut inner) {
                return;
            }
            inner.lanes()
        };
        sleeper.watch(socket, lanes);
        if sleeper.step().is_err() {
            return;
        }
    }
}

/// A thread's wait. Each `step` goes one stage further: look at the rings, spin, announce, sleep.
#[derive(Debug)]
pub(crate) struct Sleeper {
    deadline: Deadline,
    lanes: Few<&'static Lane>,
    sockets: Few<&'static Socket>,
    kernel: Vec<libc::pollfd>,
    mask: Option<SignalMask>,
    armed: bool,
    spun: bool,
}

impl Sleeper {
    pub(crate) fn new(deadline: Deadline) -> Self {
        Self {
            deadline,
            lanes: Few::new(),
            sockets: Few::new(),
            kernel: Vec::new(),
            mask: None,
            armed: false,
            spun: false,
        }
    }

    /// The signal mask of the sleep (ppoll, pselect).
    pub(crate) fn with_mask(mut self, mask: Option<SignalMask>) -> Self {
        self.mask = mask;
        self
    }

    /// This socket's events, which arrive on these lanes, end the sleep.
    pub(crate) fn watch(&mut self, socket: &'static Socket, lanes: Few<&'static Lane>) {
        if !self.sockets.iter().any(|other| std::ptr::eq(other, socket)) {
            socket.waiters.fetch_add(1, Ordering::SeqCst);
            self.sockets.push(socket);
        }
        for lane in lanes.iter() {
            self.watch_lane(lane);
        }
    }

    /// Events on this lane end the sleep.
    pub(crate) fn watch_lane(&mut self, lane: &'static Lane) {
        if !self.armed && !self.lanes.iter().any(|other| std::ptr::eq(other, lane)) {
            self.lanes.push(lane);
        }
    }

    /// Input on this kernel descriptor ends the sleep.
    pub(crate) fn watch_kernel(&mut self, fd: RawFd) {
        if !self.kernel.iter().any(|other| other.fd == fd) {
            self.kernel.push(libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
        }
    }

    /// These kernel descriptors end the sleep.
    pub(crate) fn watch_kernel_all(&mut self, fds: &[libc::pollfd]) {
        if self.kernel.is_empty() {
            self.kernel.extend_from_slice(fds);
        }
    }

    /// One stage further; then look again. EAGAIN: the deadline has passed.
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
        // Armed even if events are there already: the caller looks again, then sleeps; the sleep
        // pumps first and sees them.
        self.armed = true;
        let mut quiet = true;
        for lane in self.lanes.iter() {
            quiet &= lane.arm();
        }
        if !quiet {
            self.disarm();
            self.pump();
        }
        Ok(())
    }

    fn pump(&self) -> bool {
        let mut news = false;
        for lane in self.lanes.iter() {
            news |= Instance::of(lane).pump();
        }
        news
    }

    fn spin(&self) -> bool {
        if !self.lanes.iter().any(|lane| lane.spinning_pays()) {
            return false;
        }
        let end = sys::monotonic_ns() + session::settings().spin_ns;
        while sys::monotonic_ns() < end {
            for _ in 0..16 {
                sys::spin_hint();
            }
            if self.pump() {
                return true;
            }
        }
        false
    }

    fn sleep(&mut self) -> Result<(), Errno> {
        let mut fds = self.kernel.clone();
        let first_lane = fds.len();
        let mut borrowed = Vec::new();
        for lane in self.lanes.iter().filter(|lane| lane.is_active()) {
            let sleep = lane.borrow_sleep_fd()?;
            fds.push(libc::pollfd {
                fd: sleep.fd,
                events: libc::POLLIN,
                revents: 0,
            });
            borrowed.push((lane, sleep));
        }
        let nap = Nap::begin();
        let left_ns = nap.limit(self.deadline.left_ns());
        let result = if first_lane == 0 && fds.len() == 1 {
            take_edges(fds[0].fd, left_ns, self.mask.as_ref())
        } else {
            sleep_on_many(&mut fds, first_lane, left_ns, self.mask.as_ref())
        };
        drop(nap);
        for (lane, sleep) in borrowed {
            lane.return_sleep_fd(sleep);
        }
        self.disarm();
        self.pump();
        self.spun = false;
        result
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            for lane in self.lanes.iter() {
                lane.disarm();
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

/// Waits for a lane's doorbell, or for the end of the service, which is noted: one system call.
fn take_edges(fd: RawFd, timeout_ns: Option<u64>, mask: Option<&SignalMask>) -> Result<(), Errno> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
    let count = sys::epoll_wait(fd, &mut events, timeout_ns, mask)?;
    for event in &events[..count] {
        marks::is_internal_event(event);
    }
    Ok(())
}

/// Sleeps on kernel descriptors and doorbells; takes the doorbells' edges away.
fn sleep_on_many(
    fds: &mut [libc::pollfd],
    first_lane: usize,
    left_ns: Option<u64>,
    mask: Option<&SignalMask>,
) -> Result<(), Errno> {
    sys::ppoll(fds, left_ns, mask)?;
    for pollfd in &fds[first_lane..] {
        if pollfd.revents != 0 {
            take_edges(pollfd.fd, Some(0), None)?;
        }
    }
    Ok(())
}
