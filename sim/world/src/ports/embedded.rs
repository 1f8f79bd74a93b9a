//! A program on a mux port with the embedded stack (`tidelane-embedded`), which runs TCP within the
//! program. The program follows its connections' plans. A mux port is a pair of packet rings
//! through which a program with a TCP/IP stack of its own shares the NIC.

use std::{
    cell::RefCell,
    collections::{BTreeSet, VecDeque},
    rc::Rc,
};

use tidelane_embedded::{
    CloseCause, Connection, Event, Listener, SocketOptions, Stack, StackConfig,
};
use tidelane_engine::EngineConfig;
use tidelane_netem::Rng;
use tidelane_packet_ring::ProgramEnd;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, IpAddress};

use super::launch::{Launch, local_port};
use crate::{
    connection_end::{ConnectionEnd, Next, RunState},
    ledger::{Violation, violation},
    pipe::Pipe,
    plan::Role,
    topology::{address, mac, mac_of},
    worker::Start,
};

/// Interval of the checks for peers that have disappeared without a reset.
const GONE_PEER_INTERVAL: Duration = Duration::from_secs(20);

/// The stack, which the program and its streams share.
type Shared = Rc<RefCell<Stack<ProgramEnd>>>;

/// The program's interface to one connection of the stack.
struct EmbeddedStream {
    stack: Shared,
    connection: Connection,
    /// Cause of the end of the connection. `None` before the end.
    cause: Option<CloseCause>,
    /// True if the handshake is complete.
    is_established: bool,
    /// True if the peer's FIN has arrived.
    fin: bool,
    /// True if the program has shut down for writing.
    shut: bool,
    /// True if the program has closed the stream.
    closed: bool,
}

/// A connection that the program has not closed.
struct Open {
    end: ConnectionEnd<EmbeddedStream>,
    /// Time at which the program serves the connection next. `None` if the program waits for an
    /// event.
    at: Option<Instant>,
}

/// A program with the embedded stack.
pub struct EmbeddedProgram {
    stack: Shared,
    listener: Option<Listener>,
    open: Vec<Open>,
    /// Active opens that have not begun, in the order of time.
    starts: VecDeque<Start>,
    /// Index of the host.
    host: usize,
    /// Time of the next check for peers that have disappeared.
    next_gone_check: Instant,
    /// Number of connections accepted so far.
    accepted: u64,
    rng: Rng,
}

impl EmbeddedStream {
    fn new(stack: &Shared, connection: Connection) -> Self {
        Self {
            stack: Rc::clone(stack),
            connection,
            cause: None,
            is_established: false,
            fin: false,
            shut: false,
            closed: false,
        }
    }

    /// Updates the state of the stream after a poll of the stack.
    fn observe(&mut self) {
        let stack = self.stack.borrow();
        if let Some(status) = stack.status(self.connection) {
            self.fin = status.peer_closed;
            self.cause = status.cause;
        }
    }
}

impl Pipe for EmbeddedStream {
    fn readable(&mut self) -> usize {
        let stack = self.stack.borrow();
        let parts = stack.received(self.connection);
        parts.iter().map(|part| part.len()).sum()
    }

    fn peek(&mut self, into: &mut [u8]) -> usize {
        let stack = self.stack.borrow();
        let bytes = stack.received(self.connection).concat();
        let count = bytes.len().min(into.len());
        into[..count].copy_from_slice(&bytes[..count]);
        count
    }

    fn discard(&mut self, count: usize) -> usize {
        let count = count.min(self.readable());
        self.stack.borrow_mut().consume(self.connection, count);
        count
    }

    fn receive(&mut self, rng: &mut Rng, into: &mut [u8]) -> usize {
        if rng.chance_ppm(200_000) {
            let got = self.peek(into);
            return self.discard(got);
        }
        self.stack.borrow_mut().read(self.connection, into)
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        self.stack.borrow_mut().write(self.connection, bytes)
    }

    fn shutdown_write(&mut self) {
        self.shut = true;
        self.stack.borrow_mut().shutdown(self.connection);
    }

    fn close(&mut self, abort: bool) {
        self.closed = true;
        let mut stack = self.stack.borrow_mut();
        match abort {
            true => stack.abort(self.connection),
            false => stack.close(self.connection),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed
    }

    fn ended(&mut self) -> Option<u32> {
        self.cause.map(CloseCause::to_u32)
    }

    fn fin_received(&self) -> bool {
        self.fin
    }

    fn at_end(&mut self) -> bool {
        self.fin && self.readable() == 0
    }

    fn peer_closed(&mut self) -> bool {
        self.fin || self.cause.is_some()
    }

    fn established(&mut self) -> bool {
        self.is_established
    }

    fn set_nodelay(&mut self) {
        let mut stack = self.stack.borrow_mut();
        let options = SocketOptions {
            nodelay: true,
            ..Default::default()
        };
        stack.set_options(self.connection, options);
    }
}

impl EmbeddedProgram {
    /// Starts the program. `end` is the program's end of the mux port.
    pub fn new(launch: &Launch<'_>, engine: &EngineConfig, end: ProgramEnd) -> Self {
        let mut secret = [0; 16];
        launch.rng.fork(1).fill(&mut secret);
        let config = StackConfig {
            engine: engine.clone(),
            addresses: launch.addresses.clone(),
            mac: mac(launch.host),
            shared_addresses: true,
            ..StackConfig::new(launch.addresses[0], secret)
        };
        let mut stack = Stack::new(config, end);
        for (addr, hop) in &launch.hops {
            stack.set_neighbour(*addr, mac_of(*hop).unwrap_or_default());
        }
        let listener = launch.listener.map(|(local, backlog)| {
            let listener = stack.listen(local, backlog);
            listener.expect("a new stack can listen")
        });
        Self {
            stack: Rc::new(RefCell::new(stack)),
            listener,
            open: Vec::new(),
            starts: launch.starts.clone(),
            host: launch.host,
            next_gone_check: Instant::ZERO,
            accepted: 0,
            rng: launch.rng.fork(2),
        }
    }

    /// Returns true if the program has no connection to open or to serve.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.starts.is_empty()
    }

    /// Returns true if the program is idle, and the stack has no connection, not even in TIME-WAIT.
    pub fn is_over(&self) -> bool {
        let stack = self.stack.borrow();
        self.is_idle() && stack.is_empty() && stack.next_timeout().is_none()
    }

    /// Returns the ends of connections that the program has not yet closed.
    pub fn open_ends(&self) -> Vec<(Option<u32>, Role)> {
        self.open.iter().map(|open| open.end.name()).collect()
    }

    /// Describes the open connections.
    pub fn describe(&self) -> String {
        let stack = self.stack.borrow();
        let timeout = stack.next_timeout();
        let (starts, sides) = (self.starts.len(), self.open_ends());
        format!("embedded stack: {starts} to start, open {sides:?}, timeout {timeout:?}")
    }

    /// Runs the stack without its program. Returns the time of the stack's next timer.
    pub fn poll(&mut self, now: Instant) -> Option<Instant> {
        let mut stack = self.stack.borrow_mut();
        stack.port_mut().cancel_sleep();
        while stack.poll(now) {}
        stack.next_timeout()
    }

    /// Runs the program until it would sleep. Returns the time at which the program runs again if
    /// no doorbell (wake-up) of the service rings before. Returns `None` if only a doorbell can
    /// wake the program.
    pub fn run(
        &mut self,
        now: Instant,
        run_state: &mut RunState,
    ) -> Result<Option<Instant>, Violation> {
        self.poll(now);
        self.open_due(now, run_state)?;
        self.accept(now);
        let changed = self.take_events();
        self.give_turns(now, run_state, &changed)?;
        let mut stack = self.stack.borrow_mut();
        stack.flush();
        stack.port_mut().prepare_to_sleep();
        let soon = stack.port().has_frames().then_some(now);
        let gone_check = (!self.open.is_empty()).then_some(self.next_gone_check);
        let start = self.starts.front().map(|start| start.at);
        Ok([stack.next_timeout(), soon, gone_check, start]
            .into_iter()
            .chain(self.open.iter().map(|open| open.at))
            .flatten()
            .min())
    }

    /// Returns true if the program has published frames for the service since the last call.
    pub fn take_published(&mut self) -> bool {
        self.stack.borrow_mut().port_mut().take_published()
    }

    fn open_due(&mut self, now: Instant, run_state: &mut RunState) -> Result<(), Violation> {
        while let Some(start) = self.starts.front().filter(|start| start.at <= now).copied() {
            self.starts.pop_front();
            let local = Endpoint::new(self.local_address(start.to.addr), local_port(start.id));
            let opened = self.stack.borrow_mut().connect(local, start.to);
            let connection = opened.map_err(|error| {
                let text = format!("connection {}: {error:?}", start.id);
                violation(now, "a stack can open a connection", text)
            })?;
            run_state.ledger.open(now, start.id, Role::Client)?;
            let stream = EmbeddedStream::new(&self.stack, connection);
            let rng = self.rng.fork(u64::from(start.id) << 1);
            let end = ConnectionEnd::client(now, stream, start.id, run_state.seed, rng);
            self.open.push(Open { end, at: Some(now) });
        }
        Ok(())
    }

    fn local_address(&self, peer: IpAddress) -> IpAddress {
        use crate::family::Family;
        let family = if peer.is_v4() { Family::V4 } else { Family::V6 };
        address(family, self.host)
    }

    fn accept(&mut self, now: Instant) {
        let Some(listener) = self.listener else {
            return;
        };
        loop {
            let accepted = self.stack.borrow_mut().accept(listener);
            let Some(connection) = accepted else {
                return;
            };
            self.accepted += 1;
            let mut stream = EmbeddedStream::new(&self.stack, connection);
            stream.is_established = true;
            let rng = self.rng.fork(self.accepted << 1 | 1);
            let end = ConnectionEnd::server(now, stream, rng);
            self.open.push(Open { end, at: Some(now) });
        }
    }

    /// Takes the events of the stack. Returns the connections that became established, readable or
    /// writable, or that ended.
    fn take_events(&mut self) -> BTreeSet<u64> {
        let mut changed = BTreeSet::new();
        loop {
            let event = self.stack.borrow_mut().next_event();
            let connection = match event {
                None => return changed,
                Some(Event::Incoming(_) | Event::Urgent(_)) => continue,
                Some(Event::Connected(connection)) => {
                    let streams = self.open.iter_mut().map(|open| open.end.stream());
                    for stream in streams.filter(|stream| stream.connection == connection) {
                        stream.is_established = true;
                    }
                    connection
                }
                Some(
                    Event::Readable(connection)
                    | Event::Writable(connection)
                    | Event::Closed(connection, _),
                ) => connection,
            };
            changed.insert(connection.to_u64());
        }
    }

    /// Serves only the connections with an event or an expired timer. A lost event therefore shows
    /// as a connection without progress.
    fn give_turns(
        &mut self,
        now: Instant,
        run_state: &mut RunState,
        changed: &BTreeSet<u64>,
    ) -> Result<(), Violation> {
        let gone_check = now >= self.next_gone_check;
        if gone_check {
            self.next_gone_check = now + GONE_PEER_INTERVAL;
        }
        for mut open in std::mem::take(&mut self.open) {
            let stream = open.end.stream();
            stream.observe();
            let has_event = changed.contains(&stream.connection.to_u64());
            let mut closed = false;
            if has_event || open.at.is_some_and(|at| at <= now) {
                match open.end.turn(now, run_state)? {
                    Next::Closed => closed = true,
                    Next::At(at) => open.at = Some(at),
                    Next::Event => open.at = None,
                }
            }
            let is_gone = !closed && gone_check && open.end.check_gone_peer(now, run_state)?;
            if !closed && !is_gone {
                self.open.push(open);
            }
        }
        Ok(())
    }
}
