//! What became of a tail loss probe that sent something again (RFC 8985 §7.4.2).

use tidelane_cc::CongestionControl;
use tidelane_flow::Env;
use tidelane_wire::{Segment, SeqNumber};

use crate::Slow;

impl<E: Env> Slow<'_, E> {
    /// SND.UNA moved to `ack`. Beyond the probe, and no DSACK has told that it was not needed: it
    /// has repaired a loss. Up to the probe's end says nothing yet: what was sent first may only
    /// have been acknowledged late.
    pub(crate) fn check_probe(&mut self, ack: SeqNumber) {
        let Some(end) = self.cold.probe_end else {
            return;
        };
        if !ack.after(end) {
            return;
        }
        self.cold.probe_end = None;
        if !self.is_repairing() && !self.is_reducing() && !self.is_reduced() {
            let flight = self.flight_in_use();
            self.cold
                .controller
                .on_congestion_signal(self.clock.now, flight);
            self.cold.controller.on_recovery_exit(self.clock.now);
            self.hot.cwnd = self.cold.controller.cwnd();
            self.cold.reduced_until = self.hot.snd_nxt;
        }
    }

    /// SND.UNA did not move: a plain duplicate is the answer to a probe that was not needed, by a
    /// peer without DSACK.
    pub(crate) fn check_probe_duplicate(&mut self, segment: &Segment<'_>) {
        let plain = segment.payload.is_empty() && segment.options.sack.is_empty();
        if plain && self.cold.probe_end == Some(segment.ack) {
            self.cold.probe_end = None;
        }
    }
}
