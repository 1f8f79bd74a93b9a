//! The engine's methods: each finds the flow, calls a path, and settles what that left behind.

use tidelane_fastpath::Fast;
use tidelane_flow::{
    Arrival, Clock, Counters, EngineConfig, Env, Event, FlowId, FlowInfo, FlowState, FlowTable,
    ListenError, ListenerId, Millis, Misuse, OpenError, Route, SocketOptions, State, StateEvent,
    Timeouts, TxFull, flags,
};
use tidelane_slowpath::{Connection, Fate, Slow, SynSeen, iss, new_connection, reset_reply};
use tidelane_time::{Duration, Instant, TimerHandle, TimerWheel};
use tidelane_wire::{DropReason, Endpoint, FlowKey, IcmpError, Segment, TcpFlags};

use crate::{
    listeners::Listeners,
    time_wait::{Entry, TimeWait},
};

/// How long TIME-WAIT keeps its ends from an active open when both used timestamps.
const TIME_WAIT_REST: Duration = Duration::from_secs(1);
/// No timeout is shorter than this: a flow that was silent for less was not idle.
const IDLE_US_MIN: u32 = 10_000;
/// Least MTU that TCP over IPv4 is opened on (RFC 791).
const MTU_MIN: u32 = 68;

/// See the crate's documentation.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    timeouts: Timeouts,
    secret: [u8; 16],
    table: FlowTable,
    connections: Vec<Option<Box<Connection>>>,
    listeners: Listeners,
    time_wait: TimeWait,
    wheel: TimerWheel<FlowId>,
    /// Flows that batch end has to look at; each has the PENDING flag.
    pending: Vec<FlowId>,
    /// Flows that wait for transmit frames.
    blocked: Vec<FlowId>,
    counters: Counters,
    /// Challenge ACKs and RSTs left in `second`.
    challenges: u32,
    resets: u32,
    second: u64,
}

/// One flow in the slow path's hands, borrowed from the engine's parts.
macro_rules! slow {
    ($engine:ident, $id:expr, $clock:expr, $env:expr) => {{
        let id = $id;
        match (
            $engine.table.get_mut(id),
            $engine
                .connections
                .get_mut(id.index())
                .and_then(Option::as_mut),
        ) {
            (Some(hot), Some(cold)) => Some(Slow {
                id,
                hot,
                cold,
                clock: $clock,
                config: &$engine.config,
                timeouts: &$engine.timeouts,
                counters: &mut $engine.counters,
                challenges: &mut $engine.challenges,
                env: $env,
            }),
            _ => None,
        }
    }};
}

impl Engine {
    /// An engine without flows. `secret` keys initial sequence numbers and the flow table's hash.
    ///
    /// # Panics
    ///
    /// If [`EngineConfig::check`] fails.
    pub fn new(config: EngineConfig, secret: [u8; 16]) -> Self {
        assert_eq!(
            config.check(),
            Ok(()),
            "the driver checks its configuration first"
        );
        let half = |range: core::ops::Range<usize>| {
            secret[range]
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte))
        };
        let seed = [half(0..8), half(8..16)];
        Self {
            table: FlowTable::new(config.flows_max, seed),
            connections: Vec::new(),
            listeners: Listeners::default(),
            time_wait: TimeWait::new(seed, config.time_wait_max),
            wheel: TimerWheel::new(),
            pending: Vec::with_capacity(64),
            blocked: Vec::new(),
            counters: Counters::default(),
            challenges: config.challenge_acks_per_second,
            resets: config.resets_per_second,
            second: 0,
            timeouts: Timeouts::of(&config),
            secret,
            config,
        }
    }

    /// SEGMENT ARRIVES (RFC 9293 §3.10.7). `segment` passed wire parsing: bounds and checksum.
    #[inline]
    pub fn segment_arrives(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        segment: &Segment<'_>,
        env: &mut impl Env,
    ) {
        self.counters.in_segs += 1;
        let clock = Clock::at(now);
        let Some(id) = self.table.find(&arrival.key) else {
            self.arrives_without_flow(clock, arrival, segment, env);
            return;
        };
        if let Some(flow) = self.table.get_mut(id) {
            let mut fast = Fast {
                id,
                flow,
                clock: &clock,
                timeouts: &self.timeouts,
                env,
            };
            if fast.receive(segment).is_ok() {
                self.counters.fast_receives += 1;
                if flow.flags & flags::PENDING == 0 {
                    flow.flags |= flags::PENDING;
                    self.pending.push(id);
                }
                return;
            }
        }
        self.arrives_slowly(clock, id, segment, env);
    }

    fn arrives_slowly(
        &mut self,
        clock: Clock,
        id: FlowId,
        segment: &Segment<'_>,
        env: &mut impl Env,
    ) {
        self.refill(clock.now);
        let half_open = self
            .table
            .get(id)
            .is_some_and(|f| f.state == State::SynReceived);
        if half_open && self.is_accept_queue_full(id) && !segment.flags.contains(TcpFlags::RST) {
            self.counters.listen_overflows += 1;
            self.counters.listen_drops += 1;
            self.counters.drops[DropReason::AcceptQueueFull.index()] += 1;
            return;
        }
        let Some(mut slow) = slow!(self, id, clock, env) else {
            return;
        };
        let fate = slow.segment_arrives(segment);
        let left = half_open && slow.hot.state != State::SynReceived;
        let opened = left && slow.hot.state != State::Closed && fate != Fate::Release;
        let listener = slow.cold.listener;
        if left && let Some(listener) = listener.and_then(|id| self.listeners.get_mut(id)) {
            listener.syn_queue = listener.syn_queue.saturating_sub(1);
            listener.accept_queue += u32::from(opened);
        }
        self.settle(clock, id, fate, env);
    }

    fn is_accept_queue_full(&self, id: FlowId) -> bool {
        self.connections
            .get(id.index())
            .and_then(Option::as_ref)
            .and_then(|cold| cold.listener)
            .and_then(|id| self.listeners.get(id))
            .is_some_and(|listener| !listener.accept_room())
    }

    /// What a path left behind: the flow goes, or batch end looks at it.
    fn settle(&mut self, clock: Clock, id: FlowId, fate: Fate, env: &mut impl Env) {
        match fate {
            Fate::Keep => {
                let over = |flow: &FlowState| flow.state == State::Closed;
                if self.table.get(id).is_some_and(over) {
                    // A program that has not closed it yet does not keep its ends from others.
                    self.table.unindex(id);
                }
                self.mark(id);
            }
            Fate::TimeWait => {
                self.enter_time_wait(clock, id);
                if self.table.get(id).is_some_and(|f| f.has(flags::ORPHAN)) {
                    self.release(id, env);
                } else {
                    self.table.unindex(id);
                    self.mark(id);
                }
            }
            Fate::Release => self.release(id, env),
        }
    }

    fn mark(&mut self, id: FlowId) {
        if let Some(flow) = self.table.get_mut(id)
            && flow.flags & flags::PENDING == 0
        {
            flow.flags |= flags::PENDING;
            self.pending.push(id);
        }
    }

    fn enter_time_wait(&mut self, clock: Clock, id: FlowId) {
        let Some(flow) = self.table.get(id) else {
            return;
        };
        let timestamps = flow.has(flags::TIMESTAMPS);
        self.counters.time_waits += 1;
        let full = self.time_wait.is_full();
        self.counters.time_wait_overflows += u64::from(full);
        self.time_wait.insert(Entry {
            key: flow.key,
            link: flow.link,
            snd_nxt: flow.snd_nxt,
            rcv_nxt: flow.rcv_nxt,
            ts_recent: timestamps.then_some(flow.ts_recent),
            until: clock.now + self.config.msl * 2u64,
        });
    }

    fn release(&mut self, id: FlowId, env: &mut impl Env) {
        let Some(cold) = self.connections.get_mut(id.index()).and_then(Option::take) else {
            return;
        };
        self.wheel.cancel(cold.timer);
        let half_open = self
            .table
            .get(id)
            .is_some_and(|f| f.state == State::SynReceived);
        if half_open && let Some(entry) = cold.listener.and_then(|id| self.listeners.get_mut(id)) {
            entry.syn_queue = entry.syn_queue.saturating_sub(1);
        }
        env.event(id, Event::Released);
        self.table.remove(id);
    }

    fn arrives_without_flow(
        &mut self,
        clock: Clock,
        arrival: &Arrival,
        segment: &Segment<'_>,
        env: &mut impl Env,
    ) {
        self.refill(clock.now);
        let control = TcpFlags::SYN | TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN;
        let pure_syn = segment.flags.0 & control.0 == TcpFlags::SYN.0;
        if let Some(entry) = self.time_wait.find(&arrival.key).copied() {
            if !(pure_syn && entry.may_be_reused(segment)) {
                self.answer_in_time_wait(clock, &entry, segment, env);
                return;
            }
        }
        if pure_syn {
            match self.listeners.find(&arrival.key.local) {
                Some(listener) => self.passive_open(clock, arrival, segment, listener, env),
                None => self.refuse(arrival, segment, DropReason::NoListener, env),
            }
        } else {
            self.refuse(arrival, segment, DropReason::NoFlow, env);
        }
    }

    /// RFC 9293 §3.10.7.1: CLOSED.
    fn refuse(
        &mut self,
        arrival: &Arrival,
        segment: &Segment<'_>,
        reason: DropReason,
        env: &mut impl Env,
    ) {
        self.counters.drops[reason.index()] += 1;
        let Some(out) = reset_reply(segment, arrival.key, arrival.link) else {
            return;
        };
        if self.resets == 0 {
            self.counters.drops[DropReason::RateLimited.index()] += 1;
            return;
        }
        self.resets -= 1;
        self.counters.out_rsts += 1;
        // A reset that finds no frame is lost, as any may be.
        let _ = env.transmit(&out);
    }

    /// A segment for a connection in TIME-WAIT is acknowledged; a FIN that came again restarts the
    /// wait (RFC 9293 §3.10.7.4), a SYN does not, or one that is sent again and again would keep
    /// itself out. Its sender answers the acknowledgment with a RST, which, exactly in its
    /// place, ends the wait (as Linux does; other RSTs are ignored, RFC 1337).
    fn answer_in_time_wait(
        &mut self,
        clock: Clock,
        entry: &Entry,
        segment: &Segment<'_>,
        env: &mut impl Env,
    ) {
        let old_ack = segment.len() == 0 && !segment.flags.contains(TcpFlags::SYN);
        if segment.flags.contains(TcpFlags::RST) {
            if segment.seq == entry.rcv_nxt {
                self.time_wait.remove(&entry.key);
            }
            return;
        }
        if old_ack || self.challenges == 0 {
            return;
        }
        self.challenges -= 1;
        let Some(mut out) = reset_reply(segment, entry.key, entry.link) else {
            return;
        };
        out.seq = entry.snd_nxt;
        out.ack = entry.rcv_nxt;
        out.flags = TcpFlags::ACK;
        if let Some(recent) = entry.ts_recent {
            out.options = tidelane_wire::TcpOptions::timestamps(clock.ms.0, recent);
        }
        let _ = env.transmit(&out);
        if segment.flags.contains(TcpFlags::FIN) {
            self.time_wait.insert(Entry {
                until: clock.now + self.config.msl * 2u64,
                ..*entry
            });
        }
    }

    /// A SYN for a listener (RFC 9293 §3.10.7.2).
    fn passive_open(
        &mut self,
        clock: Clock,
        arrival: &Arrival,
        segment: &Segment<'_>,
        listener: ListenerId,
        env: &mut impl Env,
    ) {
        let Some(entry) = self.listeners.get(listener).copied() else {
            return;
        };
        let reason = if !entry.syn_room() {
            Some(DropReason::SynQueueFull)
        } else if !entry.accept_room() {
            Some(DropReason::AcceptQueueFull)
        } else {
            None
        };
        if let Some(reason) = reason {
            self.counters.listen_drops += 1;
            self.counters.listen_overflows += u64::from(reason == DropReason::AcceptQueueFull);
            self.counters.drops[reason.index()] += 1;
            return;
        }
        let route = env.route(&arrival.key, arrival.link);
        let Some(id) = self.make_flow(clock, arrival.key, route, entry.options) else {
            self.counters.drops[DropReason::FlowTableFull.index()] += 1;
            return;
        };
        let Some(slow) = slow!(self, id, clock, env) else {
            return;
        };
        slow.hot.state = State::Closed.next(StateEvent::PassiveSyn);
        slow.cold.listener = Some(listener);
        let syn = SynSeen {
            irs: segment.seq,
            options: segment.options,
            wnd: segment.wnd,
        };
        slow.cold.see_syn(slow.config, slow.hot, &syn);
        if let Some(entry) = self.listeners.get_mut(listener) {
            entry.syn_queue += 1;
        }
        self.send_first_syn(clock, id, env);
    }

    fn send_first_syn(&mut self, clock: Clock, id: FlowId, env: &mut impl Env) {
        let Some(mut slow) = slow!(self, id, clock, env) else {
            return;
        };
        slow.hot.set(flags::RTT_TIMING);
        slow.hot.rtt_seq = slow.hot.iss.add(1);
        slow.hot.rtt_stamp = clock.us;
        let sent = slow.send_syn();
        slow.arm_rto();
        if sent.is_err() {
            slow.hot.set(flags::SEND_WANTED);
            self.block(id);
        }
        self.mark(id);
    }

    fn make_flow(
        &mut self,
        clock: Clock,
        key: FlowKey,
        route: Route,
        options: SocketOptions,
    ) -> Option<FlowId> {
        let id = self.table.insert(key)?;
        let mut iss = iss::choose(&self.secret, &key, clock.now);
        if let Some(old) = self.time_wait.find(&key) {
            // RFC 9293 §3.6.1: beyond all that the old incarnation can have sent.
            let beyond = old.snd_nxt.add(1 << 16);
            iss = iss.later_of(beyond);
            self.counters.time_wait_reused += 1;
            self.time_wait.remove(&key);
        }
        let hot = self.table.get_mut(id)?;
        hot.link = route.link;
        let cold = new_connection(&self.config, &clock, route.mtu, options, hot, iss);
        hot.cwnd = cold.controller.cwnd();
        if self.connections.len() <= id.index() {
            self.connections.resize_with(id.index() + 1, || None);
        }
        self.connections[id.index()] = Some(Box::new(cold));
        Some(id)
    }

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
        if flow.flags & flags::ACK_NOW != 0 {
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
        slow.send_ack().is_err()
    }

    fn block(&mut self, id: FlowId) {
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

    /// An ICMP error that quotes a segment of ours.
    pub fn icmp_error(&mut self, now: Instant, error: &IcmpError, env: &mut impl Env) {
        let clock = Clock::at(now);
        let Some(id) = self.table.find(&error.key) else {
            return;
        };
        let Some(mut slow) = slow!(self, id, clock, env) else {
            return;
        };
        let fate = slow.icmp_error(error);
        self.settle(clock, id, fate, env);
    }

    /// Passive OPEN. An unspecified address listens on all of them.
    pub fn listen(
        &mut self,
        local: Endpoint,
        backlog: u32,
        options: SocketOptions,
    ) -> Result<ListenerId, ListenError> {
        self.listeners.insert(local, backlog, options)
    }

    /// Ends a listener; its half-open flows are reset. Accepted flows that no program has taken are
    /// the driver's to abort: it knows which.
    pub fn unlisten(&mut self, now: Instant, id: ListenerId, env: &mut impl Env) {
        if !self.listeners.remove(id) {
            return;
        }
        let of_listener = |flow: &FlowId| {
            let half_open = self
                .table
                .get(*flow)
                .is_some_and(|f| f.state == State::SynReceived);
            let cold = self.connections.get(flow.index()).and_then(Option::as_ref);
            half_open && cold.is_some_and(|cold| cold.listener == Some(id))
        };
        let flows: Vec<FlowId> = self.flows().filter(of_listener).collect();
        for flow in flows {
            self.abort(now, flow, env);
        }
    }

    /// Changes a listener's backlog.
    pub fn set_backlog(&mut self, id: ListenerId, backlog: u32) {
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.backlog = backlog;
        }
    }

    /// A program took `count` connections from the accept queue.
    pub fn accept_taken(&mut self, id: ListenerId, count: u32) {
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.accept_queue = listener.accept_queue.saturating_sub(count);
        }
    }

    /// Active OPEN: sends SYN.
    pub fn open(
        &mut self,
        now: Instant,
        local: Endpoint,
        peer: Endpoint,
        route: Route,
        options: SocketOptions,
        env: &mut impl Env,
    ) -> Result<FlowId, OpenError> {
        let bad = |end: &Endpoint| {
            end.port == 0 || end.addr.is_unspecified() || end.addr.is_multicast_or_broadcast()
        };
        if bad(&local) || bad(&peer) || route.mtu < MTU_MIN {
            return Err(OpenError::BadEndpoint);
        }
        let key = FlowKey { local, peer };
        if !self.is_free(now, &key) {
            return Err(OpenError::InUse);
        }
        let clock = Clock::at(now);
        let id = self
            .make_flow(clock, key, route, options)
            .ok_or(OpenError::Full)?;
        if let Some(flow) = self.table.get_mut(id) {
            flow.state = State::Closed.next(StateEvent::ActiveOpen);
        }
        self.counters.active_opens += 1;
        self.send_first_syn(clock, id, env);
        Ok(id)
    }

    /// The program has written bytes up to stream position `tx_head`.
    #[inline]
    pub fn tx_advance(
        &mut self,
        now: Instant,
        id: FlowId,
        tx_head: u32,
        env: &mut impl Env,
    ) -> Result<(), Misuse> {
        let _ = (now, env);
        let limit = self.config.tx_limit;
        let flow = self.table.get_mut(id).ok_or(Misuse::NoFlow)?;
        let more = tx_head.wrapping_sub(flow.tx_head());
        if more == 0 {
            return Ok(());
        }
        if tx_head.wrapping_sub(flow.tx_acked()) > limit || more > limit {
            self.counters.misuses += 1;
            return Err(Misuse::TxHead);
        }
        if flow.has(flags::FIN_QUEUED) {
            self.counters.misuses += 1;
            return Err(Misuse::TxAfterShutdown);
        }
        if flow.state == State::Closed {
            return Ok(());
        }
        flow.tx_end = flow.tx_end.add(more);
        flow.flags |= flags::SEND_WANTED;
        self.mark(id);
        Ok(())
    }

    /// The program has read bytes up to stream position `rx_read`.
    #[inline]
    pub fn rx_advance(
        &mut self,
        now: Instant,
        id: FlowId,
        rx_read: u32,
        env: &mut impl Env,
    ) -> Result<(), Misuse> {
        let _ = (now, env);
        let flow = self.table.get_mut(id).ok_or(Misuse::NoFlow)?;
        let more = rx_read.wrapping_sub(flow.rx_read);
        if more > flow.rx_head().wrapping_sub(flow.rx_read) {
            self.counters.misuses += 1;
            return Err(Misuse::RxRead);
        }
        flow.rx_read = rx_read;
        if flow.rcv_wnd_limit < self.config.rx_window_max {
            self.tune_window(id);
        }
        let Some(flow) = self.table.get_mut(id) else {
            return Ok(());
        };
        if flow.state.receives() && flow.window_update_due() {
            flow.flags |= flags::ACK_OWED | flags::ACK_NOW;
            self.mark(id);
        }
        Ok(())
    }

    /// A window's worth was read since the quota last grew: it grows (receive auto-tuning).
    fn tune_window(&mut self, id: FlowId) {
        let (Some(flow), Some(Some(cold))) =
            (self.table.get_mut(id), self.connections.get_mut(id.index()))
        else {
            return;
        };
        if flow.rx_read.wrapping_sub(cold.tune_from) >= flow.rcv_wnd_limit {
            cold.tune_from = flow.rx_read;
            // Without scaling the field holds no more.
            let most = if flow.rcv_wscale() == 0 {
                0xffff
            } else {
                self.config.rx_window_max
            };
            flow.rcv_wnd_limit = (flow.rcv_wnd_limit * 2).min(most);
        }
    }

    /// CLOSE for sending only: FIN after all that was written.
    pub fn shutdown_write(&mut self, now: Instant, id: FlowId, env: &mut impl Env) {
        let _ = (now, env);
        let Some(flow) = self.table.get_mut(id) else {
            return;
        };
        if flow.has(flags::FIN_QUEUED) || flow.state == State::Closed {
            return;
        }
        flow.set(flags::FIN_QUEUED | flags::SEND_WANTED);
        flow.clear(flags::FAST_SEND | flags::FAST_RECEIVE);
        if flow.state != State::SynReceived {
            flow.state = flow.state.next(StateEvent::CloseCall);
        }
        self.mark(id);
    }

    /// CLOSE: the program is gone from this flow. FIN, or RST if received bytes are unread
    /// (RFC 2525 §2.17). [`Released`](tidelane_flow::Event::Released) follows, now or later.
    pub fn close(&mut self, now: Instant, id: FlowId, env: &mut impl Env) {
        let Some(flow) = self.table.get_mut(id) else {
            return;
        };
        if matches!(flow.state, State::Closed | State::TimeWait) {
            self.release(id, env);
            return;
        }
        let unread = flow.rx_head() != flow.rx_read;
        let opening = matches!(flow.state, State::SynSent);
        if opening || (unread && flow.state.is_synchronized()) {
            self.counters.abort_on_close += u64::from(unread);
            self.abort(now, id, env);
            return;
        }
        let clock = Clock::at(now);
        self.shutdown_write(now, id, env);
        let Some(flow) = self.table.get_mut(id) else {
            return;
        };
        flow.set(flags::ORPHAN);
        flow.clear(flags::FAST_RECEIVE);
        if flow.state == State::FinWait2
            && let Some(Some(cold)) = self.connections.get_mut(id.index())
        {
            cold.slow_deadline = Some(clock.ms.plus(self.timeouts.fin_wait_2_ms));
        }
        self.mark(id);
    }

    /// ABORT: RST. [`Released`](tidelane_flow::Event::Released) comes before this returns.
    pub fn abort(&mut self, now: Instant, id: FlowId, env: &mut impl Env) {
        let clock = Clock::at(now);
        let Some(mut slow) = slow!(self, id, clock, env) else {
            return;
        };
        let silent = matches!(
            slow.hot.state,
            State::Closed | State::SynSent | State::TimeWait
        );
        if !silent {
            slow.send_reset();
            slow.counters.estab_resets += u64::from(slow.hot.state.is_synchronized());
        }
        self.release(id, env);
    }

    /// Changes the options of a flow.
    pub fn set_options(
        &mut self,
        now: Instant,
        id: FlowId,
        options: SocketOptions,
        env: &mut impl Env,
    ) {
        let clock = Clock::at(now);
        let Some(mut slow) = slow!(self, id, clock, env) else {
            return;
        };
        slow.hot.put(flags::NODELAY, options.nodelay);
        slow.hot.put(flags::CORK, options.cork);
        slow.hot.put(flags::QUICKACK, options.quickack);
        slow.hot.put(flags::KEEPALIVE, options.keepalive);
        slow.hot.set(flags::SEND_WANTED);
        slow.cold.options = options;
        slow.arm_keepalive();
        self.mark(id);
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
    /// [`TxFull`](tidelane_flow::TxFull).
    pub fn resume_transmit(&mut self, now: Instant, env: &mut impl Env) {
        let _ = (now, env);
        for id in std::mem::take(&mut self.blocked) {
            if let Some(flow) = self.table.get_mut(id) {
                flow.clear(flags::TX_BLOCKED);
            }
            self.mark(id);
        }
    }

    /// The hot state of a flow.
    pub fn flow(&self, id: FlowId) -> Option<&FlowState> {
        self.table.get(id)
    }

    /// A flow as `ss -ti` shows it.
    pub fn info(&self, id: FlowId) -> Option<FlowInfo> {
        let flow = self.table.get(id)?;
        let cold = self.connections.get(id.index())?.as_ref()?;
        Some(cold.info(flow, &self.config))
    }

    /// All flows.
    pub fn flows(&self) -> impl Iterator<Item = FlowId> {
        self.table.iter().map(|(id, _)| id)
    }

    /// What the engine has done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The policy it runs under.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Whether a SYN for `local` would find a listener.
    pub fn has_listener(&self, local: Endpoint) -> bool {
        self.listeners.find(&local).is_some()
    }

    /// Whether an active open with these ends is possible now: no flow has them, and TIME-WAIT does
    /// not hold them. With timestamps it holds them for a second (RFC 6191; Linux' tcp_tw_reuse).
    pub fn is_free(&self, now: Instant, key: &FlowKey) -> bool {
        let rested = |entry: &Entry| {
            let left = (entry.until - now).0;
            entry.ts_recent.is_some() && left + TIME_WAIT_REST.0 <= self.config.msl.0 * 2
        };
        self.table.find(key).is_none() && self.time_wait.find(key).is_none_or(rested)
    }

    /// Connections in TIME-WAIT.
    pub fn time_wait_len(&self) -> usize {
        self.time_wait.len()
    }

    /// Gives the allowances of a new second.
    fn refill(&mut self, now: Instant) {
        let second = now.0 / 1_000_000_000;
        if second != self.second {
            self.second = second;
            self.challenges = self.config.challenge_acks_per_second;
            self.resets = self.config.resets_per_second;
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
