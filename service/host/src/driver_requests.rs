//! Requests of the host to its driver, the daemon or the simulator.

use std::collections::VecDeque;

use tidelane_wire::{Endpoint, IpAddress};

use crate::ProgramId;

/// Limit of the number of requests that wait for the driver. At the limit, the host drops new
/// requests of the kinds `Resolve` and `PortIdle`, but no other request.
const REQUESTS_MAX: usize = 4096;

/// A request of the host to its driver, taken by [`Host::take_request`](crate::Host::take_request).
/// The variants name the methods of `Host` that the driver has to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRequest {
    /// Have the kernel resolve or confirm this neighbour, and answer with `set_neighbour`.
    Resolve {
        /// The neighbour's address.
        addr: IpAddress,
    },
    /// Reserve `PORTS_PER_REQUEST` more ports at this address, and answer with `add_ports`.
    MorePorts {
        /// The local address.
        addr: IpAddress,
    },
    /// Take the received segments that may belong to connections of the kernel, with `take_strays`.
    Strays,
    /// Close the mux ports whose programs have corrupted the packet rings. A mux port is a pair of
    /// packet rings through which a program with a TCP/IP stack of its own shares the NIC.
    /// `MuxPorts::take_corrupt` of `mux_ports_mut` returns these ports.
    CorruptPorts,
    /// Return pages of free receive memory to the system, with `take_idle_pages`.
    IdleMemory,
    /// Call `give_up` to learn whether a connection still needs a reserved port. The reason for
    /// this request: a connection from the port has ended, and possibly no other connection needs
    /// the port.
    PortIdle {
        /// The program that reserved the port.
        program: ProgramId,
        /// Local address and port.
        endpoint: Endpoint,
    },
}

/// The requests that wait for the driver, oldest first.
#[derive(Debug, Default)]
pub struct DriverRequests(VecDeque<HostRequest>);

impl DriverRequests {
    /// Queues a request. If too many requests wait, drops a request of the kind `Resolve` or
    /// `PortIdle`. The host repeats a dropped `Resolve` later. The host does not repeat a request
    /// of another kind until the driver answers. A dropped request of these kinds would therefore
    /// be lost for ever.
    pub fn push(&mut self, request: HostRequest) {
        let is_droppable = matches!(
            request,
            HostRequest::Resolve { .. } | HostRequest::PortIdle { .. }
        );
        if !is_droppable || self.0.len() < REQUESTS_MAX {
            self.0.push_back(request);
        }
    }

    /// Queues a request if no equal request waits.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_loses_no_request_that_the_host_makes_once() {
        let addr = IpAddress::from_v4([10, 0, 0, 1]);
        let mut requests = DriverRequests::default();
        for _ in 0..REQUESTS_MAX + 1 {
            requests.push(HostRequest::Resolve { addr });
        }
        let once = [
            HostRequest::MorePorts { addr },
            HostRequest::Strays,
            HostRequest::CorruptPorts,
            HostRequest::IdleMemory,
        ];
        for request in once {
            requests.push(request);
        }
        let all: Vec<_> = std::iter::from_fn(|| requests.pop()).collect();
        assert_eq!(all.len(), REQUESTS_MAX + once.len());
        assert_eq!(all[REQUESTS_MAX..], once);
    }
}
