//! Requests of the host to its driver, the daemon or the simulator.

use std::collections::VecDeque;

use tidelane_wire::{Endpoint, IpAddress};

use crate::ProgramId;

/// Limit of requests that wait for the driver. The host drops further requests.
const REQUESTS_MAX: usize = 4096;

/// A request of the host to its driver, taken by [`Host::take_request`](crate::Host::take_request).
/// The methods below are methods of `Host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRequest {
    /// Have the kernel resolve or confirm this neighbour; `set_neighbour` answers.
    Resolve {
        /// The neighbour's address.
        addr: IpAddress,
    },
    /// Reserve `PORTS_PER_REQUEST` more ports at this address; `add_ports` answers.
    MorePorts {
        /// The local address.
        addr: IpAddress,
    },
    /// Take the segments that may belong to kernel connections, with `take_strays`.
    Strays,
    /// Close the mux ports whose programs have corrupted the packet rings. A mux port is a pair of
    /// packet rings through which a program with a TCP/IP stack of its own shares the NIC.
    /// `MuxPorts::take_corrupt` of `mux_ports_mut` returns these ports.
    CorruptPorts,
    /// Return pages of free receive memory to the system, with `take_idle_pages`.
    IdleMemory,
    /// Ask `give_up` whether a connection still needs a reserved port. A connection from
    /// the port, possibly the last connection, has ended.
    PortIdle {
        /// The program that had reserved the port.
        program: ProgramId,
        /// Local address and port.
        endpoint: Endpoint,
    },
}

/// The requests that wait for the driver, oldest first.
#[derive(Debug, Default)]
pub struct DriverRequests(VecDeque<HostRequest>);

impl DriverRequests {
    /// Queues a request.
    pub fn push(&mut self, request: HostRequest) {
        if self.0.len() < REQUESTS_MAX {
            self.0.push_back(request);
        }
    }

    /// Queues a request, unless an equal request waits.
    pub fn push_once(&mut self, request: HostRequest) {
        if !self.0.contains(&request) {
            self.push(request);
        }
    }

    /// Takes the oldest request.
    pub fn pop(&mut self) -> Option<HostRequest> {
        self.0.pop_front()
    }

    /// Returns true if no request waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
