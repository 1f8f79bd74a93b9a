//! Whose programs are whose.

use tidelane_netem::Rng;

use crate::scenario::{Conduct, Scenario};

/// Users of programs that do what they should have numbers from here on.
const USERS_MIN: u32 = 1000;
/// So many of them, beside one for each listener.
const USERS: u64 = 3;
/// The user of programs that do not.
const HOSTILE_USER: u32 = 65_534;

impl Scenario {
    /// Programs that hold one listener are one user's; hostile programs are nobody else's.
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
