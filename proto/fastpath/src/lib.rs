//! The fast path of the TCP engine: in-order data, ACKs that advance SND.UNA, and new data to send.
//!
//! The fast path works for established flows (connections) without losses, and neither allocates
//! memory nor looks anything up. The fast path *punts* every other segment: the flow stays
//! unchanged, and the caller, the crate `tidelane-engine`, passes the segment to the slow path.
//!
//! The engine works in batches. A batch is a group of segments and requests that the driver (the
//! program that runs the engine) passes to the engine before the driver calls `batch_end`. A flow
//! is pending if its data or its ACK has to be sent at the end of the batch. A burst is one large
//! segment, which the link splits into segments of one MSS (segmentation offload). A frame is a
//! transmit buffer of the driver.
#![forbid(unsafe_code)]

use tidelane_flow::{Clock, Driver, Event, FlowId, FlowState, Timeouts, TxFull, flags};
use tidelane_wire::{Ecn, SegmentView, SeqNumber, TcpFlags};

/// Error of a call that the fast path did not handle. The flow is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Punt;

/// Result of [`FastPath::receive`] for a segment that the fast path handled. The flow is pending
/// after the segment. The value is true if the flow was already pending before the segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WasPending(pub bool);

/// Flags that a flow must not have for [`FastPath::send_single`].
pub const SEND_SINGLE_EXCLUDES: u32 = flags::WINDOW_EDGE_MOVES
    | flags::RTO_ARMED
    | flags::RTT_TIMING
    | flags::FIN_QUEUED
    | flags::CORK
    | flags::SMALL_SENT;

/// SRTT in microseconds from which a path is not short. Linux, too, sends larger GSO packets on
/// paths shorter than about this time (`tcp_tso_rtt_log`).
const SHORT_PATH_US: u32 = 1000;
/// Initial window in segments (RFC 6928 §2).
const INITIAL_WINDOW: u32 = 10;

/// A flow and its surroundings, borrowed for one fast-path call.
pub struct FastPath<'a, E> {
    /// Id of the flow.
    pub id: FlowId,
    /// Hot state of the flow: the fields that the fast path uses.
    pub flow: &'a mut FlowState,
    /// Time of the call.
    pub clock: &'a Clock,
    /// Timeouts of the configuration.
    pub timeouts: &'a Timeouts,
    /// Flags to add to the first segment with new data: CWR (RFC 3168 §6.1.2), or none.
    pub first_flags: TcpFlags,
    /// The driver: the program that runs the engine, not a NIC driver.
    pub driver: &'a mut E,
}

impl<'a, E: Driver> FastPath<'a, E> {
    /// Borrows a flow for a call that sends no CWR.
    #[inline(always)]
    pub fn new(
        id: FlowId,
        flow: &'a mut FlowState,
        clock: &'a Clock,
        timeouts: &'a Timeouts,
        driver: &'a mut E,
    ) -> Self {
        let first_flags = TcpFlags::NONE;
        Self {
            id,
            flow,
            clock,
            timeouts,
            first_flags,
            driver,
        }
    }

    /// Handles the next segment in order, or an ACK that advances SND.UNA, of an established flow
    /// (Van Jacobson's header prediction). Punts all other segments.
    #[inline(always)]
    pub fn receive(&mut self, segment: &impl SegmentView, ecn: Ecn) -> Result<WasPending, Punt> {
        let flow = &mut *self.flow;
        let plain_flags = segment.flags().0 & !TcpFlags::PSH.0 == TcpFlags::ACK.0;
        // Punt a segment with CE if the flow's flag ECE is clear, and a segment without CE if the
        // flag is set. `Ecn::Ce` is the only value for which `ecn + 1` has bit 2 set.
        let ce_flag = ((ecn as u32 + 1) << (flags::ECE_SHIFT - 2)) & flags::ECE;
        let required = flags::LOOKUP_FLAGS | flags::FAST_RECEIVE;
        let before = flow.flags;
        let is_fast = (before ^ ce_flag) & (required | flags::ECE) == required;
        if !plain_flags || !is_fast || segment.seq() != flow.rcv_nxt {
            return Err(Punt);
        }
        let len = segment.payload().len() as u32;
        let acked = segment.ack().distance_from(flow.snd_una);
        let wnd = u32::from(segment.wnd()) << flow.snd_wscale();
        // The slow path handles ACKs of unsent data, old ACKs, a closed window, data beyond our
        // window, empty segments that acknowledge no new data, and SACK blocks. If cwnd limits the
        // flow, the slow path also handles all ACKs of new data, because cwnd may grow.
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
            // PAWS (RFC 7323 §5.3 R1): punt a segment whose timestamp went back or is missing.
            match segment.timestamps() {
                Some(t) if (t.tsval.wrapping_sub(tsval) as i32) >= 0 => tsval = t.tsval,
                _ => return Err(Punt),
            }
        }
        let mut wanted = flags::PENDING;
        if len > 0 {
            wanted |= self.process_text(segment, before, len)?;
        } else {
            flow.traffic.on_empty_received();
        }
        let flow = &mut *self.flow;
        // R3 of RFC 7323 §5.3: a delayed ACK echoes the timestamp of the first segment that the ACK
        // covers.
        if segment.seq().at_or_before(flow.last_ack_sent) {
            flow.ts_recent = tsval;
        }
        flow.last_arrival = (self.clock.ms.0 >> 10) as u16;
        if acked > 0 {
            flow.snd_wnd = wnd;
            if flow.tx_end != flow.snd_nxt {
                wanted |= flags::SEND_WANTED;
            }
            self.acknowledge(segment.ack(), acked);
            self.flow.flags |= wanted;
            self.driver.event(self.id, Event::acked(len > 0));
        } else {
            if wnd != flow.snd_wnd {
                flow.snd_wnd = wnd;
                if flow.tx_end != flow.snd_nxt {
                    wanted |= flags::SEND_WANTED;
                }
            }
            flow.flags = before | wanted;
            self.driver.event(self.id, Event::READABLE);
        }
        Ok(WasPending(before & flags::PENDING != 0))
    }

    /// Sends a pure ACK of all received data, for a flow without out-of-order data. The flow is not
    /// pending afterwards. If no frame is free, nothing changes.
    #[inline(always)]
    pub fn acknowledge_now(&mut self) -> Result<(), TxFull> {
        let flow = &mut *self.flow;
        flow.transmit(self.id, self.clock, TcpFlags::ACK, 0, self.driver)?;
        let mut now = flow.flags & !(flags::ACK_FLAGS | flags::PENDING);
        if now >> flags::QUICK_SHIFT > 0 {
            now -= 1 << flags::QUICK_SHIFT;
        }
        flow.traffic.on_empty_sent();
        flow.flags = now;
        Ok(())
    }

    /// Ends a run. A run consists of consecutive segments that GRO would merge into one packet. The
    /// last segment of a run has PSH.
    ///
    /// If an ACK is already scheduled for the end of the batch, sends this ACK immediately.
    /// Otherwise, if the flow owes an ACK for at least one full segment, schedules this ACK for the
    /// end of the batch. Returns true if an ACK was sent.
    ///
    /// If each batch had one ACK only, the loss of this ACK would make a sender with a small window
    /// wait for its probe timeout. The caller ends a run only if the flow was pending before the
    /// segment with PSH, so that a lone segment is acknowledged at the end of the batch.
    pub fn end_run(&mut self) -> bool {
        let before = self.flow.flags;
        if before & flags::ACK_NOW != 0 {
            // If no frame is free, the ACK is sent at the end of the batch, so the flow stays
            // pending.
            let sent = self.acknowledge_now().is_ok();
            self.flow.flags |= flags::PENDING;
            return sent;
        }
        if self.flow.owes_ack_for_full_segment() {
            self.flow.flags |= flags::ACK_NOW;
        }
        false
    }

    /// Lets the driver store the payload of a segment that begins at RCV.NXT, and advances RCV.NXT
    /// by `len`, the length of the payload. Returns the flags to set, or [`Punt`] if the driver
    /// does not store the payload. `before` holds the flow's present flags.
    #[inline(always)]
    fn process_text(
        &mut self,
        segment: &impl SegmentView,
        before: u32,
        len: u32,
    ) -> Result<u32, Punt> {
        let flow = &mut *self.flow;
        let pos = flow.rx_pos(segment.seq());
        if !self.driver.place(self.id, pos, segment.payload()) {
            return Err(Punt);
        }
        flow.rcv_nxt = segment.seq().add(len);
        flow.traffic.on_data_received(self.clock.ms);
        Ok(flow.ack_flags(before, len, self.timeouts))
    }

    /// Advances SND.UNA by `acked` bytes to `ack`, takes an RTT sample if `ack` covers the timed
    /// segment, and stops or restarts the retransmission timer (RFC 6298 (5.2), (5.3)).
    #[inline(always)]
    fn acknowledge(&mut self, ack: SeqNumber, acked: u32) {
        let flow = &mut *self.flow;
        flow.traffic.on_acked(self.clock.ms, acked);
        flow.snd_una = ack;
        if flow.flags & flags::RTT_TIMING != 0 && flow.rtt_seq.at_or_before(ack) {
            flow.flags &= !flags::RTT_TIMING;
            flow.sample_rtt(self.clock.us().wrapping_sub(flow.rtt_stamp));
        }
        if flow.snd_una == flow.snd_nxt {
            flow.flags &= !(flags::RTO_ARMED | flags::SMALL_SENT);
            flow.traffic.end_busy(self.clock);
        } else {
            restart_timer(flow, self.clock, self.timeouts);
        }
    }

    /// Sends all unsent data as one segment. The data must fit into one segment, into the send
    /// window and into half of cwnd, as most requests and responses do. [`FlowState::rttvar`] must
    /// be below [`Timeouts::rttvar_rto_min_us`]. The flow is not pending afterwards. Punts if one
    /// of these conditions does not hold, if there is no unsent data, or if no frame is free.
    ///
    /// The caller has checked that nothing is in flight, that SRTT is known, and that the flow has
    /// no flag of [`SEND_SINGLE_EXCLUDES`]. `before` holds the flow's present flags, and `now_us`
    /// is [`Clock::us`].
    #[inline(always)]
    pub fn send_single(&mut self, before: u32, now_us: u32) -> Result<(), Punt> {
        let flow = &mut *self.flow;
        let mss = u32::from(flow.mss);
        let len = flow.tx_end.distance_from(flow.snd_nxt);
        debug_assert!(before == flow.flags && before & SEND_SINGLE_EXCLUDES == 0);
        debug_assert!(flow.snd_nxt == flow.snd_una);
        // A flight of more than half of cwnd may grow cwnd: see `cwnd_limited_flag`.
        if len == 0
            || len > mss
            || len > flow.snd_wnd
            || len > flow.cwnd / 2
            || flow.rttvar >= self.timeouts.rttvar_rto_min_us
        {
            return Err(Punt);
        }
        flow.transmit(self.id, self.clock, TcpFlags::PSH, len, self.driver)
            .map_err(|TxFull| Punt)?;
        let mut now = self.update_after_send(before, TcpFlags::PSH, len, now_us);
        now &= !(flags::SEND_WANTED | flags::PENDING | flags::TIMER);
        if len < mss {
            now |= flags::SMALL_SENT;
        }
        let flow = &mut *self.flow;
        flow.traffic.begin_flight(now_us);
        flow.flags = now | flow.restart_rto_for_single_segment(before, self.clock, self.timeouts);
        Ok(())
    }

    /// Sends new data as far as the window, cwnd and Nagle allow. The segment with the last byte
    /// carries a queued FIN. Returns the number of segments. If no frame is free, returns `Err`,
    /// although a part of the data may have been sent.
    pub fn send(&mut self) -> Result<u32, TxFull> {
        let sent = self.send_segments();
        let flight = self.flow.flight_size();
        if flight > 0 {
            self.flow.traffic.begin_busy(self.clock.us());
        }
        if self.flow.flags & flags::RTO_ARMED == 0 && flight > 0 {
            self.flow.restart_rto(flight, self.clock, self.timeouts);
        }
        sent
    }

    /// Sends the segments for [`FastPath::send`], and leaves the timer to the caller.
    fn send_segments(&mut self) -> Result<u32, TxFull> {
        let mss = u32::from(self.flow.mss);
        let wnd_end = self.flow.snd_una.add(self.flow.snd_wnd);
        let cwnd_end = self.flow.snd_una.add(self.flow.cwnd);
        let now_us = self.clock.us();
        // `sent` counts the segments, and `run` counts the bytes since the last PSH.
        let (mut sent, mut run) = (0, 0);
        loop {
            let flow = &mut *self.flow;
            let unsent = flow.unsent();
            if unsent == 0 {
                flow.flags |= cwnd_limited_flag(flow, flow.flight_size());
                return Ok(sent);
            }
            let len = unsent.min(mss);
            // Sender's silly window avoidance (RFC 9293 §3.8.6.2.1): if the window has no room for
            // a whole segment, send no part of this segment. If the window stays smaller than a
            // segment, the persist timer sends a part.
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
            let len = if usable >= 2 * mss && self.first_flags == TcpFlags::NONE {
                self.burst(usable, mss)
            } else {
                len
            };
            let flow = &mut *self.flow;
            let last = len == unsent;
            let fin = last && flow.flags & flags::FIN_QUEUED != 0;
            let is_whole = len == mss || (len > mss && len.is_multiple_of(mss));
            let small = !is_whole && !fin;
            if small && is_held_by_nagle(flow) {
                return Ok(sent);
            }
            // A burst that the link splits ends with PSH, as in Linux, so that a receiver with GRO
            // delivers and acknowledges the burst without waiting for more segments. Other segments
            // get PSH after each half of cwnd.
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

    /// Returns the length of the next burst: as much of the `usable` bytes as the link and
    /// [`burst_max`](Self::burst_max) allow, and at least one segment. The last segment of a burst
    /// is whole, unless the burst has all unsent data and Nagle permits a small segment.
    #[inline]
    fn burst(&self, usable: u32, mss: u32) -> u32 {
        let flow = &*self.flow;
        let most = usable.min(self.driver.burst_len(self.id, mss));
        let most = most.min(self.burst_max(usable, mss));
        let has_all = most == flow.unsent();
        if has_all && (flow.flags & flags::FIN_QUEUED != 0 || !is_held_by_nagle(flow)) {
            return most;
        }
        (most / mss).max(1) * mss
    }

    /// Returns the largest number of bytes that a burst may have if `usable` bytes fit into the
    /// window.
    ///
    /// A receiver acknowledges a burst by one ACK. On most paths, a burst therefore has at most
    /// half of cwnd, as in Linux. With two bursts per window, one of their ACKs may be lost without
    /// a timeout.
    ///
    /// On a short path, the hosts spend more time on an additional burst and its ACK than the path
    /// takes. A burst may have an initial window there (RFC 6928), or all unsent data, since no
    /// data waits for the ACK of the last burst. If the ACK is lost, a tail loss probe follows
    /// soon, provided that the peer permits SACK (RFC 8985 §7.2). A cwnd below the initial window
    /// shows losses, which may also affect ACKs.
    #[inline]
    fn burst_max(&self, usable: u32, mss: u32) -> u32 {
        let flow = &*self.flow;
        let (half, initial) = (flow.cwnd / 2, INITIAL_WINDOW * mss);
        let is_short = flow.srtt != 0 && flow.srtt >> 3 < SHORT_PATH_US;
        let has_probe = flow.flags & flags::SACK != 0;
        if !is_short || !has_probe || flow.cwnd < initial {
            half
        } else if usable == flow.unsent() {
            usable
        } else {
            half.max(initial)
        }
    }

    /// Sends `len` bytes of new data: one segment, or a burst that the link splits.
    #[inline(always)]
    fn transmit(&mut self, control: TcpFlags, len: u32, now_us: u32) -> Result<(), TxFull> {
        let flow = &mut *self.flow;
        flow.transmit(
            self.id,
            self.clock,
            control | self.first_flags,
            len,
            self.driver,
        )?;
        self.first_flags = TcpFlags::NONE;
        let mss = u32::from(self.flow.mss);
        if len > mss {
            let others = len.div_ceil(mss) - 1;
            self.flow.traffic.on_data_sent(self.clock.ms, others);
        }
        self.flow.flags = self.update_after_send(self.flow.flags, control, len, now_us);
        Ok(())
    }

    /// Updates the flow after `len` bytes of new data were sent. Returns the new value of the
    /// flags, which were `before`.
    #[inline(always)]
    fn update_after_send(&mut self, before: u32, control: TcpFlags, len: u32, now_us: u32) -> u32 {
        let flow = &mut *self.flow;
        let mut now = before & !flags::ACK_FLAGS;
        let eager = self.timeouts.eager_acks && flow.rcv_nxt != flow.irs.add(1);
        if before & flags::ACK_OWED != 0 || eager {
            // Leave quick-ack mode, in which ACKs are not delayed: the two ends alternate, so data
            // segments carry the ACKs.
            now &= !(15 << flags::QUICK_SHIFT);
        }
        flow.snd_nxt = flow.snd_nxt.add(len);
        flow.traffic.on_data_sent(self.clock.ms, 1);
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

/// Calls [`FlowState::restart_rto`]. The function is not inlined, so that the code for an ACK of
/// all data in flight stays short.
#[inline(never)]
fn restart_timer(flow: &mut FlowState, clock: &Clock, timeouts: &Timeouts) {
    flow.restart_rto(flow.flight_size(), clock, timeouts);
}

/// Returns the number of sequence numbers from `from` to `end`; zero if `end` is before `from`.
#[inline]
fn room_until(end: SeqNumber, from: SeqNumber) -> u32 {
    if end.after(from) {
        end.distance_from(from)
    } else {
        0
    }
}

/// Returns the flag CWND_LIMITED if `flight`, the number of bytes in flight after all data was
/// sent, exceeds half of cwnd, and zero otherwise. In slow start, a flow with this flag may grow
/// cwnd.
#[inline]
const fn cwnd_limited_flag(flow: &FlowState, flight: u32) -> u32 {
    if flight > flow.cwnd / 2 {
        flags::CWND_LIMITED
    } else {
        0
    }
}

/// Returns true if a small segment must wait because of TCP_CORK or Nagle (RFC 9293 §3.7.4). As in
/// Linux, Minshall's variant of Nagle applies: a small segment waits only if another small segment
/// was sent after the most recent time at which no data was in flight. If a full segment in flight
/// counted, too, the end of each long write would wait for a delayed ACK.
#[inline]
fn is_held_by_nagle(flow: &FlowState) -> bool {
    match flow.flags & (flags::CORK | flags::NODELAY) {
        flags::NODELAY => false,
        0 => flow.flags & flags::SMALL_SENT != 0,
        _ => true,
    }
}
