//! The numbers of owners of one claim in the demux, by scope. The demux is the service's XDP
//! program. A claim is a 3-tuple (address, protocol, port) whose packets the demux redirects to the
//! service. A scope is the part of these packets that an owner wants. Several owners can have one
//! claim, and may want different scopes.

use tidelane_steering::Scope;

use super::Owner;

/// The numbers of owners of one claim in the demux, by scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Claimants {
    /// Number of owners that want [`Scope::Whole`]: all packets.
    whole: u32,
    /// Number of owners that want [`Scope::BesideConnections`]: all packets except the packets of
    /// the kernel's connections.
    beside_connections: u32,
    /// Number of owners that want [`Scope::BesideKernel`]: all packets except the packets of the
    /// kernel's connections and the SYNs for the kernel's listeners.
    beside_kernel: u32,
    /// Number of owners that are mux ports (programs with a TCP/IP stack of their own). The counts
    /// by scope include these owners.
    ports: u32,
}

impl Claimants {
    /// Counts one more owner.
    pub(super) fn add(&mut self, owner: Owner, scope: Scope) {
        *self.of(scope) += 1;
        self.ports += u32::from(matches!(owner, Owner::MuxPort { .. }));
    }

    /// Counts one owner less.
    pub(super) fn remove(&mut self, owner: Owner, scope: Scope) {
        let count = self.of(scope);
        *count = count.saturating_sub(1);
        let is_port = matches!(owner, Owner::MuxPort { .. });
        self.ports = self.ports.saturating_sub(u32::from(is_port));
    }

    /// Returns true if a mux port is an owner.
    pub(super) fn has_mux_port(self) -> bool {
        self.ports > 0
    }

    fn of(&mut self, scope: Scope) -> &mut u32 {
        match scope {
            Scope::Whole => &mut self.whole,
            Scope::BesideConnections => &mut self.beside_connections,
            Scope::BesideKernel => &mut self.beside_kernel,
        }
    }

    /// Returns the scope of the claim in the demux, or `None` if the claim has no owner.
    ///
    /// [`Scope::BesideConnections`] takes precedence over [`Scope::Whole`]: if one owner wants
    /// [`Scope::BesideConnections`], the demux leaves the kernel's connections to the kernel for
    /// all owners.
    /// [`Scope::BesideKernel`] applies only if all owners want this scope: an owner with another
    /// scope needs the SYNs that [`Scope::BesideKernel`] leaves to the kernel's listeners.
    pub(super) fn scope(self) -> Option<Scope> {
        match self {
            Self {
                beside_connections: 1..,
                ..
            } => Some(Scope::BesideConnections),
            Self { whole: 1.., .. } => Some(Scope::Whole),
            Self {
                beside_kernel: 1.., ..
            } => Some(Scope::BesideKernel),
            _ => None,
        }
    }
}
