//! Requests of the cores to the control thread. Each core (polling thread) drives one TCP/IP host
//! (`Host`), which queues the requests.

use std::collections::HashMap;

use tidelane_host::{Host, HostRequest, PORTS_PER_REQUEST, ProgramId};
use tidelane_wire::Endpoint;

use super::Control;
use crate::{claims::Owner, clock::now, core_link::NicPort};

impl<P: NicPort> Control<P> {
    /// Handles the requests of the hosts.
    pub(super) fn serve_host(&mut self) {
        let _ = rustix::io::read(&*self.notify, &mut [0u8; 8]);
        let take_all = |_| {
            |host: &mut Host<P>, _| {
                std::iter::from_fn(|| host.take_request()).collect::<Vec<HostRequest>>()
            }
        };
        let requests = self.shared.cores.call_each(take_all);
        let mut idle = Vec::new();
        let requests = requests.unwrap_or_default().into_iter().enumerate();
        let numbered = |(core, requests): (usize, Vec<_>)| {
            requests.into_iter().map(move |request| (core, request))
        };
        for (core, request) in requests.flat_map(numbered) {
            match request {
                HostRequest::Resolve { addr } => {
                    self.resolve(addr);
                    self.send_neighbour(addr);
                }
                HostRequest::MorePorts { addr } => {
                    let ports = self
                        .shared
                        .claims
                        .reserve_ports(addr, PORTS_PER_REQUEST, now());
                    // All cores get these ports. Each pair of a local port and a peer's port
                    // belongs to one core, so two cores never use the same pair.
                    self.shared.cores.send_each(|_| {
                        let ports = ports.clone();
                        move |host, now| host.add_ports(now, addr, &ports)
                    });
                }
                HostRequest::Strays => self.hand_back_strays(core),
                HostRequest::CorruptPorts => self.close_corrupt_ports(core),
                HostRequest::IdleMemory => self.shared.give_pages_back(),
                HostRequest::PortIdle { program, endpoint } => {
                    idle.push((core, program, endpoint));
                }
            }
        }
        self.note_ended_connections(&idle);
    }

    /// Hands the stray segments of a core to the kernel. A stray segment has no flow in the
    /// service, and may belong to a connection of the kernel.
    fn hand_back_strays(&mut self, core: usize) {
        let taken = self.shared.cores.call(core, |host, _| host.take_strays());
        self.shared.hand_back(&taken.unwrap_or_default(), now());
    }

    /// Schedules checks of claims after connections have ended. A claim is a 3-tuple whose packets
    /// go to the service instead of the kernel. The claim may end with its last connection. Each
    /// entry of `idle` stands for an ended connection: its core, its program, and the local
    /// endpoint that the program had reserved for the connection.
    fn note_ended_connections(&mut self, idle: &[(usize, ProgramId, Endpoint)]) {
        if idle.is_empty() {
            return;
        }
        let cores = self.shared.cores.len();
        let names = self.sessions.values().flat_map(|session| {
            let numbers = (0..cores).map(move |core| (core, session.program(core)));
            numbers.filter_map(|(core, id)| Some(((core, id?), session.number)))
        });
        let sessions: HashMap<(usize, ProgramId), u64> = names.collect();
        for &(core, program, endpoint) in idle {
            if let Some(session) = sessions.get(&(core, program)) {
                let name = (Owner::Session(*session), endpoint);
                self.shared.claims.connection_ended(name, now());
            }
        }
    }
}
