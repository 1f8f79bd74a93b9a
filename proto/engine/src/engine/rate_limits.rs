//! Limits per second for challenge ACKs, and for RSTs in answer to segments without a connection.

use tidelane_flow::{Arrival, Driver};
use tidelane_slowpath::reset_reply;
use tidelane_time::Instant;
use tidelane_wire::{DropReason, Segment};

use super::Engine;
use crate::resets::randomized_limit;

/// Bit that separates the hash input for the RST limit from the hash input for the challenge ACK
/// limit, so that the two limits vary independently.
const OF_RESETS: u64 = 1 << 62;

impl Engine {
    /// Renews the limits of challenge ACKs and RSTs if a new second has begun since the last call.
    pub(super) fn renew_limits(&mut self, now: Instant) {
        let second = now.0 / 1_000_000_000;
        if second == self.limits_second {
            return;
        }
        self.limits_second = second;
        let config = &self.config;
        self.challenges = randomized_limit(&self.secret, second, config.challenge_acks_per_second);
        let resets = randomized_limit(&self.secret, second | OF_RESETS, config.resets_per_second);
        self.resets.begin_second(second, resets);
    }

    /// Sends a RST, within the limits, in answer to a segment that the driver (the program that
    /// runs the engine) has refused. The segment belongs to no flow (connection) of this engine.
    /// The driver counts the segment. The engine counts only the RST, or that a limit forbade the
    /// RST.
    pub fn answer_refused(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        segment: &Segment<'_>,
        driver: &mut impl Driver,
    ) {
        self.tick(now);
        self.renew_limits(now);
        self.reset(arrival, segment, driver);
    }

    /// Counts a segment without a connection as dropped for `reason`, and answers the segment by a
    /// RST, within the limits (RFC 9293 §3.10.7.1: CLOSED).
    pub(super) fn refuse(
        &mut self,
        arrival: &Arrival,
        segment: &Segment<'_>,
        reason: DropReason,
        driver: &mut impl Driver,
    ) {
        self.counters.drops[reason.index()] += 1;
        self.reset(arrival, segment, driver);
    }

    /// Sends a RST in answer to `segment`, within the limits. A segment with RST gets no answer.
    fn reset(&mut self, arrival: &Arrival, segment: &Segment<'_>, driver: &mut impl Driver) {
        let peer = arrival.key.peer.addr;
        let ip = self.config.ip.to(peer);
        let Some(out) = reset_reply(segment, arrival.key, arrival.link, ip) else {
            return;
        };
        let limit = self.config.peer_resets_per_second;
        if !self.resets.take(&self.secret, peer, limit) {
            self.counters.drops[DropReason::RateLimited.index()] += 1;
            return;
        }
        self.counters.out_rsts += 1;
        // If no frame is free, the RST is lost, as it might be in the network. A RST is never
        // retransmitted.
        let _ = driver.transmit(&out);
    }
}
