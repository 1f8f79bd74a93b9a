//! The end of a batch, and time: what flows owe is sent, and their timers are kept.

use tidelane_fastpath::Fast;
use tidelane_flow::{Clock, Env, FlowId, FlowState, Millis, TxFull, flags};
use tidelane_slowpath::Slow;
use tidelane_time::{Instant, TimerHandle};

use super::Engine;

/// No timeout is shorter than this: a flow that was silent for less was not idle.
const IDLE_US_MIN: u32 = 10_000;

impl Engine {
    /// Ends a batch of arrivals and requests: sends the acknowledgments that it owes, at most one
    /// per flow, and data that acknowledgments made room for. Then numbers of released flows may
    /// be given out again.
    pub fn batch_end(&mut self, now: Instant, env: &mut impl Env) {
        if !self.pending.is_empty() {
            let clock = Clock::at(now);
            let mut pending = std::mem::take(&mut self.pending);
            for id in pending.drain(..) {
                self.finish_flow(clock, id, env);
            }
            // Nothing that finishing does marks a flow again, so the list's memory is kept.
            pending.append(&mut self.pending);
            self.pending = pending;
        }
        self.table.recycle();
    }

    #[inline]
    fn finish_flow(&mut self, clock: Clock, id: FlowId, env: &mut impl Env) {
        let Some(flow) = self.table.get_mut(id) else {
            return;
        };
        flow.flags &= !flags::PENDING;
        let mut full = false;
        // Text that goes out acknowledges, but has no room for what SACK has to say.
        let sack_now = flow.flags & (flags::FAST_RECEIVE | flags::SACK | flags::ACK_NOW);
        if flow.flags & flags::SEND_WANTED != 0 {
            let usual = flow.flags & (flags::FAST_SEND | flags::FIN_QUEUED) == flags::FAST_SEND;
            if usual && flow.srtt != 0 && !idle(flow, &clock) {
                let mut fast = Fast {
                    id,
                    flow,
                    clock: &clock,
                    timeouts: &self.timeouts,
                    env,
                };
                match fast.send() {
                    Ok(sent) => {
                        self.counters.out_segs += u64::from(sent);
                        // With something in flight its acknowledgment brings the flow back here.
                        if flow.snd_nxt != flow.snd_una || flow.snd_nxt == flow.tx_end {
                            flow.flags &= !flags::SEND_WANTED;
                        }
                    }
                    Err(TxFull) => full = true,
                }
            }
            if !full && flow.flags & flags::SEND_WANTED != 0 {
                full = self.output_slowly(clock, id, env);
            }
        }
        let Some(flow) = self.table.get_mut(id) else {
            return;
        };
        if flow.flags & flags::ACK_NOW != 0 || sack_now == flags::SACK | flags::ACK_NOW {
            full |= self.acknowledge(clock, id, env);
        } else if flow.flags & (flags::ACK_OWED | flags::DELACK_ARMED) == flags::ACK_OWED {
            let wait = self.timeouts.delayed_ack_ms;
            flow.delack_at = clock.ms.plus(wait).0 as u16;
            flow.flags |= flags::DELACK_ARMED;
        }
        if full {
            self.block(id);
        }
        self.schedule(clock, id);
    }

    fn output_slowly(&mut self, clock: Clock, id: FlowId, env: &mut impl Env) -> bool {
        let Some(mut slow) = slow!(self, id, clock, env) else {
            return false;
        };
        let result = slow.output(|slow| {
            let mut fast = Fast {
                id: slow.id,
                flow: slow.hot,
                clock: &slow.clock,
                timeouts: slow.timeouts,
                env: slow.env,
            };
            let new = fast.send()?;
            slow.counters.out_segs += u64::from(new);
            Ok(new)
        });
        slow.settle();
        result.is_err()
    }

    fn acknowledge(&mut self, clock: Clock, id: FlowId, env: &mut impl Env) -> bool {
        let Some(mut slow) = slow!(self, id, clock, env) else {
            return false;
        };
        if !slow.hot.state.is_synchronized() {
            slow.hot.clear(flags::ACK_NOW | flags::ACK_OWED);
            return false;
        }
        (slow.hot.has(flags::ACK_NOW) || slow.has_sack()) && slow.send_ack().is_err()
    }

    pub(super) fn block(&mut self, id: FlowId) {
        if let Some(flow) = self.table.get_mut(id)
            && flow.flags & flags::TX_BLOCKED == 0
        {
            flow.flags |= flags::TX_BLOCKED;
            self.counters.tx_full += 1;
            self.blocked.push(id);
        }
    }

    /// Sees to it that the flow's wheel entry fires no later than its earliest deadline.
    #[inline]
    fn schedule(&mut self, clock: Clock, id: FlowId) {
        let Some(flow) = self.table.get(id) else {
            return;
        };
        let armed = flow.flags & flags::WHEEL_ARMED != 0;
        let rto_covered = flow.flags & flags::RTO_ARMED == 0
            || (armed && !flow.rto_deadline.before(flow.wheel_at));
        let simple = flow.flags & (flags::FAST_SEND | flags::DELACK_ARMED | flags::KEEPALIVE)
            == flags::FAST_SEND;
        if simple && rto_covered {
            return;
        }
        self.schedule_slowly(clock, id);
    }

    fn schedule_slowly(&mut self, clock: Clock, id: FlowId) {
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
        let earliest = [rto, delack, cold.reorder_deadline, cold.slow_deadline]
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

    /// Does what is due.
    pub fn advance_time(&mut self, now: Instant, env: &mut impl Env) {
        let clock = Clock::at(now);
        self.time_wait.expire(now);
        while let Some(id) = self.wheel.expire_next(now) {
            let Some(flow) = self.table.get_mut(id) else {
                continue;
            };
            flow.clear(flags::WHEEL_ARMED);
            if flow.has(flags::DELACK_ARMED) && delack_deadline(flow, &clock).is_due(clock.ms) {
                flow.clear(flags::DELACK_ARMED);
                flow.set(flags::ACK_NOW | flags::ACK_OWED);
                self.counters.delayed_acks += 1;
            }
            let Some(mut slow) = slow!(self, id, clock, env) else {
                continue;
            };
            slow.cold.timer = TimerHandle::NULL;
            let fate = slow.on_time();
            slow.settle();
            self.settle(clock, id, fate, env);
        }
    }

    /// When [`Engine::advance_time`] must be called next. May be early, never late.
    pub fn next_timeout(&self) -> Option<Instant> {
        [self.wheel.next_deadline(), self.time_wait.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The driver has transmit frames again after [`Env::transmit`] returned
    /// [`TxFull`].
    pub fn resume_transmit(&mut self, now: Instant, env: &mut impl Env) {
        let _ = (now, env);
        for id in std::mem::take(&mut self.blocked) {
            if let Some(flow) = self.table.get_mut(id) {
                flow.clear(flags::TX_BLOCKED);
            }
            self.mark(id);
        }
    }
}

/// Whether the flow rested so long that its window must be looked at before it sends.
#[inline]
fn idle(flow: &FlowState, clock: &Clock) -> bool {
    // The stamp of the last timed segment is that of one of the last flight.
    flow.snd_nxt == flow.snd_una && clock.us.wrapping_sub(flow.rtt_stamp) > IDLE_US_MIN
}

/// The delayed acknowledgment's deadline from its low bits.
fn delack_deadline(flow: &FlowState, clock: &Clock) -> Millis {
    let ahead = flow.delack_at.wrapping_sub(clock.ms.0 as u16) as i16;
    Millis(clock.ms.0.wrapping_add(ahead as u32))
}
