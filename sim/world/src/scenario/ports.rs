//! The mux ports of a scenario. A mux port is a pair of packet rings through which a program with a
//! TCP/IP stack of its own shares the NIC.

use tidelane_host::{Action, Direction};
use tidelane_mux::SendRate;
use tidelane_netem::{LinkConfig, Rng};
use tidelane_time::{Duration, Instant};

use super::Scenario;
use crate::{
    family::Bound,
    fault::Fault,
    host_spec::new_host,
    ports::{
        harm::Harm,
        rules::PortRulesSpec,
        spec::{ChangeKind, HostileSpec, PortChange, PortSpec, PortStack, PortsSpec},
    },
    program_spec::{AREA_LEN, Behaviour, ListenerSpec, ProgramSpec},
    smoltcp_spec::SmoltcpSpec,
};

/// First TCP port of the listeners on mux ports.
const LISTENERS_FIRST: u16 = 1000;
/// Largest MTU of a mux port in bytes, without the link header.
const PORT_MTU_MAX: u32 = 2034;
/// Smallest MTU to which the MTU of a host without IPv6 changes, in bytes: every host accepts an
/// IPv4 packet of this length (RFC 791 §3.1).
const MTU_MIN_V4: u32 = 576;
/// Smallest MTU to which the MTU of a host with IPv6 changes, in bytes (RFC 8200 §5).
const MTU_MIN_V6: u32 = 1280;
/// Largest delay of a link in a compared run: a run that is repeated without its hostile programs.
const COMPARED_DELAY_MAX: Duration = Duration::from_millis(1);
/// Backlog of listeners in a compared run, larger than the number of connections.
const COMPARED_BACKLOG: u32 = 1024;
/// Smallest capacity of a packet ring of a well-behaved program in a compared run, in bytes.
const COMPARED_RING_LEN: u32 = 1 << 19;

impl Scenario {
    /// Adds well-behaved programs on mux ports, with their listeners, and hostile programs.
    pub(crate) fn add_ports(&mut self, rng: &mut Rng) {
        let host = rng.below(self.hosts.len() as u64) as usize;
        let count = match rng.below(8) {
            0..6 => rng.between(2, 6),
            6 => rng.between(7, 15),
            _ => rng.between(16, 100),
        };
        let some_smoltcp = rng.chance_ppm(400_000);
        let mut programs = Vec::new();
        for index in 0..count {
            let mut rng = rng.fork(100 + index);
            let is_smoltcp = some_smoltcp && rng.chance_ppm(400_000);
            let mut spec = self.new_port(&mut rng, host, is_smoltcp);
            spec.draw_limits(&mut rng.fork(50));
            if index == 0 || rng.chance_ppm(400_000) {
                self.listeners.push(ListenerSpec {
                    port: LISTENERS_FIRST + index as u16,
                    bound: Bound::ToV4,
                    backlog: 128,
                    programs: vec![spec.program],
                    accept_delay: Duration::ZERO,
                });
            }
            programs.push(spec);
        }
        let hostile = (0..rng.below(5)).map(|_| new_hostile(rng)).collect();
        let answer_bits = rng.between(8, 22);
        self.ports = Some(PortsSpec {
            host,
            programs,
            hostile,
            changes: Vec::new(),
            answer_time_max: Duration(1 << answer_bits),
            nic_rate: rng.chance_ppm(300_000).then(|| rng.between(1, 32) as u32),
            is_compared: rng.chance_ppm(250_000),
            rules: new_rules(&mut rng.fork(60)),
        });
    }

    /// Adds a well-behaved program on a mux port of `host`. Returns the program's parameters.
    fn new_port(&mut self, rng: &mut Rng, host: usize, is_smoltcp: bool) -> PortSpec {
        let program = self.programs.len();
        self.programs.push(ProgramSpec {
            host,
            user: 0,
            workers: 1,
            wake_time_max: Duration::from_nanos(1 << rng.between(0, 18)),
            behaviour: Behaviour::Good,
            area_len: AREA_LEN,
        });
        let at = &self.hosts[host];
        let stack = match is_smoltcp {
            true => {
                let delays = [0, 10_000, 200_000];
                PortStack::Smoltcp(SmoltcpSpec {
                    mtu: at.mtu.min(PORT_MTU_MAX),
                    rx_len: 1 << rng.between(10, 17),
                    tx_len: 1 << rng.between(10, 17),
                    ack_delay: Duration::from_micros(delays[rng.below(3) as usize]),
                    nagle: rng.chance_ppm(500_000),
                    cubic: rng.chance_ppm(700_000),
                })
            }
            false => {
                let mut engine = new_host(rng).engine;
                engine.msl = at.engine.msl;
                PortStack::Embedded(Box::new(engine))
            }
        };
        PortSpec {
            program,
            stack,
            ring_len: 1 << rng.between(14, 20),
            claims_all: rng.chance_ppm(300_000),
            rate: SendRate::default(),
            is_tapped: false,
        }
    }

    /// Draws changes of the MTU of the host with mux ports. smoltcp has no path MTU discovery, so
    /// the MTU does not change if a program on a mux port uses smoltcp.
    pub(crate) fn add_mtu_changes(&mut self, rng: &mut Rng) {
        let Some(ports) = self.ports.as_ref().filter(|ports| !ports.has_smoltcp()) else {
            return;
        };
        let (host, last) = (ports.host, self.connections.last());
        let (spec, last) = (&self.hosts[host], last.map_or(0, |plan| plan.start.0));
        let smallest = if spec.ipv6 { MTU_MIN_V6 } else { MTU_MIN_V4 };
        if spec.mtu <= smallest || !rng.chance_ppm(400_000) {
            return;
        }
        let largest = u64::from(spec.mtu);
        for _ in 0..rng.between(1, 4) {
            let after = 1 << rng.between(16, 30);
            let at = Instant(rng.below(last + 1) + rng.below(after));
            let mtu = rng.between(smallest.into(), largest) as u32;
            self.faults.push(Fault::InterfaceMtu { host, at, mtu });
        }
        self.faults.sort_by_key(Fault::at);
    }

    /// Draws the planned deaths and handovers of programs on mux ports. In a handover, a new
    /// version of a program takes over the 3-tuples (protocol, local address, local port) of the
    /// old version.
    pub(crate) fn add_port_changes(&mut self, rng: &mut Rng) {
        let last = self.connections.last().map_or(0, |plan| plan.start.0);
        let Some(ports) = &mut self.ports else {
            return;
        };
        let count = if rng.chance_ppm(500_000) {
            rng.between(1, 6)
        } else {
            0
        };
        for _ in 0..count {
            let after = 1 << rng.between(16, 30);
            let at = Instant(rng.below(last + 1) + rng.below(after));
            let again = Duration::from_micros(rng.below(2_000_000));
            let bits = rng.between(4, 18);
            let kind = match rng.below(3) {
                0 => ChangeKind::Death {
                    restart_after: rng.chance_ppm(600_000).then_some(again),
                },
                _ => ChangeKind::HandOver {
                    all: rng.chance_ppm(500_000),
                    lasts: Duration::from_micros(rng.below(1 << bits)),
                },
            };
            let index = rng.below(ports.programs.len() as u64) as usize;
            ports.changes.push(PortChange { at, index, kind });
        }
        ports.changes.sort_by_key(|change| change.at);
    }
}

impl Scenario {
    /// Removes random causes of long delays from a compared run: loss, long links, short queues and
    /// rings, pauses, slow accepts, smoltcp's delayed ACKs, Nagle's algorithm, faults, deaths and
    /// handovers of programs, and the rate limits of mux ports.
    pub(crate) fn remove_random_delays(&mut self) {
        let Some(ports) = self.ports.as_mut().filter(|ports| ports.is_compared) else {
            return;
        };
        ports.changes.clear();
        self.faults.clear();
        for end in self.connections.iter_mut().flat_map(|plan| &mut plan.ends) {
            (end.pauses, end.nodelay) = (0, true);
        }
        for listener in &mut self.listeners {
            (listener.backlog, listener.accept_delay) = (COMPARED_BACKLOG, Duration::ZERO);
        }
        for port in &mut ports.programs {
            port.ring_len = port.ring_len.max(COMPARED_RING_LEN);
            port.rate = SendRate::default();
            if let PortStack::Smoltcp(spec) = &mut port.stack {
                (spec.ack_delay, spec.nagle) = (Duration::ZERO, false);
            }
        }
        let middle = self.topology.middle.iter_mut();
        let middle = middle.flat_map(|middle| &mut middle.links);
        let access = self.topology.access.iter_mut().flatten();
        for link in access.chain(middle) {
            let delay = link.delay.min(COMPARED_DELAY_MAX);
            *link = LinkConfig {
                delay,
                mtu: link.mtu,
                ..LinkConfig::PERFECT
            };
        }
    }

    /// Returns the same scenario without hostile programs, or `None` if the run is not compared or
    /// has no hostile programs.
    pub(crate) fn without_hostile(&self) -> Option<Self> {
        let ports = self.ports.as_ref();
        ports.filter(|ports| ports.is_compared && !ports.hostile.is_empty())?;
        let mut other = self.clone();
        let ports = other.ports.as_mut()?;
        ports.hostile.clear();
        ports.is_compared = false;
        Some(other)
    }
}

impl PortSpec {
    /// Draws the rate limits of the mux port, and whether a tap copies its frames for a capture.
    fn draw_limits(&mut self, rng: &mut Rng) {
        let packets = rng.chance_ppm(200_000).then(|| 1 << rng.between(9, 14));
        let bytes = rng.chance_ppm(200_000).then(|| 1 << rng.between(18, 24));
        self.rate = SendRate { packets, bytes };
        self.is_tapped = rng.chance_ppm(300_000);
    }
}

/// Draws the operator's rules.
fn new_rules(rng: &mut Rng) -> PortRulesSpec {
    let action = |rng: &mut Rng| match rng.chance_ppm(500_000) {
        true => Action::Refuse,
        false => Action::Drop,
    };
    let mut rule = |ppm| rng.chance_ppm(ppm).then(|| action(rng));
    let (opened_by_peer, opened_by_listener) = (rule(400_000), rule(400_000));
    let hostile = rule(200_000);
    let sides = [None, Some(Direction::In), Some(Direction::Out)];
    PortRulesSpec {
        opened_by_peer,
        opened_by_listener,
        hostile: hostile.zip(rng.pick(&sides).copied()),
    }
}

/// Draws the parameters of a hostile program.
fn new_hostile(rng: &mut Rng) -> HostileSpec {
    let all = rng.chance_ppm(400_000);
    let mut harms = Harm::ALL.to_vec();
    if !all {
        let kinds = rng.between(1, 4);
        harms = (0..kinds)
            .map(|_| Harm::ALL[rng.below(Harm::ALL.len() as u64) as usize])
            .collect();
    }
    let start_bits = rng.between(20, 31);
    HostileSpec {
        ring_len: 1 << rng.between(14, 18),
        start: Instant(rng.below(1 << start_bits)),
        every: Duration::from_nanos(1 << rng.between(14, 26)),
        count: rng.between(10, 400) as u32,
        harms,
    }
}
