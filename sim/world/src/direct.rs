//! A host whose programs use the direct back end of the ring API (`app/direct`), which runs TCP
//! within the programs' calls. The host has one context (its sockets) on a NIC in memory.
//!
//! ```text
//!  ConnectionEnd <── DirectStream ──> DirectContext ── Nic ── WireEnd <──> links
//!  (plans)           held buffers     sync, ready list
//! ```
//!
//! A program serves a connection (the connection has a *turn*) only if the connection is new, has
//! an event in the ready list (the events of a call), or has reached the time of its next turn. A
//! lost event therefore shows as a connection without progress.

mod parked;
mod setup;
pub(crate) mod spec;
mod stream;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    io,
    rc::Rc,
};

use tidelane_direct::DirectContext;
use tidelane_engine::{FlowInfo, LinkId};
use tidelane_mem_nic::{Clock, Nic, WireEnd};
use tidelane_netem::Rng;
use tidelane_rings::{Context, Descriptor, Events, ListenOptions, ReadyList, Wait};
use tidelane_time::{Duration, Instant};

pub use self::{setup::Place, spec::DirectSpec};
use crate::{
    connection_end::{ConnectionEnd, Next, RunState},
    cwnd_rules::SenderFigures,
    family::Family,
    ledger::{Violation, violation},
    plan::Role,
    topology::{address, mac_of},
    worker::Start,
};
use parked::ParkedTime;
use setup::{locals, options, socket};
use stream::{DirectStream, Limits, Shared};

/// Interval of the checks for peers that have disappeared without a RST.
const GONE_PEER_INTERVAL: Duration = Duration::from_secs(20);
/// Limit of a context's wait while its NIC has no room for a segment.
const FULL_WAIT_MAX: Duration = Duration::from_millis(10);
/// Start of the clock. Some fields of the engine use zero for "no time", so the clock starts later.
const CLOCK_START: Duration = Duration::from_secs(1);
/// Probability in ppm that a cycle (one run of the context) calls `tx_sync` and `rx_sync` instead
/// of `sync`.
const HALVES_PPM: u32 = 250_000;
/// Probability in ppm that the program takes a list's buffers in the order of arrival.
const ARRIVALS_PPM: u32 = 300_000;

/// Name of the rule that the ready list is correct.
const LIST: &str = "the ready list is right";

/// A connection, and the condition for its next turn.
struct Connection {
    end: ConnectionEnd<DirectStream>,
    /// Time of the next turn. `None` if the next turn follows an event.
    at: Option<Instant>,
    /// True if the connection is new, or has had events in the ready list since its last turn.
    is_ready: bool,
}

/// A host with a direct context, and the programs that use the context.
pub struct DirectHost {
    /// Time until which the host is paused.
    pub paused_until: Instant,
    /// Time of the next run. `None` if the host waits for a frame.
    next: Option<Instant>,
    spec: DirectSpec,
    /// Offset of the host's clock from the clock of the world.
    clock_offset: Duration,
    /// True from a restart until the new programs run. Frames to the host are then lost.
    is_down: bool,
    clock: Clock,
    time: ParkedTime,
    context: Shared,
    wire: WireEnd,
    list: ReadyList,
    listeners: Vec<Descriptor>,
    connections: BTreeMap<Descriptor, Connection>,
    /// Connections to open, in the order of time.
    starts: VecDeque<Start>,
    /// Number of free buffers at the start.
    buffers: u32,
    /// Time of the next check for peers that have disappeared.
    next_gone_check: Instant,
    /// Number of connections accepted.
    accepted: u64,
    /// Number of calls of `Context::pause`, counted when the program closes the connection.
    pauses: u64,
    rng: Rng,
}

impl DirectHost {
    /// Creates a host that opens the connections `starts`, which are in the order of time.
    pub fn new(
        spec: &DirectSpec,
        place: &Place<'_>,
        starts: VecDeque<Start>,
        rng: Rng,
    ) -> io::Result<Self> {
        let clock: Clock = Rc::new(Cell::new(Instant::ZERO + CLOCK_START));
        let time = ParkedTime::new(&clock);
        let (nic, wire) = Nic::new(spec.nic, &clock);
        let options = options(spec, place.index, &rng);
        let mut context = DirectContext::open(&options, nic, time.clone())?;
        for to in 0..place.topology.access.len() {
            for family in Family::BOTH {
                let addr = address(family, to);
                let gateway = place.topology.gateway(family, place.index, to);
                if let Some(mac) = mac_of(gateway.unwrap_or(addr)) {
                    context.set_neighbour(addr, mac);
                }
            }
        }
        let mut listeners = Vec::new();
        for listener in &place.listeners {
            let backlog = listener.backlog;
            for local in locals(listener, place.index) {
                listeners.push(context.listen(local, &ListenOptions { backlog })?);
            }
        }
        Ok(Self {
            paused_until: Instant::ZERO,
            next: Some(Instant::ZERO),
            spec: spec.clone(),
            clock_offset: CLOCK_START,
            is_down: false,
            clock,
            time,
            buffers: context.pool().free_count(),
            context: Rc::new(RefCell::new(context)),
            wire,
            list: ReadyList::new(),
            listeners,
            connections: BTreeMap::new(),
            starts,
            next_gone_check: Instant::ZERO,
            accepted: 0,
            pauses: 0,
            rng: rng.fork(2),
        })
    }

    /// Replaces the context and the programs by those of `new`, which start at time `back`. If
    /// `orderly` is true, the old context resets its connections. Otherwise, the old context sends
    /// no more frames. Returns the frames that the old context sends at its end.
    pub fn restart(
        &mut self,
        now: Instant,
        new: Self,
        back: Instant,
        orderly: bool,
    ) -> Vec<Vec<u8>> {
        self.set_clock(now);
        let mut old = std::mem::replace(self, new);
        self.clock_offset = old.clock_offset;
        self.is_down = true;
        self.next = Some(back);
        self.paused_until = back;
        old.list.clear();
        old.connections.clear();
        drop(old.context);
        match orderly {
            true => old.wire.take_sent(),
            false => Vec::new(),
        }
    }

    /// Moves the host's clock forward by `by`.
    pub fn jump(&mut self, now: Instant, by: Duration) {
        self.clock_offset += by;
        self.wake(now);
    }

    fn set_clock(&self, now: Instant) {
        self.clock.set(now + self.clock_offset);
    }

    /// Returns the time of the next run, or the end of a pause, whichever is later.
    pub fn due(&self) -> Option<Instant> {
        Some(self.next?.max(self.paused_until))
    }

    /// Passes a frame to the NIC, or drops the frame if the host is down. Returns false if the NIC
    /// has no room for the frame.
    pub fn deliver(&mut self, now: Instant, frame: &[u8]) -> bool {
        let has_room = self.is_down || self.wire.deliver(frame);
        if !self.is_down {
            self.wake(now);
        }
        has_room
    }

    fn wake(&mut self, now: Instant) {
        let at = now + Duration(self.rng.below(self.spec.wake_time_max.0 + 1));
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Takes the frames that the host has sent.
    pub fn take_sent(&mut self) -> Vec<Vec<u8>> {
        self.wire.take_sent()
    }

    /// Runs a cycle of the context. If the context does not wait, the programs run after the cycle.
    /// Returns true if there was work.
    pub fn run(&mut self, now: Instant, run_state: &mut RunState) -> Result<bool, Violation> {
        self.is_down = false;
        self.set_clock(now);
        let has_frames = self.wire.has_arrived();
        if !self.sync(now)? {
            let limit = self.time.limit();
            if self.wire.is_full() && limit.is_none_or(|limit| limit > FULL_WAIT_MAX) {
                let text = format!("the NIC is full, and the context waits for {limit:?}");
                return Err(violation(
                    now,
                    "a full NIC delays a segment for a short time",
                    text,
                ));
            }
            let end = limit.and_then(|limit| now.0.checked_add(limit.0.max(1)));
            self.next = end.map(Instant);
            return Ok(has_frames);
        }
        let has_events = !self.list.is_empty();
        self.collect(now)?;
        let has_opened = self.open_due(now, run_state)?;
        let has_turned = self.give_turns(now, run_state)?;
        self.next = Some(now + Duration(1 + self.rng.below(self.spec.step_time_max.0)));
        Ok(has_frames || has_events || has_opened || has_turned)
    }

    /// Returns the earliest time at which a program serves a connection, opens one, or looks for
    /// peers that have disappeared.
    fn next_turn(&self) -> Option<Instant> {
        let turns = self.connections.values().filter_map(|one| one.at);
        let start = self.starts.front().map(|start| start.at);
        let gone_check = (!self.connections.is_empty()).then_some(self.next_gone_check);
        turns.chain(start).chain(gone_check).min()
    }

    /// Runs a cycle of the context. Returns false if the context waits for frames or time.
    fn sync(&mut self, now: Instant) -> Result<bool, Violation> {
        let wait = match self.next_turn() {
            None => Wait::Forever,
            Some(at) if at <= now => Wait::No,
            Some(at) => Wait::For(std::time::Duration::from_nanos((at - now).0)),
        };
        let halves = self.rng.chance_ppm(HALVES_PPM);
        let mut context = self.context.borrow_mut();
        let synced = match halves {
            true => context
                .tx_sync()
                .and_then(|()| context.rx_sync(&mut self.list, wait)),
            false => context.sync(&mut self.list, wait),
        };
        match synced {
            Ok(()) => Ok(true),
            Err(error) if ParkedTime::is_wait(&error) => Ok(false),
            Err(error) => Err(violation(now, "a context works", error.to_string())),
        }
    }

    /// Passes the events and data of the ready list to the streams.
    fn collect(&mut self, now: Instant) -> Result<(), Violation> {
        let by_arrival = self.rng.chance_ppm(ARRIVALS_PPM);
        for at in 0..self.list.len() {
            let entry = self.list.entry(at);
            let broken = |text: &str| violation(now, LIST, format!("{text}: {entry:?}"));
            if entry.events.intersects(Events::ACCEPTED) {
                if !entry
                    .listener
                    .is_some_and(|of| self.listeners.contains(&of))
                {
                    return Err(broken("a listener accepts"));
                }
                if self.connections.contains_key(&entry.descriptor) {
                    return Err(broken("a descriptor is one connection"));
                }
                self.accept(now, entry.descriptor);
            }
            let Some(connection) = self.connections.get_mut(&entry.descriptor) else {
                return Err(broken("a closed descriptor has no events"));
            };
            connection.is_ready = true;
            let stream = connection.end.stream();
            stream.record(&entry).map_err(broken)?;
            if by_arrival {
                continue;
            }
            let mut taken = (0, 0);
            while let Some(buffer) = self.list.take_next(at) {
                taken = (taken.0 + 1, taken.1 + buffer.len() as u32);
                stream.push(buffer);
            }
            if taken != (entry.slots, entry.bytes) {
                return Err(broken("an entry counts its data"));
            }
        }
        for (descriptor, buffer) in self.list.take_arrivals() {
            match self.connections.get_mut(&descriptor) {
                Some(connection) => connection.end.stream().push(buffer),
                None => return Err(violation(now, LIST, format!("data of {descriptor:?}"))),
            }
        }
        Ok(())
    }

    fn stream(&self, descriptor: Descriptor, rng: Rng) -> DirectStream {
        let limits = Limits {
            held_max: self.spec.held_max as usize,
            free_min: self.buffers / 2,
        };
        DirectStream::new(&self.context, descriptor, limits, rng)
    }

    fn accept(&mut self, now: Instant, descriptor: Descriptor) {
        self.accepted += 1;
        let rng = self.rng.fork(self.accepted << 1 | 1);
        let stream = self.stream(descriptor, rng.fork(1));
        let connection = Connection {
            end: ConnectionEnd::server(now, stream, rng),
            at: None,
            is_ready: true,
        };
        self.connections.insert(descriptor, connection);
    }

    /// Opens the connections that are due. Returns true if a connection was opened.
    fn open_due(&mut self, now: Instant, run_state: &mut RunState) -> Result<bool, Violation> {
        let mut has_opened = false;
        while let Some(start) = self.starts.pop_front_if(|start| start.at <= now) {
            has_opened = true;
            let to = start.to;
            let opened = self.context.borrow_mut().connect(socket(to));
            let descriptor =
                opened.map_err(|error| violation(now, "a port is free", error.to_string()))?;
            run_state.ledger.open(now, start.id, Role::Client)?;
            let rng = self.rng.fork(u64::from(start.id) << 1);
            let stream = self.stream(descriptor, rng.fork(1));
            let end = ConnectionEnd::client(now, stream, start.id, run_state.seed, rng);
            let connection = Connection {
                end,
                at: None,
                is_ready: true,
            };
            self.connections.insert(descriptor, connection);
        }
        Ok(has_opened)
    }

    /// Serves each connection that is new, has events, or has reached the time of its next turn.
    /// Returns true if a program has served a connection or looked for peers that have disappeared.
    fn give_turns(&mut self, now: Instant, run_state: &mut RunState) -> Result<bool, Violation> {
        let gone_check = now >= self.next_gone_check;
        if gone_check {
            self.next_gone_check = now + GONE_PEER_INTERVAL;
        }
        let is_due = |one: &Connection| one.is_ready || one.at.is_some_and(|at| at <= now);
        let due = self.connections.iter();
        let due = due.filter(|(_, one)| gone_check || is_due(one));
        let due: Vec<Descriptor> = due.map(|(descriptor, _)| *descriptor).collect();
        for descriptor in &due {
            let Some(connection) = self.connections.get_mut(descriptor) else {
                continue;
            };
            let has_turn = is_due(connection);
            connection.is_ready = false;
            let end = &mut connection.end;
            let mut is_over = false;
            if has_turn {
                match end.turn(now, run_state)? {
                    Next::Closed => is_over = true,
                    Next::At(at) => connection.at = Some(at),
                    Next::Event => connection.at = None,
                }
            }
            is_over = is_over || gone_check && end.check_gone_peer(now, run_state)?;
            if is_over {
                self.pauses += end.stream().pauses;
                self.connections.remove(descriptor);
                continue;
            }
            let balanced = end.stream().balance();
            balanced.map_err(|error| violation(now, "a context works", error.to_string()))?;
        }
        Ok(!due.is_empty())
    }

    /// Aborts the client's end of connection `id`. The server's end has timed out without a RST.
    pub fn give_up(&mut self, now: Instant, id: u32) {
        let is_client = |one: &Connection| one.end.name() == (Some(id), Role::Client);
        let found = self.connections.iter().find(|(_, one)| is_client(one));
        if let Some(descriptor) = found.map(|(descriptor, _)| *descriptor) {
            self.connections.remove(&descriptor);
            self.context.borrow_mut().abort(descriptor);
            self.wake(now);
        }
    }

    /// Returns the ends of connections that the programs have not yet closed.
    pub fn open_ends(&self) -> impl Iterator<Item = (Option<u32>, Role)> {
        self.connections.values().map(|one| one.end.name())
    }

    /// Returns true if the programs of the host have finished.
    pub fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.starts.is_empty()
    }

    /// Returns true if no flow, TIME-WAIT, timer, used buffer or used frame is left.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let has_flows = !self.context.borrow().has_no_connections();
        if has_flows || self.context.borrow().next_timeout().is_some() {
            return false;
        }
        self.list.clear();
        self.set_clock(now);
        let mut context = self.context.borrow_mut();
        // The call takes back the frames of completed transmissions.
        let synced = context.tx_sync().is_ok();
        let is_free = context.pool().free_count() == self.buffers;
        synced && is_free && self.wire.is_complete()
    }

    /// Returns the counters of the context.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let context = self.context.borrow();
        let own = context.counters();
        let direct = [
            ("direct_rx_copies", own.rx_copies),
            ("direct_rx_exchanges", own.rx_exchanges),
            ("direct_rx_no_buffer", own.rx_no_buffer),
            ("direct_tx_copies", own.tx_copies),
            ("direct_tx_lent", own.tx_lent),
            ("direct_waits", own.waits),
            ("direct_pauses", self.pauses),
            ("direct_accepted", self.accepted),
        ];
        let tcp = context.tcp_counters();
        let all = tcp.iter().chain(direct);
        all.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Returns lines about the host, for the report of a violation.
    pub fn describe(&self) -> Vec<String> {
        let context = self.context.borrow();
        let (free, timeout) = (context.pool().free_count(), context.next_timeout());
        let mut lines = vec![format!(
            "direct: next run {:?}, timeout {timeout:?}, {free} of {} buffers free, NIC without \
             pending frames: {}, {} connections to open",
            self.next,
            self.buffers,
            self.wire.is_complete(),
            self.starts.len(),
        )];
        let ends = self.connections.values();
        lines.extend(ends.map(|one| format!("  at {:?}: {:?}", one.at, one.end)));
        lines.extend(context.flows().map(|info| format!("  {info:?}")));
        let counters = self.counters().into_iter().filter(|(_, value)| *value > 0);
        let counters: Vec<String> = counters
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        lines.push(counters.join(", "));
        lines
    }
}

impl SenderFigures for DirectHost {
    fn flows(&self) -> Vec<FlowInfo> {
        let context = self.context.borrow();
        // The engine of a context uses link number 0. On a service, number 0 is the local path.
        let link = LinkId(1);
        context
            .flows()
            .map(|info| FlowInfo { link, ..info })
            .collect()
    }

    fn spurious_signals(&self) -> u64 {
        let tcp = self.context.borrow().tcp_counters();
        tcp.spurious_timeouts + tcp.dsack_recv
    }
}
