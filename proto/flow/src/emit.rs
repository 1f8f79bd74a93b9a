//! Builds the segments of synchronized flows (connections): the fields that all segments have in
//! common, such as window, ACK and timestamps. After a transmission, the flow's state contains the
//! ACK number and the window of the sent segment.

use tidelane_interface::{Clock, Driver, FlowId, Origin, SegmentOut, TxFull};
use tidelane_wire::{Ecn, SeqNumber, TcpFlags, TcpOptions, Timestamps};

use crate::{
    flow_state::{FlowState, flags},
    timing::Timeouts,
};

impl FlowState {
    /// Returns the right edge of the window to advertise: the application's read position plus the
    /// quota `rcv_wnd_limit`, the largest window that the flow may offer. The edge never moves left
    /// (RFC 9293 §3.8.6, SHLD-14), and moves right only by at least a segment or half of the quota,
    /// whichever is less (§3.8.6.2.2, MUST-39).
    #[inline(always)]
    fn right_edge(&self) -> SeqNumber {
        let quota = self.irs.add(1).add(self.rx_read).add(self.rcv_wnd_limit);
        let opens = quota.distance_from(self.rcv_adv) as i32;
        let least = u32::from(self.mss).min(self.rcv_wnd_limit / 2) as i32;
        if opens >= least { quota } else { self.rcv_adv }
    }

    /// Updates [`flags::WINDOW_EDGE_MOVES`] after a change of the fields that
    /// [`FlowState::right_edge`] reads. Returns the bytes by which the edge can move.
    #[inline(always)]
    pub fn update_window_edge_moves(&mut self) -> u32 {
        let opens = self.right_edge().distance_from(self.rcv_adv);
        if (opens != 0) != self.has(flags::WINDOW_EDGE_MOVES) {
            self.flags ^= flags::WINDOW_EDGE_MOVES;
        }
        opens
    }

    /// Returns true if a window update is due. `opens` is the number of bytes by which the right
    /// edge can move. An update is due if the edge can move by at least half of `rcv_wnd_limit`. If
    /// the advertised window is less than two segments, an update is due if the edge can move at
    /// all.
    #[inline(always)]
    pub fn window_update_due(&self, opens: u32) -> bool {
        let left = self.rcv_adv.distance_from(self.rcv_nxt);
        opens != 0 && (opens >= self.rcv_wnd_limit / 2 || left < u32::from(self.mss) * 2)
    }

    /// Schedules an ACK after `len` bytes arrived in order. The ACK is not delayed in these cases:
    ///
    /// * At least two full segments are not acknowledged yet (RFC 5681 §4.2).
    /// * TCP_QUICKACK is set.
    /// * The flow is in quick-ack mode, and the segment is full or `eager_acks` is true. A flow is
    ///   in quick-ack mode at its start and after a loss, when the peer's cwnd is small.
    pub fn schedule_ack(&mut self, len: u32, timeouts: &Timeouts) {
        self.flags |= self.ack_flags(self.flags, len, timeouts);
    }

    /// Returns the flags that [`FlowState::schedule_ack`] sets, for a caller that sets other flags
    /// at the same time. Updates `rcv_mss`. `before` is the present value of the flow's flags.
    #[inline(always)]
    pub fn ack_flags(&mut self, before: u32, len: u32, timeouts: &Timeouts) -> u32 {
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

    /// Returns true if the flow owes an ACK for at least one full segment.
    pub fn owes_ack_for_full_segment(&self) -> bool {
        let unacked = self.rcv_nxt.distance_from(self.last_ack_sent);
        self.flags & flags::ACK_OWED != 0 && unacked >= u32::from(self.rcv_mss)
    }

    /// Builds a segment with `seq` and `control` that acknowledges all received data. The caller
    /// calls [`FlowState::note_ack_sent`] once the segment is sent.
    pub fn segment_out(
        &self,
        id: FlowId,
        clock: &Clock,
        seq: SeqNumber,
        control: TcpFlags,
        payload_len: u32,
    ) -> SegmentOut {
        let fields = SegmentFields {
            seq,
            control,
            payload_len,
        };
        self.segment_to(self.right_edge(), id, clock, fields)
    }

    /// Returns the offset of TSval from the clock in ms (RFC 7323 §7.1), or `None` if the
    /// connection uses no timestamps.
    pub fn timestamp_offset(&self) -> Option<u32> {
        self.has(flags::TIMESTAMPS).then_some(self.ts_offset)
    }

    /// Returns the TSval of a segment that is sent now.
    #[inline(always)]
    pub fn tsval(&self, clock: &Clock) -> u32 {
        clock.ms.0.wrapping_add(self.ts_offset)
    }

    /// Sends a segment at SND.NXT, and updates the advertised window and Last.ACK.sent. The caller
    /// clears [`flags::ACK_FLAGS`] together with its other changes of the flags. If the driver has
    /// no free frame (packet buffer), the flow does not change.
    #[inline(always)]
    pub fn transmit(
        &mut self,
        id: FlowId,
        clock: &Clock,
        control: TcpFlags,
        payload_len: u32,
        driver: &mut impl Driver,
    ) -> Result<(), TxFull> {
        let seq = self.snd_nxt;
        // Build the segment in each branch so that its fields stay in registers.
        let fields = || SegmentFields {
            seq,
            control,
            payload_len,
        };
        debug_assert!(self.has(flags::WINDOW_EDGE_MOVES) || self.right_edge() == self.rcv_adv);
        if self.flags & flags::WINDOW_EDGE_MOVES != 0 {
            return self.transmit_window(id, clock, fields(), driver);
        }
        let out = self.segment_to(self.rcv_adv, id, clock, fields());
        driver.transmit(&out)?;
        self.last_ack_sent = self.rcv_nxt;
        Ok(())
    }

    /// Sends a segment that moves the right edge of the window.
    #[inline(never)]
    fn transmit_window(
        &mut self,
        id: FlowId,
        clock: &Clock,
        fields: SegmentFields,
        driver: &mut impl Driver,
    ) -> Result<(), TxFull> {
        let out = self.segment_to(self.right_edge(), id, clock, fields);
        driver.transmit(&out)?;
        self.note_window_sent(out.wnd);
        self.last_ack_sent = self.rcv_nxt;
        Ok(())
    }

    /// Builds a segment that advertises a receive window up to `edge`.
    #[inline(always)]
    fn segment_to(
        &self,
        edge: SeqNumber,
        id: FlowId,
        clock: &Clock,
        fields: SegmentFields,
    ) -> SegmentOut {
        let SegmentFields {
            seq,
            control,
            payload_len,
        } = fields;
        let scale = self.rcv_wscale();
        // Round the window field down, because rounding up would offer more than the quota. The
        // right edge may then seem to move left by less than the unit of the field (RFC 7323 §2.4).
        let open = edge.distance_from(self.rcv_nxt);
        let field = (open >> scale).min(0xffff);
        let timestamps = (self.flags & flags::TIMESTAMPS != 0).then_some(Timestamps {
            tsval: self.tsval(clock),
            tsecr: self.ts_recent,
        });
        // The segment carries ECE if the flow's flag ECE is set. Usually, the flag stays set until
        // the peer sends CWR (RFC 3168 §6.1.3). With DCTCP, the flag follows the CE marks of the
        // received segments. If ECN is in use, payload is sent as ECT. The slow path clears ECT of
        // retransmitted payload (RFC 3168 §6.1.5), except with DCTCP.
        let echo = (self.flags >> (flags::ECE_SHIFT - TcpFlags::ECE.0.trailing_zeros())) as u8;
        let echo = TcpFlags(echo & TcpFlags::ECE.0);
        let ecn = if self.flags & flags::ECN != 0 && payload_len > 0 {
            Ecn::Ect0
        } else {
            Ecn::NotEct
        };
        SegmentOut {
            origin: Origin::Flow(id),
            key: self.key,
            link: self.link,
            seq,
            ack: self.rcv_nxt,
            flags: control.union(TcpFlags::ACK).union(echo),
            wnd: field as u16,
            urgent: 0,
            options: TcpOptions::from_timestamps(timestamps),
            payload_pos: self.tx_pos(seq),
            payload_len,
            segment_size: self.mss,
            ecn,
        }
    }

    /// Updates the flow after the transmission of a segment that acknowledges all received data.
    /// `wnd` is the window field of the segment.
    pub fn note_ack_sent(&mut self, wnd: u16) {
        self.last_ack_sent = self.rcv_nxt;
        self.clear(flags::ACK_FLAGS);
        self.note_window_sent(wnd);
    }

    /// Updates the advertised window after the transmission of a segment with window field `wnd`.
    fn note_window_sent(&mut self, wnd: u16) {
        let window = u32::from(wnd) << self.rcv_wscale();
        self.rcv_adv = self.rcv_nxt.add(window).later_of(self.rcv_adv);
        self.update_window_edge_moves();
    }
}

/// Fields of a segment that the caller chooses: SEG.SEQ, control bits and payload length.
struct SegmentFields {
    seq: SeqNumber,
    control: TcpFlags,
    payload_len: u32,
}
