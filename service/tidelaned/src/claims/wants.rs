//! The owners of one claim of the demux, by the packets that they want.

use tidelane_steering::Scope;

/// The number of owners of one demux claim, by scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wants {
    whole: u32,
    beside_connections: u32,
    beside_kernel: u32,
}

impl Wants {
    /// Returns the number of owners that want this scope.
    pub(super) fn of(&mut self, scope: Scope) -> &mut u32 {
        match scope {
            Scope::Whole => &mut self.whole,
            Scope::BesideConnections => &mut self.beside_connections,
            Scope::BesideKernel => &mut self.beside_kernel,
        }
    }

    /// Returns the demux's action. The kernel keeps packets of its connections while one owner
    /// leaves them to it; the service gets SYNs if one owner wants them.
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
