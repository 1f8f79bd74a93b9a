//! Checks the events of the embedded stack. If a call had to wait, the stack must report an event
//! as soon as the call can succeed. Without the event, a program that waits for events instead of
//! trying again would wait forever.

use tidelane_embedded::Event;

/// A call that can wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// `accept` waits for [`Event::Incoming`].
    Accept,
    /// `connect` waits for [`Event::Connected`].
    Connect,
    /// `recv` waits for [`Event::Readable`].
    Read,
    /// `send` waits for [`Event::Writable`].
    Write,
}

/// The calls on a socket that had to wait, and whose event has not arrived.
#[derive(Clone, Debug, Default)]
pub struct Waits(Vec<Wait>);

impl Waits {
    /// Records that a call has to wait.
    pub fn begin(&mut self, wait: Wait) {
        if !self.0.contains(&wait) {
            self.0.push(wait);
        }
    }

    /// Ends the wait for an event that has arrived. [`Event::Closed`] ends all waits.
    pub fn on_event(&mut self, event: &Event) {
        let wait = match event {
            Event::Incoming(_) => Wait::Accept,
            Event::Connected(_) => Wait::Connect,
            Event::Readable(_) => Wait::Read,
            Event::Writable(_) => Wait::Write,
            Event::Urgent(_) => return,
            Event::Closed(..) => return self.0.clear(),
        };
        self.0.retain(|waiting| *waiting != wait);
    }

    /// Ends a wait without an event, because the program itself has changed the state.
    pub fn cancel(&mut self, wait: Wait) {
        self.0.retain(|waiting| *waiting != wait);
    }

    /// Checks a call that did not have to wait. If an earlier call of the same kind had to wait,
    /// the event of the earlier call must have arrived.
    ///
    /// # Panics
    ///
    /// If an earlier call of this kind had to wait, and its event has not arrived.
    pub fn end(&self, wait: Wait) {
        assert!(!self.0.contains(&wait), "{wait:?}: no event came");
    }
}
