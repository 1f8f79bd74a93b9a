//! The number of owners of one claim in the demux, by the scope (the set of packets) that each
//! owner wants. The demux is the service's XDP program. A claim is a 3-tuple (address, protocol,
//! port) whose packets the demux redirects to the service.

use tidelane_steering::Scope;

use super::Owner;

/// The number of owners of one demux claim, by scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Claimants {
    /// Number of owners that want [`Scope::Whole`].
    whole: u32,
    /// Number of owners that want [`Scope::BesideConnections`].
    beside_connections: u32,
    /// Number of owners that want [`Scope::BesideKernel`].
    beside_kernel: u32,
    /// Number of owners that are mux ports. The counts by scope include these owners.
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

    /// Returns true if a mux port (a program with a TCP/IP stack of its own) is an owner.
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

    /// Returns the scope of the claim in the demux, or `None` without owners.
    ///
    /// [`Scope::BesideConnections`] takes precedence over [`Scope::Whole`]: if one owner leaves the
    /// kernel's connections to the kernel, the demux leaves them to the kernel for all owners.
    /// [`Scope::Whole`] takes precedence over [`Scope::BesideKernel`], because only
    /// [`Scope::BesideKernel`] leaves the SYNs for a kernel listener to the kernel. If one owner
    /// wants another scope, the service gets these SYNs.
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
