//! Parameters of direct hosts, and their part in a scenario. A direct host uses the direct back end
//! of the ring API (`app/direct`), which runs TCP within the calls of a context.

use tidelane_engine::EngineConfig;
use tidelane_mem_nic::NicConfig;
use tidelane_netem::Rng;
use tidelane_time::{Duration, Instant};

use crate::{
    family::{Bound, IPV6_MTU_MIN, PATH_MTUS},
    fault::Fault,
    plan::ConnectionPlan,
    scenario::{Behaviour, ListenerSpec, Scenario, Theme, new_host},
};

/// Parameters of a direct host, whose programs use one `DirectContext`. Its index follows the
/// indices of Tidelane's hosts and of the smoltcp host.
#[derive(Clone, Debug)]
pub struct DirectSpec {
    /// MTU of the host's interface, in bytes.
    pub mtu: u32,
    /// True if the host has an IPv6 address in addition to its IPv4 address.
    pub ipv6: bool,
    /// The host's NIC.
    pub nic: NicConfig,
    /// Number of buffers of the context. Unused if the NIC shares its memory.
    pub buffers: u32,
    /// Length of a buffer in bytes. Unused if the NIC shares its memory.
    pub buffer_len: u32,
    /// Limit of the buffers of one descriptor that are queued or unacknowledged.
    pub send_queue_max: usize,
    /// True if TCP_NODELAY is set.
    pub nodelay: bool,
    /// Number of received bytes that a program holds before it pauses the connection.
    pub held_max: u32,
    /// Longest time from a cycle of the context with events to the next cycle.
    pub step_time_max: Duration,
    /// Longest delay until a waiting context notices a frame.
    pub wake_time_max: Duration,
    /// Configuration of the engine.
    pub engine: EngineConfig,
}

impl DirectSpec {
    fn new(rng: &mut Rng) -> Self {
        // Draw the windows and timers like those of Tidelane's hosts.
        let host = new_host(rng);
        let mut spec = Self {
            mtu: host.mtu,
            ipv6: host.mtu >= IPV6_MTU_MIN,
            nic: NicConfig {
                frame_len_max: host.mtu + 14,
                rx_frames: [16, 64, 256][rng.below(3) as usize],
                tx_frames: [8, 64, 256][rng.below(3) as usize],
                user_frames: 1 << rng.between(8, 10),
                is_shared: rng.chance_ppm(600_000),
                completion: Duration::from_nanos(1 << rng.between(0, 22)),
            },
            buffers: 1 << rng.between(8, 12),
            buffer_len: [1024, 2048, 4096][rng.below(3) as usize],
            send_queue_max: 1 << rng.between(2, 8),
            nodelay: rng.chance_ppm(700_000),
            held_max: 1 << rng.between(4, 16),
            step_time_max: host.step_time_max,
            wake_time_max: host.wake_time_max,
            engine: host.engine,
        };
        let buffer_len = spec.nic.frame_len().max(spec.buffer_len);
        spec.engine.tx_limit = spec.engine.tx_limit.max(buffer_len);
        spec
    }

    /// Returns true if the context may lack buffers for received data, so that a sender may time
    /// out.
    pub fn is_short_of_memory(&self) -> bool {
        self.nic.user_frames.min(self.buffers) < 512
    }
}

impl Scenario {
    /// Adds direct hosts to a scenario with the theme `Direct`. The topology already has their
    /// links.
    pub(crate) fn draw_direct(&mut self, rng: &mut Rng) {
        let count = match self.theme {
            Theme::Direct => rng.between(1, 3),
            _ => 0,
        };
        for _ in 0..count {
            self.direct.push(DirectSpec::new(rng));
        }
    }

    /// Returns the number of hosts of all kinds.
    pub(crate) fn host_count(&self) -> usize {
        self.first_direct() + self.direct.len()
    }

    /// Returns the index of the first direct host.
    pub(crate) fn first_direct(&self) -> usize {
        self.hosts.len() + usize::from(self.smoltcp.is_some())
    }

    /// Returns the parameters of a direct host, or `None` for another host.
    pub(crate) fn direct_at(&self, host: usize) -> Option<&DirectSpec> {
        self.direct.get(host.checked_sub(self.first_direct())?)
    }

    /// Adds a client to each direct host and to the smoltcp host, and a listener to most of them.
    pub(crate) fn add_direct_programs(&mut self, rng: &mut Rng) {
        if self.theme != Theme::Direct {
            return;
        }
        for host in self.hosts.len()..self.host_count() {
            self.add_program(rng, host, Behaviour::Good);
            let is_needed = host == self.first_direct();
            if is_needed || rng.chance_ppm(600_000) {
                let program = self.add_program(rng, host, Behaviour::Good);
                self.listeners.push(ListenerSpec {
                    port: 80 + self.listeners.len() as u16,
                    bound: Bound::ToV4,
                    backlog: 1 << rng.between(2, 9),
                    programs: vec![program],
                    accept_delay: Duration::ZERO,
                });
            }
        }
    }

    /// Selects another client for `plan`, so that one end is on a direct host and the other end on
    /// another host.
    pub(crate) fn choose_direct_client(&self, rng: &mut Rng, plan: &mut ConnectionPlan) {
        if self.theme != Theme::Direct {
            return;
        }
        let server = self.programs[self.listeners[plan.listener].programs[0]].host;
        let serves_direct = server >= self.first_direct();
        let fits = |program: &usize| {
            let host = self.programs[*program].host;
            host != server && (serves_direct || host >= self.first_direct())
        };
        let clients: Vec<usize> = (0..self.programs.len()).filter(fits).collect();
        if let Some(client) = rng.pick(&clients) {
            plan.client = *client;
        }
    }

    /// Adds faults of direct hosts, and changes of the path MTU.
    pub(crate) fn add_direct_faults(&mut self, rng: &mut Rng) {
        if self.theme != Theme::Direct {
            return;
        }
        let span = self.connections.last().map_or(0, |plan| plan.start.0);
        let at = |rng: &mut Rng| {
            let after = 1 << rng.between(16, 30);
            Instant(rng.below(span + 1) + rng.below(after))
        };
        let count = if rng.chance_ppm(500_000) {
            rng.below(4)
        } else {
            0
        };
        for _ in 0..count {
            let host = self.first_direct() + rng.below(self.direct.len() as u64) as usize;
            let (at, fault) = (at(rng), Self::new_fault_of(rng, host));
            self.faults.push(fault.with_time(at));
        }
        let is_routed = self
            .topology
            .middle
            .as_ref()
            .is_some_and(|link| link.routed);
        if is_routed && self.smoltcp.is_none() && rng.chance_ppm(700_000) {
            for _ in 0..rng.between(1, 6) {
                let mtu = PATH_MTUS[rng.below(PATH_MTUS.len() as u64) as usize];
                self.faults.push(Fault::PathMtu { at: at(rng), mtu });
            }
        }
        self.faults.sort_by_key(Fault::at);
    }
}
