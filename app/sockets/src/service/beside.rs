//! The second ring that an epoll instance's lane looks at: the default lane's.
//!
//! A program that asks for a connection before any epoll instance has its listener joins the
//! default lane. When the listener comes into an epoll instance, that lane joins, too, and the
//! service gives each of both its share. A thread that waits in the epoll instance therefore sleeps
//! on both doorbells.

use std::sync::atomic::Ordering;

use super::{lane::Lane, lanes, session};
use crate::sys::Few;

/// A lane joins a listener beside others: if the default one is among them, the others look there.
pub(crate) fn joined(lane: &'static Lane, others: &Few<&'static Lane>) {
    let is_default = |lane: &'static Lane| {
        lanes::made_default().is_some_and(|default| std::ptr::eq(lane, default))
    };
    if others.iter().any(is_default) {
        lane.look_beside();
    }
    if is_default(lane) {
        others.iter().for_each(Lane::look_beside);
    }
}

impl Lane {
    /// Connections of a listener that this epoll instance has come to the default lane, too, where
    /// nobody may look: whoever waits here looks there.
    fn look_beside(&self) {
        self.beside.store(true, Ordering::Relaxed);
    }

    /// The epoll instance is gone, or another one uses the lane.
    pub(crate) fn forget_beside(&self) {
        self.beside.store(false, Ordering::Relaxed);
        self.beside_session.store(0, Ordering::Relaxed);
    }

    /// The default lane, if events for this epoll instance come there.
    #[inline]
    pub(crate) fn beside(&self) -> Option<&'static Lane> {
        if !self.beside.load(Ordering::Relaxed) {
            return None;
        }
        let lane = lanes::made_default()?;
        (lane.is_active() && !std::ptr::eq(lane, self)).then_some(lane)
    }

    /// As `arm`, on another lane, whose doorbell is to end the sleep in this epoll instance.
    pub(crate) fn arm_beside(&self, other: &'static Lane) -> bool {
        let generation = other.session();
        if self.beside_session.swap(generation, Ordering::Relaxed) != generation
            && let Some(session) = session::last()
            && other.register_doorbells(self.epfd(), session).is_err()
        {
            self.beside_session.store(0, Ordering::Relaxed);
        }
        other.arm()
    }
}
