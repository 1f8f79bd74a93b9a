//! What programs and the driver ask for: listeners, opens, ends, options, and how things stand.

use std::ops::Range;

use tidelane_flow::{
    Clock, Counters, EngineConfig, Env, FlowId, FlowInfo, FlowState, IpFields, ListenError,
    ListenerId, OpenError, Route, SocketOptions, State, StateEvent, Timeouts, flags,
};
use tidelane_slowpath::{Connection, Slow, put_options, window_most};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, FlowKey};

use super::Engine;
use crate::time_wait::Entry;

/// How long TIME-WAIT keeps its ends from an active open when both used timestamps.
const TIME_WAIT_REST: Duration = Duration::from_secs(1);
/// Least MTU that TCP over IPv4 is opened on (RFC 791).
const MTU_MIN: u32 = 68;

impl Engine {
    /// Passive OPEN. An unspecified address listens on all of them.
    pub fn listen(
        &mut self,
        local: Endpoint,
        backlog: u32,
        options: SocketOptions,
    ) -> Result<ListenerId, ListenError> {
        self.listen_in_group(local, backlog, options, None)
    }

    /// As [`listen`](Self::listen). Listeners of one group may have the same end and IPV6_V6ONLY:
    /// each gets its share of the connections, by a keyed hash of the 4-tuple (SO_REUSEPORT).
    pub fn listen_in_group(
        &mut self,
        local: Endpoint,
        backlog: u32,
        options: SocketOptions,
        group: Option<u32>,
    ) -> Result<ListenerId, ListenError> {
        let id = self.listeners.insert(local, backlog, options, group)?;
        self.begin_fast_open(id, backlog);
        Ok(id)
    }

    /// Ends a listener; its half-open flows are forgotten, without a word: a peer whose SYN comes
    /// again may find the program's next listener (as in Linux). Accepted flows that no program has
    /// taken are the driver's to abort: it knows which.
    pub fn unlisten(&mut self, now: Instant, id: ListenerId, env: &mut impl Env) {
        if !self.listeners.remove(id) {
            return;
        }
        self.tick(now);
        self.end_fast_open(id);
        let of_listener = |flow: &FlowId| {
            let half_open = self
                .table
                .get(*flow)
                .is_some_and(|f| f.state == State::SynReceived);
            let cold = self.connections.get(flow.index()).and_then(Option::as_ref);
            let of_it = |cold: &Connection| cold.listener == Some(id) && !cold.fast_open.pending;
            half_open && cold.is_some_and(|cold| of_it(cold))
        };
        let flows: Vec<FlowId> = self.flows().filter(of_listener).collect();
        for flow in flows {
            self.counters.attempt_fails += 1;
            self.release(flow, env);
        }
    }

    /// A listener's backlog: connections that may wait to be accepted. None: no such listener.
    pub fn backlog(&self, id: ListenerId) -> Option<u32> {
        Some(self.listeners.get(id)?.backlog)
    }

    /// Changes a listener's backlog.
    pub fn set_backlog(&mut self, id: ListenerId, backlog: u32) {
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.backlog = backlog;
        }
    }

    /// Changes the options that a listener's next connections begin with. IPV6_V6ONLY stays what it
    /// was: it says which connections are the listener's.
    pub fn set_listener_options(&mut self, id: ListenerId, options: SocketOptions) {
        if let Some(listener) = self.listeners.get_mut(id) {
            let v6_only = listener.options.v6_only;
            listener.options = SocketOptions { v6_only, ..options };
        }
    }

    /// A program took `count` connections from the accept queue.
    pub fn accept_taken(&mut self, id: ListenerId, count: u32) {
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.accept_queue = listener.accept_queue.saturating_sub(count);
        }
    }

    /// A connection that was taken from the accept queue is in it again.
    pub fn accept_returned(&mut self, id: ListenerId) {
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.accept_queue += 1;
        }
    }

    /// Active OPEN: sends SYN (RFC 9293 MUST-43, MUST-46).
    pub fn open(
        &mut self,
        now: Instant,
        local: Endpoint,
        peer: Endpoint,
        route: Route,
        options: SocketOptions,
        env: &mut impl Env,
    ) -> Result<FlowId, OpenError> {
        let clock = Clock::at(now);
        let id = self.begin_open(clock, FlowKey { local, peer }, route, options)?;
        self.set_headers(id, env);
        self.send_first_syn(clock, id, env);
        Ok(id)
    }

    /// A flow in SYN-SENT that has sent nothing yet.
    pub(super) fn begin_open(
        &mut self,
        clock: Clock,
        key: FlowKey,
        route: Route,
        options: SocketOptions,
    ) -> Result<FlowId, OpenError> {
        let bad = |end: &Endpoint| {
            end.port == 0 || end.addr.is_unspecified() || end.addr.is_multicast_or_broadcast()
        };
        let one_version = key.local.addr.is_v4() == key.peer.addr.is_v4();
        if bad(&key.local) || bad(&key.peer) || !one_version || route.mtu < MTU_MIN {
            return Err(OpenError::BadEndpoint);
        }
        if !self.is_free(clock.now, &key) {
            return Err(OpenError::InUse);
        }
        let id = self
            .make_flow(clock, key, route, options)
            .ok_or(OpenError::Full)?;
        if let Some(flow) = self.table.get_mut(id) {
            flow.state = State::Closed.next(StateEvent::ActiveOpen);
        }
        self.counters.active_opens += 1;
        Ok(id)
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
    /// (RFC 9293 MAY-1, SHLD-3; RFC 2525 §2.17). [`Released`](tidelane_flow::Event::Released)
    /// follows, now or later.
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
        // In SYN-RECEIVED there is text only with Fast Open.
        if opening || unread {
            self.counters.abort_on_close += u64::from(unread);
            self.abort(now, id, env);
            return;
        }
        let clock = Clock::at(now);
        self.shutdown_write(now, id, env);
        let Some(flow) = self.table.get_mut(id) else {
            return;
        };
        flow.clear(flags::FAST_RECEIVE);
        if let Some(Some(cold)) = self.connections.get_mut(id.index()) {
            cold.is_orphan = true;
            if flow.state == State::FinWait2 {
                let Some(wait) = cold.fin_wait_2_ms(flow, &self.timeouts) else {
                    return self.abort(now, id, env);
                };
                cold.slow_deadline = Some(clock.ms.plus(wait));
            }
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
        put_options(slow.hot, &options);
        slow.hot.set(flags::SEND_WANTED);
        let before = std::mem::replace(&mut slow.cold.options, options);
        if before.window != options.window {
            let most = window_most(slow.config, slow.hot);
            slow.hot.rcv_wnd_limit = options.window.quota(slow.hot.rcv_wnd_limit, most);
            slow.hot.note_edge();
            slow.tell_window();
        }
        let algorithm = slow.cold.algorithm(slow.config);
        slow.cold.controller.switch_to(algorithm);
        slow.arm_keepalive();
        slow.settle();
        if before.ip != options.ip {
            let fields = options.ip.to(slow.hot.key.peer.addr);
            slow.env.headers(id, fields);
        }
        self.mark(id);
    }

    /// Tells the driver of a new flow's IP headers, if they are not what is usual.
    pub(super) fn set_headers(&mut self, id: FlowId, env: &mut impl Env) {
        let (Some(flow), Some(options)) = (self.table.get(id), self.options(id)) else {
            return;
        };
        let fields = options.ip.to(flow.key.peer.addr);
        if fields != IpFields::default() {
            env.made(id, &flow.key, flow.link);
            env.headers(id, fields);
        }
    }

    /// The options of a flow.
    pub fn options(&self, id: FlowId) -> Option<SocketOptions> {
        let cold = self.connections.get(id.index())?.as_ref()?;
        Some(cold.options)
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

    /// The stream positions of the bytes that a flow has received and its program has not read: in
    /// order, then each range that lies behind a hole.
    pub fn received(&self, id: FlowId) -> impl Iterator<Item = Range<u32>> {
        let flow = self.table.get(id);
        let cold = self.connections.get(id.index()).and_then(Option::as_ref);
        let both = flow.zip(cold).into_iter();
        both.flat_map(|(flow, cold)| cold.received(flow))
    }

    /// All flows.
    pub fn flows(&self) -> impl Iterator<Item = FlowId> {
        self.table.iter().map(|(id, _)| id)
    }

    /// What the engine has done.
    pub fn counters(&self) -> Counters {
        let mut all = self.counters.clone();
        all.in_segs += all.fast_receives;
        all
    }

    /// Changes the policy for what begins from now on. Sizes of tables stay, and the receive
    /// windows of flows that there are.
    ///
    /// # Panics
    ///
    /// If [`EngineConfig::check`] fails.
    pub fn set_config(&mut self, config: EngineConfig) {
        assert_eq!(
            config.check(),
            Ok(()),
            "the driver checks its configuration first"
        );
        self.timeouts = Timeouts::of(&config);
        self.config = EngineConfig {
            flows_max: self.config.flows_max,
            time_wait_max: self.config.time_wait_max,
            ..config
        };
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
}
