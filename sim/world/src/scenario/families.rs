//! The IP versions and the narrow path of a scenario. The path between the two routers is narrow if
//! its MTU is below 1500 bytes.
//!
//! The IP versions and the MTU of the narrow path are drawn from separate sequences of random
//! numbers, so the other parameters of a seed do not depend on these draws. [`Scenario::plain`]
//! returns a scenario with IPv4 only and without a narrow path.

use tidelane_netem::Rng;

use super::Scenario;
use crate::{
    family::{Bound, Family, IPV6_MTU_MIN, PATH_MTUS},
    fault::Fault,
    plan::ConnectionPlan,
    ports::spec::PortsSpec,
    program_spec::ListenerSpec,
};

impl Scenario {
    /// Gives IPv6 to each host with a service if the host's MTU permits IPv6. Draws the IP versions
    /// of listeners and of connections, and the MTU of the path between the routers.
    pub(crate) fn add_families(&mut self, rng: &Rng) {
        let mut own = rng.fork(1);
        let share = [0, 500_000, 500_000, 1_000_000][own.below(4) as usize];
        for host in &mut self.hosts {
            host.ipv6 = host.mtu >= IPV6_MTU_MIN;
        }
        for index in 0..self.listeners.len() {
            let twice = own.chance_ppm(500_000);
            if self.has_ipv6(self.host_of(&self.listeners[index])) {
                self.listeners[index].bound = if twice { Bound::Twice } else { Bound::ToBoth };
            }
        }
        for id in 0..self.connections.len() {
            let drawn = own.chance_ppm(share);
            if drawn && self.can_have_ipv6(&self.connections[id]) {
                self.connections[id].family = Family::V6;
            }
        }
        self.narrow(&mut rng.fork(2));
    }

    /// Draws whether the path between the routers is narrow. If so, draws its MTU, and whether the
    /// MTU applies in one direction or in both directions. A scenario with smoltcp has no narrow
    /// path, because smoltcp lacks path MTU discovery.
    fn narrow(&mut self, rng: &mut Rng) {
        let has_smoltcp =
            self.smoltcp.is_some() || self.ports.as_ref().is_some_and(PortsSpec::has_smoltcp);
        let some = rng.chance_ppm(500_000) && !has_smoltcp;
        let Some(middle) = self
            .topology
            .middle
            .as_mut()
            .filter(|link| some && link.routed)
        else {
            return;
        };
        let mtu = PATH_MTUS[rng.below(PATH_MTUS.len() as u64) as usize];
        let both = rng.chance_ppm(500_000);
        let one = rng.below(2) as usize;
        for (index, link) in middle.links.iter_mut().enumerate() {
            link.mtu = if both || index == one { mtu } else { 0 };
        }
    }

    /// Returns the same scenario with IPv4 only, without a narrow path, and without changes of the
    /// path MTU.
    pub fn plain(mut self) -> Self {
        self.hosts.iter_mut().for_each(|host| host.ipv6 = false);
        self.direct.iter_mut().for_each(|host| host.ipv6 = false);
        let is_wide = |fault: &Fault| !matches!(fault, Fault::PathMtu { .. });
        self.faults.retain(is_wide);
        for listener in &mut self.listeners {
            listener.bound = Bound::ToV4;
        }
        for connection in &mut self.connections {
            connection.family = Family::V4;
        }
        let middle = self.topology.middle.iter_mut();
        for link in middle.flat_map(|middle| &mut middle.links) {
            link.mtu = 0;
        }
        self
    }

    fn host_of(&self, listener: &ListenerSpec) -> usize {
        self.programs[listener.programs[0]].host
    }

    fn has_ipv6(&self, host: usize) -> bool {
        match (self.hosts.get(host), self.direct_at(host)) {
            (Some(host), _) => host.ipv6,
            (None, Some(host)) => host.ipv6,
            (None, None) => self.smoltcp.is_some_and(|host| host.mtu >= IPV6_MTU_MIN),
        }
    }

    fn can_have_ipv6(&self, plan: &ConnectionPlan) -> bool {
        let server = self.host_of(&self.listeners[plan.listener]);
        self.has_ipv6(server) && self.has_ipv6(self.programs[plan.client].host)
    }
}
