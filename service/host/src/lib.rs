//! A host: the TCP engine, the programs that use the engine, and the ports that carry the frames.
//!
//! Each fast-path core (polling thread) of the service has one [`Host`]. A *program* is a process
//! that shares memory with the service. A *port* is a [`PacketIo`], for example the AF_XDP socket
//! of a NIC queue. A *port of the mux* belongs to a program with a TCP/IP stack of its own. The
//! *local path* carries segments between two programs of the host in memory.
//!
//! The host is deterministic and does no I/O of its own. Its *driver*, the daemon `tidelaned` or
//! the simulator, calls [`Host::step`] in a loop. One step processes frames, segments of the local
//! path and requests of programs in batches. The step then notifies the programs, and sends the
//! frames.
//!
//! ```text
//!   ports ──frames──> wire ──segments──> engine <──requests── programs' rings
//!     ^                                    │ Driver (io.rs)              ^
//!     └──────────── frames, local path <───┴──> slots, events ───────────┘
//! ```
#![forbid(unsafe_code)]

mod accept;
pub mod accounts;
mod admission;
mod advance;
mod bindings;
mod buffer_copy;
mod capture;
mod congestion;
mod contexts;
mod driver_requests;
mod ephemeral_ports;
mod fast_open;
mod fragments;
mod give_back;
mod hand_back;
mod hash;
mod idle_pages;
mod io;
mod journal;
mod links;
mod listeners;
mod local_ports;
mod memory;
mod mux_ports;
mod neighbours;
mod options;
mod parked_opens;
mod port_rules;
mod program;
mod publish;
mod receive;
mod registry;
mod report;
mod requests;
mod rules;
mod shared;
mod siblings;
mod slots;
mod strays;
mod timer_hold;
mod urgent;
mod within_host;

use tidelane_engine::{Engine, EngineConfig, SocketOptions};
use tidelane_packet_io::PacketIo;
use tidelane_time::{Duration, Instant};
use tidelane_wire::DropReason;

use crate::{
    accounts::Resource,
    fragments::Fragments,
    io::HostIo,
    parked_opens::{PARKED_MAX, ParkedOpens},
    port_rules::PortOwners,
    shared::{HOLDS_MAX, SharedConnections},
    timer_hold::TimerHold,
};
pub use crate::{
    capture::{CaptureFilter, CapturePoint},
    congestion::AllowedCongestion,
    contexts::Bell,
    driver_requests::HostRequest,
    ephemeral_ports::PORTS_PER_REQUEST,
    fast_open::ListenerFastOpen,
    hand_back::Stray,
    idle_pages::IdlePages,
    journal::{FlowJournal, JournalEntry, JournalMemory},
    links::LOCAL_PATH_LINK,
    memory::{MemoryLimits, StreamMemory},
    mux_ports::{MUX_PORTS_MAX, MuxPorts},
    neighbours::{
        IngressPolicy, Interface, KernelRoute, ReversePathFilter, Route, SourceChecks, Way,
    },
    port_rules::{Associations, PortOwner},
    program::ProgramId,
    registry::{Listen, ListenError},
    report::{SocketReport, SocketState},
    rules::{Action, BadPrefix, Credentials, Direction, Opening, Prefix, Rule, RuleSet},
    shared::{Holder, Take, TakeError, Taken},
    siblings::{CoreIndex, Siblings},
    within_host::AddressesWithin,
};

/// Time between two retries while an event or a frame waits for room.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Counters of a host, in addition to the counters of its engine.
#[derive(Clone, Debug)]
pub struct HostCounters {
    /// Frames received from the NIC queues of this core.
    pub in_frames: u64,
    /// Received frames that this core handed over to the core of their flow.
    pub handed_over: u64,
    /// Segments that the local path delivered.
    pub memory_segments: u64,
    /// Segments passed to a port.
    pub out_segments: u64,
    /// Requests of an unknown kind.
    pub bad_requests: u64,
    /// Connections aborted because their program wrote invalid values to the slot.
    pub misuses: u64,
    /// Programs disconnected because their rings had invalid indices.
    pub corrupt_rings: u64,
    /// Programs disconnected because the host could not ring their doorbell.
    pub stuck_doorbells: u64,
    /// Requests to the kernel to probe a neighbour again, because a peer did not answer.
    pub path_doubts: u64,
    /// ICMP Time Exceeded errors sent about packets with missing fragments.
    pub out_time_excds: u64,
    /// Dropped packets, by [`DropReason::index`].
    pub drops: [u64; DropReason::COUNT],
}

impl Default for HostCounters {
    fn default() -> Self {
        Self {
            in_frames: 0,
            handed_over: 0,
            memory_segments: 0,
            out_segments: 0,
            bad_requests: 0,
            misuses: 0,
            corrupt_rings: 0,
            stuck_doorbells: 0,
            path_doubts: 0,
            out_time_excds: 0,
            drops: [0; DropReason::COUNT],
        }
    }
}

/// A host with ports of type `P`. See the [crate] for its parts.
pub struct Host<P: PacketIo> {
    engine: Engine,
    io: HostIo<P>,
    /// Options of connections whose program sets no options.
    base_options: SocketOptions,
    /// Active opens that wait for a port or a neighbour.
    parked_opens: ParkedOpens,
    /// Connections that several processes hold.
    shared: SharedConnections,
    /// The index of this core, and the number of cores.
    core_index: CoreIndex,
    /// The other cores, if there are any.
    siblings: Option<Siblings>,
    /// Incomplete IP packets, whose fragments have not all arrived.
    fragments: Fragments,
    /// Ports of the mux, for programs with TCP/IP stacks of their own.
    mux_ports: MuxPorts,
    /// The programs of the ports of the mux, as the operator's rules see the programs.
    port_owners: PortOwners,
    /// Number of connections that programs of this core have had so far.
    connections: u64,
    /// The hold of late timers.
    timer_hold: TimerHold,
    /// True if events still wait for room in a context's ring.
    backlogged: bool,
    /// True if established connections wait because no context of their listener has room.
    has_unassigned: bool,
    /// Time of the next sweep for idle memory and waiting connections.
    next_sweep: Instant,
    /// Limit of receive windows in bytes while there is no memory pressure.
    rx_window_max: u32,
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
        let interface = io.neighbours.routes().interface();
        let mux_ports = MuxPorts::new(interface.mac, interface.addresses.clone(), MUX_PORTS_MAX);
        let base_options = SocketOptions {
            ip: config.ip,
            ..SocketOptions::default()
        };
        Ok(Self {
            rx_window_max: config.rx_window_max,
            engine: Engine::new(config, secret),
            io,
            base_options,
            parked_opens: ParkedOpens::default(),
            shared: SharedConnections::default(),
            core_index: CoreIndex::ALONE,
            siblings: None,
            fragments: Fragments::default(),
            mux_ports,
            port_owners: PortOwners::default(),
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
        self.core_index = siblings.core_index();
        self.siblings = (self.core_index.cores > 1).then_some(siblings);
        self
    }

    /// Makes a new host share the memory for received data with other cores.
    pub fn set_stream_memory(&mut self, memory: StreamMemory) {
        let (ledger, high) = (&self.io.ledger, memory.limits().high);
        ledger.set_capacity(accounts::Resource::StreamBytes, high);
        self.io.staging.set_memory(memory);
    }

    /// Processes all input, and sends and publishes all results. Returns true if there was any
    /// work.
    pub fn step(&mut self, now: Instant) -> bool {
        self.io.now = now;
        let mut worked = self.receive_ports(now);
        worked |= self.siblings.is_some() && self.receive_handed_over(now);
        worked |= !self.mux_ports.is_empty() && self.serve_mux_ports(now);
        if self.io.links.has_segments() {
            self.receive_local(now);
            worked = true;
        }
        worked |= self.poll_requests(now);
        if self.io.links.take_blocked() {
            self.io.links.send_late_resets(&mut self.io.counters);
            self.engine.resume_transmit();
        }
        self.run_timers(now);
        self.end_batch(now);
        if self.io.bindings.has_changes() {
            self.publish(now);
        }
        if self.io.links.has_queued() {
            self.flush_links(now);
        }
        self.ring_doorbells(now);
        worked || self.io.links.has_segments()
    }

    /// Sends the ACKs that the engine owes. Each part of a step is a separate function, because the
    /// variables of all parts together would not fit into registers.
    #[inline(never)]
    fn end_batch(&mut self, now: Instant) {
        self.engine.batch_end(now, &mut self.io);
    }

    /// Passes queued frames to the links. If a link has no room for frames, the next step offers
    /// these frames again.
    fn flush_links(&mut self, now: Instant) {
        if self.io.links.mux_link().has_frames_to_ports() {
            self.send_to_mux_ports(now);
        }
        self.io.links.flush();
    }

    fn run_timers(&mut self, now: Instant) {
        if self.engine.is_due(now)
            && !self.io.links.frames_wait()
            && !self.timer_hold.holds(now, self.engine.next_timeout())
        {
            self.engine.advance_time(now, &mut self.io);
        }
        if self.parked_opens.deadline().is_some_and(|at| at <= now) {
            self.retry_parked(now);
        }
        if now >= self.next_sweep {
            self.sweep(now);
        }
        if self.fragments.are_due(now) {
            self.expire_fragments(now);
        }
    }

    /// Returns the time at which the driver must call [`step`](Self::step) next if no other event
    /// occurs.
    pub fn next_timeout(&self) -> Option<Instant> {
        let undone = self.io.bindings.has_unpublished();
        let soon = (self.backlogged || self.io.links.has_waiting() || undone)
            .then(|| self.io.now + RETRY_INTERVAL);
        let timers_due = self.engine.next_timeout();
        let timers_due = timers_due.map(|due| self.timer_hold.run_time(due));
        let sweep = self.sweep_due();
        [
            timers_due,
            self.parked_opens.deadline(),
            soon,
            sweep,
            self.fragments.next_timeout(),
            self.mux_ports.next_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns true if the driver has requests to take.
    pub fn has_requests(&self) -> bool {
        !self.io.requests.is_empty()
    }

    /// Takes the next request to the driver.
    pub fn take_request(&mut self) -> Option<HostRequest> {
        self.io.requests.pop()
    }

    /// Returns true if a step would find work now. A driver calls this function after it has
    /// announced its sleep and before it sleeps, so that no work waits for a sleeping core.
    pub fn has_work(&self) -> bool {
        self.io.links.has_segments()
            || self.siblings.as_ref().is_some_and(Siblings::has_work)
            || self.io.programs.contexts.next_with_requests(0).is_some()
            || self.mux_ports.has_work()
    }
}
