//! Answers to segments that do not advance the flow (the connection), and their rate limit. Without
//! the limit, two ends that disagree would answer each other endlessly, and an attacker could
//! elicit any number of ACKs (RFC 5961 §7).

use tidelane_flow::{Driver, flags};
use tidelane_wire::{DropReason, Segment, TcpFlags};

use crate::{SlowPath, arrive::Step};

/// Least time between two rate-limited answers of a flow, in ms (Linux: `tcp_invalid_ratelimit`). A
/// limit per flow reveals nothing about other flows, whereas a limit that all flows share is a side
/// channel (CVE-2016-5696).
pub const ANSWER_INTERVAL_MS: u32 = 500;

/// Returns true if the answer to `segment` is rate-limited: the segment is empty, or has SYN. As in
/// Linux, a segment with data or a FIN, but without SYN, is always answered. This segment may be
/// legitimate, and the answering ACK then resynchronizes the peer.
pub fn is_rate_limited(segment: &Segment<'_>) -> bool {
    segment.len() == 0 || segment.flags.contains(TcpFlags::SYN)
}

impl<E: Driver> SlowPath<'_, E> {
    /// Returns true if the flow's last answer is at least [`ANSWER_INTERVAL_MS`] ago. The caller
    /// then sends an answer, so this function starts a new interval. Otherwise counts a drop, and
    /// returns false.
    pub(crate) fn may_answer(&mut self) -> bool {
        let since = self.clock.ms.0.wrapping_sub(self.cold.answered_at.0);
        if since < ANSWER_INTERVAL_MS {
            self.counters.drops[DropReason::RateLimited.index()] += 1;
            return false;
        }
        self.cold.answered_at = self.clock.ms;
        true
    }

    /// Schedules the ACK that answers an unacceptable segment (RFC 9293 §3.10.7.4).
    pub(crate) fn ack_unacceptable(&mut self, segment: &Segment<'_>) {
        if !is_rate_limited(segment) || self.may_answer() {
            self.hot.set(flags::ACK_NOW | flags::ACK_OWED);
        }
    }

    /// Sends a challenge ACK (RFC 5961 §3.2, §4.2, §5.2) if the flow's limit and the engine's limit
    /// per second (§7) allow an answer. The engine's limit varies randomly from second to second,
    /// so that a peer learns nothing from this limit.
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
        // If no frame is free, the challenge ACK is dropped. The network might drop it, too.
        let _ = self.send_ack();
    }

    /// If the listener's accept queue is full, drops the ACK that would complete the handshake. As
    /// in Linux (`tcp_check_req`), the SYN,ACK timer continues, and a later ACK of the peer may
    /// complete the handshake.
    pub(crate) fn check_accept_queue(&mut self) -> Step {
        if !self.cold.accept_queue_full {
            return Ok(());
        }
        self.counters.listen_overflows += 1;
        self.counters.listen_drops += 1;
        self.drop(DropReason::AcceptQueueFull)
    }

    /// Sends a RST in answer to `segment` (RFC 9293 §3.10.7.1), unless `segment` is a RST itself.
    pub fn reset_for(&mut self, segment: &Segment<'_>, key: tidelane_wire::FlowKey) {
        let ip = self.config.ip.to(key.peer.addr);
        if let Some(out) = crate::reset_reply(segment, key, self.hot.link, ip) {
            self.counters.out_rsts += 1;
            let _ = self.driver.transmit(&out);
        }
    }
}
