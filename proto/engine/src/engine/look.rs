//! Periodic check of all flows for the age of TS.Recent (RFC 7323 §5.5).

use tidelane_flow::FlowId;
use tidelane_slowpath::HEARD_INTERVAL;
use tidelane_time::{Instant, TimerHandle};

use super::Engine;

/// Marks the check's entry in the timer wheel; no flow has this id.
pub(super) const LOOK: FlowId = FlowId(u32::MAX);

impl Engine {
    /// Starts the timer of the next check, once there is a flow.
    pub(super) fn schedule_look(&mut self, now: Instant) {
        self.look = self.wheel.insert(now + HEARD_INTERVAL, LOOK);
    }

    /// Records for each flow if a segment has arrived since the last check.
    #[inline(never)]
    pub(super) fn look_who_was_heard(&mut self, now: Instant) {
        for (id, flow) in self.table.iter() {
            if let Some(Some(cold)) = self.connections.get_mut(id.index()) {
                cold.heard.look(now, flow);
            }
        }
        self.look = TimerHandle::NULL;
        if !self.table.is_empty() {
            self.schedule_look(now);
        }
    }
}
