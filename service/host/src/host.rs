//! The host: one step of a core (a polling thread of the service), and the requests of programs.
//!
//! The *driver* of the host is the daemon or the simulator. The driver calls the functions of the
//! host. Most functions that concern only one part of the host are in submodules, for example
//! `Host::set_rules` in `host/rules.rs`.

mod addresses;
mod holders;
mod local_ports;
mod programs;
mod rules;

use tidelane_abi::{ControlRequest, close_cause, control_request, data_request};
use tidelane_engine::{Engine, EngineConfig, FlowId, SocketOptions};
use tidelane_mux::PortId;
use tidelane_packet_io::{PacketIo, Tapped};
use tidelane_packet_ring::ServiceEnd;
use tidelane_ring::{Corrupt, words::DataWord};
use tidelane_time::{Duration, Instant};

use crate::{
    FlowJournal, HostRequest, Interface, MuxPorts, PortOwner, ProgramId, Siblings, Stray,
    StreamMemory,
    accounts::Resource,
    active_open::{ActiveOpen, Unopened},
    contexts::{failed_event, kernel_event},
    ids::SlotId,
    io::HostIo,
    ip_input::IpInput,
    listeners::Acceptor,
    mux_ports::PortMux,
    parked_opens::{PARKED_MAX, Parked, ParkedOpens},
    shared::HOLDS_MAX,
    sockets::Sockets,
    stack::Stack,
    sweep::Sweep,
    tcp_input,
    timer_hold::TimerHold,
};

/// Limit of the data requests that one step reads from a context (the rings of one thread of a
/// program). The control requests of the context have a limit of the same size.
const REQUESTS_PER_STEP_MAX: u32 = 512;
/// Time between two retries while an event or a frame waits for room.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A host: the TCP/IP stack of one core, with NIC queues of type `P`. The [crate] documentation
/// shows the way of frames and requests through the host.
///
/// The driver calls [`step`](Self::step) in a loop, and sleeps until
/// [`next_timeout`](Self::next_timeout) if a step had no work.
pub struct Host<P: PacketIo> {
    /// The TCP engine, with the parts that the engine calls.
    pub(crate) stack: Stack<P>,
    /// The input of IP packets: the other cores, the mux ports (of programs with stacks of their
    /// own), and the fragments.
    pub(crate) input: IpInput,
    /// The connections as programs see them.
    pub(crate) sockets: Sockets,
    /// Active opens that wait for a local TCP port or for the link address of a neighbour.
    pub(crate) parked_opens: ParkedOpens,
    /// Delays late timers, so that ACKs that are late for the same reason arrive before a timer
    /// retransmits.
    timer_hold: TimerHold,
    /// The periodic work.
    sweep: Sweep,
    /// True if events still wait for room in a context's ring.
    backlogged: bool,
}

impl<P: PacketIo> Host<P> {
    /// Makes a host on `interface` with a port for each NIC queue. `secret` is the key for initial
    /// sequence numbers and hashes.
    pub fn new(
        config: EngineConfig,
        secret: [u8; 16],
        interface: Interface,
        ports: Vec<P>,
    ) -> std::io::Result<Self> {
        let io = HostIo::new(ports, interface, secret)?;
        io.ledger
            .set_capacity(Resource::Connections, config.flows_max.into());
        io.ledger
            .set_capacity(Resource::HalfOpen, config.half_open_max.into());
        io.ledger.set_capacity(Resource::ParkedOpens, PARKED_MAX);
        io.ledger.set_capacity(Resource::Holds, HOLDS_MAX);
        io.ledger
            .set_capacity(Resource::StagedBytes, io.staging.region().len());
        let input = IpInput::new(PortMux::new(io.neighbours.routes()));
        let base_options = SocketOptions {
            ip: config.ip,
            ..SocketOptions::default()
        };
        Ok(Self {
            sweep: Sweep::new(config.rx_window_max),
            stack: Stack {
                engine: Engine::new(config, secret),
                io,
            },
            input,
            sockets: Sockets::new(base_options),
            parked_opens: ParkedOpens::default(),
            timer_hold: TimerHold::default(),
            backlogged: false,
        })
    }

    /// Assigns this new host to one core of a service that has several cores. `siblings` has this
    /// core's channels to the other cores.
    #[must_use]
    pub fn beside(mut self, siblings: Siblings) -> Self {
        self.stack.io.bindings.set_core_index(siblings.core_index());
        self.input.set_siblings(siblings);
        self
    }

    /// Makes a new host count its receive buffers in `memory`, which all cores of the service
    /// share.
    pub fn set_stream_memory(&mut self, memory: StreamMemory) {
        let (ledger, high) = (&self.stack.io.ledger, memory.limits().high);
        ledger.set_capacity(Resource::StreamBytes, high);
        self.stack.io.staging.set_memory(memory);
    }

    /// Processes the input, runs the timers that are due, and sends and publishes the results.
    /// Returns true if there was input, or if the local path (segments in memory between programs
    /// of this host) has segments for the next step.
    pub fn step(&mut self, now: Instant) -> bool {
        self.stack.io.now = now;
        let mut worked = self.input.receive(now, &mut self.stack);
        if self.stack.io.links.has_segments() {
            tcp_input::receive_local(&mut self.stack, now);
            worked = true;
        }
        worked |= self.poll_requests(now);
        if self.stack.io.links.take_blocked() {
            let Stack { engine, io } = &mut self.stack;
            io.links.send_late_resets(&mut io.counters);
            engine.resume_transmit();
        }
        self.run_timers(now);
        self.end_batch(now);
        if self.stack.io.bindings.has_changes() {
            self.sockets.publish(now, &mut self.stack);
        }
        if self.stack.io.links.has_queued() {
            self.flush_links(now);
        }
        self.ring_doorbells(now);
        worked || self.stack.io.links.has_segments()
    }

    /// Sends the ACKs that the engine owes, and the data that new ACKs allow. Each part of a step
    /// is a separate function, because the variables of all parts together would not fit into
    /// registers.
    #[inline(never)]
    fn end_batch(&mut self, now: Instant) {
        self.stack.engine.batch_end(now, &mut self.stack.io);
    }

    /// Passes queued frames to the mux ports and the NIC. If a NIC queue has no room for frames,
    /// the next step offers these frames again.
    fn flush_links(&mut self, now: Instant) {
        if self.stack.io.links.mux_link().has_frames_to_ports() {
            self.input.mux_mut().send_from_engine(now, &mut self.stack);
        }
        self.stack.io.links.flush();
    }

    /// Makes all queued events visible to the programs, and rings the doorbells of sleeping
    /// threads. The caller flushes the frames first, because a woken thread may take the core's CPU
    /// immediately.
    #[inline]
    fn ring_doorbells(&mut self, now: Instant) {
        self.backlogged = false;
        if !self.stack.io.programs.contexts.has_unpublished() {
            return;
        }
        let stuck = self.stack.io.programs.contexts.publish();
        self.backlogged = self.stack.io.programs.contexts.has_unpublished();
        // Disconnect a program whose doorbell cannot be rung, at most one program per step.
        if let Some(id) = stuck {
            self.stack.io.counters.stuck_doorbells += 1;
            self.disconnect_program(now, id);
        }
    }

    /// Runs the timers that are due.
    fn run_timers(&mut self, now: Instant) {
        if self.stack.engine.is_due(now)
            && !self.stack.io.links.frames_wait()
            && !self.timer_hold.holds(now, self.stack.engine.next_timeout())
        {
            self.stack.engine.advance_time(now, &mut self.stack.io);
        }
        if self.parked_opens.deadline().is_some_and(|at| at <= now) {
            self.retry_parked(now);
        }
        if self.sweep.is_due(now, &self.stack) {
            self.sweep.run(now, &mut self.stack);
        }
        self.input.expire_fragments(now, &mut self.stack);
    }

    /// Returns the time at which the driver must call [`step`](Self::step) next if no other event
    /// occurs.
    pub fn next_timeout(&self) -> Option<Instant> {
        let undone = self.stack.io.bindings.has_unpublished();
        let soon = (self.backlogged || self.stack.io.links.has_waiting() || undone)
            .then(|| self.stack.io.now + RETRY_INTERVAL);
        let timers_due = self.stack.engine.next_timeout();
        let timers_due = timers_due.map(|due| self.timer_hold.run_time(due));
        let sweep = self.sweep.next_timeout(&self.stack);
        [
            timers_due,
            self.parked_opens.deadline(),
            soon,
            sweep,
            self.input.next_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Resets all connections, because the service ends.
    pub fn shut_down(&mut self, now: Instant) {
        self.stack.io.now = now;
        let flows: Vec<FlowId> = self.stack.engine.flows().collect();
        for flow in flows {
            self.stack.abort(now, flow);
        }
        self.sockets.publish(now, &mut self.stack);
        self.stack.io.links.flush();
        self.ring_doorbells(now);
    }

    /// Returns true if the driver has requests to take.
    pub fn has_requests(&self) -> bool {
        !self.stack.io.requests.is_empty()
    }

    /// Removes and returns the next request that the host makes to its driver.
    pub fn take_request(&mut self) -> Option<HostRequest> {
        self.stack.io.requests.pop()
    }

    /// Returns true if a step would find work now, apart from timers and from frames in the NIC
    /// queues. A driver calls this function after it has announced its sleep and before it sleeps,
    /// so that no such work waits for a sleeping core.
    pub fn has_work(&self) -> bool {
        self.stack.io.links.has_segments()
            || self.input.has_work()
            || self
                .stack
                .io
                .programs
                .contexts
                .next_with_requests(0)
                .is_some()
    }

    /// Reads and executes requests from all rings. Returns true if there was a request.
    pub(crate) fn poll_requests(&mut self, now: Instant) -> bool {
        let mut any = false;
        let mut from = 0;
        while let Some(place) = self.stack.io.programs.contexts.next_with_requests(from) {
            from = place + 1;
            match self.poll_context(now, place) {
                Ok(some) => any |= some,
                Err(Corrupt) => self.expel_corrupt(now, place),
            }
        }
        any
    }

    /// Disconnects the program of the context at index `place`, which has a corrupt ring. The
    /// indices of other contexts change. If a context moves to an index that
    /// [`poll_requests`](Self::poll_requests) has passed, the next step reads the context.
    #[cold]
    fn expel_corrupt(&mut self, now: Instant, place: usize) {
        self.stack.io.counters.corrupt_rings += 1;
        if let Some(((id, _), _)) = self.stack.io.programs.contexts.owned(place) {
            self.disconnect_program(now, id);
        }
    }

    /// Executes the requests of the context at index `place`: first the control requests, then the
    /// data requests. Returns true if there was a request.
    #[inline(never)]
    fn poll_context(&mut self, now: Instant, place: usize) -> Result<bool, Corrupt> {
        let mut any = false;
        let Some((owner, mut context)) = self.stack.io.programs.contexts.owned(place) else {
            return Ok(false);
        };
        let id = owner.0;
        if context.has_control() {
            any = self.poll_control(now, place, owner)?;
            let Some(again) = self.stack.io.programs.contexts.at(place) else {
                return Ok(any);
            };
            context = again;
        }
        let waiting = context.data_waiting()?.min(REQUESTS_PER_STEP_MAX);
        for ahead in 0..waiting {
            let Some(context) = self.stack.io.programs.contexts.at(place) else {
                break;
            };
            let word = DataWord::decode(context.data_word(ahead));
            self.data(now, id, word);
        }
        if let Some(context) = self.stack.io.programs.contexts.at(place) {
            context.drop_data(waiting);
        }
        Ok(any || waiting > 0)
    }

    /// Executes the control requests of the context at index `place`, which is context `number` of
    /// the program `id`. Returns true if there was a request.
    #[inline(never)]
    fn poll_control(
        &mut self,
        now: Instant,
        place: usize,
        (id, number): (ProgramId, u32),
    ) -> Result<bool, Corrupt> {
        let mut any = false;
        for _ in 0..REQUESTS_PER_STEP_MAX {
            let Some(context) = self.stack.io.programs.contexts.at(place) else {
                break;
            };
            let Some(request) = context.next_control()? else {
                break;
            };
            any = true;
            self.control(now, id, number, request);
        }
        Ok(any)
    }

    /// Executes a data request of a program.
    fn data(&mut self, now: Instant, program: ProgramId, word: DataWord) {
        let id = SlotId {
            program,
            slot: word.slot,
        };
        let (sockets, stack) = (&mut self.sockets, &mut self.stack);
        match word.kind {
            data_request::ADVANCE => sockets.advance_inlined(now, id, stack),
            data_request::ASSIGN => sockets.assign(id, word.arg, stack),
            data_request::ACCEPT_TAKEN => stack.accept_taken(program, word.slot, word.arg),
            _ => stack.io.counters.bad_requests += 1,
        }
    }

    /// Executes a control request from context number `context` of the program `id`.
    fn control(&mut self, now: Instant, id: ProgramId, context: u32, request: ControlRequest) {
        match request.kind {
            control_request::CONNECT => {
                let asked = Parked {
                    program: id,
                    context,
                    request,
                    since: now,
                };
                self.connect(now, &asked);
            }
            control_request::LISTENER_JOIN => {
                let acceptor = Acceptor {
                    program: id,
                    context,
                    cookie: request.cookie,
                };
                self.stack.join_listener(request.listener, acceptor);
            }
            control_request::LISTENER_LEAVE => {
                self.stack.leave_listener(request.listener, id, context);
            }
            _ => self.stack.io.counters.bad_requests += 1,
        }
    }

    /// Starts an active open, parks the open for a later attempt, leaves the open to the kernel, or
    /// refuses the open. `asked.since` is the time of the program's request.
    fn connect(&mut self, now: Instant, asked: &Parked) {
        let mut open = ActiveOpen {
            now,
            stack: &mut self.stack,
            input: &self.input,
            base_options: self.sockets.base_options(),
            asked,
        };
        let started = open.start();
        let programs = &mut self.stack.io.programs;
        let cookie = asked.request.cookie;
        let answer = match started {
            Ok(event) => event,
            Err(Unopened::Failed(cause)) => failed_event(cookie, cause),
            Err(Unopened::Kernel(reason)) => kernel_event(cookie, reason),
            Err(Unopened::Wait) => match self.parked_opens.park(*asked, programs) {
                Ok(()) => return,
                Err(_) => failed_event(cookie, close_cause::LIMIT),
            },
        };
        let contexts = &mut programs.contexts;
        contexts.answer(asked.program, asked.context, answer);
    }

    /// Tries all parked opens again, after a change or a timeout. Opens past the time limit fail.
    pub(crate) fn retry_parked(&mut self, now: Instant) {
        for (asked, charge) in self.parked_opens.take_all() {
            drop(charge);
            let contexts = &mut self.stack.io.programs.contexts;
            contexts.release_answer(asked.program, asked.context);
            if asked.is_overdue(now) {
                let cause = close_cause::HOST_UNREACHABLE;
                let answer = failed_event(asked.request.cookie, cause);
                contexts.answer(asked.program, asked.context, answer);
            } else {
                self.connect(now, &asked);
            }
        }
    }

    /// Returns the mux ports of this core.
    pub fn mux_ports(&self) -> &MuxPorts {
        self.input.mux().ports()
    }

    /// Returns the mux ports of this core, mutably. The driver claims 3-tuples (protocol, address,
    /// port number) for the mux ports, after the kernel has proved that the programs of the mux
    /// ports may use these 3-tuples.
    pub fn mux_ports_mut(&mut self) -> &mut MuxPorts {
        self.input.mux_mut().ports_mut()
    }

    /// Opens a mux port of the program `owner`. Returns false if a mux port already has the number
    /// `id`, or if the number is too large.
    pub fn open_port(&mut self, id: PortId, end: ServiceEnd, owner: PortOwner) -> bool {
        self.input.mux_mut().open(id, end, owner)
    }

    /// Closes a mux port. Returns the mux's end of the port's packet rings. Returns `None` if no
    /// mux port has the number `id`.
    pub fn close_port(&mut self, id: PortId) -> Option<Tapped<ServiceEnd>> {
        self.input.mux_mut().close(id)
    }

    /// Enables the hand-back: the host keeps received segments that may belong to connections of
    /// the kernel, instead of answering these segments with a RST. The driver has to take the
    /// frames with [`take_strays`](Self::take_strays), and to inject the frames into the kernel.
    pub fn enable_hand_back(&mut self) {
        self.stack.io.hand_back.enable();
    }

    /// Takes the frames that the driver has to inject into the kernel, because the service has no
    /// flow for their segments.
    pub fn take_strays(&mut self) -> Vec<Stray> {
        self.stack.io.hand_back.take()
    }

    /// Sets the journal of a new host. The host records its connections in the journal, so that
    /// another process can reset the connections after a kill of the service.
    pub fn set_journal(&mut self, journal: FlowJournal) {
        self.stack.io.journal.set(journal);
    }
}
