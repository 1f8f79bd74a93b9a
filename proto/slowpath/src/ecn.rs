//! Explicit congestion notification (RFC 3168; RFC 9293 SHLD-8). The SYN negotiates ECN. The
//! receiver sends ECE until the sender answers with CWR, and the sender reduces its window once per
//! window of data. With DCTCP (RFC 8257 §3.2), ECE reports the CE state of each segment instead.

use tidelane_cc::{CongestionControl, EcnFeedback};
use tidelane_flow::{CaState, Driver, EcnPolicy, State, flags};
use tidelane_wire::{Ecn, Segment, TcpFlags};

use crate::{SlowPath, prr::Prr};

/// Least number of ACKs that are sent without delay after the first CE, so that the sender reacts
/// soon.
const QUICK_ACKS: u32 = 2;

/// ECN state of a flow as the sender of data.
#[derive(Clone, Copy, Debug)]
pub struct EcnSender {
    /// Flags for the next segment with new data: CWR (RFC 3168 §6.1.2), or none.
    pub cwr_queued: TcpFlags,
    /// Segments that ACKs with ECE have delivered (Linux: `tcpi_delivered_ce`).
    pub delivered_ce: u32,
}

impl Default for EcnSender {
    fn default() -> Self {
        Self {
            cwr_queued: TcpFlags::NONE,
            delivered_ce: 0,
        }
    }
}

impl<E: Driver> SlowPath<'_, E> {
    /// Returns true if DCTCP (RFC 8257), or another congestion control that needs ECN, is in use.
    /// New and retransmitted data is then ECT, and ECE reports each CE.
    pub(crate) fn is_dctcp(&self) -> bool {
        self.hot.has(flags::ECN) && self.cold.controller.algorithm().needs_ecn()
    }

    /// Returns true if an active open requests ECN.
    pub(crate) fn asks_for_ecn(&self) -> bool {
        self.config.ecn == EcnPolicy::Request || self.cold.algorithm(self.config).needs_ecn()
    }

    /// Returns the ECN bits of our SYN or SYN,ACK (RFC 3168 §6.1.1). A retransmitted SYN does not
    /// request ECN, because a middlebox may drop SYNs that request ECN (§6.1.1.1).
    pub(crate) fn syn_ecn(&self) -> TcpFlags {
        let asks = self.asks_for_ecn();
        match self.hot.state {
            State::SynReceived if self.hot.has(flags::ECN) => TcpFlags::ECE,
            State::SynSent if asks && self.cold.timeouts == 0 => TcpFlags::ECE | TcpFlags::CWR,
            _ => TcpFlags::NONE,
        }
    }

    /// Returns the ECN field of the packet that carries our SYN or SYN,ACK. DCTCP sends this packet
    /// as ECT (as in Linux) if its flags request or accept ECN.
    pub(crate) fn syn_field(&self) -> Ecn {
        let asked = self.syn_ecn() != TcpFlags::NONE;
        if asked && self.cold.algorithm(self.config).needs_ecn() {
            Ecn::Ect0
        } else {
            Ecn::NotEct
        }
    }

    /// Handles the ECN field and the CWR bit of a data segment (RFC 3168 §6.1.3).
    pub(crate) fn note_ecn(&mut self, segment: &Segment<'_>, ecn: Ecn) {
        if !self.hot.has(flags::ECN) {
            return;
        }
        let marked = ecn == Ecn::Ce;
        if self.is_dctcp() {
            return self.note_dctcp_mark(marked);
        }
        if segment.flags.contains(TcpFlags::CWR) {
            self.hot.clear(flags::ECE);
            // The sender has reduced its window. If the window is a single segment, the sender
            // waits for the ACK of this segment.
            self.hot.set(flags::ACK_NOW | flags::ACK_OWED);
        }
        if marked && !self.hot.has(flags::ECE) {
            self.hot.set(flags::ECE);
            let more = self.hot.quick_acks().max(QUICK_ACKS);
            self.hot.set_quick_acks(more);
        }
    }

    /// Handles a data segment of a DCTCP flow. `marked` is true if the segment is marked CE. If the
    /// CE state changes, the function first acknowledges the data before the change, with the old
    /// ECE (RFC 8257 §3.2).
    fn note_dctcp_mark(&mut self, marked: bool) {
        if marked == self.hot.has(flags::ECE) {
            return;
        }
        if self.hot.rcv_nxt != self.hot.last_ack_sent {
            // If no frame is free, the next ACK covers the data before and after the change.
            let _ = self.send_ack();
        }
        self.hot.assign(flags::ECE, marked);
        self.hot.set(flags::ACK_NOW | flags::ACK_OWED);
    }

    /// Handles the ECN feedback of an ACK, with or without ECE (RFC 3168 §6.1.2). The ACK advanced
    /// SND.UNA by `acked` bytes, perhaps zero.
    pub(crate) fn process_ecn_echo(&mut self, segment: &Segment<'_>, acked: u32) {
        if !self.hot.has(flags::ECN) {
            return;
        }
        let marked = segment.flags.contains(TcpFlags::ECE);
        if marked {
            let segments = self.cold.delivered.bytes.div_ceil(self.hot.mss.into());
            let count = &mut self.cold.ecn.delivered_ce;
            *count = count.wrapping_add(segments);
        }
        self.cold.controller.on_ecn_feedback(&EcnFeedback {
            prior_una: self.hot.snd_una.sub(acked).to_u32(),
            una: self.hot.snd_una.to_u32(),
            snd_nxt: self.hot.snd_nxt.to_u32(),
            marked,
        });
        let once = matches!(self.cold.ca_state, CaState::Open | CaState::Disorder);
        let flight = self.hot.flight_size() + acked;
        if !marked || !once || flight == 0 || self.is_reduced_this_window() {
            return;
        }
        self.cold.ca_state = CaState::Cwr;
        self.cold.recovery_point = self.hot.snd_nxt;
        self.cold.reduced_until = self.hot.snd_nxt;
        // The undo of an earlier spurious recovery must not undo this reduction.
        self.cold.undo = None;
        let own = self.cold.controller.uses_delivery_rate();
        self.cold.prr = (!own).then(|| Prr::begin(flight));
        self.cold.controller.on_ecn_echo(self.clock.now, flight);
        self.queue_cwr();
        self.counters.ecn_reductions += 1;
    }

    /// Schedules CWR for the next segment with new data, if ECN is in use.
    pub(crate) fn queue_cwr(&mut self) {
        if self.hot.has(flags::ECN) {
            self.cold.ecn.cwr_queued = TcpFlags::CWR;
        }
    }
}
