//! Limit of pending Fast Open requests at a listener (RFC 7413 §5.1). A request is pending while
//! the application already has the flow (the connection), but the client's address is not yet
//! verified.

use std::collections::{BTreeMap, VecDeque};

use tidelane_flow::ListenerId;
use tidelane_time::{Duration, Instant};

use super::keys::FastOpenKeys;

/// Time for which a request that ended by a RST still counts towards the limit (RFC 7413 §5.1). The
/// owner of a spoofed address answers our SYN,ACK by a RST. Without this time, the RST would
/// immediately make room for the next spoofed SYN.
const RESET_HOLD: Duration = Duration::from_secs(60);

/// Number and limit of the pending Fast Open requests of one listener, and the listener's Fast Open
/// options.
#[derive(Debug, Default)]
pub struct Queue {
    /// Limit of the requests that count: the pending requests, and the requests that ended by a RST
    /// less than [`RESET_HOLD`] ago. Zero turns Fast Open off.
    max: u32,
    /// Number of pending requests.
    taken: u32,
    /// Requests whose connection ended by a RST before the handshake was complete: the times at
    /// which they stop counting.
    resets: VecDeque<Instant>,
    /// Cookie keys of this listener, or `None` for the keys of the engine.
    pub keys: Option<FastOpenKeys>,
    /// True if the listener accepts data without a cookie (TCP_FASTOPEN_NO_COOKIE).
    pub without_cookie: bool,
}

impl Queue {
    /// Sets the limit of the requests that count.
    pub fn set_max(&mut self, max: u32) {
        self.max = max;
    }

    /// Returns true if another request may be accepted.
    pub fn has_room(&mut self, now: Instant) -> bool {
        while self.resets.front().is_some_and(|until| *until <= now) {
            self.resets.pop_front();
        }
        self.taken + (self.resets.len() as u32) < self.max
    }

    /// Counts a new pending request.
    pub fn acquire(&mut self) {
        self.taken += 1;
    }

    /// Ends a pending request. `reset` is true if the connection ended by a RST from the client's
    /// address before the handshake was complete. The request then counts for `RESET_HOLD` longer.
    /// As in Linux, a request that ends in any other way stops counting immediately.
    pub fn release(&mut self, now: Instant, reset: bool) {
        self.taken = self.taken.saturating_sub(1);
        if reset {
            self.resets.push_back(now + RESET_HOLD);
        }
    }
}

/// Entries of all listeners with Fast Open.
#[derive(Debug, Default)]
pub struct Queues(BTreeMap<ListenerId, Queue>);

impl Queues {
    /// Returns the entry of a listener. Creates the entry if there is none.
    pub fn get_or_insert(&mut self, listener: ListenerId) -> &mut Queue {
        self.0.entry(listener).or_default()
    }

    /// Returns the entry of a listener, or `None` if the listener has none.
    pub fn get_mut(&mut self, listener: ListenerId) -> Option<&mut Queue> {
        self.0.get_mut(&listener)
    }

    /// Removes the entry of a listener.
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
        assert!(!queue.has_room(now), "room while the limit is zero");
        queue.set_max(2);
        queue.acquire();
        assert!(queue.has_room(now));
        queue.acquire();
        assert!(!queue.has_room(now));
        queue.release(now, false);
        assert!(queue.has_room(now));
        queue.release(now, true);
        assert!(
            queue.has_room(now),
            "the reset request fills more than one place"
        );
        queue.acquire();
        assert!(!queue.has_room(now + Duration::from_secs(59)));
        assert!(queue.has_room(now + Duration::from_secs(60)));
    }
}
