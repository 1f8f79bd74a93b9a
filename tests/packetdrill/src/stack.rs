//! The stack under test, single-threaded: the engine (Tidelane's TCP), the virtual clock, the
//! packet queues, and the sockets and epoll instances of the program. The program is the caller of
//! the socket calls, such as a packetdrill script.

pub mod epoll;
pub mod error_queue;
pub mod fast_open;
pub mod info;
pub mod options;
mod send_queue;
pub mod socket;
pub mod stats;
pub mod transfer;
pub mod urgent;

use std::collections::{BTreeMap, HashMap, HashSet};

use tidelane_engine::{
    CloseCause, Duration, Engine, Event, FlowId, FlowInfo, FlowState, Instant, ListenerId,
    SocketOptions, State,
};

use crate::{
    clock::{VirtualClock, wall_us},
    epoll::Epoll,
    errno::{CallResult, Errno, of_cause},
    inbound::Inbound,
    packet,
    role::Role,
    settings::{Reading, Settings},
    socket::Socket,
    stats::Stats,
    urgent::UrgentMark,
    wire::{Sent, Wire},
};

/// Secret key of initial sequence numbers (RFC 6528). The key is constant, so that runs are
/// reproducible.
const SECRET: [u8; 16] = *b"packetdrill runs";
/// First ephemeral port.
const EPHEMERAL_FIRST: u16 = 32_768;
/// Longest time by which the clock advances to a timer in one step. The limit exceeds the default
/// of every timeout of Linux. A later timer is ignored until the clock is close enough.
const JUMP_MAX: Duration = Duration::from_secs(4 * 3600);

/// A file descriptor.
pub type Fd = i32;

/// The object that a descriptor of this stack refers to.
#[derive(Debug)]
pub enum Object {
    /// A TCP socket.
    Socket(Box<Socket>),
    /// An epoll instance.
    Epoll(Epoll),
}

/// The state of a flow (connection), except for the state in the engine and in the flow's buffers
/// ([`crate::streams::Streams`]).
#[derive(Clone, Copy, Default, Debug)]
pub struct Flow {
    /// Descriptor of the flow's socket. `None` before `accept` and after `close`.
    pub owner: Option<Fd>,
    /// Reason for the end of the connection. `None` while the connection has not ended.
    pub cause: Option<CloseCause>,
    /// True after the peer's FIN was received in order.
    pub fin: bool,
    /// The most recent urgent byte that the peer announced.
    pub mark: Option<UrgentMark>,
    /// Time for which the send buffer has limited the program.
    pub stats: Stats,
}

/// The stack under test. For packetdrill's threads, [`crate::shared::Shared`] owns and locks the
/// stack. The conformance tests of this project own the stack directly.
#[derive(Debug)]
pub struct Stack {
    pub(crate) clock: VirtualClock,
    pub(crate) settings: Settings,
    pub(crate) wire: Wire,
    pub(crate) objects: BTreeMap<Fd, Object>,
    pub(crate) flows: HashMap<FlowId, Flow>,
    /// Descriptor of each listener's socket.
    pub(crate) listeners: HashMap<ListenerId, Fd>,
    /// The next ephemeral port.
    pub(crate) next_port: u16,
    /// Flows whose most recent write had MSG_MORE.
    pub(crate) corked: HashSet<FlowId>,
    /// Flows whose most recent write did not fit completely into the send queue. Once the queue has
    /// enough space, the flow is removed from this set.
    pub(crate) blocked_writers: HashSet<FlowId>,
    /// The engine. `None` during the script's preamble (the commands before the first `socket`
    /// call), which sets the engine's configuration.
    engine: Option<Engine>,
    /// The most recent reading of the kernel's sysctls.
    loaded: Reading,
}

impl Stack {
    /// Returns a stack without sockets. `loaded` has the kernel's sysctls before the script's
    /// preamble. If `loaded` and the argument of [`end_preamble`](Self::end_preamble) are both
    /// empty, the stack ignores the kernel's sysctls.
    pub fn new(settings: Settings, loaded: Reading) -> Self {
        Self {
            clock: VirtualClock::default(),
            wire: Wire::new(settings.mtu, settings.offload, settings.tso),
            objects: BTreeMap::new(),
            flows: HashMap::new(),
            listeners: HashMap::new(),
            next_port: EPHEMERAL_FIRST,
            corked: HashSet::new(),
            blocked_writers: HashSet::new(),
            engine: None,
            settings,
            loaded,
        }
    }

    /// Creates the engine at the end of the script's preamble, with the sysctls that the preamble
    /// has set. Does nothing if the engine exists.
    pub fn end_preamble(&mut self, reading: &Reading) {
        if self.engine.is_none() {
            self.settings.follow(&self.loaded, reading);
            self.make_engine();
            self.loaded = reading.clone();
        }
    }

    /// Applies the sysctls that the script has changed since the last reading. Does nothing if the
    /// stack ignores the kernel's sysctls.
    pub fn follow_settings(&mut self, reading: &Reading) {
        if self.loaded.is_empty() || *reading == self.loaded {
            return;
        }
        self.settings.follow(&self.loaded, reading);
        self.loaded = reading.clone();
        let (config, keys) = (self.settings.engine(), self.settings.fast_open_keys());
        self.drive(|engine, _, _| {
            engine.set_config(config);
            if let Some(keys) = keys {
                engine.set_fast_open_keys(None, keys);
            }
        });
    }

    fn make_engine(&mut self) {
        let mut engine = Engine::new(self.settings.engine(), SECRET);
        if let Some(keys) = self.settings.fast_open_keys() {
            engine.set_fast_open_keys(None, keys);
        }
        self.engine = Some(engine);
    }

    /// Returns the virtual time without advancing the clock.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Implements `gettimeofday(2)`, in microseconds.
    pub fn read_clock_us(&mut self) -> u64 {
        self.clock.read_us()
    }

    /// Runs one batch (a group of engine calls, at whose end packets leave): passes the engine to
    /// `call`, ends the batch, and handles the packets and events of the batch.
    pub(crate) fn drive<R>(
        &mut self,
        call: impl FnOnce(&mut Engine, Instant, &mut Wire) -> R,
    ) -> R {
        let sizing = self.settings.sizing();
        self.call_in_batch(|engine, now, wire| {
            let result = call(engine, now, wire);
            engine.batch_end(now, wire);
            wire.time_packets(|id| Some((engine.flow(id)?.tx_acked(), engine.info(id)?.srtt)));
            wire.finish_batch(|id, srtt| {
                engine.info(id).map_or(1, |info| {
                    let srtt = srtt.unwrap_or(info.srtt);
                    sizing.segments(&FlowInfo { srtt, ..info })
                })
            });
            result
        })
    }

    /// Updates the error queues, blocked writers and time statistics of all flows with a socket.
    fn update_all_flows(&mut self) {
        let owned = self.flows.iter().filter(|(_, flow)| flow.owner.is_some());
        let ids: Vec<FlowId> = owned.map(|(id, _)| *id).collect();
        for id in ids {
            self.update_error_queue(id);
            self.wake_blocked_writer(id);
            self.update_buffer_limited_time(id);
        }
    }

    /// Does nothing if no writer of the flow `id` is blocked. Otherwise grows SO_SNDBUF, and wakes
    /// the writer if the send queue then has enough space.
    fn wake_blocked_writer(&mut self, id: FlowId) {
        let owner = self.flows.get(&id).and_then(|flow| flow.owner);
        let Some(fd) = owner.filter(|_| self.blocked_writers.contains(&id)) else {
            return;
        };
        self.expand_sndbuf(fd, id);
        if self.is_writable(fd, id) {
            self.blocked_writers.remove(&id);
            self.mark_pending(fd);
        }
    }

    /// Passes the bytes of the next record to the engine, for each flow that has sent the previous
    /// record. A record is the data up to the end of a write with the flag MSG_EOR.
    fn release_all_records(&mut self) {
        let ids: Vec<FlowId> = self.flows.keys().copied().collect();
        for id in ids {
            if self.wire.has_records(id) {
                // The engine refuses bytes for a closed flow. The program gets an event for the end
                // of the connection, so that this error needs no report.
                let _ = self.release_records(id);
            }
        }
    }

    /// Passes the engine to `call` without ending the batch. The segments of `call` leave at the
    /// end of the batch, which a later call of `drive` ends.
    pub(crate) fn call_in_batch<R>(
        &mut self,
        call: impl FnOnce(&mut Engine, Instant, &mut Wire) -> R,
    ) -> R {
        let now = self.clock.now();
        self.wire.now = now;
        if self.engine.is_none() {
            self.make_engine();
        }
        let settings = &self.settings;
        let engine = self
            .engine
            .get_or_insert_with(|| Engine::new(settings.engine(), SECRET));
        let result = call(engine, now, &mut self.wire);
        self.take_events();
        self.update_all_flows();
        result
    }

    /// Passes a packet from the script to the engine.
    pub fn inject(&mut self, bytes: &[u8]) {
        // In Linux, MSG_MORE holds data back only until the next ACK arrives.
        let corked = self.uncork();
        match packet::parse(bytes) {
            Ok(Inbound::Segment(arrival, segment)) => self.drive(|engine, now, wire| {
                engine.segment_arrives(now, &arrival, &segment, wire);
            }),
            Ok(Inbound::Error(error)) => {
                self.drive(|engine, now, wire| engine.icmp_error(now, &error, wire));
            }
            // The kernel drops invalid packets too.
            Err(_) => {}
        }
        for (id, options) in corked {
            self.call_in_batch(|engine, now, wire| engine.set_options(now, id, options, wire));
        }
        self.release_all_records();
    }

    /// Removes the corks of all flows whose most recent write had MSG_MORE. A cork holds back data
    /// that does not fill a segment. Returns the options that restore the corks.
    fn uncork(&mut self) -> Vec<(FlowId, SocketOptions)> {
        let mut all = Vec::new();
        for id in self.corked.iter().copied() {
            let owner = self.flows.get(&id).and_then(|flow| flow.owner);
            if let Some(Object::Socket(socket)) = owner.and_then(|fd| self.objects.get(&fd)) {
                all.push((id, socket.options.engine));
            }
        }
        for (id, options) in &mut all {
            let free = *options;
            self.call_in_batch(|engine, now, wire| engine.set_options(now, *id, free, wire));
            options.cork = true;
        }
        all
    }

    /// Removes and returns the oldest sent packet, if there is one.
    pub fn pop_sent(&mut self) -> Option<Sent> {
        self.wire.sent.pop_front()
    }

    /// Returns the time of the next timer, or the present time if the timer is overdue. Returns
    /// `None` if there is no timer within [`JUMP_MAX`].
    pub fn next_timeout(&self) -> Option<Instant> {
        let next = self.engine.as_ref()?.next_timeout()?;
        (next <= self.now() + JUMP_MAX).then_some(next.max(self.now()))
    }

    /// Advances the clock to `to` and runs the timers that are due.
    pub fn advance_to(&mut self, to: Instant) {
        self.clock.advance_to(to);
        self.wire.on_timer = true;
        self.drive(|engine, now, wire| engine.advance_time(now, wire));
        self.wire.on_timer = false;
        self.release_all_records();
    }

    fn take_events(&mut self) {
        for (id, event) in std::mem::take(&mut self.wire.events) {
            self.take_event(id, event);
        }
    }

    fn take_event(&mut self, id: FlowId, event: Event) {
        match event {
            Event::Accepted(listener) => {
                self.flows.entry(id).or_default();
                if let Some(fd) = self.listeners.get(&listener).copied() {
                    if let Some(Object::Socket(socket)) = self.objects.get_mut(&fd)
                        && let Role::Listener { queue, .. } = &mut socket.role
                    {
                        queue.push_back(id);
                    }
                    self.mark_pending(fd);
                }
            }
            Event::Progress { readable, writable } => {
                if writable && let Some(acked) = self.flow(id).map(FlowState::tx_acked) {
                    let streams = self.wire.streams(id);
                    streams.tx.drop_before(acked);
                    streams.packet_ends.forget_up_to(acked);
                }
                // `wake_blocked_writer` handles write space.
                if !readable {
                    return;
                }
                self.flows.entry(id).or_default();
            }
            Event::NegativeAdvice => return,
            Event::PeerClosed => self.flows.entry(id).or_default().fin = true,
            Event::Closed(cause) => self.on_closed(id, cause),
            Event::SoftError(cause) => self.on_soft_error(id, cause),
            Event::Released => {
                self.wire.forget(id);
                self.corked.remove(&id);
                self.blocked_writers.remove(&id);
                self.leave_queues(id);
                if let Some(flow) = self.flows.remove(&id)
                    && let Some(socket) = flow.owner.and_then(|fd| self.socket_mut(fd).ok())
                {
                    socket.role = Role::Released;
                }
                return;
            }
            Event::Connected => {
                self.flows.entry(id).or_default();
            }
            Event::Urgent(pos) => self.on_urgent(id, pos),
            Event::UrgentByte(byte) => self.on_urgent_byte(id, byte),
            Event::FinAcked => {}
        }
        if let Some(fd) = self.flows.get(&id).and_then(|flow| flow.owner) {
            self.mark_pending(fd);
        }
    }

    fn leave_queues(&mut self, id: FlowId) {
        for object in self.objects.values_mut() {
            if let Object::Socket(socket) = object
                && let Role::Listener { queue, .. } = &mut socket.role
            {
                queue.retain(|queued| *queued != id);
            }
        }
    }

    /// Records the end of a connection, and its error for the next call of the program. As in
    /// Linux, a reset in CLOSE-WAIT gives EPIPE instead of ECONNRESET.
    pub(crate) fn on_closed(&mut self, id: FlowId, cause: CloseCause) {
        let flow = self.flows.entry(id).or_default();
        flow.cause = Some(cause);
        let fin = flow.fin;
        if let Some(Ok(socket)) = flow.owner.map(|fd| self.socket_mut(fd)) {
            socket.error = match cause {
                CloseCause::Reset if fin && !socket.write_shut => Some(Errno(libc::EPIPE)),
                _ => of_cause(cause),
            };
            socket.error_queue.complete_zero_copies();
        }
    }

    /// Records a soft error. If the program has set IP_RECVERR (IPV6_RECVERR on an IPv6 socket),
    /// the next call fails with the error, as in Linux. Otherwise only SO_ERROR returns the error.
    fn on_soft_error(&mut self, id: FlowId, cause: CloseCause) {
        let owner = self.flows.get(&id).and_then(|flow| flow.owner);
        let Some(Ok(socket)) = owner.map(|fd| self.socket_mut(fd)) else {
            return;
        };
        let (level, name) = match socket.domain {
            libc::AF_INET => (libc::IPPROTO_IP, libc::IP_RECVERR),
            _ => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        };
        if socket.options.is_on(level, name) {
            socket.error = of_cause(cause);
        } else {
            socket.soft_error = of_cause(cause);
        }
    }

    /// Returns the socket `fd`. Fails with EBADF or ENOTSOCK.
    pub(crate) fn socket(&self, fd: Fd) -> CallResult<&Socket> {
        match self.objects.get(&fd) {
            Some(Object::Socket(socket)) => Ok(socket),
            Some(Object::Epoll(_)) => Err(Errno(libc::ENOTSOCK)),
            None => Err(Errno::BADF),
        }
    }

    /// Returns the socket `fd` for changes. Fails with EBADF or ENOTSOCK.
    pub(crate) fn socket_mut(&mut self, fd: Fd) -> CallResult<&mut Socket> {
        match self.objects.get_mut(&fd) {
            Some(Object::Socket(socket)) => Ok(socket),
            Some(Object::Epoll(_)) => Err(Errno(libc::ENOTSOCK)),
            None => Err(Errno::BADF),
        }
    }

    /// Returns the flow of the socket `fd`, or `None` if the socket has no connection.
    pub(crate) fn flow_of(&self, fd: Fd) -> CallResult<Option<FlowId>> {
        Ok(match self.socket(fd)?.role {
            Role::Flow(id) => Some(id),
            _ => None,
        })
    }

    /// Returns the engine's state of a flow, or `None` if the engine has released the flow.
    pub(crate) fn flow(&self, id: FlowId) -> Option<&FlowState> {
        self.engine.as_ref()?.flow(id)
    }

    /// Returns the engine's values for the TCP_INFO of a flow.
    pub(crate) fn flow_info(&self, id: FlowId) -> Option<FlowInfo> {
        self.engine.as_ref()?.info(id)
    }

    /// Returns the TCP state of the socket `fd`. A deferred `connect` counts as SYN-SENT.
    pub(crate) fn state_of(&self, fd: Fd) -> CallResult<State> {
        let socket = self.socket(fd)?;
        Ok(match &socket.role {
            Role::Unconnected if socket.fast_open.deferred.is_some() => State::SynSent,
            Role::Unconnected | Role::Released => State::Closed,
            Role::Listener { .. } => State::Listen,
            Role::Flow(id) => self.flow(*id).map_or(State::Closed, FlowState::state),
        })
    }

    /// Returns true if `fd` is a socket or an epoll instance of this stack.
    pub fn has(&self, fd: Fd) -> bool {
        self.objects.contains_key(&fd)
    }

    /// Returns true if `fd` is a socket of this stack.
    pub fn has_socket(&self, fd: Fd) -> bool {
        matches!(self.objects.get(&fd), Some(Object::Socket(_)))
    }

    /// Returns the time at which a packet was sent, in microseconds since the Unix epoch.
    pub fn stamp_us(sent: &Sent) -> u64 {
        wall_us(sent.at)
    }
}
