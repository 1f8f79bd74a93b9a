//! Events of a lane, sorted to sockets and ready lists.
//!
//! ```text
//! lane's events -> drain -> socket's registrations -> ready list -> harvest -> program
//! ```

use tidelane_client::ClientEvent;

use super::{instance::Instance, interest::Interest, wake};
use crate::{
    service::session,
    socket::{arrive, registry},
    sys::Guard,
};

impl Instance {
    /// Takes what the service reported. Returns true if there was anything.
    pub(crate) fn pump(&self) -> bool {
        let mut state = self.state();
        let news = self.drain(&mut state);
        self.finish(state);
        news
    }

    /// As `pump`, for the lane beside this one, if there is one.
    #[inline]
    pub(crate) fn pump_beside(&self) {
        if let Some(lane) = self.lane().beside() {
            Instance::of(lane).pump();
        }
    }

    /// Flushes, takes events off the ring and sorts them to sockets and ready lists.
    #[inline]
    pub(crate) fn drain(&self, state: &mut Interest) -> bool {
        let session = self.lane().take_events(|event| match event {
            ClientEvent::Ready { slot } => {
                if let Some(socket) = registry::of_slot(slot) {
                    wake::note(state, self.lane(), socket);
                }
            }
            // These take locks that come before the ring's.
            other => state.arrivals.push(other),
        });
        let Some(session) = session else {
            return false;
        };
        if !state.arrivals.is_empty() {
            self.dispatch(state, session);
        }
        true
    }

    #[cold]
    fn dispatch(&self, state: &mut Interest, session: u32) {
        let mut arrivals = std::mem::take(&mut state.arrivals);
        for event in arrivals.drain(..) {
            if let Some(socket) = arrive::control_event(self.lane(), session, event) {
                wake::note(state, self.lane(), socket);
            }
        }
        state.arrivals = arrivals;
    }

    /// Ends work on the registrations: wakes whom the news concern.
    #[inline]
    pub(crate) fn finish(&self, state: Guard<'_, Interest>) {
        wake::settle(state, self.lane());
    }

    /// If the service died: every registered socket has an event.
    pub(crate) fn tell_death(&self, state: &mut Interest) {
        let gone = session::last_gone();
        if state.death_told >= gone {
            return;
        }
        state.death_told = gone;
        let registered: Vec<u32> = state.registered().map(|(index, _)| index).collect();
        for index in registered {
            state.push_ready(index);
        }
        state.wake = true;
    }
}
