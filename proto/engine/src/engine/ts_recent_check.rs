//! Periodic check of the age of TS.Recent in all flows (RFC 7323 §5.5). PAWS must not reject a
//! segment because of a TS.Recent that is older than 24 days: the peer's timestamp clock may have
//! wrapped since.

use tidelane_flow::FlowId;
use tidelane_slowpath::TS_RECENT_CHECK_INTERVAL;
use tidelane_time::{Instant, TimerHandle};

use super::Engine;

/// Id of the check's entry in the timer wheel. No flow has this id.
pub(super) const TS_RECENT_CHECK: FlowId = FlowId(u32::MAX);

impl Engine {
    /// Starts the timer of the next check. Without flows, the timer does not run.
    pub(super) fn schedule_ts_recent_check(&mut self, now: Instant) {
        self.ts_recent_timer = self
            .wheel
            .insert(now + TS_RECENT_CHECK_INTERVAL, TS_RECENT_CHECK);
    }

    /// Records for each flow if a segment has arrived since the last check, and restarts the timer
    /// if flows exist. PAWS computes the age of TS.Recent from this record.
    #[inline(never)]
    pub(super) fn check_ts_recent_ages(&mut self, now: Instant) {
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
