//! Established flows in the common case: in-order data, acknowledgments that advance, new data out.
//!
//! Nothing here allocates, waits or looks anything up. What is not recognised is punted, untouched,
//! to whoever called.
#![forbid(unsafe_code)]

use tidelane_flow::{Clock, Env, Event, FlowId, FlowState, Timeouts, TxFull, flags};
use tidelane_wire::{Ecn, SegmentView, SeqNumber, TcpFlags};

/// The fast path did not take the segment; the flow is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Punt;

/// The segment was received; whether the flow was on the list of batch end before. It has the flag
/// now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed(pub bool);

/// Flags of a flow that sends in another way than [`Fast::send_alone`].
pub const NOT_ALONE: u32 = flags::EDGE_MOVES
    | flags::RTO_ARMED
    | flags::RTT_TIMING
    | flags::FIN_QUEUED
    | flags::CORK
    | flags::SMALL_SENT;

/// One flow in the fast path's hands.
pub struct Fast<'a, E> {
    /// Its number.
    pub id: FlowId,
    /// Hot state.
    pub flow: &'a mut FlowState,
    /// The time.
    pub clock: &'a Clock,
    /// Bounds of timeouts.
    pub timeouts: &'a Timeouts,
    /// Control bits for the first segment of new text: CWR (RFC 3168 §6.1.2), or none.
    pub first: TcpFlags,
    /// The driver.
    pub env: &'a mut E,
}

impl<'a, E: Env> Fast<'a, E> {
    /// One with no control bits to send.
    #[inline(always)]
    pub fn new(
        id: FlowId,
        flow: &'a mut FlowState,
        clock: &'a Clock,
        timeouts: &'a Timeouts,
        env: &'a mut E,
    ) -> Self {
        let first = TcpFlags::NONE;
        Self {
            id,
            flow,
            clock,
            timeouts,
            first,
            env,
        }
    }

    /// Header prediction after Van Jacobson: a segment of an established flow that is next in
    /// order, or an acknowledgment that advances, with nothing unusual in it.
    #[inline(always)]
    pub fn receive(&mut self, segment: &impl SegmentView, ecn: Ecn) -> Result<Listed, Punt> {
        let flow = &mut *self.flow;
        let usual = segment.flags().0 & !TcpFlags::PSH.0 == TcpFlags::ACK.0;
        // A mark, or its absence while one is being echoed, is news. `Ce` is the one field value
        // whose successor has bit 2.
        let marked = ((ecn as u32 + 1) << (flags::ECE_SHIFT - 2)) & flags::ECE;
        let calm = flags::FOUND | flags::FAST_RECEIVE;
        let before = flow.flags;
        let is_calm = (before ^ marked) & (calm | flags::ECE) == calm;
        if !usual || !is_calm || segment.seq() != flow.rcv_nxt {
            return Err(Punt);
        }
        let len = segment.payload().len() as u32;
        let acked = segment.ack().distance_from(flow.snd_una);
        let wnd = u32::from(segment.wnd()) << flow.snd_wscale();
        // What was never sent, a closed window, text beyond ours, and pure duplicates are the slow
        // path's; so is growth of the congestion window, while it limits.
        let limited = acked > 0 && before & flags::CWND_LIMITED != 0;
        if acked > flow.flight_size()
            || len > flow.rcv_adv.distance_from(flow.rcv_nxt)
            || (len | acked) == 0
            || wnd == 0
            || limited
            || segment.has_sack()
        {
            return Err(Punt);
        }
        let mut tsval = flow.ts_recent;
        if before & flags::TIMESTAMPS != 0 {
            // PAWS (RFC 7323 §5.3 R1) in the common direction.
            match segment.timestamps() {
                Some(t) if (t.tsval.wrapping_sub(tsval) as i32) >= 0 => tsval = t.tsval,
                _ => return Err(Punt),
            }
        }
        let mut wanted = flags::PENDING;
        if len > 0 {
            let pos = flow.rx_pos(segment.seq());
            if !self.env.place(self.id, pos, segment.payload()) {
                return Err(Punt);
            }
            flow.rcv_nxt = segment.seq().add(len);
            wanted |= flow.ack_duty(before, len, self.timeouts);
        }
        // R3: a delayed acknowledgment echoes the first segment that it covers.
        if segment.seq().at_or_before(flow.last_ack_sent) {
            flow.ts_recent = tsval;
        }
        flow.last_arrival = (self.clock.ms.0 >> 10) as u16;
        if acked > 0 {
            flow.snd_wnd = wnd;
            if flow.tx_end != flow.snd_nxt {
                wanted |= flags::SEND_WANTED;
            }
            self.acknowledge(segment.ack());
            self.flow.flags |= wanted;
            self.env.progress(self.id, len > 0, true);
        } else {
            if wnd != flow.snd_wnd {
                flow.snd_wnd = wnd;
                if flow.tx_end != flow.snd_nxt {
                    wanted |= flags::SEND_WANTED;
                }
            }
            flow.flags = before | wanted;
            self.env.event(self.id, Event::Readable);
        }
        Ok(Listed(before & flags::PENDING != 0))
    }

    /// Sends a pure acknowledgment of all that has arrived, for a flow with nothing out of order.
    /// That is the end of its batch.
    #[inline(always)]
    pub fn acknowledge_now(&mut self) -> Result<(), TxFull> {
        let flow = &mut *self.flow;
        flow.transmit(self.id, self.clock, TcpFlags::ACK, 0, self.env)?;
        self.note_acknowledged(self.flow.flags);
        Ok(())
    }

    /// The segment just taken has PSH and is not its flow's first in this batch: a run ends, as it
    /// does for GRO. What is owed for two segments is sent now, and what is owed for a whole one at
    /// the end of the batch. If that had a single acknowledgment for all, and it got lost, a sender
    /// with a small window would have to wait for its probe. True if one was sent.
    pub fn end_run(&mut self) -> bool {
        let before = self.flow.flags;
        if before & flags::ACK_NOW != 0 {
            // One that finds no frame is sent at the end of the batch, for which the flow stays
            // listed.
            let sent = self.acknowledge_now().is_ok();
            self.flow.flags |= flags::PENDING;
            return sent;
        }
        if self.flow.owes_for_whole() {
            self.flow.flags |= flags::ACK_NOW;
        }
        false
    }

    /// [`Fast::acknowledge_now`] where the window's edge stays. The flow's flags are `before`.
    #[inline(always)]
    pub fn acknowledge_directly(&mut self, before: u32) -> Result<(), TxFull> {
        let flow = &mut *self.flow;
        if self.env.takes_directly(self.id, false) {
            flow.transmit_directly(self.id, self.clock, TcpFlags::ACK, 0, self.env)?;
        } else {
            flow.transmit(self.id, self.clock, TcpFlags::ACK, 0, self.env)?;
        }
        self.note_acknowledged(before);
        Ok(())
    }

    /// A pure acknowledgment was sent; the flags were `before`.
    #[inline(always)]
    fn note_acknowledged(&mut self, before: u32) {
        let mut now = before & !(flags::ACK_DUTIES | flags::PENDING);
        if now >> flags::QUICK_SHIFT > 0 {
            now -= 1 << flags::QUICK_SHIFT;
        }
        self.flow.flags = now;
    }

    /// `ack` is new: moves SND.UNA, takes a round-trip sample, and restarts the timer
    /// (RFC 6298 (5.2), (5.3)).
    #[inline(always)]
    fn acknowledge(&mut self, ack: SeqNumber) {
        let flow = &mut *self.flow;
        flow.snd_una = ack;
        if flow.flags & flags::RTT_TIMING != 0 && flow.rtt_seq.at_or_before(ack) {
            flow.flags &= !flags::RTT_TIMING;
            flow.sample_rtt(self.clock.us().wrapping_sub(flow.rtt_stamp));
        }
        if flow.snd_una == flow.snd_nxt {
            flow.flags &= !(flags::RTO_ARMED | flags::SMALL_SENT);
        } else {
            restart_timer(flow, self.clock, self.timeouts);
        }
    }

    /// Sends all that is unsent, where that is one segment within all windows and nothing is in
    /// flight: what a request or a reply mostly is, and the end of its batch. Anything else is for
    /// [`Fast::send`]. The caller has seen that SRTT is known and that none of [`NOT_ALONE`] is
    /// among the flow's flags, which are `before`; `now_us` is [`Clock::us`], which it has looked
    /// at, too.
    #[inline(always)]
    pub fn send_alone(&mut self, before: u32, now_us: u32) -> Result<(), Punt> {
        let flow = &mut *self.flow;
        let mss = u32::from(flow.mss);
        let len = flow.tx_end.distance_from(flow.snd_nxt);
        debug_assert!(before == flow.flags && before & NOT_ALONE == 0);
        debug_assert!(flow.snd_nxt == flow.snd_una);
        // More than half a window may make it grow: see `limited`.
        if len.wrapping_sub(1) >= mss
            || len > flow.snd_wnd
            || len > flow.cwnd / 2
            || flow.rttvar >= self.timeouts.steady_us
        {
            return Err(Punt);
        }
        let sent = if self.env.takes_directly(self.id, true) {
            flow.transmit_directly(self.id, self.clock, TcpFlags::PSH, len, self.env)
        } else {
            flow.transmit(self.id, self.clock, TcpFlags::PSH, len, self.env)
        };
        sent.map_err(|TxFull| Punt)?;
        let mut now = self.note_sent(before, TcpFlags::PSH, len, now_us);
        now &= !(flags::SEND_WANTED | flags::PENDING | flags::TIMER);
        if len < mss {
            now |= flags::SMALL_SENT;
        }
        let flow = &mut *self.flow;
        flow.flags = now | flow.restart_steady(before, self.clock, self.timeouts);
        Ok(())
    }

    /// Sends what window, congestion window and Nagle allow, and FIN with the last byte. Returns
    /// how many segments that were; `Err` if the driver has no frame.
    pub fn send(&mut self) -> Result<u32, TxFull> {
        let sent = self.send_segments();
        let flight = self.flow.flight_size();
        if self.flow.flags & flags::RTO_ARMED == 0 && flight > 0 {
            self.flow.restart_rto(flight, self.clock, self.timeouts);
        }
        sent
    }

    /// Sends as much as the windows allow, in several segments or none.
    fn send_segments(&mut self) -> Result<u32, TxFull> {
        let mss = u32::from(self.flow.mss);
        let wnd_end = self.flow.snd_una.add(self.flow.snd_wnd);
        let cwnd_end = self.flow.snd_una.add(self.flow.cwnd);
        let now_us = self.clock.us();
        // Segments, and bytes since the last PSH.
        let (mut sent, mut run) = (0, 0);
        loop {
            let flow = &mut *self.flow;
            let unsent = room_until(flow.tx_end, flow.snd_nxt);
            if unsent == 0 {
                flow.flags |= limited(flow, flow.flight_size());
                return Ok(sent);
            }
            let len = unsent.min(mss);
            // Sender's silly window avoidance (RFC 9293 §3.8.6.2.1): no part of a segment. A window
            // that never has room for a whole one is the persist timer's.
            if len > room_until(wnd_end, flow.snd_nxt) {
                return Ok(sent);
            }
            if len > room_until(cwnd_end, flow.snd_nxt) {
                flow.flags |= flags::CWND_LIMITED;
                return Ok(sent);
            }
            let usable = unsent
                .min(room_until(wnd_end, flow.snd_nxt))
                .min(room_until(cwnd_end, flow.snd_nxt));
            let len = if usable >= 2 * mss && self.first == TcpFlags::NONE {
                self.burst(usable, mss)
            } else {
                len
            };
            let flow = &mut *self.flow;
            let last = len == unsent;
            let fin = last && flow.flags & flags::FIN_QUEUED != 0;
            let small = len < mss && !fin;
            if small && held(flow) {
                return Ok(sent);
            }
            // What is cut ends with PSH, as in Linux: a receiver that puts it together again is to
            // pass it on, and acknowledge it, without waiting for more. So does half a window of
            // what is not.
            run += len;
            let push = last || len > mss || run + mss > flow.cwnd / 2;
            if push {
                run = 0;
            }
            let mut control = if push { TcpFlags::PSH } else { TcpFlags::NONE };
            if fin {
                control |= TcpFlags::FIN;
            }
            self.transmit(control, len, now_us)?;
            if small {
                self.flow.flags |= flags::SMALL_SENT;
            }
            sent += len.div_ceil(mss);
        }
    }

    /// How much of `usable` bytes goes out at once: whole segments, as many as the link cuts, but
    /// no more than half a window (as in Linux). A receiver acknowledges what came at once with one
    /// segment; of two that are under way one may be lost.
    #[inline]
    fn burst(&self, usable: u32, mss: u32) -> u32 {
        let most = usable.min(self.env.burst_len(self.id));
        let most = most.min(self.flow.cwnd / 2);
        (most / mss).max(1) * mss
    }

    /// Sends `len` new bytes: one segment, or several that the link cuts.
    #[inline(always)]
    fn transmit(&mut self, control: TcpFlags, len: u32, now_us: u32) -> Result<(), TxFull> {
        let flow = &mut *self.flow;
        flow.transmit(self.id, self.clock, control | self.first, len, self.env)?;
        self.first = TcpFlags::NONE;
        self.flow.flags = self.note_sent(self.flow.flags, control, len, now_us);
        Ok(())
    }

    /// `len` new bytes were sent; the flags are `before`. Returns what they are to be.
    #[inline(always)]
    fn note_sent(&mut self, before: u32, control: TcpFlags, len: u32, now_us: u32) -> u32 {
        let flow = &mut *self.flow;
        let mut now = before & !flags::ACK_DUTIES;
        let eager = self.timeouts.eager_acks && flow.rcv_nxt != flow.irs.add(1);
        if before & flags::ACK_OWED != 0 || eager {
            // The two sides take turns: acknowledgments go with answers.
            now &= !(15 << flags::QUICK_SHIFT);
        }
        flow.snd_nxt = flow.snd_nxt.add(len);
        if control.contains(TcpFlags::FIN) {
            flow.snd_nxt = flow.snd_nxt.add(1);
            now |= flags::FIN_SENT;
        }
        if now & flags::RTT_TIMING == 0 {
            now |= flags::RTT_TIMING;
            flow.rtt_seq = flow.snd_nxt;
            flow.rtt_stamp = now_us;
        }
        now
    }
}

/// [`FlowState::restart_rto`] for segments of a longer flight, out of the way of all others.
#[inline(never)]
fn restart_timer(flow: &mut FlowState, clock: &Clock, timeouts: &Timeouts) {
    flow.restart_rto(flow.flight_size(), clock, timeouts);
}

/// Sequence numbers from `from` to `end`, none if `end` is before it.
#[inline]
fn room_until(end: SeqNumber, from: SeqNumber) -> u32 {
    if end.after(from) {
        end.distance_from(from)
    } else {
        0
    }
}

/// The flag to set when nothing is unsent any more, and `flight` bytes are not acknowledged: a
/// window of which more than half is in use may still grow in slow start.
#[inline]
const fn limited(flow: &FlowState, flight: u32) -> u32 {
    if flight > flow.cwnd / 2 {
        flags::CWND_LIMITED
    } else {
        0
    }
}

/// Whether a segment that is not full must wait: for a cork, or for the acknowledgment of another
/// one like it (Nagle, RFC 9293 §3.7.4, as Minshall refined it and Linux has it: a full segment in
/// flight does not count, or the end of each long write would wait for a delayed acknowledgment).
#[inline]
fn held(flow: &FlowState) -> bool {
    match flow.flags & (flags::CORK | flags::NODELAY) {
        flags::NODELAY => false,
        0 => flow.flags & flags::SMALL_SENT != 0,
        _ => true,
    }
}
