//! One thread of a program: a context, and the connections whose events go to the context. A
//! context is a set of rings between the thread and the service. A slot is a connection's record in
//! the program's shared memory.
//!
//! A worker sleeps until its doorbell rings or a timer expires. The worker then serves only the
//! connections with an event or an expired timer. A lost event therefore shows as a connection
//! without progress.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tidelane_abi::{close_cause, program_flags};
use tidelane_client::{ClientEvent, Connect, Context, ListenerHandle, Program, QueueError, Stream};
use tidelane_netem::Rng;
use tidelane_time::{Duration, Instant};
use tidelane_wire::Endpoint;

use crate::{
    connection_end::{ConnectionEnd, Next, RunState},
    ledger::{Stage, Violation, violation},
    plan::Role,
};

/// Interval of the checks for peers that have disappeared without a reset.
const GONE_PEER_INTERVAL: Duration = Duration::from_secs(20);
/// Delay before a worker runs again because a request ring was full or events are pending.
const FULL_RETRY: Duration = Duration::from_micros(50);

/// An active open of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Time of the active open.
    pub at: Instant,
    /// Number of the connection within the run.
    pub id: u32,
    /// Address and port of the listener.
    pub to: Endpoint,
}

/// A listener from which a worker accepts connections.
#[derive(Clone, Copy, Debug)]
pub struct Accepting {
    /// The service's number of the listener.
    pub listener: ListenerHandle,
    /// The worker's cookie of the listener, by which accept events name the listener.
    pub cookie: u64,
    /// Time for which the worker leaves a connection in the accept queue.
    pub delay: Duration,
}

/// One thread of a program, with its context and the ends of its connections.
pub struct Worker {
    context: Context,
    program: Program,
    /// Set when the service rings the doorbell. Cleared when the worker runs, and by `take_ring`.
    bell: Arc<AtomicBool>,
    rng: Rng,
    /// Open ends, by slot.
    ends: BTreeMap<u32, ConnectionEnd<Stream>>,
    /// Slots that the worker has closed and the service has not yet released.
    closing: BTreeSet<u32>,
    /// Slots that were reused before the worker read the event of their release.
    released_late: BTreeSet<u32>,
    /// Time at which the worker serves a connection even without an event, by slot.
    timers: BTreeMap<u32, Instant>,
    /// Active opens that have not begun, in the order of time.
    starts: VecDeque<Start>,
    /// Connections whose connect request the service has not yet answered.
    connecting: BTreeSet<u32>,
    accepting: Vec<Accepting>,
    /// Ends of connections in the accept queue, each with its listener and the time at which the
    /// program accepts the end.
    to_accept: VecDeque<(Instant, ListenerHandle, ConnectionEnd<Stream>)>,
    /// Time of the next check for peers that have disappeared.
    next_gone_check: Instant,
    /// Number of connections accepted so far.
    pub accepted: u64,
    /// True if the program has little memory for stream buffers.
    pub memory_short: bool,
}

impl Worker {
    /// Creates a worker with a new context. `bell` is the flag that the service's doorbell sets.
    pub fn new(program: Program, context: Context, bell: Arc<AtomicBool>, rng: Rng) -> Self {
        Self {
            context,
            program,
            bell,
            rng,
            ends: BTreeMap::new(),
            closing: BTreeSet::new(),
            released_late: BTreeSet::new(),
            timers: BTreeMap::new(),
            starts: VecDeque::new(),
            connecting: BTreeSet::new(),
            accepting: Vec::new(),
            to_accept: VecDeque::new(),
            next_gone_check: Instant::ZERO,
            accepted: 0,
            memory_short: false,
        }
    }

    /// Joins a listener: asks the service to pass connections of the listener to this worker, which
    /// accepts them.
    pub fn accept(&mut self, accepting: Accepting) {
        let joined = self
            .context
            .listener_join(accepting.listener, accepting.cookie);
        assert_eq!(joined, Ok(()), "a new context's ring has room");
        self.accepting.push(accepting);
    }

    /// Schedules an active open. The calls must be in the order of the opens' times.
    pub fn open_later(&mut self, start: Start) {
        self.starts.push_back(start);
    }

    /// Returns true if the doorbell has rung after the worker's most recent run and after the
    /// previous call of this function.
    pub fn take_ring(&self) -> bool {
        self.bell.swap(false, Ordering::Relaxed)
    }

    /// Returns the connection number, if it is known, and the role of each open end.
    pub fn open_ends(&self) -> impl Iterator<Item = (Option<u32>, Role)> {
        self.ends.values().map(ConnectionEnd::name)
    }

    /// Returns true if no connection is open, opening, closing, in the accept queue, or yet to be
    /// opened.
    pub fn is_idle(&self) -> bool {
        self.ends.is_empty()
            && self.closing.is_empty()
            && self.starts.is_empty()
            && self.connecting.is_empty()
            && self.to_accept.is_empty()
    }

    /// Returns the closed slots that are not yet released, for the report of a leak.
    pub fn closing(&self) -> &BTreeSet<u32> {
        &self.closing
    }

    /// Serves the connections that have an event or an expired timer. Returns the time of the
    /// worker's next run if the doorbell does not ring before. Returns `None` if only the doorbell
    /// can wake the worker.
    pub fn run(
        &mut self,
        now: Instant,
        run_state: &mut RunState,
    ) -> Result<Option<Instant>, Violation> {
        self.context.cancel_sleep();
        self.bell.store(false, Ordering::Relaxed);
        let mut ready = self.take_events(now, run_state)?;
        ready.extend(self.due_ends(now));
        self.take_accepted(now, &mut ready);
        let mut full = self.start_connections(now, run_state);
        for slot in ready {
            self.give_turn(now, run_state, slot)?;
        }
        self.check_gone_peer(now, run_state)?;
        self.trim_buffers();
        full |= !self.context.prepare_to_sleep();
        if self.program.service_known_gone() {
            let text = "a ring of the service holds impossible values";
            return Err(violation(now, "the service keeps the protocol", text));
        }
        Ok(self.next_wake(now, full))
    }

    /// Frees empty send buffers. If memory is short, each call does so, because other connections
    /// wait for this memory. Otherwise, a call does so with a probability of 10 %.
    fn trim_buffers(&mut self) {
        if self.memory_short || self.rng.chance_ppm(100_000) {
            let ends = &mut self.ends;
            self.context
                .trim(&mut |slot| ends.get_mut(&slot).is_none_or(|end| end.stream().trim()));
        }
    }

    fn take_events(
        &mut self,
        now: Instant,
        run_state: &mut RunState,
    ) -> Result<BTreeSet<u32>, Violation> {
        let mut events = Vec::new();
        self.context.poll(&mut |event| events.push(event));
        let mut ready = BTreeSet::new();
        for event in events {
            match event {
                ClientEvent::Ready { slot } => {
                    ready.insert(slot);
                }
                ClientEvent::Released { slot } => self.released(now, slot)?,
                ClientEvent::ConnectStarted {
                    cookie,
                    slot,
                    generation,
                    ..
                } => {
                    self.connect_started(now, run_state, cookie, slot, generation)?;
                    ready.insert(slot);
                }
                ClientEvent::ConnectFailed { cookie, cause } => {
                    self.connect_failed(now, run_state, cookie, cause)?;
                }
                ClientEvent::ConnectKernel { cookie, .. } => {
                    self.connect_failed(now, run_state, cookie, close_cause::REFUSED)?;
                }
                ClientEvent::Accepted {
                    cookie,
                    slot,
                    generation,
                    ..
                } => self.announce_accepted(now, cookie, slot, generation)?,
            }
        }
        Ok(ready)
    }

    fn released(&mut self, now: Instant, slot: u32) -> Result<(), Violation> {
        if self.released_late.remove(&slot) || self.closing.remove(&slot) {
            return Ok(());
        }
        let text = format!("slot {slot} was released and is not closed");
        Err(violation(now, "the service keeps the protocol", text))
    }

    fn new_stream(
        &mut self,
        now: Instant,
        slot: u32,
        generation: u32,
        flags: u32,
    ) -> Result<Stream, Violation> {
        let rule = "the service keeps the protocol";
        if self.ends.contains_key(&slot) {
            return Err(violation(now, rule, format!("slot {slot} is in use")));
        }
        // The worker reads control events (opened or accepted connections) before data events, so
        // the event that released the slot may still be in the data ring.
        if self.closing.remove(&slot) {
            self.released_late.insert(slot);
        }
        let stream = self.program.stream(slot, generation, flags);
        stream.ok_or_else(|| violation(now, rule, format!("there is no slot {slot}")))
    }

    fn connect_started(
        &mut self,
        now: Instant,
        run_state: &mut RunState,
        cookie: u64,
        slot: u32,
        generation: u32,
    ) -> Result<(), Violation> {
        let id = self.take_connecting(now, cookie)?;
        let nodelay = run_state.ledger.entry(id).plan.end(Role::Client).nodelay;
        let flags = if nodelay { program_flags::NODELAY } else { 0 };
        let stream = self.new_stream(now, slot, generation, flags)?;
        let rng = self.rng.fork(u64::from(id) << 1);
        let end = ConnectionEnd::client(now, stream, id, run_state.seed, rng);
        self.ends.insert(slot, end);
        Ok(())
    }

    fn take_connecting(&mut self, now: Instant, cookie: u64) -> Result<u32, Violation> {
        let id = u32::try_from(cookie).ok();
        id.filter(|id| self.connecting.remove(id)).ok_or_else(|| {
            let text = format!("an answer to connect {cookie}, which was not asked for");
            violation(now, "the service keeps the protocol", text)
        })
    }

    fn connect_failed(
        &mut self,
        now: Instant,
        run_state: &mut RunState,
        cookie: u64,
        cause: u32,
    ) -> Result<(), Violation> {
        let id = self.take_connecting(now, cookie)?;
        run_state.ledger.check_cause(now, id, Role::Client, cause)?;
        run_state.ledger.mark_broken(now, id, Role::Client);
        run_state.ledger.close_end(now, id, Role::Client);
        Ok(())
    }

    fn announce_accepted(
        &mut self,
        now: Instant,
        cookie: u64,
        slot: u32,
        generation: u32,
    ) -> Result<(), Violation> {
        let mut own = self.accepting.iter();
        let Some(accepting) = own.find(|own| own.cookie == cookie).copied() else {
            let text = format!("a connection for a listener {cookie} that was never joined");
            return Err(violation(now, "the service keeps the protocol", text));
        };
        let stream = self.new_stream(now, slot, generation, 0)?;
        self.accepted += 1;
        let rng = self.rng.fork(self.accepted << 1 | 1);
        let end = ConnectionEnd::server(now, stream, rng);
        let at = now + accepting.delay;
        self.to_accept.push_back((at, accepting.listener, end));
        Ok(())
    }

    /// Accepts the connections whose accept delay has passed. Removes these connections from the
    /// accept queue, and adds their slots to `ready`.
    fn take_accepted(&mut self, now: Instant, ready: &mut BTreeSet<u32>) {
        while self.to_accept.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, listener, mut end)) = self.to_accept.pop_front() else {
                break;
            };
            end.stream().set_flag(program_flags::TAKEN);
            let slot = end.stream().slot();
            self.context.submit(end.stream());
            self.context.accept_taken(listener, slot);
            self.ends.insert(slot, end);
            ready.insert(slot);
        }
    }

    fn due_ends(&mut self, now: Instant) -> Vec<u32> {
        let due: Vec<u32> = self
            .timers
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(slot, _)| *slot)
            .collect();
        for slot in &due {
            self.timers.remove(slot);
        }
        due
    }

    /// Requests the active opens that are due. Returns true if the request ring was full.
    fn start_connections(&mut self, now: Instant, run_state: &mut RunState) -> bool {
        while let Some(start) = self.starts.front().filter(|start| start.at <= now).copied() {
            let request = Connect {
                cookie: u64::from(start.id),
                peer_addr: start.to.addr.0,
                peer_port: start.to.port,
                ..Connect::default()
            };
            match self.context.connect(&request) {
                Ok(()) => {}
                Err(QueueError::Full) => return true,
                Err(QueueError::ServiceGone) => return false,
            }
            self.starts.pop_front();
            self.connecting.insert(start.id);
            debug_assert_eq!(
                run_state.ledger.end(start.id, Role::Client).stage,
                Stage::NotYet
            );
            let _ = run_state.ledger.open(now, start.id, Role::Client);
        }
        false
    }

    fn give_turn(
        &mut self,
        now: Instant,
        run_state: &mut RunState,
        slot: u32,
    ) -> Result<(), Violation> {
        let Some(end) = self.ends.get_mut(&slot) else {
            return Ok(());
        };
        let next = end.turn(now, run_state)?;
        self.context.submit(end.stream());
        match next {
            Next::Event => {}
            Next::At(at) => {
                self.timers.insert(slot, at);
            }
            Next::Closed => self.closed(slot),
        }
        Ok(())
    }

    fn closed(&mut self, slot: u32) {
        self.ends.remove(&slot);
        self.timers.remove(&slot);
        self.closing.insert(slot);
    }

    /// Checks all ends for peers that have disappeared, once per [`GONE_PEER_INTERVAL`].
    fn check_gone_peer(&mut self, now: Instant, run_state: &mut RunState) -> Result<(), Violation> {
        if now < self.next_gone_check {
            return Ok(());
        }
        self.next_gone_check = now + GONE_PEER_INTERVAL;
        let slots: Vec<u32> = self.ends.keys().copied().collect();
        for slot in slots {
            let Some(end) = self.ends.get_mut(&slot) else {
                continue;
            };
            if end.check_gone_peer(now, run_state)? {
                self.context.submit(end.stream());
                self.closed(slot);
            }
        }
        Ok(())
    }

    fn next_wake(&self, now: Instant, full: bool) -> Option<Instant> {
        let gone_check = (!self.ends.is_empty()).then_some(self.next_gone_check);
        [
            full.then_some(now + FULL_RETRY),
            self.timers.values().min().copied(),
            self.starts.front().map(|start| start.at),
            self.to_accept.front().map(|(at, ..)| *at),
            gone_check,
        ]
        .into_iter()
        .flatten()
        .min()
        .map(|at| at.max(now + Duration(1)))
    }
}
