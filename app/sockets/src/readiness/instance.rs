//! The epoll instances of the program.
//!
//! An [`Instance`] has an interest list and a channel. A channel is a set of rings that this
//! process shares with the service (the process `tidelaned`). A tracked socket is a TCP socket of
//! the program that this crate may accelerate. A tracked epoll instance is an epoll instance of the
//! program for which this crate has an [`Instance`].
//!
//! Channels that belong to no epoll instance also have an [`Instance`]: the default channel, which
//! serves the sockets that are in no epoll instance, and the channels of threads.

use std::{
    os::fd::RawFd,
    sync::atomic::{AtomicBool, Ordering},
};

use super::interest::Interest;
use crate::{
    service::{Channel, channels},
    socket::{Socket, listening, registration_ref::RegistrationRef},
    sys::{Guard, Lock, Rank},
    table::{DescriptorTable, NumberTable},
};

/// Instances by the descriptors that refer to them.
static BY_DESCRIPTOR: DescriptorTable<Instance> = DescriptorTable::new();
/// Instances by the number of their channel.
static BY_CHANNEL: NumberTable<Instance, { channels::CHANNELS_MAX }> = NumberTable::new();
/// Serialises the creation of instances, so that a channel gets only one instance.
static MAKING: Lock<()> = Lock::new(());

/// The interest list and the channel of a tracked epoll instance, or of a channel that belongs to
/// no epoll instance. Instances are never freed, only reused.
#[derive(Debug)]
pub struct Instance {
    channel: &'static Channel,
    interest: Lock<Interest>,
    /// The registrations of other (inner) epoll instances with this instance.
    pub(super) nested: Lock<Vec<NestedRegistration>>,
    /// True if an epoll instance is, or was, registered with this instance.
    pub(super) has_nested: AtomicBool,
    /// True if the kernel's epoll instance has or had a tracked socket with EPOLLONESHOT.
    kernel_one_shots: AtomicBool,
}

/// The registration of one epoll instance (the inner) with another (the outer).
#[derive(Clone, Copy, Debug)]
pub(crate) struct NestedRegistration {
    /// The inner instance. `None` after this process has closed its last descriptor of the inner
    /// instance. The registration stays in the kernel while another process (after `fork`) has a
    /// descriptor of the inner instance.
    pub(super) inner: Option<&'static Instance>,
    /// Descriptor under which `inner` is registered.
    pub(super) fd: RawFd,
    /// Number of the registration in the outer instance. The number determines the `epoll_data` in
    /// the kernel's epoll instance.
    pub(super) number: usize,
    /// EPOLL* bits that the program asked for.
    pub(super) events: u32,
    /// The program's data, which `epoll_wait` returns.
    pub(super) data: u64,
    /// True if the registration has EPOLLONESHOT and was reported.
    pub(super) disabled: bool,
    /// True if the next wait must report an edge-triggered registration even without a new event.
    pub(super) report_without_edge: bool,
    /// Sum of the event counts (`Interest::registration_events`) of the inner instance and of all
    /// instances within it, at the last report of the registration.
    pub(super) seen_events: u32,
    /// The number of the last change or report of this registration. Numbers are from
    /// `nested::next_number`.
    pub(super) changed: u32,
}

/// Returns the tracked epoll instance that a descriptor refers to.
#[inline]
pub(crate) fn of(epfd: RawFd) -> Option<&'static Instance> {
    BY_DESCRIPTOR.get(epfd)
}

/// Returns true if the descriptor refers to `instance`.
pub(super) fn refers(fd: RawFd, instance: &'static Instance) -> bool {
    BY_DESCRIPTOR.refers(fd, instance)
}

/// Makes `epfd` refer to `instance`. Returns false if the number `epfd` is too high for the table.
pub(crate) fn set(epfd: RawFd, instance: &'static Instance) -> bool {
    BY_DESCRIPTOR.set(epfd, instance)
}

/// Clears the descriptor and returns its epoll instance.
pub(crate) fn take(epfd: RawFd) -> Option<&'static Instance> {
    BY_DESCRIPTOR.take(epfd)
}

/// Returns the instance of the channel with this number.
#[inline]
pub(crate) fn numbered(number: u32) -> Option<&'static Instance> {
    BY_CHANNEL.get(number)
}

/// Returns all instances, including the unused instances, whose channels are in the pool.
fn all() -> impl Iterator<Item = &'static Instance> {
    channels::all().filter_map(|channel| numbered(channel.number()))
}

/// Resets all instances in a child after fork.
pub(crate) fn reset_after_fork() {
    MAKING.unlock_after_fork();
    for instance in all() {
        instance.nested.unlock_after_fork();
        instance.interest.unlock_after_fork();
        let mut interest = instance.lock_interest();
        interest.control_events.clear();
        interest.other_registrations.clear();
    }
}

impl Instance {
    /// Returns the instance of a channel. Creates the instance at the first call.
    #[inline]
    pub(crate) fn of(channel: &'static Channel) -> &'static Instance {
        match numbered(channel.number()) {
            Some(instance) => instance,
            None => make(channel),
        }
    }

    /// Returns the channel of this instance.
    #[inline]
    pub(crate) fn channel(&self) -> &'static Channel {
        self.channel
    }

    /// Locks the interest list.
    #[inline]
    pub(crate) fn lock_interest(&self) -> Guard<'_, Interest> {
        self.interest.lock()
    }

    /// Records that a tracked socket is registered with EPOLLONESHOT in the kernel's epoll
    /// instance.
    pub(crate) fn expect_kernel_one_shots(&self) {
        self.kernel_one_shots.store(true, Ordering::Relaxed);
    }

    /// Returns true if the kernel may have disabled the registration of a tracked socket because of
    /// EPOLLONESHOT.
    pub(crate) fn has_kernel_one_shots(&self) -> bool {
        self.kernel_one_shots.load(Ordering::Relaxed)
    }

    /// Removes this instance from all outer instances, and all inner instances from this instance.
    fn leave_nested(&'static self) {
        self.nested.lock().clear();
        self.has_nested.store(false, Ordering::SeqCst);
        self.channel.outers().clear();
        for outer in all().filter(|outer| outer.has_nested()) {
            outer.forget_inner(self);
        }
    }

    /// Drops a descriptor's reference to the epoll instance. Dropping the last reference ends all
    /// registrations and frees the channel.
    pub(crate) fn release(&'static self, fd: RawFd) {
        let mut state = self.lock_interest();
        state.descriptors = state.descriptors.saturating_sub(1);
        if state.descriptors > 0 {
            drop(state);
            if self.channel.epfd() == fd {
                let same = |other: &RawFd| BY_DESCRIPTOR.refers(*other, self);
                self.channel
                    .set_epfd(crate::table::descriptors().find(same).unwrap_or(-1));
            }
            return;
        }
        let registered: Vec<_> = state.registered().collect();
        for (index, socket) in registered {
            let registration = RegistrationRef {
                channel: self.channel.number(),
                index,
            };
            state.remove(index, socket);
            let mut inner = socket.lock();
            inner.remove_registration(socket, registration);
            listening::leave(&mut inner, self.channel);
        }
        drop(state);
        self.leave_nested();
        channels::forget(self.channel);
        self.channel.stop_polling_default();
        self.channel.set_epfd(-1);
        channels::free(self.channel);
    }
}

/// Creates the instance of a channel, or returns the instance that another thread has created
/// meanwhile.
#[cold]
fn make(channel: &'static Channel) -> &'static Instance {
    let _making = MAKING.lock();
    if let Some(instance) = numbered(channel.number()) {
        return instance;
    }
    let instance: &'static Instance = Box::leak(Box::new(Instance {
        channel,
        interest: Lock::ranked(Rank::Epoll, Interest::default()),
        nested: Lock::new(Vec::new()),
        has_nested: AtomicBool::new(false),
        kernel_one_shots: AtomicBool::new(false),
    }));
    BY_CHANNEL.set(channel.number(), instance);
    instance
}

/// Ends the registrations that a socket has under a closed descriptor, while other descriptors
/// still refer to the socket. Linux would keep these registrations until the last descriptor of the
/// socket is closed. This crate ends them, because the program may open another file with the same
/// descriptor number, and would then mistake the socket's events for events of the new file.
pub(crate) fn forget_descriptor(socket: &'static Socket, fd: RawFd) {
    let registrations: Vec<RegistrationRef> = socket.lock().registrations(socket).collect();
    for registration in registrations {
        let Some(instance) = numbered(registration.channel) else {
            continue;
        };
        let mut state = instance.lock_interest();
        if state
            .find(registration.index, socket)
            .is_some_and(|found| found.fd() == fd)
        {
            state.remove(registration.index, socket);
            socket.lock().remove_registration(socket, registration);
        }
    }
}

/// Removes `registrations` of the socket from the interest lists of their epoll instances.
pub(crate) fn forget_registrations(socket: &'static Socket, registrations: Vec<RegistrationRef>) {
    for registration in registrations {
        if let Some(instance) = numbered(registration.channel) {
            instance.lock_interest().remove(registration.index, socket);
        }
    }
}
