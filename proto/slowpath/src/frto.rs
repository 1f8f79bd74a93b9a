//! Detection of spurious retransmission timeouts: F-RTO (RFC 5682 §2, and §3 with SACK) and Eifel
//! detection by timestamps (RFC 3522). For F-RTO, a timeout was spurious if the peer then
//! acknowledges data that was sent before the timeout and never retransmitted. For Eifel, a timeout
//! was spurious if an ACK echoes a timestamp from before the first retransmission. After a spurious
//! timeout, the sender restores cwnd and ssthresh.

use tidelane_flow::{CaState, Driver, flags};
use tidelane_wire::Segment;

use crate::{SlowPath, ack_effects::AckEffects};

/// Step of F-RTO after a timeout (RFC 5682 §2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frto {
    /// F-RTO is not in use: the recovery is conventional.
    Off,
    /// Step 2: the first segment was retransmitted, and the sender waits for an ACK.
    Waiting,
    /// Step 2.b: new data is sent next, instead of further retransmissions.
    SendNew,
    /// Step 3: new data was sent, and the sender waits for an ACK.
    Probing,
}

impl<E: Driver> SlowPath<'_, E> {
    /// Starts F-RTO after a timeout (§2.1 step 1). `was_recovering` is true if the timeout came
    /// during a loss recovery, which may already have retransmitted all data. F-RTO then starts
    /// only at a repeated timeout with the same SND.UNA.
    pub(crate) fn begin_frto(&mut self, was_recovering: bool) {
        let may = !was_recovering || self.cold.timeouts > 1;
        self.cold.frto = if may { Frto::Waiting } else { Frto::Off };
    }

    /// Handles an ACK in the Loss phase.
    pub(crate) fn on_ack_in_loss(&mut self, segment: &Segment<'_>, effects: AckEffects) {
        if effects.acked > 0 && self.echoes_original(segment) {
            return self.undo_timeout();
        }
        let delivered = &self.cold.delivered;
        let original = delivered
            .original_end
            .is_some_and(|end| end.at_or_before(self.cold.recovery_point));
        // Without SACK, the ACK of a retransmission may also cover data that arrived earlier.
        let original = original && (self.hot.has(flags::SACK) || !delivered.retransmitted);
        let duplicate = effects.duplicate && !self.hot.has(flags::SACK);
        match self.cold.frto {
            Frto::Off => {}
            // Step 3.b: data that was never retransmitted has arrived.
            _ if original => self.undo_timeout(),
            // Steps 3.a and 2.a: the timeout may be genuine, so F-RTO ends.
            Frto::Probing if effects.newly_sacked || duplicate => self.cold.frto = Frto::Off,
            Frto::Waiting if duplicate => self.cold.frto = Frto::Off,
            Frto::Waiting if effects.acked > 0 => {
                self.cold.recovery_point = self.hot.snd_nxt;
                self.cold.frto = Frto::SendNew;
            }
            _ => {}
        }
    }

    /// Undoes a spurious timeout: restores cwnd and ssthresh, and marks all lost data as in flight
    /// again. Without a saved congestion state, only ends F-RTO.
    fn undo_timeout(&mut self) {
        self.cold.frto = Frto::Off;
        if !self.undo_reduction() {
            return;
        }
        self.counters.spurious_timeouts += 1;
        if let Some(scoreboard) = &mut self.cold.scoreboard {
            scoreboard.unmark_lost();
        }
        self.cold.ca_state = CaState::Open;
        self.cold.ignore_cwnd_once = false;
        self.cold.ecn.cwr_queued = tidelane_wire::TcpFlags::NONE;
        self.hot.cwnd = self.cold.controller.cwnd();
        self.hot.set(flags::SEND_WANTED);
    }
}
