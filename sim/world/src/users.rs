//! Users of the programs of a run.

use tidelane_netem::Rng;

use crate::scenario::{Behaviour, Scenario};

/// Number of the first user whose programs are not hostile.
const USERS_MIN: u32 = 1000;
/// Number of users of client programs. In addition, each listener has its own user.
const USERS: u64 = 3;
/// Number of the user of hostile programs.
const HOSTILE_USER: u32 = 65_534;

impl Scenario {
    /// Gives all programs of a listener the same user. Gives hostile programs a user that no other
    /// program has.
    pub(crate) fn add_users(&mut self, rng: &mut Rng) {
        for program in 0..self.programs.len() {
            let of_listener = self.listener_of(program).map(|listener| listener as u32);
            let user = match (self.programs[program].behaviour, of_listener) {
                (Behaviour::Bad { .. }, _) => HOSTILE_USER,
                (Behaviour::Good, Some(listener)) => USERS_MIN + listener,
                (Behaviour::Good, None) => USERS_MIN + rng.below(USERS) as u32,
            };
            self.programs[program].user = user;
        }
    }
}
