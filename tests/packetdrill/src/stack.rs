//! The stack as one thread sees it: engine, clock, wire, and the objects behind descriptors.

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
    urgent::Mark,
    wire::{Sent, Wire},
};

/// Keys initial sequence numbers: one run is as another.
const SECRET: [u8; 16] = *b"packetdrill runs";
/// First port that is given to a socket without one.
const EPHEMERAL_FIRST: u16 = 32_768;
/// How far the clock may jump in search of a packet: past every timeout that Linux has.
const JUMP_MAX: Duration = Duration::from_secs(4 * 3600);

/// A descriptor.
pub type Fd = i32;

/// What a descriptor of ours stands for.
#[derive(Debug)]
pub enum Object {
    /// A TCP socket.
    Socket(Box<Socket>),
    /// An epoll instance.
    Epoll(Epoll),
}

/// What the driver keeps of a flow besides its streams.
#[derive(Clone, Copy, Default, Debug)]
pub struct Flow {
    /// The socket that has it, once accepted.
    pub owner: Option<Fd>,
    /// Why it ended.
    pub cause: Option<CloseCause>,
    /// The peer's FIN is in order.
    pub fin: bool,
    /// The last urgent byte.
    pub mark: Option<Mark>,
    /// Times.
    pub stats: Stats,
}

/// See the module.
#[derive(Debug)]
pub struct Stack {
    pub(crate) clock: VirtualClock,
    pub(crate) settings: Settings,
    pub(crate) wire: Wire,
    pub(crate) objects: BTreeMap<Fd, Object>,
    pub(crate) flows: HashMap<FlowId, Flow>,
    pub(crate) listeners: HashMap<ListenerId, Fd>,
    pub(crate) next_port: u16,
    /// Flows whose last write said MSG_MORE.
    pub(crate) corked: HashSet<FlowId>,
    /// Flows whose program could not write all that it wanted.
    pub(crate) waits_for_room: HashSet<FlowId>,
    engine: Option<Engine>,
    loaded: Reading,
}

impl Stack {
    /// An empty stack. `loaded` is what the kernel's sysctls are before the script runs.
    pub fn new(settings: Settings, loaded: Reading) -> Self {
        Self {
            clock: VirtualClock::default(),
            wire: Wire::new(settings.mtu, settings.offload, settings.tso),
            objects: BTreeMap::new(),
            flows: HashMap::new(),
            listeners: HashMap::new(),
            next_port: EPHEMERAL_FIRST,
            corked: HashSet::new(),
            waits_for_room: HashSet::new(),
            engine: None,
            settings,
            loaded,
        }
    }

    /// The script's preamble is over: from here on the settings stand.
    pub fn settle_settings(&mut self, reading: &Reading) {
        if self.engine.is_none() {
            self.settings.follow(&self.loaded, reading);
            self.make_engine();
            self.loaded = reading.clone();
        }
    }

    /// What the script changed since it was last looked at holds from now on. A stack that was made
    /// without a reading has its settings from elsewhere.
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

    /// The time.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// What `gettimeofday` says.
    pub fn read_clock_us(&mut self) -> u64 {
        self.clock.read_us()
    }

    /// One batch: calls the engine, ends the batch, and takes note of what happened.
    pub(crate) fn drive<R>(
        &mut self,
        call: impl FnOnce(&mut Engine, Instant, &mut Wire) -> R,
    ) -> R {
        let sizing = self.settings.sizing();
        self.quietly(|engine, now, wire| {
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
            self.note_room(id);
            self.note_limit(id);
        }
    }

    /// Whether a program that could not write all that it wanted hears of room now.
    fn note_room(&mut self, id: FlowId) {
        let owner = self.flows.get(&id).and_then(|flow| flow.owner);
        let Some(fd) = owner.filter(|_| self.waits_for_room.contains(&id)) else {
            return;
        };
        self.expand_buffer(fd, id);
        if self.is_writable(fd, id) {
            self.waits_for_room.remove(&id);
            self.ring(fd);
        }
    }

    /// What was held back behind the end of a record goes when its time has come.
    fn release_all_records(&mut self) {
        let ids: Vec<FlowId> = self.flows.keys().copied().collect();
        for id in ids {
            if self.wire.has_records(id) {
                // A flow that is over takes nothing any more, and its program is told otherwise.
                let _ = self.release_records(id);
            }
        }
    }

    /// Calls the engine within a batch that the next call ends.
    pub(crate) fn quietly<R>(
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

    /// The packet that arrives.
    pub fn inject(&mut self, bytes: &[u8]) {
        // As in Linux, MSG_MORE holds back at the write only: an acknowledgment lets go.
        let corked = self.uncork();
        match packet::parse(bytes) {
            Ok(Inbound::Segment(arrival, segment)) => self.drive(|engine, now, wire| {
                engine.segment_arrives(now, &arrival, &segment, wire);
            }),
            Ok(Inbound::Error(error)) => {
                self.drive(|engine, now, wire| engine.icmp_error(now, &error, wire));
            }
            // What does not parse is dropped, as a kernel does.
            Err(_) => {}
        }
        for (id, options) in corked {
            self.quietly(|engine, now, wire| engine.set_options(now, id, options, wire));
        }
        self.release_all_records();
    }

    /// Lets go of what MSG_MORE holds; gives what to set again afterwards.
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
            self.quietly(|engine, now, wire| engine.set_options(now, *id, free, wire));
            options.cork = true;
        }
        all
    }

    /// The next packet that left, if one is queued.
    pub fn pop_sent(&mut self) -> Option<Sent> {
        self.wire.sent.pop_front()
    }

    /// When a timer is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        let next = self.engine.as_ref()?.next_timeout()?;
        (next <= self.now() + JUMP_MAX).then_some(next.max(self.now()))
    }

    /// Moves the clock and runs what is due.
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
                self.note_arrival(id);
                if let Some(fd) = self.listeners.get(&listener).copied() {
                    if let Some(Object::Socket(socket)) = self.objects.get_mut(&fd)
                        && let Role::Listener { queue, .. } = &mut socket.role
                    {
                        queue.push_back(id);
                    }
                    self.ring(fd);
                }
            }
            Event::Writable => {
                if let Some(acked) = self.flow(id).map(FlowState::tx_acked) {
                    let streams = self.wire.streams(id);
                    streams.tx.drop_before(acked);
                    streams.marks.forget_before(acked);
                }
                // Room is announced to who waits for it: see `note_room`.
                return;
            }
            Event::PeerClosed => self.flows.entry(id).or_default().fin = true,
            Event::Closed(cause) => self.note_end(id, cause),
            Event::SoftError(cause) => self.note_soft_error(id, cause),
            Event::Released => {
                self.wire.forget(id);
                self.corked.remove(&id);
                self.waits_for_room.remove(&id);
                self.leave_queues(id);
                if let Some(flow) = self.flows.remove(&id)
                    && let Some(socket) = flow.owner.and_then(|fd| self.socket_mut(fd).ok())
                {
                    socket.role = Role::Over;
                }
                return;
            }
            Event::Readable | Event::Connected => self.note_arrival(id),
            Event::Urgent(pos) => self.note_mark(id, pos),
            Event::UrgentByte(byte) => self.note_urgent_byte(id, byte),
            Event::FinAcked => {}
        }
        if let Some(fd) = self.flows.get(&id).and_then(|flow| flow.owner) {
            self.ring(fd);
        }
    }

    fn note_arrival(&mut self, id: FlowId) {
        let now = self.now();
        self.flows.entry(id).or_default().stats.received_at = now;
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

    /// The connection is over: the error waits for whoever asks. As in Linux a reset in CLOSE-WAIT
    /// is a broken pipe, not a lost connection.
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

    /// As in Linux: an error of the connection with IP_RECVERR, else one that only SO_ERROR tells.
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

    /// The socket behind `fd`.
    pub(crate) fn socket(&self, fd: Fd) -> Answer<&Socket> {
        match self.objects.get(&fd) {
            Some(Object::Socket(socket)) => Ok(socket),
            Some(Object::Epoll(_)) => Err(Errno(libc::ENOTSOCK)),
            None => Err(Errno::BADF),
        }
    }

    /// The socket behind `fd`, to change it.
    pub(crate) fn socket_mut(&mut self, fd: Fd) -> Answer<&mut Socket> {
        match self.objects.get_mut(&fd) {
            Some(Object::Socket(socket)) => Ok(socket),
            Some(Object::Epoll(_)) => Err(Errno(libc::ENOTSOCK)),
            None => Err(Errno::BADF),
        }
    }

    /// The flow behind `fd`, if it has one.
    pub(crate) fn flow_of(&self, fd: Fd) -> Answer<Option<FlowId>> {
        Ok(match self.socket(fd)?.role {
            Role::Flow(id) => Some(id),
            _ => None,
        })
    }

    /// The hot state of a flow.
    pub(crate) fn flow(&self, id: FlowId) -> Option<&FlowState> {
        self.engine.as_ref()?.flow(id)
    }

    /// A flow in the words of `ss`.
    pub(crate) fn flow_info(&self, id: FlowId) -> Option<FlowInfo> {
        self.engine.as_ref()?.info(id)
    }

    /// The connection state behind `fd`.
    pub(crate) fn state_of(&self, fd: Fd) -> Answer<State> {
        let socket = self.socket(fd)?;
        Ok(match &socket.role {
            Role::Fresh if socket.fast_open.deferred.is_some() => State::SynSent,
            Role::Fresh | Role::Over => State::Closed,
            Role::Listener { .. } => State::Listen,
            Role::Flow(id) => self.flow(*id).map_or(State::Closed, FlowState::state),
        })
    }

    /// Whether `fd` is one of ours.
    pub fn has(&self, fd: Fd) -> bool {
        self.objects.contains_key(&fd)
    }

    /// Whether `fd` is one of our sockets.
    pub fn has_socket(&self, fd: Fd) -> bool {
        matches!(self.objects.get(&fd), Some(Object::Socket(_)))
    }

    /// Puts the time of a packet in packetdrill's unit.
    pub fn stamp_us(sent: &Sent) -> u64 {
        wall_us(sent.at)
    }
}
