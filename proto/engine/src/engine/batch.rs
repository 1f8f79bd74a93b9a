//! End of a batch, and expiry of timers. A batch is a burst of segments and requests that the
//! driver (the program that runs the engine) passes to the engine before it calls
//! [`Engine::batch_end`].
//!
//! At the end of a batch, the engine finishes each pending flow: each flow (connection) that owes
//! an ACK, has data to send or needs a new deadline. To finish a flow is to send its data and its
//! ACK, and to schedule its next deadline. `docs/design/engine.md` describes batches.

use tidelane_fastpath::{FastPath, SEND_SINGLE_EXCLUDES};
use tidelane_flow::{Clock, Driver, FlowId, FlowState, Millis, TxFull, flags};
use tidelane_slowpath::SlowPath;
use tidelane_time::{Instant, TimerHandle};
use tidelane_wire::SeqNumber;

use super::{Engine, ts_recent_check::TS_RECENT_CHECK};

/// Idle time in µs after which the slow path must check cwnd before a flow sends (RFC 5681 §4.1
/// restarts from the initial window after an idle time of more than one RTO). The slow path
/// compares the idle time with the RTO. The value is well below the default RTO_MIN of 200 ms, so
/// that the slow path is never asked too late. If `rto_min` is below this value, a flow keeps its
/// cwnd after an idle time that is longer than its RTO but shorter than this value. A constant is
/// used because the fast path compares with a constant faster than with the RTO.
const IDLE_US_MIN: u32 = 10_000;

/// Flags that must be set for the fast path to finish a flow.
const FAST_FLAGS: u32 = flags::FAST_SEND | flags::FAST_RECEIVE;
/// Flags that must be clear for the fast path to finish a flow.
const SLOW_FLAGS: u32 = flags::SLOW_DEADLINE | flags::FIN_QUEUED;
/// Flags by which the engine recognizes a pending flow that has nothing to send but a pure ACK. Of
/// these flags, only FAST_FLAGS and ACK_NOW are then set, so the ACK does not move the right edge
/// of the window, and no retransmission timer runs.
const ACK_MASK: u32 = FAST_FLAGS
    | SLOW_FLAGS
    | flags::SEND_WANTED
    | flags::ACK_NOW
    | flags::WINDOW_EDGE_MOVES
    | flags::RTO_ARMED;
/// Flags by which the engine recognizes a pending flow whose data [`FastPath::send_single`] may
/// send.
const DATA_MASK: u32 = FAST_FLAGS | SLOW_FLAGS | flags::SEND_WANTED | SEND_SINGLE_EXCLUDES;
/// Flags by which the engine recognizes a pending flow that has nothing to send now, or nothing but
/// a pure ACK.
const IDLE_MASK: u32 = FAST_FLAGS | SLOW_FLAGS | flags::SEND_WANTED | flags::ACK_NOW;

impl Engine {
    /// Ends a batch of segments and requests. Sends the data that the windows allow. Sends the ACKs
    /// that may not be delayed, with at most one pure ACK per flow. Starts the delayed-ACK timers
    /// of the other ACKs. Ids of freed flows may be reused afterwards.
    #[inline(always)]
    pub fn batch_end(&mut self, now: Instant, driver: &mut impl Driver) {
        // Flows that become pending during this loop are finished at the end of the next batch.
        let count = self.pending.len();
        if count > 0 {
            self.tick(now);
            for at in 0..count {
                let Some(id) = self.pending.get(at).copied() else {
                    break;
                };
                if !self.finish_fast(id, driver) {
                    self.finish_flow(id, driver);
                }
            }
            self.drain_pending(count);
        }
        self.table.recycle();
    }

    /// Sends the data that the windows of a flow allow, without waiting for the end of the batch.
    pub(super) fn send_now(&mut self, now: Instant, id: FlowId, driver: &mut impl Driver) {
        let flow = self.table.get(id);
        if flow.is_some_and(|flow| flow.has(flags::SEND_WANTED)) {
            self.tick(now);
            self.finish_flow(id, driver);
        }
    }

    /// Appends a flow to the list of pending flows.
    #[inline(always)]
    pub(super) fn push_pending(&mut self, id: FlowId) {
        if self.pending.len() == self.pending.capacity() {
            return self.push_pending_grow(id);
        }
        self.pending.push(id);
    }

    /// Appends a flow to the list of pending flows if the capacity of the list is used up. The
    /// function is separate, so that the common case, which needs no allocation, stays small.
    #[inline(never)]
    fn push_pending_grow(&mut self, id: FlowId) {
        self.pending.push(id);
    }

    /// Sets the engine's clock to `now`. Within the same millisecond, the function skips the
    /// conversion to milliseconds, which needs a division.
    #[inline(always)]
    pub(super) fn tick(&mut self, now: Instant) {
        if !self.clock.advance_within_ms(now) {
            self.set_clock(now);
        }
    }

    /// Sets the engine's clock when the millisecond has changed.
    #[cold]
    #[inline(never)]
    fn set_clock(&mut self, now: Instant) {
        self.clock = Clock::at(now);
    }

    /// Removes the first `count` flows from the list of pending flows.
    #[inline]
    fn drain_pending(&mut self, count: usize) {
        if self.pending.len() == count {
            return self.pending.clear();
        }
        self.drain_pending_front(count);
    }

    /// Removes the first `count` flows from the list of pending flows, which has more flows.
    #[cold]
    #[inline(never)]
    fn drain_pending_front(&mut self, count: usize) {
        self.pending.drain(..count);
    }

    /// Finishes a flow on the fast path: sends one data segment or a pure ACK, or delays an ACK.
    /// Returns false, and changes nothing, if the flow needs [`Engine::finish_flow`].
    #[inline(always)]
    fn finish_fast(&mut self, id: FlowId, driver: &mut impl Driver) -> bool {
        let Some(flow) = self.table.entry_mut(id) else {
            return true;
        };
        let (before, clock) = (flow.flags, &self.clock);
        let scheduled = if before & ACK_MASK == FAST_FLAGS | flags::ACK_NOW {
            // The ACK needs no SACK blocks, because no data is out of order.
            let mut fast = FastPath::new(id, flow, clock, &self.timeouts, driver);
            if fast.acknowledge_now().is_err() {
                return false;
            }
            self.counters.pure_acks += 1;
            return true;
        } else if before & DATA_MASK == FAST_FLAGS | flags::SEND_WANTED {
            let now_us = clock.us();
            if flow.srtt == 0 || flow.snd_nxt != flow.snd_una || has_been_idle(flow, now_us) {
                return false;
            }
            let mut fast = FastPath::new(id, flow, clock, &self.timeouts, driver);
            if fast.send_single(before, now_us).is_err() {
                return false;
            }
            let on_wheel = is_on_wheel(flow, flow.rto_deadline);
            self.counters.out_segs += 1;
            on_wheel
        } else if before & IDLE_MASK == FAST_FLAGS {
            if before & (flags::ACK_OWED | flags::DELACK_ARMED) == flags::ACK_OWED {
                arm_delack(flow, clock.ms.plus(self.timeouts.delayed_ack_ms));
            }
            flow.flags &= !flags::PENDING;
            is_scheduled(flow, clock)
        } else {
            return before & IDLE_MASK == FAST_FLAGS | flags::ACK_NOW
                && self.finish_ack(id, driver);
        };
        if !scheduled {
            self.schedule(id);
        }
        true
    }

    /// Sends a pure ACK for a flow that may have to move the right edge of its receive window, or
    /// whose retransmission timer runs. Returns false if the driver has no free frame.
    #[inline(never)]
    fn finish_ack(&mut self, id: FlowId, driver: &mut impl Driver) -> bool {
        let Some(flow) = self.table.entry_mut(id) else {
            return true;
        };
        let mut fast = FastPath::new(id, flow, &self.clock, &self.timeouts, driver);
        if fast.acknowledge_now().is_err() {
            return false;
        }
        self.counters.pure_acks += 1;
        if flow.flags & flags::RTO_ARMED != 0 && !is_on_wheel(flow, flow.rto_deadline) {
            self.schedule(id);
        }
        true
    }

    /// Finishes a flow in any state: sends its data on the fast path or the slow path, sends its
    /// ACK, and schedules its next deadline.
    #[inline(never)]
    fn finish_flow(&mut self, id: FlowId, driver: &mut impl Driver) {
        let clock = self.clock;
        let Some(mut flow) = self.table.get_mut(id) else {
            return;
        };
        flow.flags &= !flags::PENDING;
        let (mut full, mut record) = (false, false);
        // A data segment carries the ACK and clears ACK_NOW, but may lack space for the SACK
        // blocks. A pure ACK with the blocks then follows. `sack_now` therefore has the flags from
        // before the transmission of data.
        let sack_now = flow.flags & (flags::FAST_RECEIVE | flags::SACK | flags::ACK_NOW);
        if flow.flags & flags::SEND_WANTED != 0 {
            let fast = flow.flags & (flags::FAST_SEND | flags::FIN_QUEUED) == flags::FAST_SEND;
            let from = flow.snd_nxt;
            if fast && flow.srtt != 0 && !is_idle(flow, clock.us()) {
                let mut fast = FastPath::new(id, flow, &clock, &self.timeouts, driver);
                match fast.send() {
                    Ok(sent) => {
                        self.counters.out_segs += u64::from(sent);
                        record = sent > 0 && flow.rtt_seq != flow.snd_nxt;
                        // If all data is sent, nothing is left for the slow path. If data is in
                        // flight, the next ACK sets SEND_WANTED again.
                        if flow.snd_nxt != flow.snd_una || flow.snd_nxt == flow.tx_end {
                            flow.flags &= !flags::SEND_WANTED;
                        }
                    }
                    Err(TxFull) => (full, record) = (true, true),
                }
                let limited = flow.is_window_limited(flow.flight_size());
                flow.traffic.set_window_limited(limited, clock.us());
            }
            if record {
                self.record_send_time(id, from);
                let Some(again) = self.table.get_mut(id) else {
                    return;
                };
                flow = again;
            }
            if !full && flow.flags & flags::SEND_WANTED != 0 {
                full = self.slow_output(id, driver);
                let Some(again) = self.table.get_mut(id) else {
                    return;
                };
                flow = again;
            }
        }
        let fast_ack = flags::ACK_NOW | flags::FAST_RECEIVE;
        if flow.flags & fast_ack == fast_ack {
            let mut fast = FastPath::new(id, flow, &clock, &self.timeouts, driver);
            match fast.acknowledge_now() {
                Ok(()) => self.counters.pure_acks += 1,
                Err(TxFull) => full = true,
            }
        } else if flow.flags & flags::ACK_NOW != 0 || sack_now == flags::SACK | flags::ACK_NOW {
            full |= self.acknowledge(id, driver);
            let Some(again) = self.table.get_mut(id) else {
                return;
            };
            flow = again;
        } else if flow.flags & (flags::ACK_OWED | flags::DELACK_ARMED) == flags::ACK_OWED {
            arm_delack(flow, clock.ms.plus(self.timeouts.delayed_ack_ms));
        }
        let scheduled = is_scheduled(flow, &clock);
        if full {
            self.block(id);
        }
        if !scheduled {
            self.schedule(id);
        }
    }

    /// Records the transmission time of the new data from `start` to SND.NXT. The caller omits the
    /// call for a single segment that is timed for an RTT sample, because the flow's state has the
    /// time of this segment.
    #[inline(never)]
    fn record_send_time(&mut self, id: FlowId, start: SeqNumber) {
        if let (Some(flow), Some(Some(cold))) =
            (self.table.get(id), self.connections.get_mut(id.index()))
        {
            cold.send_times.note(flow, start, flow.mss, self.clock.us());
        }
    }

    /// Sends data on the slow path. Returns true if the driver has no free frame.
    #[inline(never)]
    fn slow_output(&mut self, id: FlowId, driver: &mut impl Driver) -> bool {
        let clock = self.clock;
        let Some(mut slow) = slow_path!(self, id, clock, driver) else {
            return false;
        };
        let result = slow.output(|slow| {
            slow.hot.update_window_edge_moves();
            let mut fast = FastPath {
                id: slow.id,
                flow: slow.hot,
                clock: &slow.clock,
                timeouts: slow.timeouts,
                first_flags: slow.cold.ecn.cwr_queued,
                driver: slow.driver,
            };
            let new = fast.send();
            slow.cold.ecn.cwr_queued = fast.first_flags;
            slow.counters.out_segs += u64::from(*new.as_ref().unwrap_or(&0));
            new
        });
        slow.update_fast_path();
        result.is_err()
    }

    /// Sends an ACK on the slow path if an ACK is due or if SACK blocks have not been sent yet.
    /// Returns true if the driver has no free frame.
    #[inline(never)]
    fn acknowledge(&mut self, id: FlowId, driver: &mut impl Driver) -> bool {
        let clock = self.clock;
        let Some(mut slow) = slow_path!(self, id, clock, driver) else {
            return false;
        };
        if !slow.hot.state.is_synchronized() {
            slow.hot.clear(flags::ACK_NOW | flags::ACK_OWED);
            return false;
        }
        let due = slow.hot.has(flags::ACK_NOW) || slow.has_unsent_sack();
        let full = due && slow.send_ack().is_err();
        slow.update_fast_path();
        full
    }

    /// Adds a flow to the list of flows that [`Engine::resume_transmit`] continues. The caller has
    /// found that the driver has no free transmit frame (packet buffer).
    pub(super) fn block(&mut self, id: FlowId) {
        if let Some(Some(cold)) = self.connections.get_mut(id.index())
            && !cold.tx_blocked
        {
            cold.tx_blocked = true;
            self.counters.tx_full += 1;
            self.blocked.push(id);
        }
    }

    /// Makes the timer wheel fire for this flow no later than at the flow's earliest deadline. The
    /// wheel may fire earlier, because the engine does not move the flow's entry in the wheel when
    /// the deadline moves to a later time.
    #[inline(never)]
    fn schedule(&mut self, id: FlowId) {
        let clock = self.clock;
        let (Some(flow), Some(cold)) = (
            self.table.get_mut(id),
            self.connections
                .get_mut(id.index())
                .and_then(Option::as_mut),
        ) else {
            return;
        };
        let rto = flow.has(flags::RTO_ARMED).then_some(flow.rto_deadline);
        let delack = flow
            .has(flags::DELACK_ARMED)
            .then(|| delack_deadline(flow, &clock));
        let earliest = [
            rto,
            delack,
            cold.reorder_deadline,
            cold.keepalive_deadline,
            cold.path_deadline,
            cold.pacing.deadline,
        ]
        .into_iter()
        .flatten()
        .reduce(|a, b| if b.before(a) { b } else { a });
        let Some(deadline) = earliest else { return };
        if flow.has(flags::WHEEL_ARMED) {
            if !deadline.before(flow.wheel_at) {
                return;
            }
            self.wheel.cancel(cold.timer);
        }
        flow.wheel_at = deadline;
        flow.set(flags::WHEEL_ARMED);
        cold.timer = self.wheel.insert(clock.instant_of(deadline), id);
    }

    /// Handles all timers that have expired at `now`, and removes expired TIME-WAIT entries.
    pub fn advance_time(&mut self, now: Instant, driver: &mut impl Driver) {
        let clock = Clock::at(now);
        self.time_wait.expire(now);
        while let Some(id) = self.wheel.expire_next(now) {
            if id == TS_RECENT_CHECK {
                self.update_ts_recent_ages(now);
            }
            let Some(flow) = self.table.get_mut(id) else {
                continue;
            };
            flow.clear(flags::WHEEL_ARMED);
            if flow.has(flags::DELACK_ARMED) && delack_deadline(flow, &clock).is_due(clock.ms) {
                flow.clear(flags::DELACK_ARMED);
                flow.set(flags::ACK_NOW | flags::ACK_OWED);
                self.counters.delayed_acks += 1;
            }
            let Some(mut slow) = slow_path!(self, id, clock, driver) else {
                continue;
            };
            slow.cold.timer = TimerHandle::NULL;
            let outcome = slow.on_timer();
            slow.update_fast_path();
            self.finish_slow(clock, id, outcome, driver);
        }
    }

    /// Returns the time by which the driver must call [`Engine::advance_time`]. The time may be
    /// earlier than the next deadline, but never later. Returns `None` if no timer runs.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        match (self.wheel.next_deadline(), self.time_wait.next_deadline()) {
            (Some(timer), Some(time_wait)) => Some(timer.min(time_wait)),
            (one, other) => one.or(other),
        }
    }

    /// Returns true if [`Engine::next_timeout`] is at or before `now`.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        let time_wait = self.time_wait.next_deadline();
        self.wheel.is_due(now) || time_wait.is_some_and(|at| at <= now)
    }

    /// Continues the flows that stopped because [`Driver::transmit`] returned [`TxFull`]. The
    /// driver calls this function once it has free frames again.
    pub fn resume_transmit(&mut self) {
        for id in std::mem::take(&mut self.blocked) {
            if let Some(Some(cold)) = self.connections.get_mut(id.index()) {
                cold.tx_blocked = false;
            }
            self.set_pending(id);
        }
    }
}

/// Starts the delayed-ACK timer. The engine sends a pure ACK at `deadline`, unless another segment
/// carries the ACK earlier.
#[inline]
fn arm_delack(flow: &mut FlowState, deadline: Millis) {
    flow.delack_at = deadline.0 as u16;
    flow.flags |= flags::DELACK_ARMED;
}

/// Returns true if the wheel fires for this flow no later than at the flow's earliest deadline.
/// Returns false for a flow that may have deadlines of the slow path, because this function does
/// not read them.
#[inline]
fn is_scheduled(flow: &FlowState, clock: &Clock) -> bool {
    let (rto, delack) = (flags::RTO_ARMED, flags::DELACK_ARMED);
    if flow.flags & (flags::FAST_SEND | flags::SLOW_DEADLINE) != flags::FAST_SEND {
        return false;
    }
    (flow.flags & rto == 0 || is_on_wheel(flow, flow.rto_deadline))
        && (flow.flags & delack == 0 || is_on_wheel(flow, delack_deadline(flow, clock)))
}

/// Returns true if the wheel fires for this flow no later than at `deadline`.
#[inline]
fn is_on_wheel(flow: &FlowState, deadline: Millis) -> bool {
    flow.flags & flags::WHEEL_ARMED != 0 && !deadline.before(flow.wheel_at)
}

/// Returns true if the flow was idle for so long that the slow path must check cwnd before a send.
#[inline]
fn is_idle(flow: &FlowState, now_us: u32) -> bool {
    flow.snd_nxt == flow.snd_una && has_been_idle(flow, now_us)
}

/// Returns true if the last flight was sent more than [`IDLE_US_MIN`] ago. The caller checks that
/// nothing is in flight.
#[inline]
fn has_been_idle(flow: &FlowState, now_us: u32) -> bool {
    // `rtt_stamp` is the transmission time of a segment in the last flight.
    now_us.wrapping_sub(flow.rtt_stamp) > IDLE_US_MIN
}

/// Returns the delayed ACK's deadline, reconstructed from its low 16 bits.
#[inline]
fn delack_deadline(flow: &FlowState, clock: &Clock) -> Millis {
    let ahead = flow.delack_at.wrapping_sub(clock.ms.0 as u16) as i16;
    Millis(clock.ms.0.wrapping_add(ahead as u32))
}
