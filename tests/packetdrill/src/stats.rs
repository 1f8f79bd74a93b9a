//! The times in `tcp_info`: last arrival, and the sender's limits (RFC 4898).

use tidelane_engine::{Duration, FlowId, Instant};

use crate::stack::Stack;

/// The limit of a sender, as in Linux' `tcp_chrono`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Limit {
    /// The sender has no data to send and none in flight.
    #[default]
    Idle,
    /// Congestion window or pacing.
    Path,
    /// Receive window of the peer.
    Window,
    /// Send buffer: all is sent, and the program waits to write more.
    Buffer,
}

/// Times of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Time of the last arrival of data, or the start of the connection.
    pub received_at: Instant,
    limit: Limit,
    since: Instant,
    path: Duration,
    window: Duration,
    buffer: Duration,
}

impl Stats {
    fn enter(&mut self, now: Instant, limit: Limit) {
        let spent = now.since(self.since);
        let total = match self.limit {
            Limit::Idle => None,
            Limit::Path => Some(&mut self.path),
            Limit::Window => Some(&mut self.window),
            Limit::Buffer => Some(&mut self.buffer),
        };
        if let Some(total) = total {
            *total += spent;
        }
        (self.since, self.limit) = (now, limit);
    }

    /// Returns the microseconds busy, limited by the peer's window, and limited by the send buffer.
    pub fn busy_us(&self, now: Instant) -> [u64; 3] {
        let mut at_now = *self;
        at_now.enter(now, self.limit);
        let all = at_now.path + at_now.window + at_now.buffer;
        [all, at_now.window, at_now.buffer].map(|span| span.0 / 1000)
    }
}

impl Stack {
    /// Updates the limit of `id` after a batch.
    pub(crate) fn note_limit(&mut self, id: FlowId) {
        let now = self.now();
        let Some(info) = self.flow_info(id) else {
            return;
        };
        let unsent = self.unsent_of(id);
        let room = info.snd_wnd.saturating_sub(info.flight_size);
        let waits = self.blocked_writers.contains(&id);
        let limit = match (unsent, info.flight_size) {
            (0, 0) => Limit::Idle,
            (0, _) if waits => Limit::Buffer,
            (0, _) => Limit::Path,
            (_, flight) if room < unsent.min(info.mss) && flight < info.cwnd => Limit::Window,
            _ => Limit::Path,
        };
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.stats.enter(now, limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_for_what_limited_it() {
        let at = Instant::from_millis;
        let mut stats = Stats::default();
        stats.enter(at(10), Limit::Path);
        stats.enter(at(15), Limit::Window);
        stats.enter(at(35), Limit::Idle);
        assert_eq!(stats.busy_us(at(99)), [25_000, 20_000, 0]);
        stats.enter(at(100), Limit::Buffer);
        assert_eq!(stats.busy_us(at(101)), [26_000, 20_000, 1000]);
    }
}
