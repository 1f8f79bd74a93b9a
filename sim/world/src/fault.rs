//! Faults of hosts, programs and paths. A run injects the faults in addition to the random
//! impairments of links.

use tidelane_time::{Duration, Instant};

/// A fault that occurs at a certain time.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// A program dies, and may start again.
    Death {
        /// Index of the program.
        program: usize,
        /// Time of the fault.
        at: Instant,
        /// Time until the program starts again, or `None` if it does not.
        restart_after: Option<Duration>,
    },
    /// All links are cut.
    Outage {
        /// Time of the fault.
        at: Instant,
        /// Duration.
        lasts: Duration,
    },
    /// The neighbour entries of a host expire and must be resolved again.
    NeighboursExpired {
        /// Index of the host.
        host: usize,
        /// Time of the fault.
        at: Instant,
    },
    /// A host and its programs pause for some time.
    Pause {
        /// Index of the host.
        host: usize,
        /// Time of the fault.
        at: Instant,
        /// Duration.
        lasts: Duration,
    },
    /// A host's service ends, and so do the host's programs. A new service starts later without any
    /// state, and the programs start again. A direct host has no service, because TCP runs in its
    /// programs. The restart of a direct host ends its programs and their context (the TCP state),
    /// and starts both again.
    Restart {
        /// Index of the host.
        host: usize,
        /// Time of the fault.
        at: Instant,
        /// Time until the new service and the programs start.
        lasts: Duration,
        /// True if the service or the context resets its connections at its end.
        orderly: bool,
    },
    /// The path between the routers gets another MTU.
    PathMtu {
        /// Time of the fault.
        at: Instant,
        /// MTU in bytes.
        mtu: u32,
    },
    /// The interface of a host gets another MTU, and the paths stay as they are.
    InterfaceMtu {
        /// Index of the host.
        host: usize,
        /// Time of the fault.
        at: Instant,
        /// MTU in bytes, at most the MTU at the start of the run.
        mtu: u32,
    },
    /// The clock of a host jumps forward.
    ClockJump {
        /// Index of the host.
        host: usize,
        /// Time of the fault.
        at: Instant,
        /// Distance by which the clock jumps.
        by: Duration,
    },
}

impl Fault {
    /// Returns the time of the fault.
    pub fn at(&self) -> Instant {
        match self {
            Self::Death { at, .. }
            | Self::Outage { at, .. }
            | Self::NeighboursExpired { at, .. }
            | Self::Pause { at, .. }
            | Self::PathMtu { at, .. }
            | Self::InterfaceMtu { at, .. }
            | Self::Restart { at, .. }
            | Self::ClockJump { at, .. } => *at,
        }
    }

    /// Returns the fault with `time` as its time.
    pub fn with_time(mut self, time: Instant) -> Self {
        match &mut self {
            Self::Death { at, .. }
            | Self::Outage { at, .. }
            | Self::NeighboursExpired { at, .. }
            | Self::Pause { at, .. }
            | Self::PathMtu { at, .. }
            | Self::InterfaceMtu { at, .. }
            | Self::Restart { at, .. }
            | Self::ClockJump { at, .. } => *at = time,
        }
        self
    }
}
