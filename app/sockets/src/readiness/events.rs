//! Distribution of a channel's events to sockets and ready lists. A channel contains the rings over
//! which the service (the process `tidelaned`) reports events of accelerated sockets. The ready
//! list of an epoll instance contains the registrations that the next wait checks. A slot is the
//! record of one connection in memory that this process shares with the service.
//!
//! ```text
//! channel's events -> drain -> socket's registrations -> ready list -> take_ready -> program
//! ```

use tidelane_client::ClientEvent;

use super::{instance::Instance, interest::Interest, wake};
use crate::{
    service::session,
    socket::{arrive, registry},
    sys::Guard,
};

impl Instance {
    /// Processes the pending events of the service. Returns true if events were pending.
    pub(crate) fn pump(&self) -> bool {
        let mut state = self.lock_interest();
        let found = self.drain(&mut state);
        self.finish(state);
        found
    }

    /// Processes the pending events of the default channel if this instance polls it, too. The
    /// default channel serves the sockets that are in no epoll instance.
    #[inline]
    pub(crate) fn pump_default(&self) {
        if let Some(channel) = self.channel().default_to_poll() {
            Instance::of(channel).pump();
        }
    }

    /// Publishes queued requests, takes the events off the rings, and distributes the events to
    /// sockets and ready lists. Returns true if events were pending.
    #[inline]
    pub(crate) fn drain(&self, state: &mut Interest) -> bool {
        let session = self.channel().take_events(|event| match event {
            ClientEvent::Ready { slot } => {
                if let Some(socket) = registry::of_slot(slot) {
                    wake::record_event(state, self.channel(), socket);
                }
            }
            // Most other events are about new connections. The handlers of these events take a
            // socket's lock, which precedes the ring's lock in the lock order. Keep the event until
            // the ring's lock is free.
            other => state.control_events.push(other),
        });
        let Some(session) = session else {
            return false;
        };
        if !state.control_events.is_empty() {
            self.dispatch(state, session);
        }
        true
    }

    /// Processes the events about new connections, and puts their sockets into the ready lists.
    #[cold]
    fn dispatch(&self, state: &mut Interest, session: u32) {
        let mut control_events = std::mem::take(&mut state.control_events);
        for event in control_events.drain(..) {
            if let Some(socket) = arrive::control_event(self.channel(), session, event) {
                wake::record_event(state, self.channel(), socket);
            }
        }
        state.control_events = control_events;
    }

    /// Unlocks the interest list, and wakes the threads that wait for the events that `drain` has
    /// found.
    #[inline]
    pub(crate) fn finish(&self, state: Guard<'_, Interest>) {
        wake::finish(state, self.channel());
    }

    /// Puts all registered sockets into the ready list, once after each death of the service. The
    /// death ends all connections, and the next wait has to report their ends.
    pub(crate) fn report_service_death(&self, state: &mut Interest) {
        let gone = session::last_gone();
        if state.reported_death >= gone {
            return;
        }
        state.reported_death = gone;
        let registered: Vec<u32> = state.registered().map(|(index, _)| index).collect();
        for index in registered {
            state.push_ready(index);
        }
        state.wake = true;
    }
}
