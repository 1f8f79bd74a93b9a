//! The parameters of a run, which derive from its seed.

mod direct;
mod families;
mod ports;
mod users;

use std::fmt;

use tidelane_netem::{LinkConfig, Rng};
use tidelane_time::{Duration, Instant};

use crate::{
    direct::spec::DirectSpec,
    family::Bound,
    fault::Fault,
    host_spec::{HostSpec, PORTS, new_host},
    plan::{ConnectionPlan, Role, Traffic},
    ports::spec::PortsSpec,
    program_spec::{AREA_LEN, Behaviour, ListenerSpec, ProgramSpec},
    smoltcp_spec::{SmoltcpSpec, new_smoltcp},
    topology::Topology,
};

/// Smallest length of an area of stream buffers in runs with little memory, in bytes.
const AREA_LEN_LOW: u64 = 64 << 10;

/// Theme of a run: the kind of problem on which its scenario concentrates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Theme {
    /// Hosts with a service, with programs and links of all kinds.
    Any,
    /// Clients and servers are on one host. The segments of their connections take the local path:
    /// they do not leave the memory of the service.
    LocalPath,
    /// Programs die.
    Death,
    /// One or two programs write random values to their shared memory.
    Misbehaviour,
    /// Services restart, hosts pause, clocks jump.
    Faults,
    /// Programs have little memory for stream buffers.
    LowMemory,
    /// The peer is a smoltcp host.
    Smoltcp,
    /// Services have one to four cores. In some runs, programs die, services restart, hosts pause,
    /// or clocks jump. [`Scenario::from_seed`] never draws this theme.
    Cores,
    /// Programs with their own stacks send and receive over mux ports. A mux port is a pair of
    /// packet rings between a program and the mux of its host. The mux shares the NIC between these
    /// programs and the service. In most runs, some programs are hostile.
    Ports,
    /// Some hosts run the direct back end of the ring API (TCP within the program). These hosts
    /// have connections with hosts of all kinds.
    Direct,
}

/// All parameters of a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed from which all other parameters derive.
    pub seed: u64,
    /// Theme of the run.
    pub theme: Theme,
    /// Hosts with Tidelane's service. Their indices precede the indices of all other hosts.
    pub hosts: Vec<HostSpec>,
    /// The smoltcp host, if any. The index of this host is the length of `hosts`.
    pub smoltcp: Option<SmoltcpSpec>,
    /// Hosts that run the direct back end of the ring API. Their indices follow all other hosts.
    pub direct: Vec<DirectSpec>,
    /// Links between the hosts.
    pub topology: Topology,
    /// Programs on all hosts.
    pub programs: Vec<ProgramSpec>,
    /// Listening sockets of all programs.
    pub listeners: Vec<ListenerSpec>,
    /// Plans of the connections, by number.
    pub connections: Vec<ConnectionPlan>,
    /// Faults, in the order of time.
    pub faults: Vec<Fault>,
    /// Mux ports of one host: packet rings for programs with their own stacks. `None` if no host
    /// has mux ports.
    pub ports: Option<PortsSpec>,
}

impl Scenario {
    /// Derives the scenario of `seed`. The seed also determines the theme.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed).fork(0x5ce_4a10);
        let theme = match rng.below(16) {
            0..7 => Theme::Any,
            7 => Theme::LocalPath,
            8..10 => Theme::Death,
            10 => Theme::Misbehaviour,
            11 => Theme::LowMemory,
            12..14 => Theme::Smoltcp,
            _ => Theme::Faults,
        };
        // For some seeds, `Ports` or `Direct` replaces the theme. The themes of the other seeds do
        // not depend on these two draws.
        let theme = match (rng.below(16), rng.below(16)) {
            (0, _) => Theme::Ports,
            (_, 0) => Theme::Direct,
            _ => theme,
        };
        Self::with_theme(seed, theme)
    }

    /// Derives the scenario of `seed` with the given theme.
    pub fn with_theme(seed: u64, theme: Theme) -> Self {
        let root = Rng::new(seed);
        let mut rng = root.fork(1);
        let host_count = match theme {
            Theme::LocalPath | Theme::Smoltcp => 1,
            Theme::Direct => 1 + rng.below(2) as usize,
            _ => 2 + rng.below(3).min(rng.below(3)) as usize,
        };
        let mut hosts = (0..host_count)
            .map(|_| new_host(&mut rng))
            .collect::<Vec<_>>();
        if theme == Theme::Cores {
            let mut rng = root.fork(8);
            for host in &mut hosts {
                host.cores = rng.between(1, 4) as u32;
                // A hash of the port numbers of a connection selects the connection's core. For a
                // given port of the peer, a core can therefore use only some of the local ports. A
                // small number of local ports would be exhausted.
                host.ports = PORTS;
            }
        }
        let has_smoltcp =
            theme == Theme::Smoltcp || theme == Theme::Direct && root.fork(13).chance_ppm(300_000);
        let smoltcp = has_smoltcp.then(|| new_smoltcp(&mut root.fork(7)));
        let mut scenario = Self {
            seed,
            theme,
            hosts,
            smoltcp,
            direct: Vec::new(),
            topology: Topology::star(0, LinkConfig::PERFECT),
            programs: Vec::new(),
            listeners: Vec::new(),
            connections: Vec::new(),
            faults: Vec::new(),
            ports: None,
        };
        scenario.draw_direct(&mut root.fork(14));
        scenario.topology = Topology::random(&mut root.fork(2), scenario.host_count());
        if theme == Theme::Smoltcp {
            scenario.add_both_sides(&mut root.fork(3));
        } else {
            scenario.add_servers(&mut root.fork(3));
            scenario.add_clients(&mut root.fork(4));
        }
        if theme == Theme::Ports {
            scenario.add_ports(&mut root.fork(11));
        }
        scenario.add_direct_programs(&mut root.fork(15));
        scenario.add_connections(&mut root.fork(5));
        scenario.add_faults(&mut root.fork(6));
        scenario.add_port_changes(&mut root.fork(12));
        scenario.add_direct_faults(&mut root.fork(16));
        scenario.add_families(&root.fork(9));
        scenario.add_mtu_changes(&mut root.fork(17));
        scenario.add_users(&mut root.fork(10));
        scenario.remove_random_delays();
        scenario
    }

    fn add_servers(&mut self, rng: &mut Rng) {
        for index in 0..rng.between(1, 2) {
            let host = rng.below(self.hosts.len() as u64) as usize;
            let count = if rng.chance_ppm(250_000) { 2 } else { 1 };
            let programs = (0..count)
                .map(|_| self.add_program(rng, host, Behaviour::Good))
                .collect();
            let delay = if rng.chance_ppm(200_000) { 1 << 20 } else { 1 };
            self.listeners.push(ListenerSpec {
                port: 80 + index as u16,
                bound: Bound::ToV4,
                backlog: 1 << rng.between(2, 9),
                programs,
                accept_delay: Duration::from_micros(rng.below(delay)),
            });
        }
    }

    /// Adds a server and a client to Tidelane's host, and a server and a client to the smoltcp
    /// host.
    fn add_both_sides(&mut self, rng: &mut Rng) {
        for host in 0..2 {
            let server = self.add_program(rng, host, Behaviour::Good);
            self.listeners.push(ListenerSpec {
                port: 80 + host as u16,
                bound: Bound::ToV4,
                backlog: 128,
                programs: vec![server],
                accept_delay: Duration::ZERO,
            });
        }
        for host in 0..2 {
            self.add_program(rng, host, Behaviour::Good);
        }
    }

    fn add_clients(&mut self, rng: &mut Rng) {
        for _ in 0..rng.between(1, 3) {
            let host = rng.below(self.hosts.len() as u64) as usize;
            self.add_program(rng, host, Behaviour::Good);
        }
        if self.theme == Theme::Misbehaviour {
            for _ in 0..rng.between(1, 2) {
                let host = rng.below(self.hosts.len() as u64) as usize;
                let every = Duration::from_nanos(1 << rng.between(12, 22));
                self.add_program(rng, host, Behaviour::Bad { every });
            }
        }
    }

    /// Adds a program to `host`. Returns the index of the program.
    pub(crate) fn add_program(
        &mut self,
        rng: &mut Rng,
        host: usize,
        behaviour: Behaviour,
    ) -> usize {
        self.programs.push(ProgramSpec {
            host,
            user: 0,
            workers: if rng.chance_ppm(300_000) { 2 } else { 1 },
            wake_time_max: Duration::from_nanos(1 << rng.between(0, 18)),
            behaviour,
            area_len: self.area_len(rng),
        });
        self.programs.len() - 1
    }

    fn area_len(&self, rng: &mut Rng) -> u64 {
        match self.theme {
            Theme::LowMemory => AREA_LEN_LOW << rng.below(4),
            _ => AREA_LEN,
        }
    }

    fn add_connections(&mut self, rng: &mut Rng) {
        let traffic = [Traffic::Short, Traffic::Echo, Traffic::Bulk, Traffic::Empty];
        let main = traffic[rng.below(3) as usize];
        let count = match main {
            Traffic::Bulk => rng.between(1, 4),
            Traffic::Echo => rng.between(1, 16),
            _ => rng.between(4, 64),
        };
        let spread = 1 << rng.between(10, 32);
        let mut starts: Vec<u64> = (0..count).map(|_| rng.below(spread)).collect();
        starts.sort_unstable();
        for (id, start) in starts.into_iter().enumerate() {
            let kind = if rng.chance_ppm(800_000) {
                main
            } else {
                traffic[rng.below(4) as usize]
            };
            let mut client = rng.below(self.programs.len() as u64) as usize;
            let listener = rng.below(self.listeners.len() as u64) as usize;
            if self.theme == Theme::Smoltcp {
                // The client and the server run on different stacks (see `add_both_sides`).
                client = 3 - listener;
            }
            let mut plan = ConnectionPlan::new(rng, kind, id as u32, client, listener);
            self.choose_direct_client(rng, &mut plan);
            plan.start = Instant(1_000_000 + start);
            self.connections.push(plan);
        }
    }

    fn add_faults(&mut self, rng: &mut Rng) {
        let span = self.connections.last().map_or(0, |plan| plan.start.0);
        let at = |rng: &mut Rng| {
            let after = 1 << rng.between(16, 30);
            Instant(rng.below(span + 1) + rng.below(after))
        };
        let several = self.theme == Theme::Cores;
        if self.theme == Theme::Death || (several && rng.chance_ppm(300_000)) {
            for _ in 0..rng.between(1, 4) {
                let program = rng.below(self.programs.len() as u64) as usize;
                let back = Duration::from_micros(rng.below(2_000_000));
                let restart_after = rng.chance_ppm(500_000).then_some(back);
                let at = at(rng);
                self.faults.push(Fault::Death {
                    program,
                    at,
                    restart_after,
                });
            }
        }
        if self.theme == Theme::Any && rng.chance_ppm(150_000) {
            let (at, lasts) = (at(rng), Duration::from_micros(rng.below(10_000_000)));
            self.faults.push(Fault::Outage { at, lasts });
        }
        if rng.chance_ppm(150_000) {
            let (at, host) = (at(rng), rng.below(self.hosts.len() as u64) as usize);
            self.faults.push(Fault::NeighboursExpired { host, at });
        }
        if self.theme == Theme::Faults || (several && rng.chance_ppm(300_000)) {
            for _ in 0..rng.between(1, 4) {
                let (at, fault) = (at(rng), self.new_fault(rng));
                self.faults.push(fault.with_time(at));
            }
        }
        self.faults.sort_by_key(Fault::at);
    }

    /// Draws a fault of one of `self.hosts`. The caller sets the time of the fault.
    fn new_fault(&self, rng: &mut Rng) -> Fault {
        let host = rng.below(self.hosts.len() as u64) as usize;
        Self::new_fault_of(rng, host)
    }

    /// Draws a pause, a clock jump or a restart of `host`. The caller sets the time of the fault.
    pub(crate) fn new_fault_of(rng: &mut Rng, host: usize) -> Fault {
        let at = Instant::ZERO;
        let bits = rng.between(6, 24);
        let lasts = Duration::from_micros(rng.below(1 << bits));
        match rng.below(3) {
            0 => Fault::Pause { host, at, lasts },
            1 => Fault::ClockJump {
                host,
                at,
                by: lasts,
            },
            _ => Fault::Restart {
                host,
                at,
                lasts,
                orderly: rng.chance_ppm(500_000),
            },
        }
    }

    /// Returns the smallest MTU to which the interface of `host` changes, in bytes. Returns `None`
    /// if the MTU does not change.
    pub(crate) fn smallest_mtu_of(&self, host: usize) -> Option<u32> {
        let changes = self.faults.iter().filter_map(|fault| match fault {
            Fault::InterfaceMtu { host: of, mtu, .. } => (*of == host).then_some(*mtu),
            _ => None,
        });
        changes.min()
    }

    /// Returns the index of the listener that a program holds, if any.
    pub fn listener_of(&self, program: usize) -> Option<usize> {
        self.listeners
            .iter()
            .position(|listener| listener.programs.contains(&program))
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {:?}", self.seed, self.theme)?;
        if let Some(smoltcp) = &self.smoltcp {
            writeln!(f, "host {}: {smoltcp:?}", self.hosts.len())?;
        }
        for (at, direct) in self.direct.iter().enumerate() {
            writeln!(f, "host {}: {direct:?}", self.first_direct() + at)?;
        }
        for (index, [up, down]) in self.topology.access.iter().enumerate() {
            writeln!(f, "host {index} to its switch: {up:?}")?;
            writeln!(f, "  and back: {down:?}")?;
        }
        if let Some(middle) = &self.topology.middle {
            writeln!(f, "between the switches: {middle:?}")?;
        }
        for (index, host) in self.hosts.iter().enumerate() {
            writeln!(f, "host {index}: {host:?}")?;
        }
        for (index, program) in self.programs.iter().enumerate() {
            writeln!(f, "program {index}: {program:?}")?;
        }
        for (index, listener) in self.listeners.iter().enumerate() {
            writeln!(f, "listener {index}: {listener:?}")?;
        }
        for plan in &self.connections {
            writeln!(f, "{plan}")?;
        }
        for fault in &self.faults {
            writeln!(f, "{fault:?}")?;
        }
        if let Some(ports) = &self.ports {
            writeln!(f, "{ports}")?;
        }
        let bytes: u64 = [Role::Client, Role::Server]
            .iter()
            .flat_map(|role| self.connections.iter().map(|plan| plan.total(*role)))
            .sum();
        write!(f, "{} connections, {bytes} bytes", self.connections.len())
    }
}
