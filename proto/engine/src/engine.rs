//! The engine finds the flow (the connection) that a call concerns, runs the fast path or the slow
//! path on this flow, and applies the result. The fast path handles in-order data and new ACKs of
//! established flows. The slow path handles everything else.
//!
//! This file handles arriving segments. The module `requests` handles the calls of applications,
//! `advance` handles the read and write positions of applications, and `batch` handles timers and
//! the end of a batch. A batch is a burst of segments and requests that the driver passes to the
//! engine before it calls [`Engine::batch_end`].

use tidelane_fastpath::{FastPath, Punt, WasPending};
use tidelane_flow::{
    Arrival, Clock, Counters, Driver, EngineConfig, Event, FlowId, FlowRoute, FlowState, FlowTable,
    SocketOptions, State, Timeouts, flags,
};
use tidelane_slowpath::{Outcome, SlowPath, new_connection};
use tidelane_time::{Instant, TimerHandle, TimerWheel};
use tidelane_wire::{Ecn, FlowKey, IcmpError, Segment, SegmentView, SeqNumber, TcpFlags};

use crate::{
    connections::Connections,
    listeners::Listeners,
    path_mtu_cache::PathMtuCache,
    resets::ResetLimiter,
    secret::Secret,
    time_wait::{Entry, TimeWaitTable},
};

/// A TCP engine with all of its flows, listeners and timers. The driver, which is the program that
/// runs the engine, passes segments to [`Engine::segment_arrives`] and ends each batch with
/// [`Engine::batch_end`]. [`Engine::next_timeout`] tells the driver when to call
/// [`Engine::advance_time`].
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    timeouts: Timeouts,
    secret: Secret,
    table: FlowTable,
    connections: Connections,
    listeners: Listeners,
    time_wait: TimeWaitTable,
    wheel: TimerWheel<FlowId>,
    /// Flows that need an ACK, a transmission or a new deadline at the end of the batch. The flag
    /// PENDING marks the flows in this list, so that each flow is in the list only once.
    pending: Vec<FlowId>,
    /// Flows that wait for free transmit frames (packet buffers of the driver).
    blocked: Vec<FlowId>,
    /// `in_segs` excludes the segments that `fast_receives` counts, so that the fast path
    /// increments only one counter per segment.
    counters: Counters,
    path_mtus: PathMtuCache,
    /// The engine's clock. Calls such as [`Engine::segment_arrives`] set the clock (by `tick`) to
    /// the time that the driver passes.
    clock: Clock,
    /// Number of challenge ACKs that may still be sent in `limits_second` (RFC 5961 §7).
    challenges: u32,
    resets: ResetLimiter,
    /// Second of the engine's clock for which `challenges` and `resets` hold; `u64::MAX` before the
    /// first call of `renew_limits`.
    limits_second: u64,
    /// Number of half-open connections of all listeners: flows in SYN-RECEIVED that the application
    /// does not have yet.
    half_open: u32,
    /// Timer of the next check of the age of TS.Recent in all flows (RFC 7323 §5.5).
    ts_recent_timer: TimerHandle,
    fast_open: fast_open::FastOpenState,
}

/// Borrows a flow, and the parts of the engine that the slow path uses, as a `SlowPath`. The result
/// is `None` if the flow does not exist. The code is a macro, because a function would have to
/// borrow the whole engine.
macro_rules! slow_path {
    ($engine:ident, $id:expr, $clock:expr, $driver:expr) => {{
        let id = $id;
        match (
            $engine.table.get_mut(id),
            $engine
                .connections
                .get_mut(id.index())
                .and_then(Option::as_mut),
        ) {
            (Some(hot), Some(cold)) => Some(SlowPath {
                id,
                hot,
                cold,
                clock: $clock,
                config: &$engine.config,
                timeouts: &$engine.timeouts,
                counters: &mut $engine.counters,
                path_mtus: &mut $engine.path_mtus,
                challenges: &mut $engine.challenges,
                driver: $driver,
            }),
            _ => None,
        }
    }};
}

// The following modules use the macro `slow_path!`, so they come after its definition.
pub mod advance;
mod batch;
pub mod fast_open;
mod passive;
mod rate_limits;
mod requests;
mod ts_recent_check;
mod urgent;
mod without_flow;

impl Engine {
    /// Creates an engine without flows. `secret` is the key of all hashes, on which initial
    /// sequence numbers, SYN cookies, Fast Open cookies, rate limits and tables depend.
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
        let keyed = Secret::new(secret);
        Self {
            table: FlowTable::new(config.flows_max, seed),
            connections: Connections::default(),
            listeners: Listeners::new(seed),
            time_wait: TimeWaitTable::new(seed, config.time_wait_max),
            wheel: TimerWheel::new(),
            pending: Vec::with_capacity(64),
            blocked: Vec::new(),
            path_mtus: PathMtuCache::default(),
            clock: Clock::at(Instant(0)),
            counters: Counters::default(),
            challenges: 0,
            resets: ResetLimiter::new(),
            limits_second: u64::MAX,
            half_open: 0,
            ts_recent_timer: TimerHandle::NULL,
            timeouts: Timeouts::of(&config),
            fast_open: fast_open::FastOpenState::new(&keyed),
            secret: keyed,
            config,
        }
    }

    /// Handles the event SEGMENT ARRIVES (RFC 9293 §3.10.7). The caller has checked the bounds and
    /// the checksum of `segment`.
    #[inline(always)]
    pub fn segment_arrives(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        segment: &impl SegmentView,
        driver: &mut impl Driver,
    ) {
        self.tick(now);
        if !self.receive_cached(arrival, segment, driver) {
            let (arrival, segment) = (*arrival, segment.segment());
            self.receive_lookup(&arrival, &segment, driver);
        }
    }

    /// Handles a segment whose flow is in the table's cache of recent flows. Returns false, and
    /// does nothing, if the flow is not in the cache, or has given up its 4-tuple.
    #[inline(always)]
    fn receive_cached(
        &mut self,
        arrival: &Arrival,
        segment: &impl SegmentView,
        driver: &mut impl Driver,
    ) -> bool {
        let Some((id, flow)) = self.table.cached(&arrival.key) else {
            return false;
        };
        let mut fast = FastPath::new(id, flow, &self.clock, &self.timeouts, driver);
        match fast.receive(segment, arrival.ecn) {
            Ok(WasPending(true)) => {
                self.counters.fast_receives += 1;
                if segment.flags().contains(TcpFlags::PSH) {
                    self.end_run(id, driver);
                }
            }
            Ok(WasPending(false)) => {
                self.counters.fast_receives += 1;
                self.push_pending(id);
            }
            Err(Punt) if !fast.flow.is_indexed() => return false,
            Err(Punt) => {
                self.counters.in_segs += 1;
                // The slow path gets a copy of the segment, so that the fast path can keep the
                // fields in registers.
                let segment = segment.segment();
                self.slow_receive(id, arrival.ecn, &segment, driver);
            }
        }
        true
    }

    /// Ends a run of in-order segments, the last of which has PSH. Sends an ACK that is already
    /// due. Otherwise, if the flow owes an ACK for at least one full segment, schedules the ACK for
    /// the end of the batch (see [`FastPath::end_run`]). The function is not inlined, so that the
    /// fast path can keep its fields in registers.
    #[inline(never)]
    fn end_run(&mut self, id: FlowId, driver: &mut impl Driver) {
        if let Some(flow) = self.table.get_mut(id) {
            let sent = FastPath::new(id, flow, &self.clock, &self.timeouts, driver).end_run();
            self.counters.pure_acks += u64::from(sent);
        }
    }

    /// Handles a segment whose flow is not in the table's cache of recent flows: looks up the flow,
    /// puts the flow into the cache, and tries again. If no flow has the segment's 4-tuple, calls
    /// `receive_without_flow`.
    #[inline(never)]
    fn receive_lookup(
        &mut self,
        arrival: &Arrival,
        segment: &Segment<'_>,
        driver: &mut impl Driver,
    ) {
        if !self.table.lookup_and_cache(&arrival.key)
            || !self.receive_cached(arrival, segment, driver)
        {
            self.receive_without_flow(arrival, segment, driver);
        }
    }

    /// Handles a segment of the flow `id` on the slow path.
    #[inline(never)]
    fn slow_receive(
        &mut self,
        id: FlowId,
        ecn: Ecn,
        segment: &Segment<'_>,
        driver: &mut impl Driver,
    ) {
        let clock = self.clock;
        self.renew_limits(clock.now);
        let segment = &match self.table.get(id) {
            Some(flow) => without_offset(segment, || flow.ts_offset),
            None => return,
        };
        let half_open = self.is_half_open(id);
        let no_room = half_open && self.is_accept_queue_full(id);
        let Some(mut slow) = slow_path!(self, id, clock, driver) else {
            return;
        };
        slow.cold.accept_queue_full = no_room;
        let outcome = slow.segment_arrives(segment, ecn);
        if half_open && slow.hot.state != State::SynReceived {
            let opened = slow.hot.state != State::Closed && outcome != Outcome::Release;
            let listener = slow.cold.listener;
            self.leave_syn_queue(listener, opened);
        }
        self.finish_slow(clock, id, outcome, driver);
    }

    /// Applies the result of a slow-path call: frees the flow, moves it to TIME-WAIT, or schedules
    /// it for the end of the batch.
    fn finish_slow(
        &mut self,
        clock: Clock,
        id: FlowId,
        outcome: Outcome,
        driver: &mut impl Driver,
    ) {
        self.update_fast_open(clock.now, id, false);
        match outcome {
            Outcome::Keep => {
                let closed = |flow: &FlowState| flow.state == State::Closed;
                if self.table.get(id).is_some_and(closed) {
                    // A flow in CLOSED gives up its 4-tuple even before the application closes the
                    // socket.
                    self.table.unindex(id);
                }
                self.set_pending(id);
            }
            Outcome::TimeWait => {
                self.enter_time_wait(clock, id);
                if self.is_orphan(id) {
                    self.release(id, driver);
                } else {
                    self.table.unindex(id);
                    self.set_pending(id);
                }
            }
            Outcome::Release => self.release(id, driver),
        }
    }

    /// Returns true if the application has closed the socket. The engine then frees the flow as
    /// soon as the connection ends.
    fn is_orphan(&self, id: FlowId) -> bool {
        matches!(self.connections.get(id.index()), Some(Some(cold)) if cold.is_orphan)
    }

    /// Adds a flow to the list of pending flows, unless the flow is in the list already.
    fn set_pending(&mut self, id: FlowId) {
        if let Some(flow) = self.table.get_mut(id)
            && flow.flags & flags::PENDING == 0
        {
            flow.flags |= flags::PENDING;
            self.push_pending(id);
        }
    }

    /// Adds the connection of a flow to the TIME-WAIT table. The caller then frees the flow, or at
    /// least its 4-tuple.
    fn enter_time_wait(&mut self, clock: Clock, id: FlowId) {
        let Some(flow) = self.table.get(id) else {
            return;
        };
        let timestamps = flow.has(flags::TIMESTAMPS);
        let peer = flow.key.peer.addr;
        let options = self.options(id).unwrap_or_default();
        let traffic_class = options.ip.to(peer).traffic_class;
        self.counters.time_waits += 1;
        let full = self.time_wait.is_full();
        self.counters.time_wait_overflows += u64::from(full);
        self.time_wait.insert(Entry {
            key: flow.key,
            link: flow.link,
            traffic_class,
            snd_nxt: flow.snd_nxt,
            rcv_nxt: flow.rcv_nxt,
            ts_recent: timestamps.then_some(flow.ts_recent),
            answered_at: None,
            until: clock.now + self.config.msl * 2u64,
        });
    }

    /// Frees a flow, and reports the event `Released` to the driver.
    #[inline(never)]
    fn release(&mut self, id: FlowId, driver: &mut impl Driver) {
        self.update_fast_open(self.clock.now, id, true);
        let half_open = self.is_half_open(id);
        let Some(Some(cold)) = self.connections.get(id.index()) else {
            return;
        };
        let listener = cold.listener;
        self.wheel.cancel(cold.timer);
        self.connections.remove(id);
        if half_open {
            self.leave_syn_queue(listener, false);
        }
        driver.event(id, Event::Released);
        self.table.remove(id);
        if self.table.is_empty() {
            self.wheel.cancel(self.ts_recent_timer);
            self.ts_recent_timer = TimerHandle::NULL;
        }
    }

    /// Sends the first SYN or SYN,ACK of a flow, and starts its retransmission timer.
    fn send_first_syn(&mut self, clock: Clock, id: FlowId, driver: &mut impl Driver) {
        let Some(mut slow) = slow_path!(self, id, clock, driver) else {
            return;
        };
        let sent = slow.send_syn();
        slow.start_syn_timer();
        if sent.is_err() {
            slow.hot.set(flags::SEND_WANTED);
            self.block(id);
        }
        self.set_pending(id);
    }

    /// Creates a flow for the 4-tuple `key`. Returns `None` if the flow table is full, or has a
    /// flow with this 4-tuple.
    fn create_flow(
        &mut self,
        clock: Clock,
        key: FlowKey,
        route: FlowRoute,
        options: SocketOptions,
    ) -> Option<FlowId> {
        let mut iss = self.secret.initial_seq(&key, clock.now);
        if let Some(old) = self.time_wait.find(&key) {
            // RFC 9293 §3.6.1: the ISS must lie beyond all sequence numbers of the old connection
            // in TIME-WAIT.
            let beyond = old.snd_nxt.add(1 << 16);
            iss = iss.later_of(beyond);
        }
        self.create_flow_with_iss(clock, key, route, options, iss)
    }

    /// Creates a flow for the 4-tuple `key` with the initial sequence number `iss`. Returns `None`
    /// if the flow table is full, or has a flow with this 4-tuple.
    fn create_flow_with_iss(
        &mut self,
        clock: Clock,
        key: FlowKey,
        route: FlowRoute,
        options: SocketOptions,
        iss: SeqNumber,
    ) -> Option<FlowId> {
        let id = self.table.insert(key)?;
        if self.ts_recent_timer == TimerHandle::NULL {
            self.schedule_ts_recent_check(clock.now);
        }
        if self.time_wait.find(&key).is_some() {
            self.counters.time_wait_reused += 1;
            self.time_wait.remove(&key);
        }
        let ts_offset = self.timestamp_offset(&key);
        let hot = self.table.get_mut(id)?;
        hot.link = route.link;
        hot.ts_offset = ts_offset;
        let mut cold = new_connection(&self.config, &clock, (route.mtu, options), hot, iss);
        if let Some(path) = self.path_mtus.find(clock.now, key.peer.addr) {
            cold.apply_path_mtu(&clock, &path);
        }
        hot.cwnd = cold.controller.cwnd();
        self.connections.insert(id, cold);
        Some(id)
    }

    /// Returns the offset that is added to TSval for the 4-tuple `key`. The offset hides the
    /// machine's uptime. The offset is zero if the configuration turns offsets off.
    fn timestamp_offset(&self, key: &FlowKey) -> u32 {
        self.secret.timestamp_offset(key, &self.config)
    }

    /// Applies a new link MTU of `mtu` bytes to a flow.
    pub fn set_link_mtu(&mut self, now: Instant, id: FlowId, mtu: u32, driver: &mut impl Driver) {
        let clock = Clock::at(now);
        let Some(mut slow) = slow_path!(self, id, clock, driver) else {
            return;
        };
        slow.apply_link_mtu(mtu);
        slow.update_fast_path();
        self.finish_slow(clock, id, Outcome::Keep, driver);
    }

    /// Handles an ICMP error that quotes a segment of a flow. Ignores the error if no flow has the
    /// 4-tuple of the quoted segment.
    pub fn icmp_error(&mut self, now: Instant, error: &IcmpError, driver: &mut impl Driver) {
        let clock = Clock::at(now);
        let Some(id) = self.table.find(&error.key) else {
            return;
        };
        let Some(mut slow) = slow_path!(self, id, clock, driver) else {
            return;
        };
        let outcome = slow.icmp_error(error);
        slow.update_fast_path();
        self.finish_slow(clock, id, outcome, driver);
    }
}

/// Returns `segment` with the offset of our TSval subtracted from TSecr, so that TSecr is a time of
/// the engine's clock. `offset` may have to compute a hash, so `without_offset` calls `offset` only
/// for a segment with timestamps. The fast path does not read TSecr and needs no conversion.
#[inline(never)]
fn without_offset<'s>(segment: &Segment<'s>, offset: impl FnOnce() -> u32) -> Segment<'s> {
    let mut segment = *segment;
    if let Some(timestamps) = &mut segment.options.timestamps {
        timestamps.subtract_offset(offset());
    }
    segment
}
