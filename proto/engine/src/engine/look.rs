//! Which peers were heard lately: every few hours all flows are looked at (RFC 7323 §5.5).

use tidelane_flow::FlowId;
use tidelane_slowpath::HEARD_INTERVAL;
use tidelane_time::{Instant, TimerHandle};

use super::Engine;

/// Stands for no flow in the timer wheel.
pub(super) const LOOK: FlowId = FlowId(u32::MAX);

impl Engine {
    /// The first flow is there: looks begin.
    pub(super) fn schedule_look(&mut self, now: Instant) {
        self.look = self.wheel.insert(now + HEARD_INTERVAL, LOOK);
    }

    /// Notes which peers have said something since the last look.
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
