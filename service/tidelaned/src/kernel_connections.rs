//! The connections that the kernel has on ports of the service's listeners.

use std::{collections::HashSet, io};

use tidelane_steering::Lookup;
use tidelane_wire::{Endpoint, parse_frame, protocol, split_tcp};

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

    /// The local end of the connection to which a frame belongs, if the kernel has it.
    pub fn local_end_of(&mut self, frame: &[u8]) -> Option<Endpoint> {
        let packet = parse_frame(frame).ok()?;
        if packet.protocol != protocol::TCP {
            return None;
        }
        let (peer, local) = split_tcp(packet.payload).ok()?.ports();
        let ends = [(packet.dst.0, local), (packet.src.0, peer)];
        let found = self.lookup.as_mut()?.has_connection(ends, self.ifindex);
        found.ok()?.then(|| Endpoint::new(packet.dst, local))
    }
}
