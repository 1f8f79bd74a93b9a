//! What an epoll instance's lane looks at besides its own ring.
//!
//! A program that asks for a connection before any epoll instance has its listener joins the
//! default lane. When the listener comes into an epoll instance, that lane joins, too, and the
//! service gives each of both its share. A thread that waits in the epoll instance therefore sleeps
//! on both doorbells.

use std::sync::atomic::Ordering;

use super::{DEFAULT, Lane};
use crate::{few::Few, session};

/// Returns true if the default lane is one of `lanes`.
pub(crate) fn is_default_among(lanes: &Few<&'static Lane>) -> bool {
    lanes.iter().any(|lane| DEFAULT.is(lane))
}

impl Lane {
    /// Connections of a listener that this epoll instance has come to the default lane, too, where
    /// nobody may look: whoever waits here looks there.
    pub(crate) fn look_beside(&self) {
        self.beside.store(true, Ordering::Relaxed);
    }

    /// The default lane, if events for this epoll instance come there.
    #[inline]
    pub(crate) fn beside(&self) -> Option<&'static Lane> {
        if !self.beside.load(Ordering::Relaxed) {
            return None;
        }
        let lane = DEFAULT.load()?;
        (lane.is_active() && !std::ptr::eq(lane, self)).then_some(lane)
    }

    /// A socket of ours is registered with EPOLLONESHOT in the kernel's epoll instance.
    pub(crate) fn expect_kernel_one_shots(&self) {
        self.kernel_one_shots.store(true, Ordering::Relaxed);
    }

    /// Returns true if the kernel may have disabled a registration of a socket of ours.
    pub(crate) fn has_kernel_one_shots(&self) -> bool {
        self.kernel_one_shots.load(Ordering::Relaxed)
    }

    /// Takes what the service reported to the lane beside this one.
    #[inline]
    pub(crate) fn pump_beside(&self) {
        if let Some(lane) = self.beside() {
            lane.pump();
        }
    }

    /// As `arm`, on another lane, whose doorbell is to end the sleep in this epoll instance.
    pub(crate) fn arm_beside(&self, other: &'static Lane) -> bool {
        let generation = other.ring.lock().session;
        if self.beside_session.swap(generation, Ordering::Relaxed) != generation
            && let Some(session) = session::last()
            && other.register_doorbells(self.epfd(), session).is_err()
        {
            self.beside_session.store(0, Ordering::Relaxed);
        }
        other.arm()
    }
}
