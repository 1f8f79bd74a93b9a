//! The context of a channel: the rings and the doorbell that this process shares with the service
//! (the process `tidelaned`). The doorbell is an eventfd by which the service wakes threads that
//! sleep on the channel. A session is a registration of this process with the service.

use std::os::fd::RawFd;

use tidelane_client::{ClientEvent, Context};

use super::session;
use crate::sys;

/// The context of a channel, and the state that belongs to the context. The lock `Channel::ring`
/// protects both.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// The rings and the doorbell. `None` until `Channel::activate` creates them.
    pub(super) context: Option<Context>,
    /// Number of the session that the context belongs to, or 0 without a context.
    pub(super) session: u32,
    /// Number of changes, such as new write positions, that `Channel::submit` has queued since
    /// `submit` last published changes. Other functions that publish changes do not reset this
    /// number.
    pub(super) unflushed: u32,
    /// A duplicate of the previous session's doorbell. Threads that still sleep on that doorbell
    /// are woken through the duplicate.
    pub(super) retired: Option<RawFd>,
}

impl Ring {
    /// Keeps a duplicate of `doorbell`, the previous session's doorbell. Keeps none if `doorbell`
    /// is -1. Closes the duplicate from an earlier call. The caller then drops the old context,
    /// which closes the doorbell itself.
    pub(super) fn retire(&mut self, doorbell: RawFd) {
        if let Some(before) = self.retired.take() {
            session::close_internal(before);
        }
        if doorbell >= 0 {
            let copy = sys::fcntl(doorbell, libc::F_DUPFD_CLOEXEC, 0);
            self.retired = copy.ok().map(|fd| session::make_internal(fd as RawFd));
        }
    }

    /// Publishes queued requests, and asks the service to ring the doorbell at the next event.
    /// Returns true if the thread may sleep.
    ///
    /// If the service of this channel's session is gone and no events are pending, the thread may
    /// also sleep, because the kernel's events still arrive. The check uses the session of this
    /// channel, not the newest session of the process: another thread may already have registered
    /// the process with the next service.
    pub(super) fn prepare_to_sleep(&mut self) -> bool {
        let is_gone = self.session <= session::last_gone();
        let Some(context) = &mut self.context else {
            return true;
        };
        context.prepare_to_sleep() || (is_gone && !context.has_events())
    }

    /// Implements [`Channel::take_events`](super::Channel::take_events).
    #[inline]
    pub(super) fn take_events(&mut self, mut each: impl FnMut(ClientEvent)) -> Option<u32> {
        let context = self.context.as_mut()?;
        if context.has_queued() {
            context.flush();
        }
        if !context.has_events() {
            return None;
        }
        context.poll(&mut each);
        Some(self.session)
    }

    /// Returns true if events are pending.
    pub(super) fn has_events(&self) -> bool {
        self.context.as_ref().is_some_and(Context::has_events)
    }
}
