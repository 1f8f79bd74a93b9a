//! Epoll instances that are registered with another epoll instance.
//!
//! The kernel's outer epoll instance contains the kernel's inner instance. The kernel therefore
//! reports an event of the inner instance in two cases: if a kernel descriptor of the program is
//! ready in the inner instance, and if the doorbell of the inner channel has rung. Each epoll
//! instance has a channel: rings that this process shares with the service (the process
//! `tidelaned`), and a doorbell. The doorbell is an eventfd by which the service wakes a thread for
//! an event of an accelerated socket.
//!
//! The service rings a doorbell only after a thread has announced its sleep to the channel, and the
//! doorbell does not show which socket is ready. Therefore a wait on the outer instance announces
//! its sleep to the inner channels, and checks the inner ready lists itself.
//!
//! In the kernel's outer instance, an inner instance has a tag of this crate in place of the
//! program's data. An event with a tag is about that inner instance, whatever data the program uses
//! for other descriptors.
//!
//! A tracked socket is a TCP socket of the program that this crate may accelerate.

use std::{
    os::fd::RawFd,
    sync::atomic::{AtomicU32, Ordering},
};

use libc::epoll_event;

use super::{
    instance::{self, Instance, NestedRegistration},
    registration::{EDGE, ONE_SHOT},
};
use crate::{
    service::{Channel, outer_channels::NESTING_MAX},
    sys::{self, Errno, SmallVec},
};

/// Greatest nesting depth of epoll instances, including the outermost instance.
const DEPTH_MAX: u32 = NESTING_MAX + 1;
/// The events that can be ready on the descriptor of an epoll instance.
const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
/// Largest number of inner instances of an outer instance.
const INNER_MAX: usize = 4096;
/// Largest number of registrations that are kept after `forget_inner` has forgotten their inner
/// instances.
const FORGOTTEN_MAX: usize = 64;

/// Bytes whose addresses are the tags. The program has no pointers to these bytes, so it does not
/// use the same `epoll_data`.
static TAGS: [u8; INNER_MAX] = [0; INNER_MAX];
/// Number of changes and reports of all registrations, modulo 2^32.
static LAST_NUMBER: AtomicU32 = AtomicU32::new(0);

fn next_number() -> u32 {
    LAST_NUMBER.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
}

/// Returns the tag of the registration with this number.
fn tag(number: usize) -> u64 {
    &raw const TAGS[number] as u64
}

/// Returns the number of the registration with the tag `data`. Returns `None` if `data` is no tag.
fn number_of(data: u64) -> Option<usize> {
    let number = data.wrapping_sub(tag(0)) as usize;
    (number < INNER_MAX).then_some(number)
}

/// The state of the tracked sockets of an inner instance and of the instances within it.
#[derive(Clone, Copy)]
struct Checked {
    /// True if a wait on the inner instance would report a tracked socket.
    ready: bool,
    /// Sum of the event counts (`Interest::registration_events`) of the inner instance and of all
    /// instances within it, modulo 2^32.
    registration_events: u32,
}

impl Checked {
    const NOTHING: Self = Self {
        ready: false,
        registration_events: 0,
    };
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

    fn is_of(&self, inner: &Instance, fd: RawFd) -> bool {
        self.fd == fd && self.inner.is_some_and(|own| std::ptr::eq(own, inner))
    }

    /// Returns the state of the tracked sockets of the inner instance. Returns `NOTHING` if the
    /// inner instance was forgotten.
    fn check(&self, depth: u32) -> Checked {
        self.inner
            .map_or(Checked::NOTHING, |inner| inner.check(depth))
    }
}

impl Instance {
    /// Makes the system call `epoll_ctl` that adds, modifies or removes `inner`, whose descriptor
    /// is `fd`, and records the registration.
    pub(crate) fn control_nested(
        &'static self,
        operation: i32,
        (inner, fd): (&'static Instance, RawFd),
        event: Option<epoll_event>,
    ) -> Result<usize, Errno> {
        // The lock keeps `enable_in_kernel` from restoring a registration that is being changed.
        let mut nested = self.nested.lock();
        let at = nested.iter().position(|n| n.is_of(inner, fd));
        let number = match at {
            Some(at) => nested[at].number,
            None => free_number(&nested).ok_or(Errno(libc::ENOSPC))?,
        };
        let tagged = event.map(|event| epoll_event {
            events: event.events,
            u64: tag(number),
        });
        let result = sys::epoll_ctl(self.channel().epfd(), operation, fd, tagged)?;
        if operation == libc::EPOLL_CTL_DEL {
            if let Some(at) = at {
                nested.remove(at);
            }
            return Ok(result);
        }
        let event = event.unwrap_or(epoll_event { events: 0, u64: 0 });
        let new = NestedRegistration {
            inner: Some(inner),
            fd,
            number,
            events: event.events,
            data: event.u64,
            disabled: false,
            report_without_edge: true,
            seen_events: 0,
            changed: next_number(),
        };
        match at {
            Some(at) => nested[at] = new,
            None => {
                // An old registration without an inner instance may have had this number.
                nested.retain(|n| n.number != number);
                nested.push(new);
            }
        }
        drop(nested);
        inner.channel().outers().add(self.channel());
        self.has_nested.store(true, Ordering::SeqCst);
        Ok(result)
    }

    /// Forgets an inner instance, of which this process has closed its last descriptor. Keeps the
    /// program's data: the kernel still reports events of the inner instance while another process
    /// has a descriptor of the inner instance.
    pub(super) fn forget_inner(&self, inner: &Instance) {
        let mut nested = self.nested.lock();
        for registration in nested.iter_mut() {
            if registration
                .inner
                .is_some_and(|own| std::ptr::eq(own, inner))
            {
                registration.inner = None;
            }
        }
        if nested.iter().filter(|n| n.inner.is_none()).count() > FORGOTTEN_MAX
            && let Some(first) = nested.iter().position(|n| n.inner.is_none())
        {
            nested.remove(first);
        }
    }

    /// Returns true if an epoll instance is, or was, registered with this instance.
    #[inline]
    pub(crate) fn has_nested(&self) -> bool {
        self.has_nested.load(Ordering::SeqCst)
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
        for inner in self.nested().iter().filter_map(|n| n.inner) {
            channels.push(inner.channel());
            inner.add_channels_within(channels, depth - 1);
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
        self.report_service_death(&mut state);
        let mut checked = Checked {
            ready: state.has_due(),
            registration_events: state.registration_events,
        };
        drop(state);
        if depth > 0 && self.has_nested() {
            for nested in self.nested() {
                let within = nested.check(depth - 1);
                checked.ready |= within.ready && nested.events & IN != 0 && !nested.disabled;
                checked.registration_events = checked
                    .registration_events
                    .wrapping_add(within.registration_events);
            }
        }
        checked
    }

    /// Returns the program's event for an event of the kernel's epoll instance. For an event of an
    /// inner instance, returns `None` in these cases:
    ///
    /// * Only a doorbell caused the event, and no tracked socket is due.
    /// * The registration is disabled.
    /// * The registration was removed, changed or reported meanwhile.
    pub(super) fn program_event(&self, event: epoll_event) -> Option<epoll_event> {
        let Some(number) = number_of(event.u64) else {
            return Some(event);
        };
        let nested = self.nested().into_iter().find(|n| n.number == number)?;
        if let Some(inner) = nested.inner {
            // `is_ready_in_kernel` resets the doorbells before `check` looks for events. A doorbell
            // rings after its event has arrived, so `check` finds each event whose doorbell was
            // reset.
            let in_kernel = inner.is_ready_in_kernel();
            let checked = inner.check(DEPTH_MAX);
            if !in_kernel && !nested.is_due(checked) {
                self.enable_in_kernel(&nested);
                return None;
            }
            if !self.take_report(&nested, checked) {
                return None;
            }
        }
        Some(epoll_event {
            events: event.events,
            u64: nested.data,
        })
    }

    /// Appends the events of inner instances to the first `count` events. Returns the new number of
    /// events.
    pub(crate) fn nested_events(&self, events: &mut [epoll_event], mut count: usize) -> usize {
        let mut all = self.nested();
        // The most recently changed or reported registration comes last, so that no registration
        // starves.
        let last = LAST_NUMBER.load(Ordering::Relaxed);
        all.sort_by_key(|n| std::cmp::Reverse(last.wrapping_sub(n.changed)));
        for nested in all {
            if count == events.len() {
                break;
            }
            let checked = nested.check(DEPTH_MAX);
            if nested.is_due(checked) && self.take_report(&nested, checked) {
                events[count] = epoll_event {
                    events: nested.events & IN,
                    u64: nested.data,
                };
                count += 1;
            }
        }
        count
    }

    /// Returns true if `nested_events` would add an event.
    pub(crate) fn has_nested_events(&self) -> bool {
        let nested = self.nested();
        nested.iter().any(|n| n.is_due(n.check(DEPTH_MAX)))
    }

    /// Records that a wait reports `reported`, and disables the registration if it has
    /// EPOLLONESHOT. Returns false, and records nothing, if the registration is disabled, or has
    /// been removed, changed or reported since the caller read it.
    fn take_report(&self, reported: &NestedRegistration, checked: Checked) -> bool {
        let mut all = self.nested.lock();
        let mut all = all.iter_mut();
        let Some(nested) = all.find(|n| n.number == reported.number) else {
            return false;
        };
        if nested.changed != reported.changed || nested.disabled {
            return false;
        }
        nested.changed = next_number();
        nested.report_without_edge = false;
        nested.seen_events = checked.registration_events;
        nested.disabled = nested.events & ONE_SHOT != 0;
        if nested.disabled {
            self.modify_in_kernel(nested, 0);
        }
        true
    }

    /// Enables a registration with EPOLLONESHOT again in the kernel's epoll instance, after the
    /// kernel has disabled the registration because of an event that only a doorbell caused.
    fn enable_in_kernel(&self, registration: &NestedRegistration) {
        if registration.events & ONE_SHOT == 0 {
            return;
        }
        let all = self.nested.lock();
        let now = all
            .iter()
            .find(|n| n.number == registration.number && !n.disabled);
        if let Some(now) = now {
            self.modify_in_kernel(now, now.events);
        }
    }

    /// Sets the events of a registration in the kernel's epoll instance. Does nothing if the
    /// registered descriptor does not refer to the inner instance any more: after a close, the
    /// descriptor may refer to another file.
    fn modify_in_kernel(&self, registration: &NestedRegistration, events: u32) {
        let (inner, fd) = (registration.inner, registration.fd);
        let is_open = inner.is_some_and(|inner| instance::refers(fd, inner));
        if !is_open {
            return;
        }
        let event = epoll_event {
            events,
            u64: tag(registration.number),
        };
        let _ = sys::epoll_ctl(self.channel().epfd(), libc::EPOLL_CTL_MOD, fd, Some(event));
    }

    /// Returns true if the kernel's epoll instance has an event that no doorbell caused. Resets the
    /// doorbells. The caller, or the next wait, has to check the tracked sockets after the call.
    pub(crate) fn is_ready_in_kernel(&self) -> bool {
        let mut channels = self.channels_within();
        channels.push(self.channel());
        let mut rung = Vec::new();
        let mut is_ready = || {
            for channel in channels.iter() {
                let default = channel.default_to_poll();
                for reset in std::iter::once(channel).chain(default) {
                    rung.push((reset, reset.drain_doorbell()));
                }
            }
            let mut fds = [libc::pollfd {
                fd: self.channel().epfd(),
                events: libc::POLLIN,
                revents: 0,
            }];
            sys::ppoll(&mut fds, Some(0), None).is_ok_and(|ready| ready > 0)
        };
        // A doorbell that rings after its reset makes the first call return true. The service does
        // not ring this doorbell again before the sleep is announced again, so the doorbell does
        // not make the second call return true, too.
        let is_ready = is_ready() && is_ready();
        for (channel, rung) in rung {
            channel.announce_again(rung);
        }
        is_ready
    }
}

/// Returns a number that no registration with an inner instance has, or `None` if there is no such
/// number. Prefers a number that no registration has at all.
fn free_number(nested: &[NestedRegistration]) -> Option<usize> {
    let has = |number: usize, of_inner: bool| {
        let mut same = nested.iter().filter(|n| n.number == number);
        same.any(|n| n.inner.is_some() || !of_inner)
    };
    let unused = (0..INNER_MAX).find(|number| !has(*number, false));
    unused.or_else(|| (0..INNER_MAX).find(|number| !has(*number, true)))
}
