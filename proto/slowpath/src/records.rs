//! When transmissions are recorded: in times of trouble, and where the controller wants to know
//! of each acknowledgment how old it is.

use tidelane_cc::{CongestionControl, RttSample};
use tidelane_flow::{CaState, Env, flags};
use tidelane_time::Duration;
use tidelane_wire::SeqNumber;

use crate::{Slow, scoreboard::Scoreboard};

/// How long after the last trouble transmissions are recorded: as many round trips, and at least
/// as many ms.
const RECORD_ROUND_TRIPS: u32 = 8;
/// See above.
const RECORD_MS_MIN: u32 = 1000;

impl<E: Env> Slow<'_, E> {
    /// Records what is sent from now on, if that is not done yet: there are signs of trouble.
    pub fn track(&mut self) -> &mut Scoreboard {
        self.cold.trouble_at = self.clock.ms;
        self.cold.trouble = true;
        self.record()
    }

    /// Whether what is sent is recorded without trouble, for the controller's samples: while the
    /// window limits, each acknowledgment comes here anyway. With nothing sent or to be sent there
    /// is nothing to record, and the fast path may have the next request.
    fn wants_records(&self) -> bool {
        let busy = self.hot.snd_una != self.hot.tx_end && self.hot.state.is_synchronized();
        let limited = self.hot.has(flags::CWND_LIMITED) && self.cold.controller.wants_samples();
        let told = limited || self.cold.controller.models_delivery();
        busy && (told || self.cold.mtu.is_probing())
    }

    /// Begins with that.
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

    /// New text, or FIN, went out from `start` to SND.NXT.
    pub fn note_sent(&mut self, start: SeqNumber) {
        if let Some(board) = &mut self.cold.board {
            board.sent(start, self.hot.snd_nxt, self.clock.us());
        } else if start != self.hot.snd_nxt {
            self.cold.marks.note(self.hot, self.clock.us());
        }
    }

    /// The controller sees the round-trip time that an acknowledgment brought.
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

    /// A while after the last trouble transmissions are not recorded any more.
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
            // The times of what is in flight go with it.
            self.cold.marks.note(self.hot, self.clock.us());
            self.cold.reorder_deadline = None;
            self.hot.clear(flags::RTT_TIMING);
        }
    }
}
