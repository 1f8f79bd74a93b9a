//! Urgent data that programs write.

use tidelane_flow::{Clock, Env, FlowId, Misuse, State, flags};
use tidelane_slowpath::Slow;
use tidelane_time::Instant;

use super::Engine;

impl Engine {
    /// Bytes before stream position `tx_up` are urgent (SEND with URGENT, RFC 9293 §3.10.2; `send`
    /// with MSG_OOB): segments say so until they are acknowledged. They may be written after this
    /// call, so that none of them is sent without the pointer.
    ///
    /// `Err`, and nothing else, if they are acknowledged already, or farther ahead than a program
    /// may write.
    pub fn tx_urgent(
        &mut self,
        now: Instant,
        id: FlowId,
        tx_up: u32,
        env: &mut impl Env,
    ) -> Result<(), Misuse> {
        let clock = Clock::at(now);
        let Some(mut slow) = slow!(self, id, clock, env) else {
            return Err(Misuse::NoFlow);
        };
        let ahead = tx_up.wrapping_sub(slow.hot.tx_acked());
        if ahead == 0 || ahead > slow.config.tx_limit {
            slow.counters.misuses += 1;
            return Err(Misuse::Urgent);
        }
        if slow.hot.state != State::Closed && !slow.hot.has(flags::FIN_SENT) {
            slow.write_urgent(tx_up);
            self.mark(id);
        }
        Ok(())
    }
}
