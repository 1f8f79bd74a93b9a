//! Bulk transfers over one link for a fixed time, for figures and fairness tests.

use tidelane_engine::{Algorithm, EngineConfig};
use tidelane_netem::LinkConfig;
use tidelane_time::{Duration, Instant};

use crate::{
    family::{Bound, Family, IPV6_MTU_MIN},
    host_spec::HostSpec,
    ledger::Violation,
    plan::{ConnectionPlan, Role, Round, steady_end},
    program_spec::{AREA_LEN, Behaviour, ListenerSpec, ProgramSpec},
    scenario::{Scenario, Theme},
    topology::{Middle, Topology},
    world::World,
};

/// Largest number of connections of one program. Each connection takes a slot (its record in the
/// program's shared memory).
const CONNECTIONS_PER_PROGRAM: usize = 100;

/// MTU of the hosts, in bytes.
const MTU: u32 = 1500;
/// Number of samples of the smoothed round-trip time during the measurement.
const SAMPLES: u64 = 50;

/// Parameters of a bulk transfer.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// Number of connections from one host to the other.
    pub flows: u32,
    /// Link in the direction of the data.
    pub forward: LinkConfig,
    /// Link in the direction of the ACKs.
    pub reverse: LinkConfig,
    /// IP version.
    pub family: Family,
    /// MTU in bytes of the path between two routers in front of the receiver. `None` if there are
    /// no routers.
    pub path_mtu: Option<u32>,
    /// Congestion control algorithm.
    pub congestion: Algorithm,
    /// Congestion control algorithm of a third host, which also opens `flows` connections through
    /// the same bottleneck. `None` if there is no third host.
    pub competing: Option<Algorithm>,
    /// Receive window and send limit of a connection, in bytes.
    pub window: u32,
    /// Time before the measurement, during which the flows converge.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub measured: Duration,
    /// Seed of the run.
    pub seed: u64,
}

/// Result of a bulk transfer.
#[derive(Clone, Debug)]
pub struct Goodput {
    /// Number of bytes that the receiving host's programs have read during the measurement, by
    /// connection. The connections of the third host come last.
    pub bytes: Vec<u64>,
    /// Duration of the measurement.
    pub measured: Duration,
    /// Mean smoothed round-trip time of the first connection during the measurement. For the model
    /// of Linux, the smoothed round-trip time at the end of the run.
    pub srtt: Duration,
    /// Counters of all hosts by name, for the whole run including the warm-up.
    pub counters: Vec<(String, u64)>,
}

impl Goodput {
    /// Returns the sum of the goodput of all connections, in bits per second.
    pub fn rate(&self) -> f64 {
        let bytes: u64 = self.bytes.iter().sum();
        bytes as f64 * 8e9 / self.measured.as_nanos() as f64
    }

    /// Returns Jain's fairness index. The index is 1 if all connections had the same goodput. The
    /// index is 1/n if one of n connections had all of the goodput.
    pub fn fairness(&self) -> f64 {
        let shares = self.bytes.iter().map(|bytes| *bytes as f64);
        let (sum, squares) = shares.fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
        if squares == 0.0 {
            return 0.0;
        }
        sum * sum / (self.bytes.len() as f64 * squares)
    }

    /// Returns the sum of the counter `name` over all hosts.
    pub fn counter(&self, name: &str) -> u64 {
        let named = self.counters.iter().filter(|(own, _)| own == name);
        named.map(|(_, count)| count).sum()
    }
}

impl Bulk {
    /// Returns a transfer of one CUBIC flow over IPv4 for one second without a warm-up. The link is
    /// symmetric, the window is 1 MiB, the seed is 1, and there is no competing traffic.
    pub const fn over(link: LinkConfig) -> Self {
        Self {
            flows: 1,
            forward: link,
            reverse: link,
            family: Family::V4,
            path_mtu: None,
            congestion: Algorithm::Cubic,
            competing: None,
            window: 1 << 20,
            warm_up: Duration::ZERO,
            measured: Duration::from_secs(1),
            seed: 1,
        }
    }

    /// Runs the transfer. Returns an error if the run breaks a rule (`lib.rs` lists the rules).
    pub fn run(&self) -> Result<Goodput, Violation> {
        let mut world = World::new(self.scenario()).map_err(|error| Violation {
            at: Instant::ZERO,
            rule: "the machine has memory",
            text: error.to_string(),
        })?;
        let start = Instant::ZERO + self.warm_up;
        world.run_until(start)?;
        let before = world.read_by_servers();
        let srtt = self.sample_srtt(&mut world, start)?;
        let after = world.read_by_servers();
        let bytes = after
            .iter()
            .zip(&before)
            .map(|(after, before)| after - before);
        Ok(Goodput {
            bytes: bytes.collect(),
            measured: self.measured,
            srtt,
            counters: world.counters(),
        })
    }

    /// Runs the world through the measurement. Returns the mean smoothed round-trip time of the
    /// first connection.
    fn sample_srtt(&self, world: &mut World, start: Instant) -> Result<Duration, Violation> {
        let (mut sum, mut seen) = (Duration::ZERO, 0u64);
        for sample in 1..=SAMPLES {
            world.run_until(start + self.measured / SAMPLES * sample)?;
            if let Some(srtt) = world.srtt(0) {
                sum += srtt;
                seen += 1;
            }
        }
        Ok(sum / seen.max(1))
    }

    pub(crate) fn scenario(&self) -> Scenario {
        let per_host = (self.flows as usize).div_ceil(CONNECTIONS_PER_PROGRAM);
        let senders = 1 + usize::from(self.competing.is_some());
        let clients = senders * per_host;
        let of_sender = |number: usize| 2 * (number / per_host);
        let mut programs: Vec<ProgramSpec> = (0..clients).map(|n| program(of_sender(n))).collect();
        programs.extend((0..clients).map(|_| program(1)));
        let listeners = (0..clients).map(|index| ListenerSpec {
            port: 80 + index as u16,
            bound: Bound::ToBoth,
            backlog: self.flows.max(16),
            programs: vec![clients + index],
            accept_delay: Duration::ZERO,
        });
        let flows = self.flows as usize;
        let connections = (0..senders * flows).map(|id| {
            let number = id / flows * per_host + id % flows / CONNECTIONS_PER_PROGRAM;
            endless(id as u32, number, self.family)
        });
        let mut topology = Topology::star(1 + senders, LinkConfig::PERFECT);
        // All senders share the queue of the link from the switch to the receiver.
        topology.access[1] = [self.reverse, self.forward];
        topology.middle = self.path_mtu.map(|mtu| Middle {
            routed: true,
            links: [LinkConfig {
                mtu,
                ..LinkConfig::PERFECT
            }; 2],
            far: (0..=senders).map(|host| host == 1).collect(),
        });
        let mut hosts = vec![self.host(self.congestion); 2];
        hosts.extend(self.competing.map(|congestion| self.host(congestion)));
        Scenario {
            seed: self.seed,
            theme: Theme::Any,
            hosts,
            smoltcp: None,
            direct: Vec::new(),
            topology,
            programs,
            listeners: listeners.collect(),
            connections: connections.collect(),
            faults: Vec::new(),
            ports: None,
        }
    }

    fn host(&self, congestion: Algorithm) -> HostSpec {
        HostSpec {
            cores: 1,
            mtu: MTU,
            ipv6: MTU >= IPV6_MTU_MIN,
            frames: 4096,
            step_time_max: Duration::from_micros(1),
            wake_time_max: Duration::from_micros(1),
            ports: 4096,
            engine: EngineConfig {
                rx_window_max: self.window,
                rx_window_initial: self.window.min(1 << 20),
                tx_limit: self.window,
                flows_max: 4096,
                congestion,
                ..EngineConfig::default()
            },
        }
    }
}

fn program(host: usize) -> ProgramSpec {
    ProgramSpec {
        host,
        user: 1000,
        workers: 1,
        wake_time_max: Duration::from_micros(1),
        behaviour: Behaviour::Good,
        area_len: AREA_LEN,
    }
}

/// Returns the plan of a connection that sends more data than any run can transfer. `number` is the
/// index of the client program and of the listener.
fn endless(id: u32, number: usize, family: Family) -> ConnectionPlan {
    let end = steady_end();
    let round = Round {
        up: u32::MAX,
        down: 0,
    };
    ConnectionPlan {
        id,
        client: number,
        listener: number,
        family,
        start: Instant(1_000_000 + u64::from(id) * 100_000),
        rounds: vec![round; 4],
        client_waits: false,
        server_waits: true,
        ends: [end; 2],
    }
}

impl World {
    /// Returns the number of bytes that the server's programs have read, by connection.
    fn read_by_servers(&self) -> Vec<u64> {
        let entries = self.ledger().entries().iter();
        entries
            .map(|entry| entry.ends[Role::Server.index()].read)
            .collect()
    }
}
