//! An epoll instance, or the process' default one: its lane, its registrations, its ready list.

use std::{
    os::fd::RawFd,
    sync::atomic::{AtomicBool, Ordering},
};

use super::interest::Interest;
use crate::{
    service::{Lane, lanes},
    socket::{Socket, listening, registrations::WatchRef},
    sys::{Guard, Lock, Rank},
    table::{Descriptors, Numbers},
};

static OF_DESCRIPTOR: Descriptors<Instance> = Descriptors::new();
/// By the number of the lane.
static OF_LANE: Numbers<Instance, { lanes::LANES_MAX }> = Numbers::new();
/// Serialises the making of instances.
static MAKING: Lock<()> = Lock::new(());

/// See the module. Never freed, only used again.
#[derive(Debug)]
pub struct Instance {
    lane: &'static Lane,
    interest: Lock<Interest>,
    /// Instances that are registered with this one.
    pub(super) nested: Lock<Vec<Nested>>,
    /// There are, or were, some.
    pub(super) has_nested: AtomicBool,
    /// The kernel's epoll instance had a socket of ours with EPOLLONESHOT.
    kernel_one_shots: AtomicBool,
}

/// A registration of an instance with an outer one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nested {
    pub(super) inner: &'static Instance,
    pub(super) fd: RawFd,
    pub(super) events: u32,
    pub(super) data: u64,
    /// EPOLLONESHOT, and it was reported.
    pub(super) disabled: bool,
    /// Edge-triggered: report it even without news.
    pub(super) fresh: bool,
    /// The inner instance's news when it was last reported.
    pub(super) seen: u32,
}

/// The epoll instance behind a descriptor, if it was made under our eyes.
#[inline]
pub(crate) fn of(epfd: RawFd) -> Option<&'static Instance> {
    OF_DESCRIPTOR.get(epfd)
}

/// Makes `epfd` refer to `instance`. False: the number is too high.
pub(crate) fn set(epfd: RawFd, instance: &'static Instance) -> bool {
    OF_DESCRIPTOR.set(epfd, instance)
}

/// Takes the epoll instance away from the descriptor.
pub(crate) fn take(epfd: RawFd) -> Option<&'static Instance> {
    OF_DESCRIPTOR.take(epfd)
}

/// The instance of the lane with this number.
#[inline]
pub(crate) fn numbered(number: u32) -> Option<&'static Instance> {
    OF_LANE.get(number)
}

/// All instances.
fn all() -> impl Iterator<Item = &'static Instance> {
    lanes::all().filter_map(|lane| numbered(lane.number()))
}

/// For the child after fork.
pub(crate) fn reset_after_fork() {
    MAKING.unlock_after_fork();
    for instance in all() {
        instance.nested.unlock_after_fork();
        instance.interest.unlock_after_fork();
        let mut interest = instance.state();
        interest.arrivals.clear();
        interest.foreign.clear();
    }
}

impl Instance {
    /// The instance of a lane.
    #[inline]
    pub(crate) fn of(lane: &'static Lane) -> &'static Instance {
        match numbered(lane.number()) {
            Some(instance) => instance,
            None => make(lane),
        }
    }

    /// Its lane.
    #[inline]
    pub(crate) fn lane(&self) -> &'static Lane {
        self.lane
    }

    /// Its registrations, locked.
    #[inline]
    pub(crate) fn state(&self) -> Guard<'_, Interest> {
        self.interest.lock()
    }

    /// A socket of ours is registered with EPOLLONESHOT in the kernel's epoll instance.
    pub(crate) fn expect_kernel_one_shots(&self) {
        self.kernel_one_shots.store(true, Ordering::Relaxed);
    }

    /// Returns true if the kernel may have disabled a registration of a socket of ours.
    pub(crate) fn has_kernel_one_shots(&self) -> bool {
        self.kernel_one_shots.load(Ordering::Relaxed)
    }

    /// The instance is gone: none has it any more, and it has none.
    fn leave_nests(&'static self) {
        self.nested.lock().clear();
        for outer in all().filter(|outer| outer.has_nested()) {
            outer.nested.lock().retain(|n| !std::ptr::eq(n.inner, self));
        }
    }

    /// A descriptor of the epoll instance is gone.
    pub(crate) fn release(&'static self, fd: RawFd) {
        let mut state = self.state();
        state.descriptors = state.descriptors.saturating_sub(1);
        if state.descriptors > 0 {
            drop(state);
            if self.lane.epfd() == fd {
                let same = |other: &RawFd| OF_DESCRIPTOR.refers(*other, self);
                self.lane
                    .set_epfd(crate::table::descriptors().find(same).unwrap_or(-1));
            }
            return;
        }
        let registered: Vec<_> = state.registered().collect();
        for (index, socket) in registered {
            let watch = WatchRef {
                lane: self.lane.number(),
                index,
            };
            state.remove(index, socket);
            let mut inner = socket.lock();
            inner.remove_watch(socket, watch);
            listening::leave(&mut inner, self.lane);
        }
        drop(state);
        self.leave_nests();
        lanes::forget(self.lane);
        self.lane.forget_beside();
        self.lane.set_epfd(-1);
        lanes::free(self.lane);
    }
}

#[cold]
fn make(lane: &'static Lane) -> &'static Instance {
    let _making = MAKING.lock();
    if let Some(instance) = numbered(lane.number()) {
        return instance;
    }
    let instance: &'static Instance = Box::leak(Box::new(Instance {
        lane,
        interest: Lock::ranked(Rank::Interest, Interest::default()),
        nested: Lock::new(Vec::new()),
        has_nested: AtomicBool::new(false),
        kernel_one_shots: AtomicBool::new(false),
    }));
    OF_LANE.set(lane.number(), instance);
    instance
}

/// A descriptor of a socket that has others is gone: its registrations go with it, so that a wait
/// does not report a number that means something else by now. (The kernel would keep them.)
pub(crate) fn forget_descriptor(socket: &'static Socket, fd: RawFd) {
    let watches: Vec<WatchRef> = socket.lock().watches(socket).collect();
    for watch in watches {
        let Some(instance) = numbered(watch.lane) else {
            continue;
        };
        let mut state = instance.state();
        if state
            .find(watch.index, socket)
            .is_some_and(|found| found.fd() == fd)
        {
            state.remove(watch.index, socket);
            socket.lock().remove_watch(socket, watch);
        }
    }
}

/// Takes these registrations of the socket away.
pub(crate) fn forget_watches(socket: &'static Socket, watches: Vec<WatchRef>) {
    for watch in watches {
        if let Some(instance) = numbered(watch.lane) {
            instance.state().remove(watch.index, socket);
        }
    }
}
