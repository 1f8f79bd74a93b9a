//! Decides when a flow (connection) has a scoreboard. A scoreboard is the record of every
//! unacknowledged transmission. A flow needs a scoreboard while losses are suspected, while an MTU
//! probe (RFC 4821) is in flight, and while the congestion control needs delivery rates or an RTT
//! sample from every ACK.

use tidelane_cc::{CongestionControl, RttSample};
use tidelane_flow::{CaState, Driver, flags};
use tidelane_time::Duration;
use tidelane_wire::SeqNumber;

use crate::{SlowPath, scoreboard::Scoreboard};

/// Number of round trips that the scoreboard is kept after the last sign of a loss, unless
/// [`SCOREBOARD_MS_MIN`] is longer.
const SCOREBOARD_ROUND_TRIPS: u32 = 8;
/// Least time in ms that the scoreboard is kept after the last sign of a loss.
const SCOREBOARD_MS_MIN: u32 = 1000;

impl<E: Driver> SlowPath<'_, E> {
    /// Records a sign of a loss, and returns the scoreboard. Starts a scoreboard if the flow has
    /// none.
    pub fn scoreboard_for_loss(&mut self) -> &mut Scoreboard {
        self.cold.loss_suspected_at = self.clock.ms;
        self.cold.loss_suspected = true;
        self.ensure_scoreboard()
    }

    /// Returns true if transmissions must be recorded although no loss is suspected. A congestion
    /// control that wants RTT samples gets records only while cwnd limits the flow. The slow path
    /// (the engine's code for uncommon cases) then handles every ACK anyway, so the records cost
    /// little. A flow that has neither outstanding nor unsent data needs no records. Its next
    /// request can then take the fast path (the code for common cases).
    fn wants_scoreboard(&self) -> bool {
        let busy = self.hot.snd_una != self.hot.tx_end && self.hot.state.is_synchronized();
        let limited = self.hot.has(flags::CWND_LIMITED) && self.cold.controller.wants_rtt_samples();
        let wanted = limited || self.cold.controller.uses_delivery_rate();
        busy && (wanted || self.cold.mtu.is_probing())
    }

    /// Starts a scoreboard if the flow needs one.
    pub(crate) fn start_scoreboard_if_wanted(&mut self) {
        if self.cold.scoreboard.is_none() && self.wants_scoreboard() {
            self.ensure_scoreboard();
        }
    }

    /// Returns the scoreboard. If the flow has none, starts a scoreboard from the send times.
    pub(crate) fn ensure_scoreboard(&mut self) -> &mut Scoreboard {
        let (hot, send_times, now) = (&*self.hot, &self.cold.send_times, self.clock.us());
        self.cold.scoreboard.get_or_insert_with(|| {
            let send_times = send_times.in_flight(hot, now);
            Box::new(Scoreboard::begin(hot.snd_una, &send_times))
        })
    }

    /// Records new data or a FIN that was sent from `start` to SND.NXT in segments of `segment`
    /// bytes, of which the last one may be shorter.
    pub fn track_sent(&mut self, start: SeqNumber, segment: u16) {
        if start != self.hot.snd_nxt {
            self.hot.traffic.begin_busy(self.clock.us());
        }
        if let Some(scoreboard) = &mut self.cold.scoreboard {
            scoreboard.on_send(start, self.hot.snd_nxt, segment, self.clock.us());
        } else if start != self.hot.snd_nxt {
            let now_us = self.clock.us();
            self.cold.send_times.note(self.hot, start, segment, now_us);
        }
    }

    /// Gives the congestion control the RTT sample of an ACK.
    pub(crate) fn report_rtt_sample(&mut self, rtt_us: Option<u32>) {
        let Some(rtt_us) = rtt_us else { return };
        let sample = RttSample {
            rtt: Duration::from_micros(u64::from(rtt_us)),
            srtt: self.srtt(),
            una: self.hot.snd_una.to_u32(),
            snd_nxt: self.hot.snd_nxt.to_u32(),
            paced: self.is_paced(),
        };
        self.cold.controller.on_rtt_sample(self.clock.now, &sample);
    }

    /// Ends the suspicion of losses some time after the last sign of a loss. While no loss is
    /// suspected, drops the scoreboard unless the flow needs the scoreboard for another reason.
    pub(crate) fn drop_scoreboard_if_idle(&mut self) {
        let no_losses = self.cold.scoreboard.as_ref().is_some_and(|scoreboard| {
            self.cold.ca_state == CaState::Open
                && scoreboard.sacked() == 0
                && scoreboard.lost() == 0
        });
        let since = self.clock.ms.0.wrapping_sub(self.cold.loss_suspected_at.0);
        let round_trips = (self.hot.srtt >> 3) / 1000 * SCOREBOARD_ROUND_TRIPS;
        if !no_losses || self.cold.loss_suspected && since <= round_trips.max(SCOREBOARD_MS_MIN) {
            return;
        }
        if self.cold.loss_suspected {
            self.cold.loss_suspected = false;
            self.cold.undo = None;
        }
        if !self.wants_scoreboard() {
            self.cold.scoreboard = None;
            // The transmission times are lost with the scoreboard. The data in flight therefore
            // gets the present time as its transmission time.
            self.cold.send_times.note_all(self.hot, self.clock.us());
            self.cold.reorder_deadline = None;
            self.hot.clear(flags::RTT_TIMING);
        }
    }
}
