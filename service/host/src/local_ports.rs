//! Counts of the connections of each local port, and of each address and port that a program
//! reserved.
//!
//! A claim on a port keeps the kernel from giving the port to another socket. The service needs the
//! claim while a connection uses the port. Before the driver (the daemon) ends claims, the driver
//! asks the host about many ports in one request. The answer for a port therefore reads a counter,
//! and not all connections.

use std::collections::HashMap;

use tidelane_wire::Endpoint;

use crate::{hash::FixedState, ids::ProgramId};

/// Number of TCP ports.
const PORTS: usize = 1 << 16;

/// The local ports of a host's connections, and the reservations of its programs.
pub struct LocalPorts {
    /// Number of connections of each local port, at all local addresses together.
    connections: Box<[u32]>,
    /// Number of connections that each program opened from each address and port that it reserved.
    reserved: HashMap<ProgramId, HashMap<Endpoint, u32, FixedState>, FixedState>,
}

impl Default for LocalPorts {
    fn default() -> Self {
        Self {
            connections: vec![0; PORTS].into(),
            reserved: HashMap::default(),
        }
    }
}

impl LocalPorts {
    /// Counts a connection at `port`.
    #[inline]
    pub fn begin(&mut self, port: u16) {
        self.connections[usize::from(port)] += 1;
    }

    /// Subtracts a connection at `port`.
    #[inline]
    pub fn end(&mut self, port: u16) {
        let connections = &mut self.connections[usize::from(port)];
        *connections = connections.saturating_sub(1);
    }

    /// Returns true if a connection has the local port `port`.
    pub fn is_used(&self, port: u16) -> bool {
        self.connections[usize::from(port)] > 0
    }

    /// Allows `program` to open connections from `local`.
    pub fn reserve(&mut self, program: ProgramId, local: Endpoint) {
        let of_program = self.reserved.entry(program).or_default();
        of_program.entry(local).or_default();
    }

    /// Returns true if `program` may open connections from `local`.
    pub fn is_reserved(&self, program: ProgramId, local: Endpoint) -> bool {
        let of_program = self.reserved.get(&program);
        of_program.is_some_and(|ends| ends.contains_key(&local))
    }

    /// Counts a connection that `program` opened from its reserved `local`.
    pub fn begin_reserved(&mut self, program: ProgramId, local: Endpoint) {
        if let Some(connections) = self.connections_of(program, local) {
            *connections += 1;
        }
    }

    /// Subtracts a connection that `program` opened from `local`. In the meantime, the connection
    /// may have moved to another program.
    pub fn end_reserved(&mut self, program: ProgramId, local: Endpoint) {
        if let Some(connections) = self.connections_of(program, local) {
            *connections = connections.saturating_sub(1);
        }
    }

    fn connections_of(&mut self, program: ProgramId, local: Endpoint) -> Option<&mut u32> {
        self.reserved.get_mut(&program)?.get_mut(&local)
    }

    /// Ends the reservation of `local` by `program`. If a connection that `program` opened from
    /// `local` still exists, returns false and keeps the reservation.
    pub fn give_up(&mut self, program: ProgramId, local: Endpoint) -> bool {
        let Some(of_program) = self.reserved.get_mut(&program) else {
            return true;
        };
        if of_program.get(&local).is_some_and(|left| *left > 0) {
            return false;
        }
        of_program.remove(&local);
        true
    }

    /// Removes all reservations of a program.
    pub fn forget(&mut self, program: ProgramId) {
        self.reserved.remove(&program);
    }
}

#[cfg(test)]
mod tests {
    use tidelane_wire::IpAddress;

    use super::*;

    const END: Endpoint = Endpoint {
        addr: IpAddress::UNSPECIFIED_V4,
        port: 4000,
    };

    #[test]
    fn a_port_is_used_until_its_last_connection_ends() {
        let mut ports = LocalPorts::default();
        ports.begin(0);
        ports.begin(u16::MAX);
        ports.begin(u16::MAX);
        ports.end(u16::MAX);
        assert!(ports.is_used(0) && ports.is_used(u16::MAX) && !ports.is_used(1));
        ports.end(u16::MAX);
        ports.end(u16::MAX);
        assert!(!ports.is_used(u16::MAX));
    }

    #[test]
    fn a_reservation_belongs_to_one_program() {
        let mut ports = LocalPorts::default();
        let (one, other) = (ProgramId(1), ProgramId(2));
        ports.reserve(one, END);
        ports.reserve(other, END);
        ports.begin_reserved(one, END);
        assert!(!ports.give_up(one, END), "ended despite a connection");
        assert!(ports.give_up(other, END));
        assert!(ports.is_reserved(one, END) && !ports.is_reserved(other, END));
        // A second reservation during a connection does not reset the count of connections.
        ports.reserve(one, END);
        assert!(!ports.give_up(one, END));
        ports.end_reserved(one, END);
        assert!(ports.give_up(one, END) && !ports.is_reserved(one, END));
        ports.reserve(one, END);
        ports.forget(one);
        ports.end_reserved(one, END);
        assert!(!ports.is_reserved(one, END));
    }
}
