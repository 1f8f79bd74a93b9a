//! Look-up of the kernel's connections on ports of the Tidelane service's listeners. The kernel
//! still gets the segments of these connections although the service has claimed the port.

use std::{collections::HashSet, io};

use tidelane_steering::Lookup;
use tidelane_wire::FlowKey;

/// Queries the kernel for its TCP connections (sock_diag). A value of
/// [`unknown`](Self::unknown) makes no queries.
pub struct KernelConnections {
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

    /// Returns the local ports of kernel connections. Returns `None` if the kernel cannot be
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
