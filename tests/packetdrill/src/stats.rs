//! The time in which the send buffer limits a program (RFC 4898), for `tcp_info`.

use tidelane_engine::{Duration, FlowId, Instant};

use crate::stack::Stack;

/// Times of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Start of the present time in which all data is sent and the program waits to write more.
    waits_since: Option<Instant>,
    waited: Duration,
}

impl Stats {
    fn set_waiting(&mut self, now: Instant, waits: bool) {
        if let Some(since) = self.waits_since {
            self.waited += now.since(since);
        }
        self.waits_since = waits.then_some(now);
    }

    /// Returns the microseconds in which the send buffer limited the program (Linux:
    /// `tcpi_sndbuf_limited`).
    pub fn buffer_limited_us(&self, now: Instant) -> u64 {
        let mut at_now = *self;
        at_now.set_waiting(now, false);
        at_now.waited.0 / 1000
    }
}

impl Stack {
    /// Updates the times of `id` after a batch.
    pub(crate) fn note_limit(&mut self, id: FlowId) {
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
