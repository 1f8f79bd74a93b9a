//! F-RTO (RFC 5682 §2, and §3 with SACK), and Eifel detection by timestamps (RFC 3522): a timeout
//! after which something arrives that was never sent again was spurious, and is taken back.

use tidelane_flow::{CaState, Env, flags};
use tidelane_wire::Segment;

use crate::{Slow, recover::AckSeen};

/// Where the algorithm stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frto {
    /// Conventional recovery.
    Off,
    /// Step 2: the first segment was sent again.
    Waiting,
    /// Step 2.b: new text is to be sent, rather than more again.
    SendNew,
    /// Step 3: it was.
    Probing,
}

impl<E: Env> Slow<'_, E> {
    /// The timer expired. In fast recovery the first time, all may have been sent again (§2.1 step
    /// 1): F-RTO could not tell.
    pub(crate) fn begin_frto(&mut self, was_repairing: bool) {
        let may = !was_repairing || self.cold.timeouts > 1;
        self.cold.frto = if may { Frto::Waiting } else { Frto::Off };
    }

    /// An acknowledgment came after a timeout.
    pub(crate) fn on_ack_in_loss(&mut self, segment: &Segment<'_>, seen: AckSeen) {
        if seen.acked > 0 && self.echoes_original(segment) {
            return self.undo_timeout();
        }
        let delivered = &self.cold.delivered;
        let original = delivered
            .original_end
            .is_some_and(|end| end.at_or_before(self.cold.recovery_point));
        // Without SACK the arrival of what was sent again may have moved SND.UNA past all of it.
        let original = original && (self.hot.has(flags::SACK) || !delivered.again);
        let duplicate = seen.duplicate && !self.hot.has(flags::SACK);
        match self.cold.frto {
            Frto::Off => {}
            // Step 3.b: what was never sent again has arrived.
            _ if original => self.undo_timeout(),
            // Step 3.a, and 2.a.
            Frto::Probing if seen.news || duplicate => self.cold.frto = Frto::Off,
            Frto::Waiting if duplicate => self.cold.frto = Frto::Off,
            Frto::Waiting if seen.acked > 0 => {
                self.cold.recovery_point = self.hot.snd_nxt;
                self.cold.frto = Frto::SendNew;
            }
            _ => {}
        }
    }

    /// Nothing was lost: window and threshold as they were, all is in flight again.
    fn undo_timeout(&mut self) {
        self.cold.frto = Frto::Off;
        if !self.take_back() {
            return;
        }
        self.counters.spurious_timeouts += 1;
        if let Some(board) = &mut self.cold.board {
            board.find_all();
        }
        self.cold.ca_state = CaState::Open;
        self.cold.repair_first = false;
        self.cold.cwr_queued = tidelane_wire::TcpFlags::NONE;
        self.hot.cwnd = self.cold.controller.cwnd();
        self.hot.set(flags::SEND_WANTED);
    }
}
