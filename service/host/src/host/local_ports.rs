//! The calls of the driver about local ports.

use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;
use tidelane_wire::{Endpoint, IpAddress};

use super::Host;
use crate::ids::ProgramId;

impl<P: PacketIo> Host<P> {
    /// Records that a program reserved a local port with a kernel socket. Returns false if the
    /// program does not exist or has ended.
    pub fn reserve(&mut self, id: ProgramId, endpoint: Endpoint) -> bool {
        let known = self
            .stack
            .io
            .programs
            .get(id)
            .is_some_and(|program| !program.gone);
        if known {
            self.stack.io.local_ports.reserve(id, endpoint);
        }
        known
    }

    /// Returns true for each port of `ends` that no connection of this core needs. If the entry in
    /// `ends` has a program, the result true also ends the program's reservation of the port.
    ///
    /// For an entry with a program, two kinds of connections need the port. The first kind is a
    /// connection that the program opened from its reserved port. The second kind is any connection
    /// in TIME-WAIT with the same port number. If the program gave up the port during TIME-WAIT,
    /// the kernel could choose the port for another `bind`. For an entry without a program, each
    /// connection with the port number needs the port, except a connection in TIME-WAIT.
    pub fn give_up(&mut self, ends: &[(Option<ProgramId>, Endpoint)]) -> Vec<bool> {
        let (ports, engine) = (&mut self.stack.io.local_ports, &self.stack.engine);
        let unused = |(program, end): &(Option<ProgramId>, Endpoint)| match program {
            Some(program) => {
                !engine.is_port_in_time_wait(end.port) && ports.give_up(*program, *end)
            }
            None => !ports.is_used(end.port),
        };
        ends.iter().map(unused).collect()
    }

    /// Adds ports that the driver reserved for [`MorePorts`](crate::HostRequest::MorePorts). An
    /// empty list means that the driver can reserve no more ports.
    pub fn add_ports(&mut self, now: Instant, addr: IpAddress, ports: &[u16]) {
        self.stack.io.now = now;
        self.stack.io.ephemeral_ports.add(addr, ports);
        self.retry_parked(now);
    }

    /// Removes `ends` from the pool of ephemeral ports. Returns true for each port that no
    /// connection of this core uses, so that the driver may return the port to the kernel.
    /// Afterwards, the driver has to [add](Self::add_ports) each port again that the driver does
    /// not return.
    pub fn retire_ports(&mut self, ends: &[Endpoint]) -> Vec<bool> {
        let removed = ends.iter().copied().collect();
        self.stack.io.ephemeral_ports.remove(&removed);
        let ports = &self.stack.io.local_ports;
        ends.iter().map(|end| !ports.is_used(end.port)).collect()
    }
}
