//! The owners of claims, and what a claim consists of.

use tidelane_host::{ProgramId, accounts::Charge};
use tidelane_steering::{PortReservation, Scope};
use tidelane_wire::{Endpoint, protocol};

/// The owner of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The listener of the kernel socket with this cookie.
    Listener(u64),
    /// The session with this id, which has reserved the port.
    Session(u64),
    /// The ephemeral pool.
    Pool,
    /// A port of the mux, which holds the kernel socket with this cookie.
    Port {
        /// Cookie of the kernel socket.
        cookie: u64,
        /// IP protocol of the socket: TCP or UDP.
        protocol: u8,
    },
}

impl Owner {
    /// Returns the initial scope of an owner's claim. The kernel keeps the connections that clients
    /// opened to a listener before the claim was made.
    pub(super) fn scope(self) -> Scope {
        match self {
            Self::Pool => Scope::Whole,
            // The kernel looks for its own sockets by TCP alone.
            Self::Port { protocol, .. } if protocol != protocol::TCP => Scope::Whole,
            Self::Listener(_) | Self::Port { .. } => Scope::BesideConnections,
            Self::Session(_) => Scope::BesideKernel,
        }
    }

    /// Returns the IP protocol of the owner's claims.
    pub fn protocol(self) -> u8 {
        match self {
            Self::Port { protocol, .. } => protocol,
            Self::Listener(_) | Self::Session(_) | Self::Pool => protocol::TCP,
        }
    }
}

/// The key of a claim: its owner, address and port.
pub type Name = (Owner, Endpoint);

/// The port reservation behind a claim, and the conditions of its use.
#[derive(Debug)]
pub struct Terms {
    /// The charge for the claim. `None` if the claim is not charged separately.
    pub charge: Option<Charge>,
    /// The port's reservation in the kernel. `None` if another claim of the owner has the
    /// reservation: a socket bound to `::` reserves the port for both IP versions.
    pub reservation: Option<PortReservation>,
    /// True if the program's socket has SO_REUSEADDR: other sockets may bind the port while the
    /// socket's connections exist. Such sockets may connect, so the claim of a port of the mux
    /// stays beside the kernel's connections.
    pub shared: bool,
    /// The ids, one per core, of the program whose connections need the port.
    pub program: Option<Vec<ProgramId>>,
}
