//! The stack without threads: engine, clock, wire, and the objects behind descriptors.

use std::collections::{BTreeMap, HashMap, HashSet};

use tidelane_engine::{
    CloseCause, Duration, Engine, Event, FlowId, FlowInfo, FlowState, Instant, ListenerId,
    SocketOptions, State,
};

use crate::{
    clock::{VirtualClock, wall_us},
    epoll::Epoll,
    errno::{Answer, Errno, of_cause},
    packet::{self, Inbound},
    settings::{Reading, Settings},
    socket::{Role, Socket},
    stats::Stats,
    urgent::UrgentMark,
    wire::{Sent, Wire},
};

/// Key of initial sequence numbers. It is constant, so that runs repeat.
const SECRET: [u8; 16] = *b"packetdrill runs";
/// First port of unbound sockets.
const EPHEMERAL_FIRST: u16 = 32_768;
/// Bound on the advance of the clock while waiting for a packet, beyond every timeout of Linux.
const JUMP_MAX: Duration = Duration::from_secs(4 * 3600);

/// A descriptor.
pub type Fd = i32;

/// The object behind a descriptor of this stack.
#[derive(Debug)]
pub enum Object {
    /// A TCP socket.
    Socket(Box<Socket>),
    /// An epoll instance.
    Epoll(Epoll),
}

/// The driver's state of a flow besides its streams.
#[derive(Clone, Copy, Default, Debug)]
pub struct Flow {
    /// Descriptor of the flow's socket, once accepted.
    pub owner: Option<Fd>,
    /// Reason of the connection's end.
    pub cause: Option<CloseCause>,
    /// True once the peer's FIN was received in order.
    pub fin: bool,
    /// The urgent mark: the last urgent byte.
    pub mark: Option<UrgentMark>,
    /// Time statistics.
    pub stats: Stats,
}

/// The stack.
#[derive(Debug)]
pub struct Stack {
    pub(crate) clock: VirtualClock,
    pub(crate) settings: Settings,
    pub(crate) wire: Wire,
    pub(crate) objects: BTreeMap<Fd, Object>,
    pub(crate) flows: HashMap<FlowId, Flow>,
    pub(crate) listeners: HashMap<ListenerId, Fd>,
    pub(crate) next_port: u16,
    /// Flows whose last write had MSG_MORE.
    pub(crate) corked: HashSet<FlowId>,
    /// Flows whose program could not write all its bytes.
    pub(crate) blocked_writers: HashSet<FlowId>,
    engine: Option<Engine>,
    loaded: Reading,
}

impl Stack {
    /// Returns an empty stack. `loaded` is the reading of the kernel's sysctls before the script.
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

    /// Makes the engine with the sysctls of `reading`, at the end of the script's preamble.
    pub fn end_preamble(&mut self, reading: &Reading) {
        if self.engine.is_none() {
            self.settings.follow(&self.loaded, reading);
            self.make_engine();
            self.loaded = reading.clone();
        }
    }

    /// Applies the sysctls that the script changed since the last reading. Does nothing in a stack
    /// that was made without a reading.
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

    /// Returns the time of the clock.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// `gettimeofday(2)`.
    pub fn read_clock_us(&mut self) -> u64 {
        self.clock.read_us()
    }

    /// Runs one batch: calls the engine, ends the batch, and handles its packets and events.
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

    fn take_all_notices(&mut self) {
        let owned = self.flows.iter().filter(|(_, flow)| flow.owner.is_some());
        let ids: Vec<FlowId> = owned.map(|(id, _)| *id).collect();
        for id in ids {
            self.resolve_notices(id);
            self.wake_blocked_writer(id);
            self.note_limit(id);
        }
    }

    /// Wakes a blocked writer if there is enough write space now.
    fn wake_blocked_writer(&mut self, id: FlowId) {
        let owner = self.flows.get(&id).and_then(|flow| flow.owner);
        let Some(fd) = owner.filter(|_| self.blocked_writers.contains(&id)) else {
            return;
        };
        self.expand_buffer(fd, id);
        if self.is_writable(fd, id) {
            self.blocked_writers.remove(&id);
            self.mark_pending(fd);
        }
    }

    /// Releases the bytes behind ends of records that the engine has reached.
    fn release_all_records(&mut self) {
        let ids: Vec<FlowId> = self.flows.keys().copied().collect();
        for id in ids {
            if self.wire.has_records(id) {
                // A closed flow takes no bytes, and its program learns of the end from an event.
                let _ = self.release_records(id);
            }
        }
    }

    /// Calls the engine without ending the batch.
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
        self.take_all_notices();
        result
    }

    /// Lets a packet arrive.
    pub fn inject(&mut self, bytes: &[u8]) {
        // As in Linux, MSG_MORE holds data back only until the next ACK.
        let corked = self.uncork();
        match packet::parse(bytes) {
            Ok(Inbound::Segment(arrival, segment)) => self.drive(|engine, now, wire| {
                engine.segment_arrives(now, &arrival, &segment, wire);
            }),
            Ok(Inbound::Error(error)) => {
                self.drive(|engine, now, wire| engine.icmp_error(now, &error, wire));
            }
            // A packet that does not parse is dropped, as in the kernel.
            Err(_) => {}
        }
        for (id, options) in corked {
            self.call_in_batch(|engine, now, wire| engine.set_options(now, id, options, wire));
        }
        self.release_all_records();
    }

    /// Removes the corks of MSG_MORE. Returns the options to restore afterwards.
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

    /// Takes the next sent packet, if there is one.
    pub fn pop_sent(&mut self) -> Option<Sent> {
        self.wire.sent.pop_front()
    }

    /// Returns the time of the next timer.
    pub fn next_timeout(&self) -> Option<Instant> {
        let next = self.engine.as_ref()?.next_timeout()?;
        (next <= self.now() + JUMP_MAX).then_some(next.max(self.now()))
    }

    /// Advances the clock and runs due timers.
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
            Event::Writable => {
                if let Some(acked) = self.flow(id).map(FlowState::tx_acked) {
                    let streams = self.wire.streams(id);
                    streams.tx.drop_before(acked);
                    streams.packet_ends.forget_before(acked);
                }
                // `wake_blocked_writer` handles write space.
                return;
            }
            Event::PeerClosed => self.flows.entry(id).or_default().fin = true,
            Event::Closed(cause) => self.note_end(id, cause),
            Event::SoftError(cause) => self.note_soft_error(id, cause),
            Event::Released => {
                self.wire.forget(id);
                self.corked.remove(&id);
                self.blocked_writers.remove(&id);
                self.leave_queues(id);
                if let Some(flow) = self.flows.remove(&id)
                    && let Some(socket) = flow.owner.and_then(|fd| self.socket_mut(fd).ok())
                {
                    socket.role = Role::Over;
                }
                return;
            }
            Event::Readable | Event::Connected => {
                self.flows.entry(id).or_default();
            }
            Event::Urgent(pos) => self.note_mark(id, pos),
            Event::UrgentByte(byte) => self.note_urgent_byte(id, byte),
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

    /// Records the end of a connection, and its error for the next call. As in Linux, a reset in
    /// CLOSE-WAIT is EPIPE and not ECONNRESET.
    pub(crate) fn note_end(&mut self, id: FlowId, cause: CloseCause) {
        let flow = self.flows.entry(id).or_default();
        flow.cause = Some(cause);
        let fin = flow.fin;
        if let Some(Ok(socket)) = flow.owner.map(|fd| self.socket_mut(fd)) {
            socket.error = match cause {
                CloseCause::Reset if fin && !socket.write_shut => Some(Errno(libc::EPIPE)),
                _ => of_cause(cause),
            };
            socket.notices.give_up();
        }
    }

    /// Records a soft error. As in Linux, it is an error of the connection with IP_RECVERR, and
    /// otherwise only visible in SO_ERROR.
    fn note_soft_error(&mut self, id: FlowId, cause: CloseCause) {
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

    /// Returns the socket behind `fd`.
    pub(crate) fn socket(&self, fd: Fd) -> Answer<&Socket> {
        match self.objects.get(&fd) {
            Some(Object::Socket(socket)) => Ok(socket),
            Some(Object::Epoll(_)) => Err(Errno(libc::ENOTSOCK)),
            None => Err(Errno::BADF),
        }
    }

    /// Returns the mutable socket behind `fd`.
    pub(crate) fn socket_mut(&mut self, fd: Fd) -> Answer<&mut Socket> {
        match self.objects.get_mut(&fd) {
            Some(Object::Socket(socket)) => Ok(socket),
            Some(Object::Epoll(_)) => Err(Errno(libc::ENOTSOCK)),
            None => Err(Errno::BADF),
        }
    }

    /// Returns the flow behind `fd`, if it has one.
    pub(crate) fn flow_of(&self, fd: Fd) -> Answer<Option<FlowId>> {
        Ok(match self.socket(fd)?.role {
            Role::Flow(id) => Some(id),
            _ => None,
        })
    }

    /// Returns the hot state of a flow.
    pub(crate) fn flow(&self, id: FlowId) -> Option<&FlowState> {
        self.engine.as_ref()?.flow(id)
    }

    /// Returns the values of a flow that `tcp_info` shows.
    pub(crate) fn flow_info(&self, id: FlowId) -> Option<FlowInfo> {
        self.engine.as_ref()?.info(id)
    }

    /// Returns the TCP state behind `fd`.
    pub(crate) fn state_of(&self, fd: Fd) -> Answer<State> {
        let socket = self.socket(fd)?;
        Ok(match &socket.role {
            Role::Fresh if socket.fast_open.deferred.is_some() => State::SynSent,
            Role::Fresh | Role::Over => State::Closed,
            Role::Listener { .. } => State::Listen,
            Role::Flow(id) => self.flow(*id).map_or(State::Closed, FlowState::state),
        })
    }

    /// Returns true if `fd` belongs to this stack.
    pub fn has(&self, fd: Fd) -> bool {
        self.objects.contains_key(&fd)
    }

    /// Returns true if `fd` is a socket of this stack.
    pub fn has_socket(&self, fd: Fd) -> bool {
        matches!(self.objects.get(&fd), Some(Object::Socket(_)))
    }

    /// Returns the time of a packet in microseconds, packetdrill's unit.
    pub fn stamp_us(sent: &Sent) -> u64 {
        wall_us(sent.at)
    }
}
