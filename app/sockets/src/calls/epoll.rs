//! epoll over Tidelane's descriptors and the kernel's together.
//!
//! The program's epoll instance is a real one: the kernel's descriptors are in it, and so is the
//! doorbell of the lane's context. Tidelane's descriptors are in the lane's ready list only.

use std::os::fd::RawFd;

use libc::epoll_event;

use super::{connect, process};
use crate::{
    readiness::{
        Instance, instance,
        kernel_events::{kernel_events, merge_same, without_internal},
        wait::Deadline,
        wake,
        watch::{EXISTS, MISSING, Report, may_add},
    },
    service::{lanes, outage::Nap, session},
    socket::{Socket, listening, registrations::WatchRef, registry, state::State},
    sys::{self, Errno, Few, Handled, Section, SignalMask, TO_KERNEL},
};

mod nest;

/// With Tidelane's descriptors always ready, the kernel's are looked at once in so many calls.
const CALLS_PER_KERNEL_LOOK: u32 = 8;
/// The other lanes' rings are looked at once in so many calls: nobody may wait for them.
const CALLS_PER_HOUSEKEEPING: u32 = 256;
/// Send buffers of idle connections are given back at most this often.
const TRIM_INTERVAL_NS: u64 = 100_000_000;
/// Above this number of connections with send buffers they are looked at more often: memory that
/// was used for them once stays with the program.
const TRIM_CROWD: usize = 256;

/// The kernel made the epoll instance `epfd`.
pub fn created(epfd: RawFd) {
    let _section = Section::enter();
    if session::owns_tables() {
        adopt(epfd);
    }
}

fn adopt(epfd: RawFd) -> Option<&'static Instance> {
    process::start_tracking();
    let lane = lanes::take_free()?;
    lane.set_epfd(epfd);
    let instance = Instance::of(lane);
    instance.state().descriptors = 1;
    if instance::set(epfd, instance) {
        lanes::expect(lane);
        Some(instance)
    } else {
        None
    }
}

/// Who reports a socket's events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reporter {
    Kernel,
    Both,
    Tidelane,
}

/// `epoll_ctl` on one of our sockets.
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
        connect::settle_lane(socket, fd, instance.lane());
    }
    let change = Change {
        socket,
        instance,
        fd,
        event,
        reporter,
    };
    Some(match operation {
        libc::EPOLL_CTL_ADD => change.add(),
        libc::EPOLL_CTL_MOD => change.modify(),
        libc::EPOLL_CTL_DEL => change.delete(),
        _ => Err(Errno(libc::EINVAL)),
    })
}

/// The epoll instance of a descriptor, adopted if it was made before the library saw calls. `None`
/// for another kind of descriptor, of which the kernel reports the error.
fn instance_of(epfd: RawFd) -> Option<&'static Instance> {
    instance::of(epfd).or_else(|| is_epoll(epfd).then(|| adopt(epfd)).flatten())
}

/// Returns true if a descriptor is an epoll instance.
fn is_epoll(fd: RawFd) -> bool {
    let event = epoll_event { events: 0, u64: 0 };
    // Only an epoll instance can say that a descriptor is not in it. (Those made under our eyes may
    // have this one.)
    let Ok(probe) = session::template() else {
        return false;
    };
    sys::epoll_ctl(fd, libc::EPOLL_CTL_MOD, probe, Some(event)) == Err(Errno(libc::ENOENT))
}

/// `epoll_ctl` on one of our epoll instances.
pub fn control_nested(
    inner: &'static Instance,
    epfd: RawFd,
    operation: i32,
    fd: RawFd,
    event: Option<epoll_event>,
) -> Handled {
    let _section = Section::enter();
    let outer = instance_of(epfd)?;
    let result = sys::epoll_ctl(epfd, operation, fd, event);
    if result.is_ok() {
        let event = event.unwrap_or(epoll_event { events: 0, u64: 0 });
        let _ = outer.change_nested(operation, (inner, fd), event);
        wake::armed(outer);
    }
    Some(result)
}

struct Change {
    socket: &'static Socket,
    instance: &'static Instance,
    fd: RawFd,
    event: Option<epoll_event>,
    reporter: Reporter,
}

impl Change {
    fn in_kernel(&self, operation: i32) -> Result<(), Errno> {
        if self.reporter == Reporter::Tidelane {
            return Ok(());
        }
        sys::epoll_ctl(self.instance.lane().epfd(), operation, self.fd, self.event).map(|_| ())
    }

    fn note_one_shot(&self, events: u32) {
        let one_shot = events & libc::EPOLLONESHOT as u32 != 0;
        if one_shot && self.reporter != Reporter::Tidelane {
            self.instance.expect_kernel_one_shots();
        }
    }

    fn find(&self) -> Option<WatchRef> {
        let mut here = Few::new();
        let inner = self.socket.lock();
        for watch in inner.watches(self.socket) {
            if watch.lane == self.instance.lane().number() {
                here.push(watch);
            }
        }
        let only_descriptor = inner.descriptors == 1;
        drop(inner);
        if only_descriptor {
            return here.iter().next();
        }
        let mut state = self.instance.state();
        here.iter().find(|watch| {
            let found = state.find(watch.index, self.socket);
            found.is_some_and(|found| found.fd() == self.fd)
        })
    }

    fn add(&self) -> Result<usize, Errno> {
        let event = self.event.ok_or(Errno(libc::EFAULT))?;
        if self.find().is_some() {
            return Err(EXISTS);
        }
        may_add(event.events)?;
        self.in_kernel(libc::EPOLL_CTL_ADD)?;
        if self.reporter == Reporter::Tidelane
            && let Some(session) = session::current()
        {
            let failed = self.instance.lane().activate(session).is_err();
            // A connection whose service died at this moment tells so without a context.
            if failed && !session.is_gone() {
                return Err(Errno(libc::ENOSPC));
            }
        }
        let mut state = self.instance.state();
        let index = state.add(self.socket, self.fd, event.events, event.u64);
        if let Some(watch) = state.find(index, self.socket) {
            watch.in_kernel = self.reporter != Reporter::Tidelane;
            self.note_one_shot(event.events);
        }
        let mut inner = self.socket.lock();
        inner.add_watch(
            self.socket,
            WatchRef {
                lane: self.instance.lane().number(),
                index,
            },
        );
        let before = inner.lane;
        if self.reporter == Reporter::Both {
            let before = listening::join(self.socket, &mut inner, self.fd, self.instance.lane());
            wake::joined(self.socket, &before);
        } else if inner.more_watches.is_empty()
            && before.is_some_and(|before| !std::ptr::eq(before, self.instance.lane()))
            && let Some(connection) = inner.connection()
        {
            self.instance.lane().take_over(connection);
            self.socket.member.leave_batch();
            inner.lane = Some(self.instance.lane());
        }
        drop(inner);
        state.push_fresh(index);
        drop(state);
        wake::armed(self.instance);
        wake::tell_waiters(self.socket, before);
        Ok(0)
    }

    fn modify(&self) -> Result<usize, Errno> {
        let event = self.event.ok_or(Errno(libc::EFAULT))?;
        let watch = self.find().ok_or(MISSING)?;
        self.in_kernel(libc::EPOLL_CTL_MOD)?;
        let mut state = self.instance.state();
        let found = state.find(watch.index, self.socket).ok_or(MISSING)?;
        found.modify(self.fd, event.events, event.u64)?;
        self.note_one_shot(event.events);
        state.push_ready(watch.index);
        drop(state);
        wake::armed(self.instance);
        Ok(0)
    }

    fn delete(&self) -> Result<usize, Errno> {
        let watch = self.find().ok_or(MISSING)?;
        self.in_kernel(libc::EPOLL_CTL_DEL)?;
        let mut state = self.instance.state();
        state.remove(watch.index, self.socket);
        let mut inner = self.socket.lock();
        inner.remove_watch(self.socket, watch);
        if self.reporter == Reporter::Both {
            listening::leave(&mut inner, self.instance.lane());
        }
        Ok(0)
    }
}

/// `epoll_wait` and its relatives on an epoll instance of ours.
pub fn wait(
    instance: &'static Instance,
    events: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mask: Option<&SignalMask>,
) -> Handled {
    let _section = Section::enter();
    let lane = instance.lane();
    let deadline = match timeout_ns {
        None => Deadline::NEVER,
        Some(0) => Deadline::NOW,
        some => Deadline::after(some),
    };
    if instance.has_nested() {
        return Some(nest::wait(instance, events, deadline, mask));
    }
    if !lane.is_active() {
        return wait_in_kernel(instance, events, deadline, mask);
    }
    lanes::expect(lane);
    lane.end_batch();
    let mut spun = false;
    loop {
        instance.pump_beside();
        let count = collect(instance, events);
        if count > 0 {
            return Some(Ok(count));
        }
        if deadline.is_now() {
            return Some(kernel_events(instance, events, 0, Some(0), mask));
        }
        if !spun && lane.spinning_pays() {
            spun = true;
            if spin(instance, deadline) {
                continue;
            }
        }
        match sleep(instance, events, deadline, mask) {
            Ok(0) if deadline.passed() => return Some(Ok(collect(instance, events))),
            Ok(0) => {}
            Ok(count) => return Some(Ok(count)),
            Err(error) => return Some(Err(error)),
        }
    }
}

/// The lane has no context: nothing but the kernel's events, unless that changes meanwhile.
fn wait_in_kernel(
    instance: &'static Instance,
    events: &mut [epoll_event],
    deadline: Deadline,
    mask: Option<&SignalMask>,
) -> Handled {
    let lane = instance.lane();
    // Registered sockets of ours that need no context: connections of a service that is gone.
    let count = collect(instance, events);
    if count > 0 {
        return Some(Ok(count));
    }
    let result = loop {
        listening::look_for_service();
        if !lane.begin_kernel_sleep() {
            return wait(instance, events, deadline.left_ns(), mask);
        }
        let nap = Nap::begin();
        let left_ns = nap.limit(deadline.left_ns());
        let result = sys::epoll_wait(lane.epfd(), events, left_ns, mask);
        drop(nap);
        lane.end_kernel_sleep();
        if result != Ok(0) || deadline.passed() {
            break result;
        }
    };
    match result {
        Ok(found) if found > 0 => match without_internal(instance, events, 0, found) {
            0 => wait(instance, events, deadline.left_ns(), mask),
            count => {
                if count < found {
                    wake::edge_taken(instance);
                }
                Some(Ok(count))
            }
        },
        other => Some(other),
    }
}

/// Tidelane's ready descriptors, and now and then the kernel's.
#[inline]
fn collect(instance: &'static Instance, events: &mut [epoll_event]) -> usize {
    let lane = instance.lane();
    let mut state = instance.state();
    instance.drain(&mut state);
    if !state.has_ready() {
        instance.finish(state);
        return 0;
    }
    state.calls_without_kernel += 1;
    let mut from_kernel = 0;
    if state.calls_without_kernel >= CALLS_PER_KERNEL_LOOK {
        state.calls_without_kernel = 0;
        instance.finish(state);
        // Half the places, so that neither side waits for ever.
        let places = events.len().div_ceil(2);
        let looked = kernel_events(instance, &mut events[..places], 0, Some(0), None);
        from_kernel = looked.unwrap_or(0);
        state = instance.state();
    }
    let mut count = from_kernel;
    let mut has_listener = false;
    let epfd = lane.epfd();
    let max = events.len() - count;
    let left = state.harvest(
        |report: Report| {
            lane.add_to_batch(&report.socket.member);
            if report.disarm_kernel {
                let none = epoll_event {
                    events: 0,
                    u64: report.data,
                };
                let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, report.fd, Some(none));
            }
            has_listener |= report.in_kernel;
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
        wake::left(instance);
    }
    if has_listener && from_kernel > 0 {
        count = merge_same(events, count);
    }
    count
}

fn spin(instance: &'static Instance, deadline: Deadline) -> bool {
    let lane = instance.lane();
    let now = sys::monotonic_ns();
    let end = now
        + deadline
            .left_ns()
            .unwrap_or(u64::MAX)
            .min(session::settings().spin_ns);
    while sys::monotonic_ns() < end {
        for _ in 0..16 {
            sys::spin_hint();
        }
        if lane.has_events() {
            return true;
        }
    }
    false
}

/// Sleeps in the kernel's epoll instance. 0: look again.
fn sleep(
    instance: &'static Instance,
    events: &mut [epoll_event],
    deadline: Deadline,
    mask: Option<&SignalMask>,
) -> Result<usize, Errno> {
    let lane = instance.lane();
    housekeeping(instance);
    listening::look_for_service();
    instance.tell_death(&mut instance.state());
    let beside = lane.beside();
    let quiet = lane.arm() & beside.is_none_or(|other| lane.arm_beside(other));
    let result = if quiet && !instance.state().has_ready() {
        let nap = Nap::begin();
        let left_ns = nap.limit(deadline.left_ns());
        sys::epoll_wait(lane.epfd(), events, left_ns, mask).map(Some)
    } else {
        Ok(None)
    };
    lane.disarm();
    if let Some(other) = beside {
        other.disarm();
        Instance::of(other).pump();
    }
    let Some(found) = result? else {
        return Ok(0);
    };
    let count = without_internal(instance, events, 0, found);
    if count < found || count == 0 {
        instance.tell_death(&mut instance.state());
    }
    if count == 0 || count == events.len() {
        return Ok(count);
    }
    let more = collect(instance, &mut events[count..]);
    Ok(merge_same(events, count + more))
}

/// Before a sleep, now and then: other lanes' rings, and memory of idle connections.
fn housekeeping(instance: &'static Instance) {
    let lane = instance.lane();
    let due = {
        let mut state = instance.state();
        state.sleeps = state.sleeps.wrapping_add(1);
        let now = sys::monotonic_ns();
        let trims = now >= state.trim_at_ns;
        if trims {
            state.trim_at_ns = now + TRIM_INTERVAL_NS;
        }
        (state.sleeps.is_multiple_of(CALLS_PER_HOUSEKEEPING), trims)
    };
    if due.0 {
        for other in lanes::all().filter(|other| !std::ptr::eq(*other, lane)) {
            if other.is_active() && other.has_events() {
                Instance::of(other).pump();
            }
        }
    }
    if due.1 {
        let kept = lane.trim(&mut |slot| match registry::of_slot(slot) {
            // Against the order of locks, so without waiting.
            Some(socket) => match socket.try_lock() {
                Some(mut inner) => inner.connection().is_none_or(|c| c.stream.trim()),
                None => false,
            },
            None => true,
        });
        if kept > TRIM_CROWD {
            instance.state().trim_at_ns = sys::monotonic_ns() + TRIM_INTERVAL_NS / 8;
        }
    }
}
