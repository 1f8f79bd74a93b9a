//! The owners of one claim of the demux, by the packets that they want.

use tidelane_steering::Scope;

/// How many want a claim of the demux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wants {
    whole: u32,
    beside_connections: u32,
    beside_kernel: u32,
}

impl Wants {
    /// The number of owners that want this scope.
    pub(super) fn of(&mut self, scope: Scope) -> &mut u32 {
        match scope {
            Scope::Whole => &mut self.whole,
            Scope::BesideConnections => &mut self.beside_connections,
            Scope::BesideKernel => &mut self.beside_kernel,
        }
    }

    /// The demux's action. The kernel keeps the packets of its connections as long as one owner
    /// leaves them to it; SYNs are the service's if one owner wants them.
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
