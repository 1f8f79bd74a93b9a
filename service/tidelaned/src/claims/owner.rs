//! The owners of claims, and the terms of a claim. A claim is a 3-tuple (address, protocol, port)
//! whose packets the demux, the XDP program of the Tidelane service, redirects to the service
//! instead of the kernel.

use tidelane_host::{ProgramId, accounts::Charge};
use tidelane_steering::{Claim, PortReservation, Scope};
use tidelane_wire::{Endpoint, IpAddress, protocol};

/// The owner of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The listener of the kernel socket with this cookie (SO_COOKIE).
    Listener(u64),
    /// The session (a program's connection to the service) with this number. The program has bound
    /// the claim's port in order to connect from the port.
    Session(u64),
    /// The pool of ports that the service reserves. A connection to a peer gets a port of the pool
    /// if the program has not bound a port for the connection.
    Pool,
    /// A mux port (a program with a TCP/IP stack of its own). The program has proved its right to
    /// the claim by the kernel socket with this cookie.
    MuxPort {
        /// Cookie of the kernel socket.
        cookie: u64,
        /// IP protocol of the socket: TCP or UDP.
        protocol: u8,
    },
}

impl Owner {
    /// Returns the initial scope of an owner's claim: the packets of the 3-tuple that the service
    /// gets. With [`Scope::BesideConnections`], the kernel keeps the connections that clients
    /// opened before the claim was made.
    pub(super) fn scope(self) -> Scope {
        match self {
            Self::Pool => Scope::Whole,
            // The demux can search the kernel for TCP sockets only.
            Self::MuxPort { protocol, .. } if protocol != protocol::TCP => Scope::Whole,
            Self::Listener(_) | Self::MuxPort { .. } => Scope::BesideConnections,
            Self::Session(_) => Scope::BesideKernel,
        }
    }

    /// If a claim of the local address `addr` includes multicast groups and broadcast addresses,
    /// returns the address that stands for all of them in the demux. Otherwise returns `None`. Only
    /// a UDP claim of a wildcard address includes these addresses (of its IP version).
    pub(super) fn groups(self, addr: IpAddress) -> Option<IpAddress> {
        if self.protocol() != protocol::UDP || !addr.is_unspecified() {
            return None;
        }
        Some(IpAddress(match addr.is_v4() {
            true => Claim::GROUP_V4,
            false => Claim::GROUP_V6,
        }))
    }

    /// Returns the IP protocol of the owner's claims.
    pub fn protocol(self) -> u8 {
        match self {
            Self::MuxPort { protocol, .. } => protocol,
            Self::Listener(_) | Self::Session(_) | Self::Pool => protocol::TCP,
        }
    }
}

/// The key of a claim: its owner, address and port.
pub type ClaimKey = (Owner, Endpoint);

/// The reservation of a claim's port, and the conditions for the claim's use.
#[derive(Debug)]
pub struct Terms {
    /// The charge for the claim: the ports that count against the user's limit of ports while the
    /// claim exists. `None` if this claim has no charge of its own.
    pub charge: Option<Charge>,
    /// The port's reservation in the kernel: a socket of the service that is bound to the port.
    /// `None` if another claim of the owner has the reservation: a socket bound to `::` reserves
    /// the port for both IP versions.
    pub reservation: Option<PortReservation>,
    /// True if the program's socket has SO_REUSEADDR. Other sockets may then bind the port while
    /// the socket's connections exist, and may connect from this port. A TCP claim of a mux port
    /// with this value therefore keeps the scope [`Scope::BesideConnections`].
    pub shared: bool,
    /// The ids of a program, one for each core (polling thread). The claim may end when this
    /// program has no connection that needs the port. `None` if the connections of all programs
    /// count.
    pub program: Option<Vec<ProgramId>>,
}
