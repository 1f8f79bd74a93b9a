//! The time for which the send buffer limits a program (`tcpi_sndbuf_limited` of `tcp_info`).

use tidelane_engine::{Duration, FlowId, Instant};

use crate::stack::Stack;

/// The time for which the send buffer has limited the program of one flow (connection).
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Time of the most recent update in the present wait (a period in which the send buffer limits
    /// the program). `None` outside of a wait.
    waits_since: Option<Instant>,
    /// Total duration of all waits up to the most recent update.
    waited: Duration,
}

impl Stats {
    /// Adds the time since the previous update if a wait is under way. If `waits` is true, a wait
    /// then starts or continues. Otherwise the wait ends.
    fn set_waiting(&mut self, now: Instant, waits: bool) {
        if let Some(since) = self.waits_since {
            self.waited += now.since(since);
        }
        self.waits_since = waits.then_some(now);
    }

    /// Returns the total duration of all waits up to `now`, in microseconds.
    pub fn buffer_limited_us(&self, now: Instant) -> u64 {
        let mut at_now = *self;
        at_now.set_waiting(now, false);
        at_now.waited.0 / 1000
    }
}

impl Stack {
    /// Updates the [`Stats`] of the flow `id`. The send buffer limits the program while three
    /// conditions hold: a write that did not fit completely waits for space, bytes are in flight,
    /// and no written byte is unsent.
    pub(crate) fn update_buffer_limited_time(&mut self, id: FlowId) {
        let now = self.now();
        let Some(info) = self.flow_info(id) else {
            return;
        };
        let all_sent = self.unsent_of(id) == 0 && info.flight_size > 0;
        let waits = all_sent && self.blocked_writers.contains(&id);
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.stats.set_waiting(now, waits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_time_counts() {
        let at = Instant::from_millis;
        let mut stats = Stats::default();
        stats.set_waiting(at(10), true);
        stats.set_waiting(at(15), true);
        stats.set_waiting(at(35), false);
        assert_eq!(stats.buffer_limited_us(at(99)), 25_000);
        stats.set_waiting(at(100), true);
        assert_eq!(stats.buffer_limited_us(at(101)), 26_000);
    }
}
