//! The host: one step, and the functions for the driver that concern the host as a whole.

use tidelane_engine::{Engine, EngineConfig, SocketOptions};
use tidelane_packet_io::PacketIo;
use tidelane_time::{Duration, Instant};

use crate::{
    HostRequest, Interface, Siblings, StreamMemory,
    accounts::Resource,
    io::HostIo,
    ip_input::IpInput,
    mux_ports::PortMux,
    parked_opens::{PARKED_MAX, ParkedOpens},
    shared::{HOLDS_MAX, SharedConnections},
    stack::Stack,
    timer_hold::TimerHold,
};
/// Time between two retries while an event or a frame waits for room.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A host with ports of type `P`. See the [crate] for its parts.
pub struct Host<P: PacketIo> {
    /// The TCP engine, with the parts that the engine calls.
    pub(crate) stack: Stack<P>,
    /// The input of IP packets: the other cores, the ports of the mux, and the fragments.
    pub(crate) input: IpInput,
    /// Options of connections whose program sets no options.
    pub(crate) base_options: SocketOptions,
    /// Active opens that wait for a port or a neighbour.
    pub(crate) parked_opens: ParkedOpens,
    /// Connections that several processes hold.
    pub(crate) shared: SharedConnections,
    /// Number of connections that programs of this core have had so far.
    pub(crate) connections: u64,
    /// The hold of late timers.
    pub(crate) timer_hold: TimerHold,
    /// True if events still wait for room in a context's ring.
    pub(crate) backlogged: bool,
    /// True if established connections wait because no context of their listener has room.
    pub(crate) has_unassigned: bool,
    /// Time of the next sweep for idle memory and waiting connections.
    pub(crate) next_sweep: Instant,
    /// Limit of receive windows in bytes while there is no memory pressure.
    pub(crate) rx_window_max: u32,
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
            rx_window_max: config.rx_window_max,
            stack: Stack {
                engine: Engine::new(config, secret),
                io,
            },
            input,
            base_options,
            parked_opens: ParkedOpens::default(),
            shared: SharedConnections::default(),
            connections: 0,
            timer_hold: TimerHold::default(),
            backlogged: false,
            has_unassigned: false,
            next_sweep: Instant(0),
        })
    }

    /// Makes a new host one of the cores of a service, with channels to the other cores.
    #[must_use]
    pub fn beside(mut self, siblings: Siblings) -> Self {
        self.input.set_siblings(siblings);
        self
    }

    /// Makes a new host share the memory for received data with other cores.
    pub fn set_stream_memory(&mut self, memory: StreamMemory) {
        let (ledger, high) = (&self.stack.io.ledger, memory.limits().high);
        ledger.set_capacity(Resource::StreamBytes, high);
        self.stack.io.staging.set_memory(memory);
    }

    /// Processes all input, and sends and publishes all results. Returns true if there was any
    /// work.
    pub fn step(&mut self, now: Instant) -> bool {
        self.stack.io.now = now;
        let mut worked = self.input.receive(now, &mut self.stack);
        if self.stack.io.links.has_segments() {
            self.stack.receive_local(now);
            worked = true;
        }
        worked |= self.poll_requests(now);
        if self.stack.io.links.take_blocked() {
            self.stack
                .io
                .links
                .send_late_resets(&mut self.stack.io.counters);
            self.stack.engine.resume_transmit();
        }
        self.run_timers(now);
        self.end_batch(now);
        if self.stack.io.bindings.has_changes() {
            self.publish(now);
        }
        if self.stack.io.links.has_queued() {
            self.flush_links(now);
        }
        self.ring_doorbells(now);
        worked || self.stack.io.links.has_segments()
    }

    /// Sends the ACKs that the engine owes. Each part of a step is a separate function, because the
    /// variables of all parts together would not fit into registers.
    #[inline(never)]
    fn end_batch(&mut self, now: Instant) {
        self.stack.engine.batch_end(now, &mut self.stack.io);
    }

    /// Passes queued frames to the links. If a link has no room for frames, the next step offers
    /// these frames again.
    fn flush_links(&mut self, now: Instant) {
        if self.stack.io.links.mux_link().has_frames_to_ports() {
            self.input.mux_mut().send_from_engine(now, &mut self.stack);
        }
        self.stack.io.links.flush();
    }

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
        if now >= self.next_sweep {
            self.sweep(now);
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
        let sweep = self.sweep_due();
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

    /// Returns true if the driver has requests to take.
    pub fn has_requests(&self) -> bool {
        !self.stack.io.requests.is_empty()
    }

    /// Takes the next request to the driver.
    pub fn take_request(&mut self) -> Option<HostRequest> {
        self.stack.io.requests.pop()
    }

    /// Returns true if a step would find work now. A driver calls this function after it has
    /// announced its sleep and before it sleeps, so that no work waits for a sleeping core.
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
}
