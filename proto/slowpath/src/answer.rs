//! Answers to segments that mean nothing here: bounded, so that neither two ends that disagree nor
//! a forger can make a flow talk without end (RFC 5961 §10).

use tidelane_flow::{Env, flags};
use tidelane_wire::{DropReason, Segment, TcpFlags};

use crate::{Slow, arrive::Step};

/// One answer per flow in this many ms (Linux: `tcp_invalid_ratelimit`). A limit per flow tells a
/// forger nothing about other flows; one for all of them did (CVE-2016-5696).
pub const ANSWER_INTERVAL_MS: u32 = 500;

/// Whether answers to `segment` are counted: text may have been sent in good faith, and answering
/// it ends what is wrong.
pub fn is_limited(segment: &Segment<'_>) -> bool {
    segment.len() == 0 || segment.flags.contains(TcpFlags::SYN)
}

impl<E: Env> Slow<'_, E> {
    /// Whether the flow may answer one more such segment now.
    pub(crate) fn may_answer(&mut self) -> bool {
        let since = self.clock.ms.0.wrapping_sub(self.cold.answered_at.0);
        if since < ANSWER_INTERVAL_MS {
            self.counters.drops[DropReason::RateLimited.index()] += 1;
            return false;
        }
        self.cold.answered_at = self.clock.ms;
        true
    }

    /// What is not acceptable is answered by an ACK (RFC 9293 §3.10.7.4).
    pub(crate) fn answer_unacceptable(&mut self, segment: &Segment<'_>) {
        if !is_limited(segment) || self.may_answer() {
            self.hot.set(flags::ACK_NOW | flags::ACK_OWED);
        }
    }

    /// A challenge ACK (RFC 5961 §3.2, §4.2, §5.2), within the flow's allowance and that of all
    /// flows in this second (§7).
    pub fn challenge_ack(&mut self) {
        if !self.may_answer() {
            return;
        }
        if *self.challenges == 0 {
            self.counters.drops[DropReason::RateLimited.index()] += 1;
            return;
        }
        *self.challenges -= 1;
        self.counters.challenge_acks += 1;
        // One that finds no frame is lost, as any may be.
        let _ = self.send_ack();
    }

    /// The acknowledgment that would complete the handshake counts for nothing while the listener's
    /// accept queue is full, and nor does its text. As in Linux (`tcp_check_req`), SYN,ACK's timer
    /// runs on, and whatever the peer sends next asks again.
    pub(crate) fn check_accept_queue(&mut self) -> Step {
        if !self.cold.accept_queue_full {
            return Ok(());
        }
        self.counters.listen_overflows += 1;
        self.counters.listen_drops += 1;
        self.drop(DropReason::AcceptQueueFull)
    }

    /// RST in answer to `segment` (RFC 9293 §3.10.7.1).
    pub fn reset_for(&mut self, segment: &Segment<'_>, key: tidelane_wire::FlowKey) {
        if let Some(out) = crate::reset_reply(segment, key, self.hot.link) {
            self.counters.out_rsts += 1;
            let _ = self.env.transmit(&out);
        }
    }
}
