//! What every segment of a synchronized flow has in common: window, acknowledgment, timestamps.

use tidelane_wire::{Ecn, SeqNumber, TcpFlags, TcpOptions, Timestamps};

use crate::{
    clock::Clock,
    driver::{Env, SegmentOut, TxFull},
    flow_state::{FlowState, flags},
    ids::FlowId,
    timing::Timeouts,
};

impl FlowState {
    /// The right edge that the window may be moved to: what the program has read plus the quota,
    /// never left of what was advertised (RFC 9293 §3.8.6, SHLD-14), and moved only when that opens
    /// it by a segment or half the quota (§3.8.6.2.2, MUST-39).
    #[inline(always)]
    fn right_edge(&self) -> SeqNumber {
        let quota = self.irs.add(1).add(self.rx_read).add(self.rcv_wnd_limit);
        let opens = quota.distance_from(self.rcv_adv) as i32;
        let least = u32::from(self.mss).min(self.rcv_wnd_limit / 2) as i32;
        if opens >= least { quota } else { self.rcv_adv }
    }

    /// Notes whether the right edge moves ([`flags::EDGE_MOVES`]): for whoever changed what it
    /// follows from. Returns by how much.
    #[inline(always)]
    pub fn note_edge(&mut self) -> u32 {
        let opens = self.right_edge().distance_from(self.rcv_adv);
        if (opens != 0) != self.has(flags::EDGE_MOVES) {
            self.flags ^= flags::EDGE_MOVES;
        }
        opens
    }

    /// Whether an acknowledgment now would tell the peer of a window that matters, where the right
    /// edge moves by `opens`: it was closed, or nearly, or opens by half the quota.
    #[inline(always)]
    pub fn window_update_due(&self, opens: u32) -> bool {
        let left = self.rcv_adv.distance_from(self.rcv_nxt);
        opens != 0 && (opens >= self.rcv_wnd_limit / 2 || left < u32::from(self.mss) * 2)
    }

    /// `len` more bytes arrived in order and are to be acknowledged: at once for every second full
    /// segment (RFC 5681 §4.2), where the program wants it, and for each full one in quick-ack
    /// mode: while the peer's window is small, because it begins or lost something. With eager
    /// acknowledgments, for any in that mode.
    pub fn owe_ack(&mut self, len: u32, timeouts: &Timeouts) {
        self.flags |= self.ack_duty(self.flags, len, timeouts);
    }

    /// [`FlowState::owe_ack`] for a caller who has other flags to set: those that it would set. The
    /// flags are `before`.
    #[inline(always)]
    pub fn ack_duty(&mut self, before: u32, len: u32, timeouts: &Timeouts) -> u32 {
        if len > u32::from(self.rcv_mss) {
            self.rcv_mss = len.min(0xffff) as u16;
        }
        if before & flags::QUICKACK != 0 {
            return flags::ACK_OWED | flags::ACK_NOW;
        }
        let full = u32::from(self.rcv_mss);
        let unacked = self.rcv_nxt.distance_from(self.last_ack_sent);
        let quick = before >> flags::QUICK_SHIFT > 0 && (len >= full || timeouts.eager_acks);
        let now = unacked >= 2 * full || quick;
        flags::ACK_OWED | if now { flags::ACK_NOW } else { 0 }
    }

    /// Whether an acknowledgment is owed for at least one whole segment.
    pub fn owes_for_whole(&self) -> bool {
        let unacked = self.rcv_nxt.distance_from(self.last_ack_sent);
        self.flags & flags::ACK_OWED != 0 && unacked >= u32::from(self.rcv_mss)
    }

    /// A segment of this flow with `seq` and `control`, acknowledging all that has arrived. Once it
    /// is sent, [`FlowState::note_acknowledged`] notes what it said.
    pub fn segment_out(
        &self,
        id: FlowId,
        clock: &Clock,
        seq: SeqNumber,
        control: TcpFlags,
        payload_len: u32,
    ) -> SegmentOut {
        let text = Text {
            seq,
            control,
            payload_len,
        };
        self.segment_to(self.right_edge(), id, clock, text)
    }

    /// Sends a segment with the next sequence number, and notes what it said of the window and of
    /// what has arrived; that no acknowledgment is owed any more ([`flags::ACK_DUTIES`]) is left to
    /// the caller, who has other flags to change. Without a frame the flow stays as it was.
    #[inline(always)]
    pub fn transmit(
        &mut self,
        id: FlowId,
        clock: &Clock,
        control: TcpFlags,
        payload_len: u32,
        env: &mut impl Env,
    ) -> Result<(), TxFull> {
        self.transmit_next::<false>(id, clock, control, payload_len, env)
    }

    /// [`FlowState::transmit`] by [`Env::transmit_directly`].
    #[inline(always)]
    pub fn transmit_directly(
        &mut self,
        id: FlowId,
        clock: &Clock,
        control: TcpFlags,
        payload_len: u32,
        env: &mut impl Env,
    ) -> Result<(), TxFull> {
        self.transmit_next::<true>(id, clock, control, payload_len, env)
    }

    #[inline(always)]
    fn transmit_next<const DIRECTLY: bool>(
        &mut self,
        id: FlowId,
        clock: &Clock,
        control: TcpFlags,
        payload_len: u32,
        env: &mut impl Env,
    ) -> Result<(), TxFull> {
        let seq = self.snd_nxt;
        // Made twice: what another function looks at lies in memory.
        let text = || Text {
            seq,
            control,
            payload_len,
        };
        debug_assert!(self.has(flags::EDGE_MOVES) || self.right_edge() == self.rcv_adv);
        if self.flags & flags::EDGE_MOVES != 0 {
            return self.transmit_window(id, clock, text(), env);
        }
        let out = self.segment_to(self.rcv_adv, id, clock, text());
        if DIRECTLY {
            env.transmit_directly(&out)?;
        } else {
            env.transmit(&out)?;
        }
        self.last_ack_sent = self.rcv_nxt;
        Ok(())
    }

    /// [`FlowState::transmit`] where the right edge moves.
    #[inline(never)]
    fn transmit_window(
        &mut self,
        id: FlowId,
        clock: &Clock,
        text: Text,
        env: &mut impl Env,
    ) -> Result<(), TxFull> {
        let out = self.segment_to(self.right_edge(), id, clock, text);
        env.transmit(&out)?;
        self.note_window(out.wnd);
        self.last_ack_sent = self.rcv_nxt;
        Ok(())
    }

    /// A segment that advertises a window up to `edge`.
    #[inline(always)]
    fn segment_to(&self, edge: SeqNumber, id: FlowId, clock: &Clock, text: Text) -> SegmentOut {
        let Text {
            seq,
            control,
            payload_len,
        } = text;
        let scale = self.rcv_wscale();
        // Rounded down: a right edge that seems to go back by less than the unit is what RFC 7323
        // §2.4 warns of, but rounded up it would promise more than the quota.
        let open = edge.distance_from(self.rcv_nxt);
        let field = (open >> scale).min(0xffff);
        let timestamps = (self.flags & flags::TIMESTAMPS != 0).then_some(Timestamps {
            tsval: clock.ms.0,
            tsecr: self.ts_recent,
        });
        // RFC 3168 §6.1.3: until the peer has answered; §6.1.5: only new text is ECN-capable.
        let echo = (self.flags >> (flags::ECE_SHIFT - TcpFlags::ECE.0.trailing_zeros())) as u8;
        let echo = TcpFlags(echo & TcpFlags::ECE.0);
        let ecn = if self.flags & flags::ECN != 0 && payload_len > 0 {
            Ecn::Ect0
        } else {
            Ecn::NotEct
        };
        SegmentOut {
            flow: Some(id),
            key: self.key,
            link: self.link,
            seq,
            ack: self.rcv_nxt,
            flags: control.union(TcpFlags::ACK).union(echo),
            wnd: field as u16,
            options: TcpOptions::ordinary(timestamps),
            payload_pos: self.tx_pos(seq),
            payload_len,
            segment_size: self.mss,
            ecn,
        }
    }

    /// A segment went out that acknowledges all that has arrived, with `wnd` in its window field.
    pub fn note_acknowledged(&mut self, wnd: u16) {
        self.last_ack_sent = self.rcv_nxt;
        self.clear(flags::ACK_DUTIES);
        self.note_window(wnd);
    }

    fn note_window(&mut self, wnd: u16) {
        let window = u32::from(wnd) << self.rcv_wscale();
        self.rcv_adv = self.rcv_nxt.add(window).later_of(self.rcv_adv);
        self.note_edge();
    }
}

/// What a segment carries.
struct Text {
    seq: SeqNumber,
    control: TcpFlags,
    payload_len: u32,
}
