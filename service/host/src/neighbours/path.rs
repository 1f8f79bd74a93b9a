//! The path of a flow's frames to its peer.

use tidelane_wire::HeaderTemplate;

use super::hops::HopId;

/// The path of a flow's frames to its peer.
#[derive(Clone, Copy, Debug)]
pub enum Path {
    /// Over the local path (memory, without a NIC), to a program of this host.
    Local,
    /// Over the NIC, to a neighbour.
    Port {
        /// The neighbour, which the path holds (a counted reference). `None` in a passive open from
        /// a peer on the link, until the peer has answered the SYN-ACK. Until then, segments go to
        /// the peer's link address if the table of neighbours has the address, and otherwise to the
        /// link address from which the SYN came.
        hop: Option<HopId>,
        /// Ethernet and IP header. The destination link address is the most recent address that the
        /// host knows.
        template: HeaderTemplate,
    },
    /// Over the NIC as soon as the kernel has resolved the neighbour. Until then, the host sends no
    /// segment of the flow.
    Waiting {
        /// The neighbour, which the path holds (a counted reference). `None` if there is no route,
        /// or if the table of neighbours is full of neighbours in use.
        hop: Option<HopId>,
        /// Ethernet and IP header. The destination link address is not valid.
        template: HeaderTemplate,
    },
    /// Over the link in memory to the mux ports, through which programs with stacks of their own
    /// share the NIC.
    Mux {
        /// Ethernet and IP header. The source and the destination link address are the address of
        /// the interface.
        template: HeaderTemplate,
    },
    /// No path: the host sends no frames, because a rule of the operator drops the SYNs of the
    /// program.
    Nowhere,
}

impl Path {
    /// Returns the header template of a path over a NIC or to the mux. Returns `None` for the other
    /// paths.
    pub fn template_mut(&mut self) -> Option<&mut HeaderTemplate> {
        match self {
            Self::Local | Self::Nowhere => None,
            Self::Port { template, .. }
            | Self::Waiting { template, .. }
            | Self::Mux { template } => Some(template),
        }
    }

    /// Returns the neighbour that the path holds. Returns `None` if the path holds no neighbour.
    pub fn hop(&self) -> Option<HopId> {
        match self {
            Self::Local | Self::Mux { .. } | Self::Nowhere => None,
            Self::Port { hop, .. } | Self::Waiting { hop, .. } => *hop,
        }
    }
}
