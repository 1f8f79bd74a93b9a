//! What can go wrong in a run besides the wires.

use tidelane_time::{Duration, Instant};

/// Something that goes wrong at a certain time.
#[derive(Clone, Copy, Debug)]
pub enum Mishap {
    /// A program dies, and perhaps comes back.
    Death {
        /// Which.
        program: usize,
        /// When.
        at: Instant,
        /// How long until it runs again.
        back_after: Option<Duration>,
    },
    /// The wire is cut.
    Outage {
        /// When.
        at: Instant,
        /// How long.
        lasts: Duration,
    },
    /// A host's neighbours are forgotten and must be resolved again.
    NeighboursForgotten {
        /// Which host.
        host: usize,
        /// When.
        at: Instant,
    },
    /// A host and its programs do not run for a while.
    Pause {
        /// Which host.
        host: usize,
        /// When.
        at: Instant,
        /// How long.
        lasts: Duration,
    },
    /// A service ends, its programs with it, and comes back with nothing that it knew.
    Restart {
        /// Which host.
        host: usize,
        /// When.
        at: Instant,
        /// How long it is down.
        lasts: Duration,
        /// Whether it resets its connections before.
        orderly: bool,
    },
    /// A host's clock jumps forward.
    ClockJump {
        /// Which host.
        host: usize,
        /// When.
        at: Instant,
        /// How far.
        by: Duration,
    },
}

impl Mishap {
    /// When it happens.
    pub fn at(&self) -> Instant {
        match self {
            Self::Death { at, .. }
            | Self::Outage { at, .. }
            | Self::NeighboursForgotten { at, .. }
            | Self::Pause { at, .. }
            | Self::Restart { at, .. }
            | Self::ClockJump { at, .. } => *at,
        }
    }

    /// The same at another time.
    pub fn put_at(mut self, time: Instant) -> Self {
        match &mut self {
            Self::Death { at, .. }
            | Self::Outage { at, .. }
            | Self::NeighboursForgotten { at, .. }
            | Self::Pause { at, .. }
            | Self::Restart { at, .. }
            | Self::ClockJump { at, .. } => *at = time,
        }
        self
    }
}
