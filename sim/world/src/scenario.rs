//! Everything that a run will meet, derived from its seed.

use std::fmt;

use tidelane_engine::{Algorithm, EngineConfig};
use tidelane_netem::{BurstLoss, LinkConfig, Rng};
use tidelane_time::{Duration, Instant};

use crate::plan::{ConnectionPlan, Role, Traffic};

/// A host.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// MTU of its interface.
    pub mtu: u32,
    /// Frames of its port, per direction.
    pub frames: u32,
    /// The longest that a step takes.
    pub step_time_max: Duration,
    /// How long it takes at most to notice a frame or a doorbell while it sleeps.
    pub wake_time_max: Duration,
    /// Local ports for active opens.
    pub ports: u32,
    /// The engine's policy.
    pub engine: EngineConfig,
}

/// What a program does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conduct {
    /// What it should.
    Good,
    /// It also writes random values to its shared memory, this often.
    Bad {
        /// Time between two bursts of such writes.
        every: Duration,
    },
}

/// A program.
#[derive(Clone, Debug)]
pub struct ProgramSpec {
    /// Where it runs.
    pub host: usize,
    /// Threads.
    pub workers: u32,
    /// The longest from a doorbell's ring to its thread's run.
    pub wake_time_max: Duration,
    /// What it does.
    pub conduct: Conduct,
}

/// A listening socket.
#[derive(Clone, Debug)]
pub struct ListenerSpec {
    /// Its port, on the host of its programs.
    pub port: u16,
    /// Backlog.
    pub backlog: u32,
    /// Programs that hold and use it: more than one after fork.
    pub programs: Vec<usize>,
    /// How long a connection waits before a program takes it.
    pub accept_delay: Duration,
}

/// Something that goes wrong at a certain time.
#[derive(Clone, Copy, Debug)]
pub enum Mishap {
    /// A program dies, and perhaps comes back.
    Death {
        /// Which.
        program: usize,
        /// When.
        at: Instant,
        /// How long until it runs again.
        back_after: Option<Duration>,
    },
    /// The wire is cut.
    Outage {
        /// When.
        at: Instant,
        /// How long.
        lasts: Duration,
    },
    /// A host's neighbours are forgotten and must be resolved again.
    NeighboursForgotten {
        /// Which host.
        host: usize,
        /// When.
        at: Instant,
    },
}

/// What a run is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Theme {
    /// Hosts, programs and wires of all kinds.
    Any,
    /// Client and server on one host.
    MemoryWire,
    /// Programs die.
    Death,
    /// A program writes random values to its shared memory.
    Misbehaviour,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where all of it comes from.
    pub seed: u64,
    /// What it is about.
    pub theme: Theme,
    /// Hosts, all on one switch.
    pub hosts: Vec<HostSpec>,
    /// Every host's way to and from the switch is like this.
    pub wire: LinkConfig,
    /// Programs.
    pub programs: Vec<ProgramSpec>,
    /// Listening sockets.
    pub listeners: Vec<ListenerSpec>,
    /// Connections, by number.
    pub connections: Vec<ConnectionPlan>,
    /// In order of time.
    pub mishaps: Vec<Mishap>,
}

impl Scenario {
    /// The run of `seed`.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed).fork(0x5ce_4a10);
        let theme = match rng.below(10) {
            0..6 => Theme::Any,
            6 => Theme::MemoryWire,
            7..9 => Theme::Death,
            _ => Theme::Misbehaviour,
        };
        Self::with_theme(seed, theme)
    }

    /// The run of `seed` about `theme`.
    pub fn with_theme(seed: u64, theme: Theme) -> Self {
        let root = Rng::new(seed);
        let mut rng = root.fork(1);
        let host_count = match theme {
            Theme::MemoryWire => 1,
            _ => 2 + rng.below(3).min(rng.below(3)) as usize,
        };
        let hosts = (0..host_count)
            .map(|_| new_host(&mut rng))
            .collect::<Vec<_>>();
        let wire = new_wire(&mut root.fork(2));
        let mut scenario = Self {
            seed,
            theme,
            hosts,
            wire,
            programs: Vec::new(),
            listeners: Vec::new(),
            connections: Vec::new(),
            mishaps: Vec::new(),
        };
        scenario.add_servers(&mut root.fork(3));
        scenario.add_clients(&mut root.fork(4));
        scenario.add_connections(&mut root.fork(5));
        scenario.add_mishaps(&mut root.fork(6));
        scenario
    }

    fn add_servers(&mut self, rng: &mut Rng) {
        for index in 0..rng.between(1, 2) {
            let host = rng.below(self.hosts.len() as u64) as usize;
            let count = if rng.chance_ppm(250_000) { 2 } else { 1 };
            let programs = (0..count)
                .map(|_| self.add_program(rng, host, Conduct::Good))
                .collect();
            let delay = if rng.chance_ppm(200_000) { 1 << 20 } else { 1 };
            self.listeners.push(ListenerSpec {
                port: 80 + index as u16,
                backlog: 1 << rng.between(2, 9),
                programs,
                accept_delay: Duration::from_micros(rng.below(delay)),
            });
        }
    }

    fn add_clients(&mut self, rng: &mut Rng) {
        for _ in 0..rng.between(1, 3) {
            let host = rng.below(self.hosts.len() as u64) as usize;
            self.add_program(rng, host, Conduct::Good);
        }
        if self.theme == Theme::Misbehaviour {
            for _ in 0..rng.between(1, 2) {
                let host = rng.below(self.hosts.len() as u64) as usize;
                let every = Duration::from_nanos(1 << rng.between(12, 22));
                self.add_program(rng, host, Conduct::Bad { every });
            }
        }
    }

    fn add_program(&mut self, rng: &mut Rng, host: usize, conduct: Conduct) -> usize {
        self.programs.push(ProgramSpec {
            host,
            workers: if rng.chance_ppm(300_000) { 2 } else { 1 },
            wake_time_max: Duration::from_nanos(1 << rng.between(0, 18)),
            conduct,
        });
        self.programs.len() - 1
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
            let client = rng.below(self.programs.len() as u64) as usize;
            let listener = rng.below(self.listeners.len() as u64) as usize;
            let mut plan = ConnectionPlan::new(rng, kind, id as u32, client, listener);
            plan.start = Instant(1_000_000 + start);
            self.connections.push(plan);
        }
    }

    fn add_mishaps(&mut self, rng: &mut Rng) {
        let span = self.connections.last().map_or(0, |plan| plan.start.0);
        let at = |rng: &mut Rng| {
            let after = 1 << rng.between(16, 30);
            Instant(rng.below(span + 1) + rng.below(after))
        };
        if self.theme == Theme::Death {
            for _ in 0..rng.between(1, 4) {
                let program = rng.below(self.programs.len() as u64) as usize;
                let back = Duration::from_micros(rng.below(2_000_000));
                let back_after = rng.chance_ppm(500_000).then_some(back);
                let at = at(rng);
                self.mishaps.push(Mishap::Death {
                    program,
                    at,
                    back_after,
                });
            }
        }
        if self.theme == Theme::Any && rng.chance_ppm(150_000) {
            let (at, lasts) = (at(rng), Duration::from_micros(rng.below(10_000_000)));
            self.mishaps.push(Mishap::Outage { at, lasts });
        }
        if rng.chance_ppm(150_000) {
            let (at, host) = (at(rng), rng.below(self.hosts.len() as u64) as usize);
            self.mishaps.push(Mishap::NeighboursForgotten { host, at });
        }
        self.mishaps.sort_by_key(Mishap::at);
    }

    /// Whether the wire loses nothing, ever.
    pub fn has_perfect_wire(&self) -> bool {
        let wire = &self.wire;
        let outage = |mishap: &Mishap| matches!(mishap, Mishap::Outage { .. });
        let lossy = wire.loss + wire.corrupt + wire.burst_loss.enter > 0;
        let limited = wire.rate > 0 && wire.limit < 10_000;
        !lossy && !limited && !self.mishaps.iter().any(outage)
    }

    /// Whether the wire is so bad that a connection may time out.
    pub fn has_awful_wire(&self) -> bool {
        let wire = &self.wire;
        let outage = |mishap: &Mishap| matches!(mishap, Mishap::Outage { .. });
        wire.loss + wire.corrupt > 40_000
            || wire.burst_loss.enter > 0
            || self.mishaps.iter().any(outage)
    }

    /// Whether a limit is so low that the service may refuse a connection.
    pub fn has_low_limits(&self) -> bool {
        let low = |spec: &ListenerSpec| (spec.backlog as usize) < self.connections.len();
        let few = |host: &HostSpec| (host.ports as usize) < self.connections.len();
        self.listeners.iter().any(low) || self.hosts.iter().any(few)
    }

    /// The listener of a program.
    pub fn listener_of(&self, program: usize) -> Option<usize> {
        self.listeners
            .iter()
            .position(|listener| listener.programs.contains(&program))
    }
}

impl Mishap {
    /// When it happens.
    pub fn at(&self) -> Instant {
        match self {
            Self::Death { at, .. }
            | Self::Outage { at, .. }
            | Self::NeighboursForgotten { at, .. } => *at,
        }
    }
}

fn new_host(rng: &mut Rng) -> HostSpec {
    let mtu = [1500, 1500, 1500, 576, 1280, 9000][rng.below(6) as usize];
    let rx_window_max = 1 << rng.between(14, 22);
    let rx_window_initial = (1 << rng.between(12, 17)).min(rx_window_max);
    let algorithms = Algorithm::ALL;
    HostSpec {
        mtu,
        frames: [16, 64, 256, 256][rng.below(4) as usize],
        step_time_max: Duration::from_nanos(1 << rng.between(8, 14)),
        wake_time_max: Duration::from_nanos(1 << rng.between(0, 16)),
        ports: if rng.chance_ppm(100_000) { 16 } else { 4096 },
        engine: EngineConfig {
            rx_window_max,
            rx_window_initial,
            tx_limit: 1 << rng.between(12, 20),
            flows_max: 4096,
            congestion: algorithms[rng.below(algorithms.len() as u64) as usize],
            msl: Duration::from_millis(rng.between(100, 30_000)),
            timestamps: rng.chance_ppm(800_000),
            sack: rng.chance_ppm(800_000),
            ..EngineConfig::default()
        },
    }
}

fn new_wire(rng: &mut Rng) -> LinkConfig {
    let delay = Duration::from_nanos(1 << rng.between(10, 26));
    let mut wire = LinkConfig {
        delay,
        jitter: Duration(rng.below(delay.0 / 2 + 1)),
        rate: [0, 0, 1_000_000_000, 100_000_000, 10_000_000, 2_000_000][rng.below(6) as usize],
        limit: [20, 100, 1000, 10_000][rng.below(4) as usize],
        ..LinkConfig::PERFECT
    };
    let harm = match rng.below(8) {
        0..2 => 0,
        2..5 => 10_000,
        5..7 => 80_000,
        _ => {
            wire.burst_loss = BurstLoss {
                enter: rng.below(10_000) as u32,
                leave: 100_000 + rng.below(500_000) as u32,
                loss: 500_000,
            };
            1_000
        }
    };
    let part = |rng: &mut Rng| {
        let some = rng.below(harm + 1) as u32;
        if rng.chance_ppm(700_000) { some } else { 0 }
    };
    wire.loss = part(rng);
    wire.reorder = 2 * part(rng);
    wire.reorder_delay = Duration(rng.below(2 * delay.0));
    wire.duplicate = part(rng);
    wire.corrupt = part(rng) / 4;
    wire.jitter_reorders = harm > 0 && rng.chance_ppm(200_000);
    wire
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {:?}", self.seed, self.theme)?;
        writeln!(f, "wire: {:?}", self.wire)?;
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
        for mishap in &self.mishaps {
            writeln!(f, "{mishap:?}")?;
        }
        let bytes: u64 = [Role::Client, Role::Server]
            .iter()
            .flat_map(|role| self.connections.iter().map(|plan| plan.total(*role)))
            .sum();
        write!(f, "{} connections, {bytes} bytes", self.connections.len())
    }
}
