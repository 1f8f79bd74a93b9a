//! The shared memory between a program and the service, and all atomics of the project.

mod region_unsafe;

pub use region_unsafe::{ProgramRegion, Region, ServicePageMap};

/// The peer wrote an impossible index: the session must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;
