//! Polling of the default channel: an epoll instance may have to poll it besides its own channel.
//!
//! A channel consists of rings and a doorbell (an eventfd) that this process shares with the
//! service (the process `tidelaned`). Each epoll instance has its own channel, and sockets in no
//! epoll instance use the default channel. The service delivers the connections of a listener to
//! the channels that have joined the listener.
//!
//! A program may call `poll` or `accept` on a listener before it adds the listener to an epoll
//! instance. Then the default channel joins the listener first, and the channel of the instance
//! joins later. The service delivers each connection to one of the two channels. A thread that
//! waits in the epoll instance therefore polls the rings of both channels, and sleeps until one of
//! the two doorbells rings.

use std::sync::atomic::Ordering;

use super::{channel::Channel, channels, session};
use crate::sys::SmallVec;

/// Decides which channels poll the default channel, too, after `channel` has joined a listener that
/// the channels `others` had joined before. If the default channel is among `others`, `channel`
/// polls it from now on. If `channel` is the default channel, all `others` poll it from now on.
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
    /// Makes this channel also poll the default channel. A connection of a listener that both
    /// channels joined may arrive at the default channel while no thread waits there.
    fn poll_default(&self) {
        self.polls_default.store(true, Ordering::Relaxed);
    }

    /// Stops polling the default channel, because the epoll instance of this channel is closed.
    pub(crate) fn stop_polling_default(&self) {
        self.polls_default.store(false, Ordering::Relaxed);
        self.default_doorbell_session.store(0, Ordering::Relaxed);
    }

    /// Returns the default channel if this channel also has to poll the default channel. Returns
    /// `None` if there is no default channel, or if the default channel has no rings yet.
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

    /// Like [`arm_default`](Self::arm_default), for a sleep in an epoll instance that contains the
    /// instance of this channel.
    pub(crate) fn arm_default_from_outer(&self, other: &'static Channel) -> bool {
        self.register_default(other);
        other.arm_from_outer()
    }

    /// Adds the doorbell of the default channel `other` to the epoll instance of this channel.
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
