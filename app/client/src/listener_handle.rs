//! The number of a listener.

/// The number by which the service and its programs identify a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerHandle(pub u32);
