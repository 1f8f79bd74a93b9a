//! Active opens that wait for a local port or for the resolution of a neighbour.

use std::collections::VecDeque;

use tidelane_abi::ControlRequest;
use tidelane_time::{Duration, Instant};

use crate::{accounts::Charge, program::ProgramId};

/// Limit of parked active opens of all users.
pub const PARKED_MAX: u64 = 65_536;
/// Time limit of a parked open. The kernel's neighbour resolution fails after the same time.
const PARKED_TIMEOUT: Duration = Duration::from_secs(3);

/// A parked active open.
pub struct Parked {
    /// The program that waits for the open.
    pub program: ProgramId,
    /// Context of the program that gets the answer.
    pub context: u32,
    /// The program's request.
    pub request: ControlRequest,
    /// Time of the program's request, from which the time limit counts.
    pub since: Instant,
    /// The charge to the program's user for the parked open.
    pub place: Charge,
}

impl Parked {
    /// Returns true if the open has waited for the whole time limit.
    pub fn is_overdue(&self, now: Instant) -> bool {
        now - self.since >= PARKED_TIMEOUT
    }
}

/// The parked active opens, oldest first.
#[derive(Default)]
pub struct ParkedOpens(VecDeque<Parked>);

impl ParkedOpens {
    /// Adds an open.
    pub fn push(&mut self, parked: Parked) {
        self.0.push_back(parked);
    }

    /// Takes all opens, to try each open again.
    pub fn take_all(&mut self) -> VecDeque<Parked> {
        std::mem::take(&mut self.0)
    }

    /// Removes the opens of a program that has ended.
    pub fn forget(&mut self, program: ProgramId) {
        self.0.retain(|parked| parked.program != program);
    }

    /// Returns the time at which the oldest open fails.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.0.front().map(|parked| parked.since + PARKED_TIMEOUT)
    }
}
