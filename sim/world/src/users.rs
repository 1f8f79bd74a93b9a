//! Users of the programs of a run.

use tidelane_netem::Rng;

use crate::scenario::{Conduct, Scenario};

/// First user number of programs that are not hostile.
const USERS_MIN: u32 = 1000;
/// Users of client programs; each listener has a user of its own besides.
const USERS: u64 = 3;
/// User of hostile programs.
const HOSTILE_USER: u32 = 65_534;

impl Scenario {
    /// Gives the programs of one listener one user, and hostile programs a user that no other has.
    pub(crate) fn add_users(&mut self, rng: &mut Rng) {
        for program in 0..self.programs.len() {
            let of_listener = self.listener_of(program).map(|listener| listener as u32);
            let user = match (self.programs[program].conduct, of_listener) {
                (Conduct::Bad { .. }, _) => HOSTILE_USER,
                (Conduct::Good, Some(listener)) => USERS_MIN + listener,
                (Conduct::Good, None) => USERS_MIN + rng.below(USERS) as u32,
            };
            self.programs[program].user = user;
        }
    }
}
