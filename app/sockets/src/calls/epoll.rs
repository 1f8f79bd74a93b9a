//! epoll over kernel descriptors and over accelerated sockets, whose connections the service (the
//! process `tidelaned`) carries.
//!
//! The program's epoll descriptor refers to a kernel epoll instance. This instance contains the
//! kernel descriptors and a doorbell (an eventfd by which the service wakes a sleeping thread). An
//! [`Instance`] adds the ready list of the accelerated sockets, and a channel over which the
//! service reports events. An active channel has a *context*: rings that this process shares with
//! the service. A tracked socket is a TCP socket of the program that this crate may accelerate. A
//! tracked epoll instance is an epoll instance of the program that has an [`Instance`].

use std::os::fd::RawFd;

use libc::epoll_event;

use super::{connect, process};
use crate::{
    readiness::{
        Instance, instance,
        kernel_events::{kernel_events, merge_same, remove_internal},
        registration::{EXISTS, MISSING, Report, may_add},
        wait::Deadline,
        wake,
    },
    service::{channels, outage::BoundedSleep, outer_channels::Announcement, session},
    socket::{Socket, listening, registration_ref::RegistrationRef, registry, state::State},
    sys::{self, Errno, Handled, Section, SignalMask, SmallVec, TO_KERNEL},
};

mod kernel_wait;
mod nest;

/// While accelerated sockets are ready, one in this number of `epoll_wait` calls also polls the
/// kernel's epoll instance, which costs a system call.
const CALLS_PER_KERNEL_POLL: u32 = 8;
/// Number of sleeps in an epoll instance after which the thread polls the rings of all other
/// channels. The events of a channel would otherwise wait as long as no thread waits on the
/// channel.
const SLEEPS_PER_HOUSEKEEPING: u32 = 256;
/// Usual time in nanoseconds between two trims. A trim frees the send buffers of idle connections.
const TRIM_INTERVAL_NS: u64 = 100_000_000;
/// If more than this number of connections keep a send buffer after a trim, the next trim is
/// sooner.
const TRIM_OFTEN_ABOVE: usize = 256;

/// Starts tracking `epfd`, a new epoll instance of the program.
pub fn on_created(epfd: RawFd) {
    let _section = Section::enter();
    if session::owns_tables() {
        adopt(epfd);
    }
}

/// Starts tracking an epoll instance. Returns `None` if a limit is reached.
fn adopt(epfd: RawFd) -> Option<&'static Instance> {
    process::start_tracking();
    let channel = channels::take_free()?;
    channel.set_epfd(epfd);
    let instance = Instance::of(channel);
    instance.lock_interest().descriptors = 1;
    if instance::set(epfd, instance) {
        channels::prefer(channel);
        Some(instance)
    } else {
        None
    }
}

/// The stacks that may report a socket's events: the kernel, the service, or both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reporter {
    /// The kernel alone, for a socket before `connect` or `listen`.
    Kernel,
    /// The kernel and the service, for a listener.
    Both,
    /// The service alone, for a socket with an accelerated connection or a failed active open.
    Tidelane,
}

/// Carries out `epoll_ctl` on a tracked socket.
pub fn control(
    socket: &'static Socket,
    epfd: RawFd,
    operation: i32,
    fd: RawFd,
    event: Option<epoll_event>,
) -> Handled {
    let _section = Section::enter();
    let reporter = match socket.enter(fd)?.state {
        State::Free | State::Kernel => return TO_KERNEL,
        State::Fresh => Reporter::Kernel,
        State::Listening(_) => Reporter::Both,
        _ => Reporter::Tidelane,
    };
    let instance = instance_of(epfd)?;
    if operation == libc::EPOLL_CTL_ADD && reporter == Reporter::Tidelane {
        connect::await_slot(socket, fd, instance.channel());
    }
    let ctl = EpollCtl {
        socket,
        instance,
        fd,
        event,
        reporter,
    };
    Some(match operation {
        libc::EPOLL_CTL_ADD => ctl.add(),
        libc::EPOLL_CTL_MOD => ctl.modify(),
        libc::EPOLL_CTL_DEL => ctl.delete(),
        _ => Err(Errno(libc::EINVAL)),
    })
}

/// Returns the epoll instance of a descriptor. First starts tracking an instance whose creation
/// this crate did not see. Returns `None` for another kind of file, or if a limit is reached.
fn instance_of(epfd: RawFd) -> Option<&'static Instance> {
    instance::of(epfd).or_else(|| is_epoll(epfd).then(|| adopt(epfd)).flatten())
}

/// Returns true if an untracked descriptor is an epoll instance.
fn is_epoll(fd: RawFd) -> bool {
    let event = epoll_event { events: 0, u64: 0 };
    // The template is a socket of this crate. No untracked epoll instance contains the template, so
    // `epoll_ctl` fails with ENOENT for an untracked epoll instance. For any other file,
    // `epoll_ctl` fails with another error.
    let Ok(probe) = session::template() else {
        return false;
    };
    sys::epoll_ctl(fd, libc::EPOLL_CTL_MOD, probe, Some(event)) == Err(Errno(libc::ENOENT))
}

/// Carries out an `epoll_ctl` that adds, modifies or removes the registration of `inner` with the
/// instance of `epfd`. `inner` is a tracked epoll instance, and `fd` is its descriptor.
pub fn control_nested(
    inner: &'static Instance,
    epfd: RawFd,
    operation: i32,
    fd: RawFd,
    event: Option<epoll_event>,
) -> Handled {
    let _section = Section::enter();
    let outer = instance_of(epfd)?;
    let result = outer.control_nested(operation, (inner, fd), event);
    if result.is_ok() {
        let channel = outer.channel();
        // A reused channel may have a doorbell that this epoll instance does not contain yet.
        if channel.is_active()
            && let Some(session) = session::current()
        {
            let _ = channel.activate(session);
        }
        wake::on_armed(outer);
        if operation == libc::EPOLL_CTL_ADD {
            channel.wake_for_addition();
        }
    }
    Some(result)
}

/// The arguments of an `epoll_ctl` call on a tracked socket.
struct EpollCtl {
    socket: &'static Socket,
    instance: &'static Instance,
    fd: RawFd,
    event: Option<epoll_event>,
    reporter: Reporter,
}

impl EpollCtl {
    /// Makes the system call `epoll_ctl` if the kernel may report events of the socket.
    fn forward_to_kernel(&self, operation: i32) -> Result<(), Errno> {
        if self.reporter == Reporter::Tidelane {
            return Ok(());
        }
        let epfd = self.instance.channel().epfd();
        sys::epoll_ctl(epfd, operation, self.fd, self.event).map(|_| ())
    }

    /// Records a registration with EPOLLONESHOT that the kernel may disable.
    fn note_one_shot(&self, events: u32) {
        let one_shot = events & libc::EPOLLONESHOT as u32 != 0;
        if one_shot && self.reporter != Reporter::Tidelane {
            self.instance.expect_kernel_one_shots();
        }
    }

    /// Returns the registration that the call refers to. Each duplicate of a socket's descriptor
    /// can have a registration of its own.
    fn find(&self) -> Option<RegistrationRef> {
        let mut here = SmallVec::new();
        let inner = self.socket.lock();
        for registration in inner.registrations(self.socket) {
            if registration.channel == self.instance.channel().number() {
                here.push(registration);
            }
        }
        let only_descriptor = inner.descriptors == 1;
        drop(inner);
        if only_descriptor {
            return here.iter().next();
        }
        let mut state = self.instance.lock_interest();
        here.iter().find(|registration| {
            let found = state.find(registration.index, self.socket);
            found.is_some_and(|found| found.fd() == self.fd)
        })
    }

    fn add(&self) -> Result<usize, Errno> {
        let event = self.event.ok_or(Errno(libc::EFAULT))?;
        if self.find().is_some() {
            return Err(EXISTS);
        }
        may_add(event.events)?;
        self.forward_to_kernel(libc::EPOLL_CTL_ADD)?;
        if self.reporter == Reporter::Tidelane
            && let Some(session) = session::current()
        {
            let failed = self.instance.channel().activate(session).is_err();
            // If the service has died, the end of the connection is reported without a context.
            if failed && !session.is_gone() {
                return Err(Errno(libc::ENOSPC));
            }
        }
        let mut state = self.instance.lock_interest();
        let index = state.add(self.socket, self.fd, event.events, event.u64);
        if let Some(registration) = state.find(index, self.socket) {
            registration.in_kernel_epoll = self.reporter != Reporter::Tidelane;
            self.note_one_shot(event.events);
        }
        let Some(mut inner) = self.socket.enter_without_migration(self.fd) else {
            // Another thread has closed the descriptor meanwhile. The socket may have a new use.
            state.remove(index, self.socket);
            return Err(Errno(libc::EBADF));
        };
        inner.add_registration(
            self.socket,
            RegistrationRef {
                channel: self.instance.channel().number(),
                index,
            },
        );
        let before = inner.channel;
        if self.reporter == Reporter::Both {
            let before = listening::join(self.socket, &mut inner, self.fd, self.instance.channel());
            wake::on_channel_joined(self.socket, &before);
        } else if inner.more_registrations.is_empty()
            && before.is_some_and(|before| !std::ptr::eq(before, self.instance.channel()))
            && let Some(connection) = inner.connection()
        {
            self.instance.channel().take_over(connection);
            self.socket.member.leave_batch();
            inner.channel = Some(self.instance.channel());
        }
        drop(inner);
        state.push_rearmed(index);
        drop(state);
        wake::on_armed(self.instance);
        wake::wake_waiters(self.socket, before);
        Ok(0)
    }

    fn modify(&self) -> Result<usize, Errno> {
        let event = self.event.ok_or(Errno(libc::EFAULT))?;
        let registration = self.find().ok_or(MISSING)?;
        self.forward_to_kernel(libc::EPOLL_CTL_MOD)?;
        let mut state = self.instance.lock_interest();
        let found = state.find(registration.index, self.socket).ok_or(MISSING)?;
        found.modify(self.fd, event.events, event.u64)?;
        self.note_one_shot(event.events);
        state.push_ready(registration.index);
        drop(state);
        wake::on_armed(self.instance);
        Ok(0)
    }

    fn delete(&self) -> Result<usize, Errno> {
        let registration = self.find().ok_or(MISSING)?;
        self.forward_to_kernel(libc::EPOLL_CTL_DEL)?;
        let mut state = self.instance.lock_interest();
        state.remove(registration.index, self.socket);
        let mut inner = self.socket.lock();
        inner.remove_registration(self.socket, registration);
        if self.reporter == Reporter::Both {
            listening::leave(&mut inner, self.instance.channel());
        }
        Ok(0)
    }
}

/// Carries out `epoll_wait` and its variants on a tracked epoll instance.
pub fn wait(
    instance: &'static Instance,
    events: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mask: Option<&SignalMask>,
) -> Handled {
    let _section = Section::enter();
    let channel = instance.channel();
    let deadline = match timeout_ns {
        None => Deadline::NEVER,
        Some(0) => Deadline::NOW,
        some => Deadline::after(some),
    };
    if instance.has_nested() {
        return Some(nest::wait(instance, events, deadline, mask));
    }
    if !channel.is_active() {
        return kernel_wait::wait(instance, events, deadline, mask);
    }
    channels::prefer(channel);
    channel.end_batch();
    let mut spun = false;
    loop {
        instance.pump_default();
        let count = collect(instance, events);
        if count > 0 {
            return Some(Ok(count));
        }
        if deadline.is_now() {
            return Some(kernel_events(instance, events, 0, Some(0), mask));
        }
        if !spun && channel.should_spin() {
            spun = true;
            if channel.spin(deadline.left_ns(), || channel.has_events()) {
                continue;
            }
        }
        match sleep(instance, events, deadline, mask) {
            Ok(0) if deadline.passed() => return Some(Ok(collect(instance, events))),
            Ok(0) if instance.has_nested() => {
                return Some(nest::wait(instance, events, deadline, mask));
            }
            Ok(0) => {}
            Ok(count) => return Some(Ok(count)),
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Writes the events of ready accelerated sockets to `events`. One in [`CALLS_PER_KERNEL_POLL`]
/// calls with ready sockets also writes the events that the kernel reports. Returns the number of
/// events.
#[inline]
fn collect(instance: &'static Instance, events: &mut [epoll_event]) -> usize {
    let channel = instance.channel();
    let mut state = instance.lock_interest();
    instance.drain(&mut state);
    if !state.has_ready() {
        instance.finish(state);
        return 0;
    }
    state.calls_without_kernel += 1;
    let mut from_kernel = 0;
    if state.calls_without_kernel >= CALLS_PER_KERNEL_POLL {
        state.calls_without_kernel = 0;
        instance.finish(state);
        // The kernel's events get at most half of the array, so that neither stack starves.
        let places = events.len().div_ceil(2);
        let polled = kernel_events(instance, &mut events[..places], 0, Some(0), None);
        from_kernel = polled.unwrap_or(0);
        if instance.has_nested() {
            let events = &mut events[..places];
            from_kernel = instance.nested_events(events, from_kernel);
            from_kernel = merge_same(events, from_kernel);
        }
        state = instance.lock_interest();
    }
    let mut count = from_kernel;
    let mut has_listener = false;
    let epfd = channel.epfd();
    let max = events.len() - count;
    let left = state.take_ready(
        |report: Report| {
            channel.add_to_batch(&report.socket.member);
            if report.disarm_kernel {
                let none = epoll_event {
                    events: 0,
                    u64: report.data,
                };
                let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, report.fd, Some(none));
            }
            has_listener |= report.in_kernel_epoll;
            events[count] = epoll_event {
                events: report.bits,
                u64: report.data,
            };
            count += 1;
        },
        max,
    );
    instance.finish(state);
    if left {
        wake::on_unchecked_left(instance);
    }
    if has_listener && from_kernel > 0 {
        count = merge_same(events, count);
    }
    count
}

/// Sleeps in the kernel's epoll instance. Returns the number of events, or 0 if the deadline has
/// passed or if the caller has to collect events again.
fn sleep(
    instance: &'static Instance,
    events: &mut [epoll_event],
    deadline: Deadline,
    mask: Option<&SignalMask>,
) -> Result<usize, Errno> {
    let channel = instance.channel();
    housekeeping(instance);
    listening::seek_service();
    instance.report_service_death(&mut instance.lock_interest());
    let default = channel.default_to_poll();
    let (announcement, quiet) = Announcement::begin(|| {
        channel.arm() & default.is_none_or(|other| channel.arm_default(other))
    });
    let may_sleep = quiet && !instance.has_nested() && !instance.lock_interest().has_ready();
    let result = if may_sleep {
        let bound = BoundedSleep::begin();
        let left_ns = bound.limit(deadline.left_ns());
        sys::epoll_wait(channel.epfd(), events, left_ns, mask).map(Some)
    } else {
        Ok(None)
    };
    announcement.end(channel.stale());
    channel.disarm();
    if let Some(other) = default {
        other.disarm();
        Instance::of(other).pump();
    }
    let Some(found) = result? else {
        return Ok(0);
    };
    let count = remove_internal(instance, events, 0, found);
    if count < found || count == 0 {
        instance.report_service_death(&mut instance.lock_interest());
    }
    if count == 0 || count == events.len() {
        return Ok(count);
    }
    let more = collect(instance, &mut events[count..]);
    Ok(merge_same(events, count + more))
}

/// Does periodic work before a sleep: polls the rings of other channels, and trims send buffers.
fn housekeeping(instance: &'static Instance) {
    let channel = instance.channel();
    let due = {
        let mut state = instance.lock_interest();
        state.sleeps = state.sleeps.wrapping_add(1);
        let now = sys::monotonic_ns();
        let trims = now >= state.trim_at_ns;
        if trims {
            state.trim_at_ns = now + TRIM_INTERVAL_NS;
        }
        (state.sleeps.is_multiple_of(SLEEPS_PER_HOUSEKEEPING), trims)
    };
    if due.0 {
        for other in channels::all().filter(|other| !std::ptr::eq(*other, channel)) {
            if other.is_active() && other.has_events() {
                Instance::of(other).pump();
            }
        }
    }
    if due.1 {
        let kept = channel.trim(&mut |slot| match registry::of_slot(slot) {
            // This thread holds the ring's lock, which comes after socket locks in the lock order.
            // So do not wait for a socket's lock.
            Some(socket) => match socket.try_lock() {
                Some(mut inner) => inner.connection().is_none_or(|c| c.stream.trim()),
                None => false,
            },
            None => true,
        });
        if kept > TRIM_OFTEN_ABOVE {
            instance.lock_interest().trim_at_ns = sys::monotonic_ns() + TRIM_INTERVAL_NS / 8;
        }
    }
}
