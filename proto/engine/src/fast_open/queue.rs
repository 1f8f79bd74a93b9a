//! How many Fast Open requests may be pending at a listener (RFC 7413 §5.1): flows that the program
//! has before their client has shown that it is where it says.

use std::collections::{BTreeMap, VecDeque};

use tidelane_flow::ListenerId;
use tidelane_time::{Duration, Instant};

use super::keys::FastOpenKeys;

/// How long the place of one that was reset stays taken. The owner of a forged address resets what
/// it did not ask for: without this a forger could keep any number of programs busy.
const RESET_LASTS: Duration = Duration::from_secs(60);

/// Fast Open at one listener.
#[derive(Debug, Default)]
pub struct Queue {
    /// Places.
    max: u32,
    /// Those of them that are taken.
    taken: u32,
    /// Until when the places of those that were reset stay taken.
    resets: VecDeque<Instant>,
    /// Keys of its own.
    pub keys: Option<FastOpenKeys>,
    /// It asks for no cookie: TCP_FASTOPEN_NO_COOKIE.
    pub without_cookie: bool,
}

impl Queue {
    /// Changes the number of places.
    pub fn set_max(&mut self, max: u32) {
        self.max = max;
    }

    /// Whether there is a place for another request.
    pub fn has_room(&mut self, now: Instant) -> bool {
        while self.resets.front().is_some_and(|until| *until <= now) {
            self.resets.pop_front();
        }
        self.taken + (self.resets.len() as u32) < self.max
    }

    /// A request takes a place.
    pub fn take(&mut self) {
        self.taken += 1;
    }

    /// It is over; whether by a reset.
    pub fn give_back(&mut self, now: Instant, reset: bool) {
        self.taken = self.taken.saturating_sub(1);
        if reset {
            self.resets.push_back(now + RESET_LASTS);
        }
    }
}

/// Those of all listeners that have something to do with Fast Open.
#[derive(Debug, Default)]
pub struct Queues(BTreeMap<ListenerId, Queue>);

impl Queues {
    /// The one of this listener, made if it is new.
    pub fn of(&mut self, listener: ListenerId) -> &mut Queue {
        self.0.entry(listener).or_default()
    }

    /// The one of this listener, if it has anything to do with Fast Open.
    pub fn get_mut(&mut self, listener: ListenerId) -> Option<&mut Queue> {
        self.0.get_mut(&listener)
    }

    /// The listener ends.
    pub fn remove(&mut self, listener: ListenerId) {
        self.0.remove(&listener);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7413_section_5_1_pending_requests_are_bounded_and_resets_count_for_a_minute() {
        let mut queue = Queue::default();
        let now = Instant(1_000_000_000);
        assert!(!queue.has_room(now), "none without places");
        queue.set_max(2);
        queue.take();
        assert!(queue.has_room(now));
        queue.take();
        assert!(!queue.has_room(now));
        queue.give_back(now, false);
        assert!(queue.has_room(now));
        queue.give_back(now, true);
        assert!(queue.has_room(now), "one is free, one reset");
        queue.take();
        assert!(!queue.has_room(now + Duration::from_secs(59)));
        assert!(queue.has_room(now + Duration::from_secs(60)));
    }
}
