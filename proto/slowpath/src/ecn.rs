//! Explicit congestion notification (RFC 3168; RFC 9293 SHLD-8): asked for by SYN, echoed by the
//! receiver until the sender has answered, and answered once per window. With DCTCP (RFC 8257 §3.2)
//! the echo instead tells of each segment whether it was marked.

use tidelane_cc::{CongestionControl, EcnFeedback};
use tidelane_flow::{CaState, EcnPolicy, EngineConfig, Env, SocketOptions, State, flags};
use tidelane_wire::{Ecn, Segment, TcpFlags};

use crate::{Slow, SynSeen, prr::Prr};

/// Acknowledgments sent at once after the first mark: the sender should know soon.
const QUICK_ACKS: u32 = 2;

impl SynSeen {
    /// Whether this end agrees to ECN. A SYN that is itself ECN-capable is not RFC 3168's: only
    /// DCTCP's listeners take it (as in Linux).
    pub(crate) fn agrees_to_ecn(&self, config: &EngineConfig, options: &SocketOptions) -> bool {
        let algorithm = options.congestion.unwrap_or(config.congestion);
        let allowed = config.ecn != EcnPolicy::Off && !self.ect;
        self.ecn && (allowed || algorithm.needs_ecn())
    }
}

impl<E: Env> Slow<'_, E> {
    /// Whether every packet is sent as ECT and every mark is told (RFC 8257).
    pub(crate) fn is_dctcp(&self) -> bool {
        self.hot.has(flags::ECN) && self.cold.controller.algorithm().needs_ecn()
    }

    /// Whether an active open asks for ECN.
    pub(crate) fn asks_for_ecn(&self) -> bool {
        self.config.ecn == EcnPolicy::Request || self.cold.algorithm(self.config).needs_ecn()
    }

    /// Control bits of our SYN (RFC 3168 §6.1.1). One that is sent again does not ask: what drops
    /// such SYNs must not keep the connection from opening (§6.1.1.1).
    pub(crate) fn syn_ecn(&self) -> TcpFlags {
        let asks = self.asks_for_ecn();
        match self.hot.state {
            State::SynReceived if self.hot.has(flags::ECN) => TcpFlags::ECE,
            State::SynSent if asks && self.cold.timeouts == 0 => TcpFlags::ECE | TcpFlags::CWR,
            _ => TcpFlags::NONE,
        }
    }

    /// The ECN field of our SYN: DCTCP's is ECN-capable as all of its packets (as in Linux).
    pub(crate) fn syn_field(&self) -> Ecn {
        let asked = self.syn_ecn() != TcpFlags::NONE;
        if asked && self.cold.algorithm(self.config).needs_ecn() {
            Ecn::Ect0
        } else {
            Ecn::NotEct
        }
    }

    /// Text came with this field in its IP header, and perhaps with CWR (RFC 3168 §6.1.3).
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
            // Its window may be a single segment now: it waits for this.
            self.hot.set(flags::ACK_NOW | flags::ACK_OWED);
        }
        if marked && !self.hot.has(flags::ECE) {
            self.hot.set(flags::ECE);
            let more = self.hot.quick_acks().max(QUICK_ACKS);
            self.hot.set_quick_acks(more);
        }
    }

    /// RFC 8257 §3.2: when marks begin or end, what came before is acknowledged first, by itself.
    fn note_dctcp_mark(&mut self, marked: bool) {
        if marked == self.hot.has(flags::ECE) {
            return;
        }
        if self.hot.rcv_nxt != self.hot.last_ack_sent {
            // One that finds no frame leaves the marks to the next acknowledgment.
            let _ = self.send_ack();
        }
        self.hot.put(flags::ECE, marked);
        self.hot.set(flags::ACK_NOW | flags::ACK_OWED);
    }

    /// An acknowledgment moved SND.UNA by `acked`, perhaps with ECE (§6.1.2).
    pub(crate) fn take_ecn_echo(&mut self, segment: &Segment<'_>, acked: u32) {
        if !self.hot.has(flags::ECN) {
            return;
        }
        let marked = segment.flags.contains(TcpFlags::ECE);
        self.cold.controller.on_ecn_feedback(&EcnFeedback {
            prior_una: self.hot.snd_una.back(acked).to_u32(),
            una: self.hot.snd_una.to_u32(),
            snd_nxt: self.hot.snd_nxt.to_u32(),
            marked,
        });
        let once = matches!(self.cold.ca_state, CaState::Open | CaState::Disorder);
        let flight = self.hot.flight_size() + acked;
        if !marked || !once || flight == 0 || self.is_reduced() {
            return;
        }
        self.cold.ca_state = CaState::Cwr;
        self.cold.recovery_point = self.hot.snd_nxt;
        self.cold.reduced_until = self.hot.snd_nxt;
        // An earlier repair that was not needed does not take this back.
        self.cold.undo = None;
        let own = self.cold.controller.models_delivery();
        self.cold.prr = (!own).then(|| Prr::begin(flight));
        self.cold.controller.on_ecn_echo(self.clock.now, flight);
        self.queue_cwr();
        self.counters.ecn_reductions += 1;
    }

    /// The window was reduced: the next new text says so.
    pub(crate) fn queue_cwr(&mut self) {
        if self.hot.has(flags::ECN) {
            self.cold.cwr_queued = TcpFlags::CWR;
        }
    }
}
