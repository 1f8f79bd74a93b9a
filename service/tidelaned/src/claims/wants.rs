//! The owners of one claim in the demux, counted by the packets that they want.

use tidelane_steering::Scope;

/// The number of owners of one demux claim, by scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wants {
    whole: u32,
    beside_connections: u32,
    beside_kernel: u32,
}

impl Wants {
    /// Returns the number of owners that want this scope, to read or to change.
    pub(super) fn of(&mut self, scope: Scope) -> &mut u32 {
        match scope {
            Scope::Whole => &mut self.whole,
            Scope::BesideConnections => &mut self.beside_connections,
            Scope::BesideKernel => &mut self.beside_kernel,
        }
    }

    /// Returns the scope of the claim in the demux, or `None` without owners. The kernel keeps the
    /// segments of its connections while one owner wants [`Scope::BesideConnections`]. The service
    /// gets the SYNs if one owner wants them.
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
