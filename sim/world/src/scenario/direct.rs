//! The direct hosts of a scenario. Their programs use the direct back end of the ring API
//! (`app/direct`), which runs TCP within the programs.

use tidelane_netem::Rng;
use tidelane_time::{Duration, Instant};

use super::{Scenario, Theme};
use crate::{
    direct::spec::DirectSpec,
    family::{Bound, PATH_MTUS},
    fault::Fault,
    plan::ConnectionPlan,
    program_spec::{Behaviour, ListenerSpec},
};

impl Scenario {
    /// Adds direct hosts to a scenario with the theme `Direct`. The caller draws the topology after
    /// this call, because each host needs links.
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

    /// Adds a client to each direct host and to the smoltcp host. Adds a listener to the first
    /// direct host. Adds a listener to each of the other direct hosts and to the smoltcp host with
    /// a probability of 60 %. Changes nothing if the theme is not `Direct`.
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

    /// Selects a new client for `plan`, so that one end of the connection is on a direct host, and
    /// the other end is on any other host. Changes nothing if the theme is not `Direct`.
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

    /// Adds faults of direct hosts, and changes of the path MTU. smoltcp has no path MTU discovery,
    /// so the path MTU does not change in a scenario with smoltcp. Changes nothing if the theme is
    /// not `Direct`.
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
