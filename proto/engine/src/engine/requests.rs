//! Requests of applications, which the driver passes on: LISTEN, OPEN, CLOSE, ABORT, socket options
//! and STATUS (RFC 9293 §3.9.1).
//!
//! The driver is the program that runs the engine: the service (crate `tidelane-host`), or a test.
//! The driver is not a NIC driver. A flow is a connection.

use std::ops::Range;

use tidelane_flow::{
    Clock, Counters, Driver, EngineConfig, FlowId, FlowInfo, FlowRoute, FlowState, IpChange,
    ListenError, ListenerId, NewFlow, OpenError, SocketOptions, State, StateEvent, Timeouts, flags,
};
use tidelane_slowpath::{Connection, SlowPath, set_option_flags, window_max};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, FlowKey};

use super::Engine;
use crate::{connections::Connections, time_wait::Entry};

/// Time after which an active open may reuse a 4-tuple in TIME-WAIT, if both ends used timestamps
/// (Linux: tcp_tw_reuse).
const TIME_WAIT_REUSE_DELAY: Duration = Duration::from_secs(1);
/// Least MTU in bytes of a link over which a connection is opened. Every IPv4 link carries 68 bytes
/// (RFC 791).
const MTU_MIN: u32 = 68;

impl Engine {
    /// Performs a passive OPEN: creates a listener at `local` and returns its id. The address
    /// `0.0.0.0` means all IPv4 addresses. The address `::` means all IPv6 addresses and, without
    /// IPV6_V6ONLY, all IPv4 addresses.
    pub fn listen(
        &mut self,
        local: Endpoint,
        backlog: u32,
        options: SocketOptions,
    ) -> Result<ListenerId, ListenError> {
        self.listen_in_group(local, backlog, options, None)
    }

    /// Performs a passive OPEN of a listener in a SO_REUSEPORT group. The listeners of a group have
    /// the same local address, port and value of IPV6_V6ONLY. A keyed hash of the 4-tuple
    /// distributes connections among the listeners. `None` creates a listener without a group, like
    /// [`listen`](Self::listen).
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

    /// Removes a listener and frees its half-open flows without a RST. As in Linux, a peer that
    /// retransmits its SYN may then reach another listener that the application opens. The driver
    /// must abort the flows in the accept queue, because the engine knows only the number of these
    /// flows.
    pub fn unlisten(&mut self, now: Instant, id: ListenerId, driver: &mut impl Driver) {
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
            let belongs =
                |cold: &Connection| cold.listener == Some(id) && !cold.fast_open.accepted_early;
            half_open && cold.is_some_and(belongs)
        };
        let flows: Vec<FlowId> = self.flows().filter(of_listener).collect();
        for flow in flows {
            self.counters.attempt_fails += 1;
            self.release(flow, driver);
        }
    }

    /// Drains a listener whose new SYNs go to another TCP/IP stack. The service calls this function
    /// after it has told its XDP program to pass these SYNs to the kernel. The engine still answers
    /// SYNs that arrive here. [`listener_at`](Self::listener_at) does not return the listener, so
    /// that connections from this host to the listener's address also go to the other stack.
    pub fn drain_listener(&mut self, id: ListenerId) {
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.draining = true;
        }
    }

    /// Returns true if the removal of a listener would lose no connection: its SYN queue and its
    /// accept queue are empty, and no SYN cookie of the listener is still valid. Also returns true
    /// if there is no such listener.
    pub fn is_listener_idle(&self, now: Instant, id: ListenerId) -> bool {
        let listener = self.listeners.get(id);
        listener.is_none_or(|listener| listener.is_idle(now))
    }

    /// Returns a listener's backlog, or `None` if there is no such listener.
    pub fn backlog(&self, id: ListenerId) -> Option<u32> {
        Some(self.listeners.get(id)?.backlog)
    }

    /// Sets a listener's backlog.
    pub fn set_backlog(&mut self, id: ListenerId, backlog: u32) {
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.backlog = backlog;
        }
    }

    /// Sets the options that later connections of a listener inherit. IPV6_V6ONLY keeps its value,
    /// because the lookup of listeners depends on this option.
    pub fn set_listener_options(&mut self, id: ListenerId, options: SocketOptions) {
        if let Some(listener) = self.listeners.get_mut(id) {
            let v6_only = listener.options.v6_only;
            listener.options = SocketOptions { v6_only, ..options };
        }
    }

    /// Subtracts `count` from the number of connections in a listener's accept queue. The driver
    /// calls this function when connections have left the queue, for example because the
    /// application has accepted them.
    pub fn accept_queue_removed(&mut self, id: ListenerId, count: u32) {
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.accept_queue = listener.accept_queue.saturating_sub(count);
        }
    }

    /// Adds 1 to the number of connections in a listener's accept queue. The driver calls this
    /// function when a connection that the application has not accepted returns to the queue.
    pub fn accept_queue_added(&mut self, id: ListenerId) {
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.accept_queue += 1;
        }
    }

    /// Performs an active OPEN: creates a flow, sends its SYN, and returns the id of the flow (RFC
    /// 9293 MUST-43, MUST-46).
    pub fn open(
        &mut self,
        now: Instant,
        local: Endpoint,
        peer: Endpoint,
        route: FlowRoute,
        options: SocketOptions,
        driver: &mut impl Driver,
    ) -> Result<FlowId, OpenError> {
        let clock = Clock::at(now);
        let id = self.begin_open(clock, FlowKey { local, peer }, route, options)?;
        self.report_new(id, None, driver);
        self.send_first_syn(clock, id, driver);
        Ok(id)
    }

    /// Creates a flow in SYN-SENT. The caller sends the SYN.
    pub(super) fn begin_open(
        &mut self,
        clock: Clock,
        key: FlowKey,
        route: FlowRoute,
        options: SocketOptions,
    ) -> Result<FlowId, OpenError> {
        let bad = |end: &Endpoint| {
            end.port == 0 || end.addr.is_unspecified() || end.addr.is_multicast_or_broadcast()
        };
        let same_family = key.local.addr.is_v4() == key.peer.addr.is_v4();
        if bad(&key.local) || bad(&key.peer) || !same_family || route.mtu < MTU_MIN {
            return Err(OpenError::BadEndpoint);
        }
        if !self.is_free(clock.now, &key) {
            return Err(OpenError::InUse);
        }
        let id = self
            .create_flow(clock, key, route, options)
            .ok_or(OpenError::Full)?;
        if let Some(flow) = self.table.get_mut(id) {
            flow.state = State::Closed.next(StateEvent::ActiveOpen);
        }
        self.counters.active_opens += 1;
        Ok(id)
    }

    /// Closes the sending direction (CLOSE, SHUT_WR): a FIN follows the data that the application
    /// has written.
    pub fn shutdown_write(&mut self, id: FlowId) {
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
        self.set_pending(id);
    }

    /// Closes both directions (CLOSE): the application releases the flow. Sends a FIN, or a RST if
    /// received bytes are unread (RFC 9293 MAY-1, SHLD-3; RFC 2525 §2.17). A flow in FIN-WAIT-2
    /// with a negative TCP_LINGER2 ends with a RST, too. A flow in CLOSED, SYN-SENT or TIME-WAIT
    /// ends without a FIN or a RST. The engine emits [`Released`](tidelane_flow::Event::Released)
    /// during this call or later.
    pub fn close(&mut self, now: Instant, id: FlowId, driver: &mut impl Driver) {
        let Some(flow) = self.table.get_mut(id) else {
            return;
        };
        if matches!(flow.state, State::Closed | State::TimeWait) {
            self.release(id, driver);
            return;
        }
        let unread = flow.rx_head() != flow.rx_read;
        let opening = matches!(flow.state, State::SynSent);
        // A flow in SYN-RECEIVED can have unread data only with Fast Open.
        if opening || unread {
            self.counters.abort_on_close += u64::from(unread);
            self.close_with_reset(now, id, driver);
            return;
        }
        let clock = Clock::at(now);
        self.shutdown_write(id);
        let Some(flow) = self.table.get_mut(id) else {
            return;
        };
        flow.clear(flags::FAST_RECEIVE);
        if let Some(Some(cold)) = self.connections.get_mut(id.index()) {
            cold.is_orphan = true;
            if flow.state == State::FinWait2 {
                let Some(wait) = cold.fin_wait_2_ms(flow, &self.timeouts) else {
                    return self.abort(now, id, driver);
                };
                cold.keepalive_deadline = Some(clock.ms.plus(wait));
            }
        }
        self.set_pending(id);
    }

    /// Closes a flow with a RST (SO_LINGER of zero seconds, or unread data), like
    /// [`abort`](Self::abort). The engine first sends the data that the send window and cwnd allow,
    /// because Linux would have sent this data already during `write`.
    pub fn close_with_reset(&mut self, now: Instant, id: FlowId, driver: &mut impl Driver) {
        self.send_now(now, id, driver);
        self.abort(now, id, driver);
    }

    /// Aborts a flow (ABORT): sends a RST, and emits [`Released`](tidelane_flow::Event::Released)
    /// before the call returns. A flow in CLOSED, SYN-SENT or TIME-WAIT sends no RST.
    pub fn abort(&mut self, now: Instant, id: FlowId, driver: &mut impl Driver) {
        let clock = Clock::at(now);
        let Some(mut slow) = slow_path!(self, id, clock, driver) else {
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
        self.release(id, driver);
    }

    /// Applies `options` to a flow. A change of the receive window, the congestion control
    /// algorithm or the IP fields takes effect immediately.
    pub fn set_options(
        &mut self,
        now: Instant,
        id: FlowId,
        options: SocketOptions,
        driver: &mut impl Driver,
    ) {
        let clock = Clock::at(now);
        let Some(mut slow) = slow_path!(self, id, clock, driver) else {
            return;
        };
        set_option_flags(slow.hot, &options);
        slow.hot.set(flags::SEND_WANTED);
        let before = std::mem::replace(&mut slow.cold.options, options);
        if before.window != options.window {
            let most = window_max(slow.config, slow.hot);
            slow.hot.rcv_wnd_limit = options.window.size(slow.hot.rcv_wnd_limit, most);
            slow.hot.update_window_edge_moves();
            slow.schedule_window_update();
        }
        let algorithm = slow.cold.algorithm(slow.config);
        slow.cold.controller.switch_to(algorithm);
        slow.arm_keepalive();
        slow.update_fast_path();
        if before.ip != options.ip {
            let fields = options.ip.to(slow.hot.key.peer.addr);
            slow.driver.set_ip(id, IpChange::Fields(fields));
        }
        self.set_pending(id);
    }

    /// Reports a new flow to the driver. `listener` is `None` for an active open.
    pub(super) fn report_new(
        &self,
        id: FlowId,
        listener: Option<ListenerId>,
        driver: &mut impl Driver,
    ) {
        let (Some(flow), Some(options)) = (self.table.get(id), self.options(id)) else {
            return;
        };
        let new = NewFlow {
            key: flow.key,
            link: flow.link,
            listener,
            ip: options.ip.to(flow.key.peer.addr),
        };
        driver.created(id, &new);
    }

    /// Returns the socket options of a flow.
    pub fn options(&self, id: FlowId) -> Option<SocketOptions> {
        let cold = self.connections.get(id.index())?.as_ref()?;
        Some(cold.options)
    }

    /// Returns the hot state of a flow: the state that the fast path and the slow path share.
    pub fn flow(&self, id: FlowId) -> Option<&FlowState> {
        self.table.get(id)
    }

    /// Returns the state of a flow for `TCP_INFO` and `ss -ti`.
    pub fn info(&self, id: FlowId) -> Option<FlowInfo> {
        let flow = self.table.get(id)?;
        let cold = self.connections.get(id.index())?.as_ref()?;
        Some(cold.info(flow, &self.config))
    }

    /// Returns the stream positions (byte offsets from the start of the stream, modulo 2^32) of the
    /// received bytes that the application has not read: the range in order, then each out-of-order
    /// range.
    pub fn received(&self, id: FlowId) -> impl Iterator<Item = Range<u32>> {
        let flow = self.table.get(id);
        let cold = self.connections.get(id.index()).and_then(Option::as_ref);
        let both = flow.zip(cold).into_iter();
        both.flat_map(|(flow, cold)| cold.received(flow))
    }

    /// Returns true if the engine has no flow. Listeners and TIME-WAIT entries do not count.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Frees the memory of the flow tables if the engine has no flow, and does nothing otherwise.
    /// The table of the hot states keeps its memory if a flow was freed since the last
    /// [`Engine::batch_end`].
    pub fn shrink(&mut self) {
        if self.is_empty() {
            self.connections = Connections::default();
            self.table.shrink();
        }
    }

    /// Returns an iterator over the ids of all flows.
    pub fn flows(&self) -> impl Iterator<Item = FlowId> {
        self.table.iter().map(|(id, _)| id)
    }

    /// Returns the engine's counters.
    pub fn counters(&self) -> Counters {
        // The engine's own `in_segs` excludes the segments that `fast_receives` counts.
        let mut all = self.counters.clone();
        all.in_segs += all.fast_receives;
        all
    }

    /// Changes the configuration. The tables keep their sizes, and existing flows keep their
    /// receive windows.
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

    /// Returns the present configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Returns the listener that accepts connections to `local`. For a SO_REUSEPORT group, the
    /// result is any listener of the group. Returns `None` for a draining listener
    /// ([`drain_listener`](Self::drain_listener)).
    pub fn listener_at(&self, local: Endpoint) -> Option<ListenerId> {
        let id = self.listeners.find(&local)?;
        let listener = self.listeners.get(id)?;
        (!listener.draining).then_some(id)
    }

    /// Returns true if an active open may use this 4-tuple now: no flow has the 4-tuple, and the
    /// 4-tuple is not in TIME-WAIT. After a connection with timestamps, TIME-WAIT blocks the
    /// 4-tuple for only one second (RFC 6191; Linux: tcp_tw_reuse).
    pub fn is_free(&self, now: Instant, key: &FlowKey) -> bool {
        let reusable = |entry: &Entry| {
            let left = (entry.until - now).0;
            entry.ts_recent.is_some() && left + TIME_WAIT_REUSE_DELAY.0 <= self.config.msl.0 * 2
        };
        self.table.find(key).is_none() && self.time_wait.find(key).is_none_or(reusable)
    }

    /// Returns true if a connection with this local port is in TIME-WAIT.
    pub fn is_port_in_time_wait(&self, port: u16) -> bool {
        self.time_wait.has_port(port)
    }

    /// Returns the number of connections in TIME-WAIT.
    pub fn time_wait_len(&self) -> usize {
        self.time_wait.len()
    }
}
