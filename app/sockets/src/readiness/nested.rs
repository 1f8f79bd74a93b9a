//! Epoll instances that are registered with another epoll instance.
//!
//! The kernel's outer epoll instance contains the kernel's inner instance. The kernel therefore
//! reports an event of the inner instance in two cases: if one of its kernel descriptors is ready,
//! or if the doorbell of its channel has rung. A channel is a set of rings that this process shares
//! with the service (the process `tidelaned`). The doorbell is an eventfd by which the service
//! wakes a thread for an event of an accelerated socket.
//!
//! The service rings a doorbell only after a thread has announced its sleep to the channel, and the
//! doorbell does not show which socket is ready. Therefore a wait on the outer instance announces
//! its sleep to the inner channels, and checks the inner ready lists itself.
//!
//! A tracked socket is a TCP socket of the program that this crate may accelerate.

use std::os::fd::RawFd;

use libc::epoll_event;

use super::{
    instance::{Instance, NestedRegistration},
    registration::{EDGE, EXISTS, MISSING, ONE_SHOT},
};
use crate::{
    service::Channel,
    sys::{self, Errno, SmallVec},
};

/// Greatest nesting depth of epoll instances: EP_MAX_NESTS of Linux, which is 4, and the outermost
/// instance.
const DEPTH_MAX: u32 = 5;
/// The events that an epoll instance can have as a descriptor.
const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

/// The state of the tracked sockets of an inner instance and of the instances within it.
#[derive(Clone, Copy)]
struct Checked {
    /// True if a wait on the inner instance would report a tracked socket.
    ready: bool,
    /// Sum of the event counts of the inner instance and of all instances within it, modulo 2^32.
    registration_events: u32,
}

impl NestedRegistration {
    /// Returns true if the outer instance has to report this registration, because a tracked socket
    /// is ready.
    fn is_due(&self, checked: Checked) -> bool {
        let is_new = self.events & EDGE == 0
            || self.report_without_edge
            || self.seen_events != checked.registration_events;
        checked.ready && is_new && self.events & IN != 0 && !self.disabled
    }
}

impl Instance {
    /// Records an `epoll_ctl` that adds, modifies or removes `inner`, after the kernel's call has
    /// succeeded.
    pub(crate) fn change_nested(
        &self,
        operation: i32,
        (inner, fd): (&'static Instance, RawFd),
        event: epoll_event,
    ) -> Result<(), Errno> {
        let mut nested = self.nested.lock();
        let at = nested
            .iter()
            .position(|n| n.fd == fd && std::ptr::eq(n.inner, inner));
        if operation == libc::EPOLL_CTL_DEL {
            nested.remove(at.ok_or(MISSING)?);
            return Ok(());
        }
        let new = NestedRegistration {
            inner,
            fd,
            events: event.events,
            data: event.u64,
            disabled: false,
            report_without_edge: true,
            seen_events: 0,
        };
        match at {
            Some(at) if operation == libc::EPOLL_CTL_MOD => nested[at] = new,
            Some(_) => return Err(EXISTS),
            None => nested.push(new),
        }
        drop(nested);
        self.has_nested
            .store(true, std::sync::atomic::Ordering::Release);
        Ok(())
    }

    /// Returns true if an epoll instance is, or was, registered with this instance.
    #[inline]
    pub(crate) fn has_nested(&self) -> bool {
        self.has_nested.load(std::sync::atomic::Ordering::Acquire)
    }

    fn nested(&self) -> Vec<NestedRegistration> {
        self.nested.lock().clone()
    }

    /// Returns the channels of all inner instances, at any depth.
    pub(crate) fn channels_within(&self) -> SmallVec<&'static Channel> {
        let mut channels = SmallVec::new();
        self.add_channels_within(&mut channels, DEPTH_MAX);
        channels
    }

    fn add_channels_within(&self, channels: &mut SmallVec<&'static Channel>, depth: u32) {
        if depth == 0 || !self.has_nested() {
            return;
        }
        for nested in self.nested() {
            channels.push(nested.inner.channel());
            nested.inner.add_channels_within(channels, depth - 1);
        }
    }

    /// Returns true if a wait on this instance would report a tracked socket, either of this
    /// instance or of an inner instance.
    pub(crate) fn has_due_within(&self) -> bool {
        self.check(DEPTH_MAX).ready
    }

    /// Checks the tracked sockets of this instance and of its inner instances, but no kernel
    /// descriptors.
    fn check(&self, depth: u32) -> Checked {
        self.pump_default();
        self.pump();
        let mut state = self.lock_interest();
        let mut checked = Checked {
            ready: state.has_due(),
            registration_events: state.registration_events,
        };
        drop(state);
        if depth > 0 && self.has_nested() {
            for nested in self.nested() {
                let within = nested.inner.check(depth - 1);
                checked.ready |= within.ready && nested.events & IN != 0 && !nested.disabled;
                checked.registration_events = checked
                    .registration_events
                    .wrapping_add(within.registration_events);
            }
        }
        checked
    }

    /// Appends the events of inner instances to `events`, whose first `count` events come from the
    /// kernel. Removes kernel events that only a doorbell caused. Returns the new number of events.
    pub(crate) fn nested_events(&self, events: &mut [epoll_event], mut count: usize) -> usize {
        for nested in self.nested() {
            if nested.disabled {
                continue;
            }
            let checked = nested.inner.check(DEPTH_MAX);
            let from_kernel = events[..count]
                .iter()
                .position(|event| event.u64 == nested.data);
            if let Some(at) = from_kernel {
                if !checked.ready && !nested.inner.is_ready_in_kernel() {
                    events.copy_within(at + 1..count, at);
                    count -= 1;
                } else {
                    self.note_reported(nested, checked.registration_events);
                }
                continue;
            }
            if nested.is_due(checked) && count < events.len() {
                events[count] = epoll_event {
                    events: nested.events & IN,
                    u64: nested.data,
                };
                count += 1;
                self.note_reported(nested, checked.registration_events);
            }
        }
        count
    }

    /// Returns true if `nested_events` would add an event.
    pub(crate) fn has_nested_events(&self) -> bool {
        let nested = self.nested();
        nested.iter().any(|n| n.is_due(n.inner.check(DEPTH_MAX)))
    }

    /// Records that a wait has reported `reported`. Disables the registration if it has
    /// EPOLLONESHOT.
    fn note_reported(&self, reported: NestedRegistration, registration_events: u32) {
        let mut all = self.nested.lock();
        let mut same = all.iter_mut().filter(|n| n.fd == reported.fd);
        let Some(nested) = same.find(|n| std::ptr::eq(n.inner, reported.inner)) else {
            return;
        };
        nested.report_without_edge = false;
        nested.seen_events = registration_events;
        nested.disabled = nested.events & ONE_SHOT != 0;
        let disabled = nested.disabled;
        drop(all);
        if disabled {
            let none = epoll_event {
                events: 0,
                u64: reported.data,
            };
            let epfd = self.channel().epfd();
            let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, reported.fd, Some(none));
        }
    }

    /// Returns true if the kernel's epoll instance has an event that no doorbell caused. Resets the
    /// doorbells first, which loses no event, because the caller has found no tracked socket ready.
    pub(crate) fn is_ready_in_kernel(&self) -> bool {
        let mut channels = self.channels_within();
        channels.push(self.channel());
        for channel in channels.iter() {
            channel.drain_doorbell();
            if let Some(default) = channel.default_to_poll() {
                default.drain_doorbell();
            }
        }
        let mut fds = [libc::pollfd {
            fd: self.channel().epfd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        sys::ppoll(&mut fds, Some(0), None).is_ok_and(|ready| ready > 0)
    }
}
