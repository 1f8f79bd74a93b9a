//! *Parked* active opens, which wait for a local port or for the resolution of a neighbour.

use std::collections::VecDeque;

use tidelane_abi::ControlRequest;
use tidelane_time::{Duration, Instant};

use crate::{
    accounts::{Charge, Refused, Resource},
    ids::ProgramId,
    program::Programs,
};

/// Limit of parked active opens of all users on one core.
pub const PARKED_MAX: u64 = 65_536;
/// Time limit of a parked open. The kernel's neighbour resolution fails after the same time.
const PARKED_TIMEOUT: Duration = Duration::from_secs(3);

/// A parked active open.
#[derive(Clone, Copy, Debug)]
pub struct Parked {
    /// The program that waits for the open.
    pub program: ProgramId,
    /// Number of the program's context (the rings of one thread) that gets the answer.
    pub context: u32,
    /// The program's request.
    pub request: ControlRequest,
    /// Time of the program's request, from which the time limit counts.
    pub since: Instant,
}

impl Parked {
    /// Returns true if the open has waited for the whole time limit.
    pub fn is_overdue(&self, now: Instant) -> bool {
        now - self.since >= PARKED_TIMEOUT
    }
}

/// The parked active opens, oldest first. The [`Charge`] of an open counts against the limit of the
/// program's user.
#[derive(Default)]
pub struct ParkedOpens(VecDeque<(Parked, Charge)>);

impl ParkedOpens {
    /// Parks an open, and reserves room for the answer in the open's context. Fails if the accounts
    /// allow the program's user no further parked open. Does nothing if the program does not exist.
    pub fn park(&mut self, parked: Parked, programs: &mut Programs) -> Result<(), Refused> {
        let Some(program) = programs.get(parked.program) else {
            return Ok(());
        };
        let place = program.account.charge(Resource::ParkedOpens, 1)?;
        self.0.push_back((parked, place));
        programs
            .contexts
            .reserve_answer(parked.program, parked.context);
        Ok(())
    }

    /// Takes all opens, to try each open again. Before each try, the caller drops the charge and
    /// releases the room for the answer.
    pub fn take_all(&mut self) -> VecDeque<(Parked, Charge)> {
        std::mem::take(&mut self.0)
    }

    /// Removes the opens of a program that has ended.
    pub fn forget(&mut self, program: ProgramId) {
        self.0.retain(|(parked, _)| parked.program != program);
    }

    /// Returns the time at which the oldest open fails. Returns `None` if no open is parked.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        let oldest = self.0.front();
        oldest.map(|(parked, _)| parked.since + PARKED_TIMEOUT)
    }
}
