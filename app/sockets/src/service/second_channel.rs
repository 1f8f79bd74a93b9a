//! The second channel that an epoll instance may poll: the default channel.
//!
//! Each epoll instance has a channel: rings and a doorbell (an eventfd) that this process shares
//! with the service (the process `tidelaned`). Sockets in no epoll instance use the default
//! channel. A channel joins a listener so that the service delivers the listener's connections to
//! the channel.
//!
//! A program may call `poll` or `accept` on a listener before it adds the listener to an epoll
//! instance. In this case the default channel joins the listener first, and the channel of the
//! instance joins later. The service delivers connections to both channels. A thread that waits in
//! the epoll instance therefore sleeps on both doorbells.

use std::sync::atomic::Ordering;

use super::{channel::Channel, channels, session};
use crate::sys::SmallVec;

/// Makes the channels of epoll instances poll the default channel, too, if the default channel
/// joins the same listener. `channel` is about to join the listener. The channels `others` have
/// joined the listener before.
pub(crate) fn joined(channel: &'static Channel, others: &SmallVec<&'static Channel>) {
    let is_default = |channel: &'static Channel| {
        channels::existing_default().is_some_and(|default| std::ptr::eq(channel, default))
    };
    if others.iter().any(is_default) {
        channel.poll_second();
    }
    if is_default(channel) {
        others.iter().for_each(Channel::poll_second);
    }
}

impl Channel {
    /// Makes this channel poll the default channel, too. Connections of a listener that both
    /// channels joined may arrive at the default channel, on which perhaps no thread waits.
    fn poll_second(&self) {
        self.polls_second.store(true, Ordering::Relaxed);
    }

    /// Stops polling the default channel, because the epoll instance of this channel is closed.
    pub(crate) fn forget_second(&self) {
        self.polls_second.store(false, Ordering::Relaxed);
        self.second_doorbell_session.store(0, Ordering::Relaxed);
    }

    /// Returns the default channel if this channel has to poll it, too.
    #[inline]
    pub(crate) fn second(&self) -> Option<&'static Channel> {
        if !self.polls_second.load(Ordering::Relaxed) {
            return None;
        }
        let channel = channels::existing_default()?;
        (channel.is_active() && !std::ptr::eq(channel, self)).then_some(channel)
    }

    /// Announces a sleep to the default channel `other`, as `arm` does for this channel. Adds the
    /// doorbell of `other` to this channel's epoll instance, so that the doorbell ends the sleep in
    /// that instance.
    pub(crate) fn arm_second(&self, other: &'static Channel) -> bool {
        let generation = other.session();
        if self
            .second_doorbell_session
            .swap(generation, Ordering::Relaxed)
            != generation
            && let Some(session) = session::last()
            && other.register_doorbells(self.epfd(), session).is_err()
        {
            self.second_doorbell_session.store(0, Ordering::Relaxed);
        }
        other.arm()
    }
}
