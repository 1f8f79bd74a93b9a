//! The calls of the driver about the operator's rules.

use tidelane_engine::FlowId;
use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;

use super::Host;
use crate::{
    admission::is_denied,
    rules::{Direction, RuleSet},
    stack::Stack,
};

impl<P: PacketIo> Host<P> {
    /// Replaces the rules, and resets the connections that the new rules deny. Returns the number
    /// of resets.
    pub fn set_rules(&mut self, now: Instant, rules: RuleSet) -> usize {
        self.stack.io.now = now;
        self.stack.io.rules = rules;
        self.input.mux_mut().rules_have_changed();
        if self.stack.io.rules.accepts_all() {
            return 0;
        }
        let Stack { engine, io } = &mut self.stack;
        let is_denied = |flow: &FlowId| {
            let (info, binding) = (engine.info(*flow)?, io.bindings.get(*flow)?);
            let direction = match info.listener {
                Some(_) => Direction::In,
                None => Direction::Out,
            };
            let owner = binding.owner.as_deref();
            Some(is_denied(&io.rules, direction, &info.key, owner))
        };
        let denied = engine.flows().filter(|flow| is_denied(flow) == Some(true));
        let denied: Vec<FlowId> = denied.collect();
        for flow in &denied {
            self.stack.abort(now, *flow);
        }
        denied.len()
    }

    /// Returns the number of decisions of each rule; see [`RuleSet::hits`].
    pub fn rule_hits(&self) -> Vec<u64> {
        self.stack.io.rules.hits()
    }
}
