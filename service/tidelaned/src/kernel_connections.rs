//! Look-up of the TCP connections that the kernel has on ports of the Tidelane service's listeners.
//! The service claims the port of a listener, so that the port's packets go to the service instead
//! of the kernel. The segments of the kernel's own connections on this port still go to the kernel.

use std::{collections::HashSet, io};

use tidelane_steering::Lookup;
use tidelane_wire::FlowKey;

/// Queries the kernel for its TCP connections (sock_diag). A value that [`unknown`](Self::unknown)
/// returned makes no queries.
pub struct KernelConnections {
    /// `None` if this value makes no queries.
    lookup: Option<Lookup>,
    /// Index of the served interface, over which the connections arrive.
    ifindex: u32,
}

impl KernelConnections {
    /// Returns a look-up that does not query the kernel. The caller must then assume that every
    /// port may have kernel connections.
    pub fn unknown() -> Self {
        Self {
            lookup: None,
            ifindex: 0,
        }
    }

    /// Opens queries to the kernel about the calling thread's network namespace and an interface.
    pub fn open(ifindex: u32) -> io::Result<Self> {
        let lookup = Some(Lookup::open()?);
        Ok(Self { lookup, ifindex })
    }

    /// Returns the local ports of the kernel's connections. Returns `None` if the kernel cannot be
    /// queried.
    pub fn connected_ports(&mut self) -> Option<HashSet<u16>> {
        self.lookup.as_mut()?.connected_ports().ok()
    }

    /// Returns true if the kernel has the connection. Returns false if the kernel cannot be
    /// queried.
    pub fn has(&mut self, key: &FlowKey) -> bool {
        let ends = [key.local, key.peer].map(|end| (end.addr.0, end.port));
        let lookup = self.lookup.as_mut();
        lookup.is_some_and(|lookup| lookup.has_connection(ends, self.ifindex).unwrap_or(false))
    }
}
