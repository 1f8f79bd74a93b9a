//! The SEND request with the URGENT flag.

use tidelane_flow::{Clock, Driver, FlowId, Misuse, State, flags};
use tidelane_slowpath::SlowPath;
use tidelane_time::Instant;

use super::Engine;

impl Engine {
    /// Marks the bytes of the flow (connection) `id` before stream position `tx_up` as urgent (SEND
    /// with URGENT, RFC 9293 §3.10.2; `send` with MSG_OOB). Stream position 0 is the first byte
    /// that the application writes. Segments carry the urgent pointer until the urgent bytes are
    /// acknowledged. The driver (the program that runs the engine) may call this function before it
    /// writes the urgent bytes, so that no segment carries urgent bytes without the pointer.
    ///
    /// Returns an error, and leaves the flow unchanged, if the flow does not exist, if the bytes
    /// before `tx_up` are already acknowledged, or if `tx_up` is more than `tx_limit` bytes after
    /// the acknowledged bytes. Returns no error but has no effect if the flow is in CLOSED or has
    /// sent its FIN.
    pub fn tx_urgent(
        &mut self,
        now: Instant,
        id: FlowId,
        tx_up: u32,
        driver: &mut impl Driver,
    ) -> Result<(), Misuse> {
        let clock = Clock::at(now);
        let Some(mut slow) = slow_path!(self, id, clock, driver) else {
            return Err(Misuse::NoFlow);
        };
        let ahead = tx_up.wrapping_sub(slow.hot.tx_acked());
        if ahead == 0 || ahead > slow.config.tx_limit {
            slow.counters.misuses += 1;
            return Err(Misuse::Urgent);
        }
        if slow.hot.state != State::Closed && !slow.hot.has(flags::FIN_SENT) {
            slow.write_urgent(tx_up);
            self.set_pending(id);
        }
        Ok(())
    }
}
