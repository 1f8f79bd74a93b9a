//! Decides when the scoreboard records transmissions: while losses are suspected, and while the
//! congestion control needs an RTT sample from every ACK.

use tidelane_cc::{CongestionControl, RttSample};
use tidelane_flow::{CaState, Env, flags};
use tidelane_time::Duration;
use tidelane_wire::SeqNumber;

use crate::{Slow, scoreboard::Scoreboard};

/// The scoreboard is kept for this many round trips after the last sign of a loss, and for at least
/// RECORD_MS_MIN.
const RECORD_ROUND_TRIPS: u32 = 8;
/// Least time in ms that the scoreboard is kept after the last sign of a loss.
const RECORD_MS_MIN: u32 = 1000;

impl<E: Env> Slow<'_, E> {
    /// Returns the scoreboard, starting one if necessary, and notes a sign of a loss.
    pub fn track(&mut self) -> &mut Scoreboard {
        self.cold.trouble_at = self.clock.ms;
        self.cold.trouble = true;
        self.record()
    }

    /// Returns true if transmissions are to be recorded although no loss is suspected. While cwnd
    /// limits the flow, every ACK comes to the slow path anyway. A flow without outstanding and
    /// unsent data needs no records, and its next request may take the fast path.
    fn wants_records(&self) -> bool {
        let busy = self.hot.snd_una != self.hot.tx_end && self.hot.state.is_synchronized();
        let limited = self.hot.has(flags::CWND_LIMITED) && self.cold.controller.wants_samples();
        let told = limited || self.cold.controller.models_delivery();
        busy && (told || self.cold.mtu.is_probing())
    }

    /// Starts a scoreboard if the flow needs one.
    pub(crate) fn record_if_wanted(&mut self) {
        if self.cold.board.is_none() && self.wants_records() {
            self.record();
        }
    }

    pub(crate) fn record(&mut self) -> &mut Scoreboard {
        let (hot, marks, now) = (&*self.hot, &self.cold.marks, self.clock.us());
        self.cold.board.get_or_insert_with(|| {
            let marks = marks.in_flight(hot, now);
            Box::new(Scoreboard::begin(hot.snd_una, &marks))
        })
    }

    /// Records new data or a FIN that was sent from `start` to SND.NXT.
    pub fn note_sent(&mut self, start: SeqNumber) {
        if let Some(board) = &mut self.cold.board {
            board.sent(start, self.hot.snd_nxt, self.clock.us());
        } else if start != self.hot.snd_nxt {
            self.cold.marks.note(self.hot, self.clock.us());
        }
    }

    /// Gives the congestion control the RTT sample of an ACK.
    pub(crate) fn tell_rtt(&mut self, rtt_us: Option<u32>) {
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

    /// Drops the scoreboard some time after the last sign of a loss.
    pub(crate) fn forget_records(&mut self) {
        let calm = self.cold.board.as_ref().is_some_and(|board| {
            self.cold.ca_state == CaState::Open && board.sacked() == 0 && board.lost() == 0
        });
        let since = self.clock.ms.0.wrapping_sub(self.cold.trouble_at.0);
        let round_trips = (self.hot.srtt >> 3) / 1000 * RECORD_ROUND_TRIPS;
        if !calm || self.cold.trouble && since <= round_trips.max(RECORD_MS_MIN) {
            return;
        }
        if self.cold.trouble {
            self.cold.trouble = false;
            self.cold.undo = None;
        }
        if !self.wants_records() {
            self.cold.board = None;
            // The transmission times are lost with the scoreboard. All data in flight gets the
            // present time.
            self.cold.marks.note(self.hot, self.clock.us());
            self.cold.reorder_deadline = None;
            self.hot.clear(flags::RTT_TIMING);
        }
    }
}
