//! The service of one simulated host, with one or several cores. A core is a fast-path thread with
//! its own `Host`. Each connection belongs to one core. If a core receives a frame of another
//! core's connection, the core forwards the frame to the other core.

use std::{collections::BTreeMap, sync::Arc};

use tidelane_engine::EngineConfig;
use tidelane_host::{
    Bell, Host, HostRequest, Interface, Listen, MuxPorts, PortOwner, ProgramId, Route, RuleSet,
    Siblings, SocketReport, accounts::User,
};
use tidelane_mux::PortId;
use tidelane_packet_io::{MemConfig, MemPort, Tapped};
use tidelane_packet_ring::ServiceEnd;
use tidelane_ring::ProgramRegion;
use tidelane_time::Instant;
use tidelane_wire::{IpAddress, MacAddress};

/// The fast-path cores of a service. A step of the service is one step of each core in turn.
pub struct Service {
    cores: Vec<Host<MemPort>>,
}

/// The numbers of a program, one for each core.
#[derive(Clone, Debug)]
pub struct ProgramIds(Vec<ProgramId>);

/// A doorbell between cores. The doorbell has no effect, because each core looks for work in every
/// step.
struct NoBell;

impl Bell for NoBell {
    fn ring(&self) -> bool {
        true
    }
}

impl Service {
    /// Creates a service of `cores` cores. Returns the service, and the simulator's end of each
    /// core's port (the core's NIC queue in memory).
    pub fn new(
        cores: u32,
        config: &EngineConfig,
        secret: [u8; 16],
        interface: &Interface,
        port: &MemConfig,
    ) -> std::io::Result<(Self, Vec<MemPort>)> {
        let mut hosts = Vec::new();
        let mut far_ends = Vec::new();
        for siblings in Siblings::of(cores as usize, |_| Box::new(NoBell)) {
            let (near, far) = MemPort::pair(*port);
            let host = Host::new(config.clone(), secret, interface.clone(), vec![near])?;
            hosts.push(host.beside(siblings));
            far_ends.push(far);
        }
        Ok((Self { cores: hosts }, far_ends))
    }

    /// Takes one step on each core. Returns true if a core had work.
    pub fn step(&mut self, now: Instant) -> bool {
        let steps = self.cores.iter_mut().map(|core| core.step(now));
        steps.fold(false, |any, worked| any | worked)
    }

    /// Returns true if a core has work now.
    pub fn has_work(&self) -> bool {
        self.cores.iter().any(Host::has_work)
    }

    /// Returns the time of the earliest timer of all cores, or `None` without a timer.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.cores.iter().filter_map(Host::next_timeout).min()
    }

    /// Takes the next request of a core. In a real service, the daemon (`tidelaned`) answers the
    /// requests. Here, the simulator answers them.
    pub fn take_request(&mut self) -> Option<HostRequest> {
        self.cores.iter_mut().find_map(Host::take_request)
    }

    /// Sets the routes of every core, with [`Host::set_routes`].
    pub fn set_routes(&mut self, now: Instant, addresses: &[IpAddress], routes: &[Route]) {
        for core in &mut self.cores {
            core.set_routes(now, addresses.to_vec(), routes.to_vec());
        }
    }

    /// Sets the MTU of the interface in bytes.
    pub fn set_mtu(&mut self, now: Instant, mtu: u32) {
        for core in &mut self.cores {
            core.set_mtu(now, mtu);
        }
    }

    /// Sets a neighbour entry of every core, with [`Host::set_neighbour`].
    pub fn set_neighbour(&mut self, now: Instant, addr: IpAddress, mac: Option<MacAddress>) {
        for core in &mut self.cores {
            core.set_neighbour(now, addr, mac);
        }
    }

    /// Adds local ports to every core, with [`Host::add_ports`].
    pub fn add_ports(&mut self, now: Instant, addr: IpAddress, ports: &[u16]) {
        for core in &mut self.cores {
            core.add_ports(now, addr, ports);
        }
    }

    /// Adds a program to every core, with [`Host::add_program_of`].
    pub fn add_program(
        &mut self,
        user: &Arc<User>,
        name: &str,
        region: &Arc<ProgramRegion>,
    ) -> ProgramIds {
        let add = |core: &mut Host<MemPort>| {
            core.add_program_of(user, (name.to_owned(), 1), region.clone())
        };
        ProgramIds(self.cores.iter_mut().map(add).collect())
    }

    /// Adds a context of a program (the rings of one thread) to each core. `number` is the number
    /// of the context. `bell` creates the doorbell by which a core wakes the thread. Returns true
    /// if every core accepted the context.
    pub fn add_context(
        &mut self,
        ids: &ProgramIds,
        number: u32,
        bell: impl Fn() -> Box<dyn Bell>,
    ) -> bool {
        let mut cores = self.cores.iter_mut().zip(&ids.0);
        cores.all(|(core, id)| core.add_context(*id, number, bell()))
    }

    /// Adds a listener to each core. Returns true if every core accepted the listener.
    pub fn listen(&mut self, ids: &ProgramIds, listen: &Listen) -> bool {
        let mut cores = self.cores.iter_mut().zip(&ids.0);
        cores.all(|(core, id)| core.listen(*id, listen).is_ok())
    }

    /// Removes a program from every core, with [`Host::remove_program`].
    pub fn remove_program(&mut self, now: Instant, ids: &ProgramIds) {
        for (core, id) in self.cores.iter_mut().zip(&ids.0) {
            core.remove_program(now, *id);
        }
    }

    /// Resets all connections, before the service ends.
    pub fn shut_down(&mut self, now: Instant) {
        self.cores.iter_mut().for_each(|core| core.shut_down(now));
    }

    /// Returns the sockets of all cores. A listener appears once for each core.
    pub fn sockets(&self) -> Vec<SocketReport> {
        self.cores.iter().flat_map(Host::sockets).collect()
    }

    /// Returns the sums of the counters over all cores.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let mut sums = BTreeMap::<String, u64>::new();
        for (name, value) in self.cores.iter().flat_map(Host::counters) {
            *sums.entry(name).or_default() += value;
        }
        sums.into_iter().collect()
    }

    /// Returns the number of programs, the number of connections, and the number of allocated bytes
    /// in receive buffers. A program counts once, although each core has a number for the program.
    pub fn usage(&self) -> (usize, usize, u64) {
        let all = self.cores.iter().map(Host::usage);
        all.fold((0, 0, 0), |(programs, flows, bytes), core| {
            (programs.max(core.0), flows + core.1, bytes + core.2)
        })
    }

    /// Returns the mux ports on the first core. A mux port is a pair of packet rings through which
    /// a program with a TCP/IP stack of its own shares the NIC.
    pub fn mux_ports(&self) -> &MuxPorts {
        self.cores[0].mux_ports()
    }

    /// Returns the mux ports on the first core, so that the caller can change the mux ports and
    /// their claims. A claim gives the packets of a 3-tuple (protocol, local address, local port)
    /// to a mux port.
    pub fn mux_ports_mut(&mut self) -> &mut MuxPorts {
        self.cores[0].mux_ports_mut()
    }

    /// Opens a mux port of the program `owner` on the first core, with [`Host::open_port`]. Returns
    /// false if the mux port cannot be opened.
    pub fn open_port(&mut self, id: PortId, end: ServiceEnd, owner: PortOwner) -> bool {
        self.cores[0].open_port(id, end, owner)
    }

    /// Closes a mux port on the first core, with [`Host::close_port`]. Returns the service's end of
    /// the packet rings, or `None` if the port is not open.
    pub fn close_port(&mut self, id: PortId) -> Option<Tapped<ServiceEnd>> {
        self.cores[0].close_port(id)
    }

    /// Sets the operator's rules of every core, with [`Host::set_rules`].
    pub fn set_rules(&mut self, now: Instant, rules: &RuleSet) {
        for core in &mut self.cores {
            core.set_rules(now, rules.clone());
        }
    }

    /// Returns the number of connections in TIME-WAIT.
    pub fn time_wait_len(&self) -> usize {
        self.cores.iter().map(Host::time_wait_len).sum()
    }
}
