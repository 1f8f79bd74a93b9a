//! Requests of the host to its driver, the daemon or the simulator.

use std::collections::VecDeque;

use tidelane_wire::{Endpoint, IpAddress};

use crate::ProgramId;

/// Limit of requests that wait for the driver. The host drops further requests of a kind of which
/// any number may wait.
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
    /// Queues a request. Drops a request for a neighbour or a check of a port if too many requests
    /// wait. The host asks again for the neighbour. The host makes the other requests only once
    /// until the driver answers, so that a dropped request would be lost for ever.
    pub fn push(&mut self, request: HostRequest) {
        let is_droppable = matches!(
            request,
            HostRequest::Resolve { .. } | HostRequest::PortIdle { .. }
        );
        if !is_droppable || self.0.len() < REQUESTS_MAX {
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
