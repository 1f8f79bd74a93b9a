//! Readiness of sockets for `poll` and `epoll`, and epoll instances.

use std::collections::BTreeMap;

use tidelane_engine::State;

use crate::{
    errno::{CallResult, Errno},
    role::Role,
    stack::{Fd, Object, Stack},
};

/// Events that `epoll_wait` reports even if the program did not request them.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// Events of a readable socket.
const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
/// Events of a writable socket.
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// The edge-triggered flag of a watch.
const EDGE: u32 = libc::EPOLLET as u32;
/// The one-shot flag of a watch.
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;

/// A descriptor's entry in the interest list of an epoll instance.
#[derive(Clone, Copy, Debug)]
struct Watch {
    /// Requested events, with the flags [`EDGE`] and [`ONE_SHOT`].
    events: u32,
    /// User data that `epoll_wait` returns with the events.
    data: u64,
    /// True from an event of the descriptor, or from the time at which the program sets the watch,
    /// until `epoll_wait` reports the watch.
    pending: bool,
}

/// An epoll instance: the watched descriptors.
#[derive(Clone, Debug, Default)]
pub struct Epoll {
    watches: BTreeMap<Fd, Watch>,
}

/// The events and user data of one descriptor, as in `struct epoll_event`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// Bits such as `EPOLLIN`.
    pub events: u32,
    /// User data that the program registered with the descriptor.
    pub data: u64,
}

impl Stack {
    /// Returns the ready events of `fd`, as bits of `poll`. `epoll` uses the same bits.
    pub fn readiness(&self, fd: Fd) -> u32 {
        let Some(Object::Socket(socket)) = self.objects.get(&fd) else {
            return libc::EPOLLIN as u32 * u32::from(self.has_ready(fd));
        };
        let id = match &socket.role {
            Role::Listener { queue, .. } => return if queue.is_empty() { 0 } else { IN },
            Role::Unconnected if socket.fast_open.deferred.is_some() => return OUT,
            Role::Unconnected => return OUT | libc::EPOLLHUP as u32,
            Role::Released => None,
            Role::Flow(id) => self.flow(*id).map(|_| *id),
        };
        let state = self.state_of(fd).unwrap_or(State::Closed);
        let bad = socket.error.is_some() || !socket.error_queue.is_empty();
        let error = if bad { libc::EPOLLERR as u32 } else { 0 };
        let Some(id) = id else {
            return error | IN | OUT | (libc::EPOLLHUP | libc::EPOLLRDHUP) as u32;
        };
        if matches!(state, State::SynSent) {
            return error;
        }
        let known = self.flows.get(&id).copied().unwrap_or_default();
        let over = matches!(state, State::Closed | State::TimeWait) || known.cause.is_some();
        let end_of_input = known.fin || socket.read_shut || over;
        let mut events = error;
        if over || (end_of_input && socket.write_shut) {
            events |= libc::EPOLLHUP as u32;
        }
        if end_of_input {
            events |= IN | libc::EPOLLRDHUP as u32;
        }
        if self.pollable(fd) >= socket.options.rcvlowat {
            events |= IN;
        }
        if self.has_urgent(fd) {
            events |= libc::EPOLLPRI as u32;
        }
        if socket.write_shut || over || self.is_writable(fd, id) {
            events |= OUT;
        }
        events
    }

    /// Marks the watches of `fd` as pending in all epoll instances. Must be called after each event
    /// of `fd`.
    pub(crate) fn mark_pending(&mut self, fd: Fd) {
        for object in self.objects.values_mut() {
            if let Object::Epoll(epoll) = object
                && let Some(watch) = epoll.watches.get_mut(&fd)
            {
                watch.pending = true;
            }
        }
    }

    /// Removes `fd` from all epoll instances.
    pub(crate) fn leave_epolls(&mut self, fd: Fd) {
        for object in self.objects.values_mut() {
            if let Object::Epoll(epoll) = object {
                epoll.watches.remove(&fd);
            }
        }
    }

    /// Implements `epoll_create(2)` for the new descriptor `fd`.
    pub fn epoll_create(&mut self, fd: Fd) {
        self.objects.insert(fd, Object::Epoll(Epoll::default()));
    }

    fn epoll_mut(&mut self, epoll: Fd) -> CallResult<&mut Epoll> {
        match self.objects.get_mut(&epoll) {
            Some(Object::Epoll(epoll)) => Ok(epoll),
            Some(Object::Socket(_)) => Err(Errno::INVAL),
            None => Err(Errno::BADF),
        }
    }

    /// Implements `epoll_ctl(2)`. `ready` has the requested events and the user data. Fails with
    /// EPERM if the stack does not own `fd`.
    pub fn epoll_control(
        &mut self,
        epoll: Fd,
        operation: i32,
        fd: Fd,
        ready: Ready,
    ) -> CallResult<()> {
        if !self.has(fd) {
            return Err(Errno(libc::EPERM));
        }
        let watches = &mut self.epoll_mut(epoll)?.watches;
        let known = watches.contains_key(&fd);
        let watch = Watch {
            events: ready.events,
            data: ready.data,
            pending: true,
        };
        match operation {
            libc::EPOLL_CTL_ADD if known => return Err(Errno(libc::EEXIST)),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !known => {
                return Err(Errno(libc::ENOENT));
            }
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
                watches.insert(fd, watch);
            }
            libc::EPOLL_CTL_DEL => {
                watches.remove(&fd);
            }
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    /// Returns the events of `fd` to report for `watch`. Returns 0 if there is no event to report.
    fn report(&self, fd: Fd, watch: &Watch) -> u32 {
        let quiet = watch.events & EDGE != 0 && !watch.pending;
        // `epoll_ready` reports a one-shot watch, and then clears the watch's requested events.
        let spent = watch.events & !(EDGE | ONE_SHOT) == 0 && watch.events & ONE_SHOT != 0;
        if quiet || spent {
            return 0;
        }
        self.readiness(fd) & (watch.events | ALWAYS)
    }

    /// Returns true if the epoll instance `epoll` has an event to report.
    fn has_ready(&self, epoll: Fd) -> bool {
        match self.objects.get(&epoll) {
            Some(Object::Epoll(epoll)) => {
                let mut watches = epoll.watches.iter();
                watches.any(|(fd, watch)| self.report(*fd, watch) != 0)
            }
            _ => false,
        }
    }

    /// Implements `epoll_wait(2)` for at most `max` descriptors, without blocking. Fails with
    /// EAGAIN if no descriptor is ready.
    pub fn epoll_ready(&mut self, epoll: Fd, max: usize) -> CallResult<Vec<Ready>> {
        let watches = self.epoll_mut(epoll)?.watches.clone();
        let mut ready = Vec::new();
        for (fd, watch) in watches {
            let events = self.report(fd, &watch);
            if events == 0 || ready.len() == max {
                continue;
            }
            let data = watch.data;
            ready.push(Ready { events, data });
            if let Some(watch) = self.epoll_mut(epoll)?.watches.get_mut(&fd) {
                watch.pending = false;
                if watch.events & ONE_SHOT != 0 {
                    watch.events &= EDGE | ONE_SHOT;
                }
            }
        }
        if ready.is_empty() {
            return Err(Errno::AGAIN);
        }
        Ok(ready)
    }
}
