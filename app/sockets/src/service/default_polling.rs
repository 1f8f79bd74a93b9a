//! Polling of the default channel: a thread that waits in an epoll instance may have to check the
//! rings of this channel, too.
//!
//! A channel consists of rings and a doorbell (an eventfd) that this process shares with the
//! service (the process `tidelaned`). Each epoll instance has its own channel, and sockets in no
//! epoll instance use the default channel. A channel joins a listener by a request to the service.
//! The service then delivers each connection of the listener to one of the channels that joined.
//!
//! A program may call `poll` or `accept` on a listener before it adds the listener to an epoll
//! instance. Then the default channel joins the listener first, and the channel of the instance
//! joins later. The service delivers each connection to one of the two channels. A thread that
//! waits in the epoll instance therefore polls the rings of both channels, and sleeps until one of
//! the two doorbells rings.

use std::sync::atomic::Ordering;

use super::{channel::Channel, channels, session};
use crate::sys::SmallVec;

/// Decides which channels also poll the default channel, when `channel` joins a listener. The
/// channels `others` have already joined the listener. If the default channel is among `others`,
/// `channel` polls the default channel from now on. If `channel` is the default channel, all
/// `others` poll it from now on.
pub(crate) fn joined(channel: &'static Channel, others: &SmallVec<&'static Channel>) {
    let is_default = |channel: &'static Channel| {
        channels::existing_default().is_some_and(|default| std::ptr::eq(channel, default))
    };
    if others.iter().any(is_default) {
        channel.poll_default();
    }
    if is_default(channel) {
        others.iter().for_each(Channel::poll_default);
    }
}

impl Channel {
    /// Makes the threads of this channel also poll the default channel. If both channels have
    /// joined a listener, a connection may arrive at the default channel while no thread waits
    /// there.
    fn poll_default(&self) {
        self.polls_default.store(true, Ordering::Relaxed);
    }

    /// Stops polling the default channel, because the epoll instance of this channel is closed.
    pub(crate) fn stop_polling_default(&self) {
        self.polls_default.store(false, Ordering::Relaxed);
        self.default_doorbell_session.store(0, Ordering::Relaxed);
    }

    /// Returns the default channel if the threads of this channel have to poll it, and if the
    /// default channel already has rings. Otherwise returns `None`, in particular for the default
    /// channel itself.
    #[inline]
    pub(crate) fn default_to_poll(&self) -> Option<&'static Channel> {
        if !self.polls_default.load(Ordering::Relaxed) {
            return None;
        }
        let channel = channels::existing_default()?;
        (channel.is_active() && !std::ptr::eq(channel, self)).then_some(channel)
    }

    /// Announces the sleep of a thread to the default channel `other`, so that the service rings
    /// the doorbell of `other` when events arrive. Returns false if the thread must not sleep,
    /// mostly because events are pending ([`Channel::arm`]).
    ///
    /// The thread sleeps in this channel's epoll instance. Therefore, this function adds the
    /// doorbell of `other` to this instance, once for each session (registration of this process
    /// with the service).
    pub(crate) fn arm_default(&self, other: &'static Channel) -> bool {
        self.register_default(other);
        other.arm()
    }

    /// Does the same as [`arm_default`](Self::arm_default) for a thread that sleeps in an outer
    /// epoll instance, which contains the instance of this channel.
    pub(crate) fn arm_default_from_outer(&self, other: &'static Channel) -> bool {
        self.register_default(other);
        other.arm_from_outer()
    }

    /// Adds the doorbell of the default channel `other` to the epoll instance of this channel, once
    /// for each session.
    fn register_default(&self, other: &'static Channel) {
        let generation = other.session();
        if self
            .default_doorbell_session
            .swap(generation, Ordering::Relaxed)
            != generation
            && let Some(session) = session::last()
            && other.register_doorbells(self.epfd(), session).is_err()
        {
            self.default_doorbell_session.store(0, Ordering::Relaxed);
        }
    }
}
