//! Assigns users to the programs of a run. Hostile programs, which write random values to their
//! shared memory, have a user of their own.

use tidelane_netem::Rng;

use super::Scenario;
use crate::program_spec::Behaviour;

/// User id of the first user of well-behaved programs.
const USERS_MIN: u32 = 1000;
/// Number of users of client programs. All programs of listener `n` have the user id
/// `USERS_MIN + n`. A client program may have the user id of a listener.
const USERS: u64 = 3;
/// User id of the hostile programs.
const HOSTILE_USER: u32 = 65_534;

impl Scenario {
    /// Gives all programs of a listener the same user, and hostile programs a user of their own.
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
