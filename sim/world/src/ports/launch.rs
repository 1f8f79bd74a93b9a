//! The start of a well-behaved program on a mux port. A mux port is a pair of packet rings through
//! which a program with a TCP/IP stack of its own shares the NIC.

use std::collections::VecDeque;

use tidelane_netem::Rng;
use tidelane_wire::{Endpoint, IpAddress};

use super::spec::{PortSpec, PortStack};
use crate::{
    family::{Bound, Family},
    scenario::Scenario,
    topology::address,
    worker::Start,
};

/// Local port of connection 0, if a program with the embedded stack opens the connection. The port
/// of another connection is higher by the connection's number.
const EMBEDDED_FIRST: u16 = 20_000;
/// First local port of active opens with smoltcp.
const SMOLTCP_FIRST: u16 = 39_900;
/// Number of local ports that are reserved for each program with smoltcp.
const SMOLTCP_PORTS: u16 = 256;
/// Number of local ports that are reserved for each start of a program with smoltcp.
const START_PORTS: u16 = 64;

/// Parameters of one start of a program on a mux port.
pub struct Launch<'a> {
    /// All parameters of the run.
    pub scenario: &'a Scenario,
    /// Index of the program among the programs on mux ports.
    pub index: usize,
    /// Index of the host with the mux ports.
    pub host: usize,
    /// Addresses of the host.
    pub addresses: Vec<IpAddress>,
    /// Addresses of all hosts, each with the address of the next hop to this host.
    pub hops: Vec<(IpAddress, IpAddress)>,
    /// Local address and backlog of the program's listener.
    pub listener: Option<(Endpoint, u32)>,
    /// Active opens, in the order of time.
    pub starts: VecDeque<Start>,
    /// Number of earlier starts of the program.
    pub earlier: u16,
    /// Random numbers of the program.
    pub rng: Rng,
}

/// Returns the local port of connection `id`, which a program with the embedded stack opens.
pub fn local_port(id: u32) -> u16 {
    EMBEDDED_FIRST + id as u16
}

impl<'a> Launch<'a> {
    /// Returns the parameters of a start of program `index`, which has started `earlier` times
    /// before. `starts` are the active opens of the program.
    pub fn new(
        scenario: &'a Scenario,
        (index, earlier): (usize, u16),
        mut starts: Vec<Start>,
        rng: Rng,
    ) -> Self {
        let ports = scenario.ports.as_ref().expect("a run with mux ports");
        let host = ports.host;
        let families = &Family::BOTH[..1 + usize::from(scenario.hosts[host].ipv6)];
        let hop = |family, to| {
            let addr = address(family, to);
            let gateway = scenario.topology.gateway(family, host, to);
            (addr, gateway.unwrap_or(addr))
        };
        let hosts = 0..scenario.hosts.len();
        let listener = scenario.listener_of(ports.programs[index].program);
        let listener = listener.map(|listener| {
            let spec = &scenario.listeners[listener];
            let addr = match spec.bound {
                Bound::ToV4 => address(Family::V4, host),
                Bound::ToBoth | Bound::Twice => IpAddress::UNSPECIFIED_V6,
            };
            (Endpoint::new(addr, spec.port), spec.backlog)
        });
        starts.sort_by_key(|start| start.at);
        Self {
            scenario,
            index,
            host,
            addresses: families
                .iter()
                .map(|family| address(*family, host))
                .collect(),
            hops: hosts
                .flat_map(|to| families.iter().map(move |family| hop(*family, to)))
                .collect(),
            listener,
            starts: starts.into(),
            earlier,
            rng,
        }
    }

    /// Returns the first local port of active opens with smoltcp. Four consecutive starts use
    /// different local ports, because peers may still have connections of an earlier start.
    pub fn smoltcp_port(&self) -> u16 {
        let start = self.earlier * START_PORTS % SMOLTCP_PORTS;
        SMOLTCP_FIRST + self.index as u16 * SMOLTCP_PORTS + start
    }

    /// Returns the parameters of the program.
    pub fn spec(&self) -> &PortSpec {
        let ports = self.scenario.ports.as_ref().expect("a run with mux ports");
        &ports.programs[self.index]
    }

    /// Returns the local addresses and TCP ports that the program claims.
    pub fn claims(&self) -> Vec<Endpoint> {
        let spec = self.spec();
        let first = self.smoltcp_port();
        let starts = self.starts.iter().zip(first..).map(|(start, in_order)| {
            let port = match spec.stack {
                PortStack::Embedded(_) => local_port(start.id),
                PortStack::Smoltcp(_) => in_order,
            };
            let family = match start.to.addr.is_v4() {
                true => Family::V4,
                false => Family::V6,
            };
            let addr = match spec.claims_all {
                true => IpAddress::UNSPECIFIED_V6,
                false => address(family, self.host),
            };
            Endpoint::new(addr, port)
        });
        let listener = self.listener.map(|(local, _)| local);
        listener.into_iter().chain(starts).collect()
    }
}
