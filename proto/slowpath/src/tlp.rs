//! Detection of losses that a tail loss probe repaired (RFC 8985 §7.4.2). In this file, a probe is
//! a tail loss probe that retransmitted data.

use tidelane_cc::CongestionControl;
use tidelane_flow::Driver;
use tidelane_wire::{Segment, SeqNumber};

use crate::SlowPath;

impl<E: Driver> SlowPath<'_, E> {
    /// Checks the probe after SND.UNA moved to `ack`. If `ack` is beyond the probe, and neither a
    /// DSACK nor a duplicate ACK has shown that the probe was not needed, the probe repaired a
    /// loss. cwnd is then reduced, except in two cases: the sender is in Recovery, Loss or CWR, or
    /// cwnd was already reduced for this window of data. An ACK up to the end of the probe proves
    /// nothing, because this ACK may be the late ACK of the original segment.
    pub(crate) fn check_tlp(&mut self, ack: SeqNumber) {
        let Some(end) = self.cold.probe_end else {
            return;
        };
        if !ack.after(end) {
            return;
        }
        self.cold.probe_end = None;
        if !self.is_recovering() && !self.is_reducing() && !self.is_reduced_this_window() {
            let flight = self.flight_in_use();
            self.cold
                .controller
                .on_congestion_signal(self.clock.now, flight);
            self.cold.controller.on_recovery_exit(self.clock.now);
            self.hot.cwnd = self.cold.controller.cwnd();
            self.cold.reduced_until = self.hot.snd_nxt;
        }
    }

    /// Handles a duplicate ACK, by which a peer without DSACK shows that the probe was not needed.
    pub(crate) fn check_tlp_duplicate(&mut self, segment: &Segment<'_>) {
        let plain = segment.payload.is_empty() && segment.options.sack.is_empty();
        if plain && self.cold.probe_end == Some(segment.ack) {
            self.cold.probe_end = None;
        }
    }
}
