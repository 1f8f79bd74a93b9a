//! Periodic check of the age of TS.Recent in all flows (connections; RFC 7323 §5.5). PAWS must not
//! compare a segment with a TS.Recent that is older than 24 days: the peer's timestamp clock may
//! then have advanced by half of its range, so that the sign of the difference would be wrong.

use tidelane_flow::FlowId;
use tidelane_slowpath::TS_RECENT_CHECK_INTERVAL;
use tidelane_time::{Instant, TimerHandle};

use super::Engine;

/// Id of the check's entry in the timer wheel. No flow has this id.
pub(super) const TS_RECENT_CHECK: FlowId = FlowId(u32::MAX);

impl Engine {
    /// Starts the timer of the next check. The caller makes sure that a flow exists, so that the
    /// timer does not run without flows.
    pub(super) fn schedule_ts_recent_check(&mut self, now: Instant) {
        self.ts_recent_timer = self
            .wheel
            .insert(now + TS_RECENT_CHECK_INTERVAL, TS_RECENT_CHECK);
    }

    /// Records the time `now` for each flow on which a segment has arrived since the last check.
    /// PAWS computes the age of TS.Recent from the recorded time. Restarts the timer if flows
    /// exist.
    #[inline(never)]
    pub(super) fn update_ts_recent_ages(&mut self, now: Instant) {
        for (id, flow) in self.table.iter() {
            if let Some(Some(cold)) = self.connections.get_mut(id.index()) {
                cold.ts_recent_age.update(now, flow);
            }
        }
        self.ts_recent_timer = TimerHandle::NULL;
        if !self.table.is_empty() {
            self.schedule_ts_recent_check(now);
        }
    }
}
