//! The connections that the kernel has on ports of the service's listeners.

use std::{collections::HashSet, io};

use tidelane_steering::Lookup;
use tidelane_wire::FlowKey;

/// Asks the kernel, if it can answer.
pub struct KernelConnections {
    lookup: Option<Lookup>,
    /// The served interface.
    ifindex: u32,
}

impl KernelConnections {
    /// A kernel that nobody asks: it may have connections everywhere.
    pub fn unknown() -> Self {
        Self {
            lookup: None,
            ifindex: 0,
        }
    }

    /// Asks the kernel of the calling thread's network namespace, about packets that come over an
    /// interface.
    pub fn open(ifindex: u32) -> io::Result<Self> {
        let lookup = Some(Lookup::open()?);
        Ok(Self { lookup, ifindex })
    }

    /// Local ports of the kernel's connections. `None` if the kernel does not say.
    pub fn connected_ports(&mut self) -> Option<HashSet<u16>> {
        self.lookup.as_mut()?.connected_ports().ok()
    }

    /// Returns true if the kernel has the connection.
    pub fn has(&mut self, key: &FlowKey) -> bool {
        let ends = [key.local, key.peer].map(|end| (end.addr.0, end.port));
        let lookup = self.lookup.as_mut();
        lookup.is_some_and(|lookup| lookup.has_connection(ends, self.ifindex).unwrap_or(false))
    }
}
