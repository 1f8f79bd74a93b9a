//! Checks that the memory of a user's programs contains no bytes of connections between other
//! users.
//!
//! The bytes of each stream contain tags that identify the connection ([`crate::pattern`]). A
//! program's region is the memory that the program shares with the service. The region may contain
//! bytes only of connections that have an end of the program's own user, even if the program is
//! hostile.

use tidelane_netem::Rng;
use tidelane_ring::ProgramRegion;

use crate::{pattern::connections_in, scenario::Scenario};

/// Number of bytes that a search covers at the start of each part of a region. The parts are the
/// two areas of stream buffers and the bytes before them. Most runs use only the covered bytes.
const PART_LEN: u64 = 256 << 10;
/// Length of a block of the search in bytes. The search skips blocks of zeros, because most blocks
/// are unused.
const BLOCK: usize = 4096;
/// Number of searches after which a run chooses no more programs at random. Independently of this
/// limit, a run also searches when a hostile program dies and at the end of the run.
const SEARCHES_MAX: u64 = 6;

/// Searches the memory of programs for bytes of other users' connections.
pub struct ForeignBytes {
    /// Seed of the run, from which the tags derive.
    seed: u64,
    /// Users of the client and the server, by connection.
    users: Vec<[u32; 2]>,
    /// Number of regions searched so far.
    pub searches: u64,
    /// Chooses the programs whose memory is searched during the run.
    rng: Rng,
    /// Buffer for a copy of a part of a region.
    bytes: Vec<u8>,
}

impl ForeignBytes {
    /// Collects the users of all connections of a run.
    pub fn new(scenario: &Scenario, rng: Rng) -> Self {
        let user = |program: usize| scenario.programs[program].user;
        let users = scenario.connections.iter().map(|plan| {
            let server = scenario.listeners[plan.listener].programs[0];
            [user(plan.client), user(server)]
        });
        Self {
            seed: scenario.seed,
            users: users.collect(),
            searches: 0,
            rng,
            bytes: Vec::new(),
        }
    }

    /// Chooses one of `count` programs for a search during the run. Returns `None` after
    /// `SEARCHES_MAX` searches, or if `count` is zero.
    pub fn choose(&mut self, count: usize) -> Option<usize> {
        let search = self.searches < SEARCHES_MAX && count > 0;
        search.then(|| self.rng.below(count as u64) as usize)
    }

    /// Searches the start of each part of the region of a program of `user`. Returns the first
    /// connection that has bytes there although neither of its ends belongs to `user`.
    pub fn find(&mut self, user: u32, region: &ProgramRegion) -> Option<u32> {
        self.searches += 1;
        let layout = region.layout();
        let areas = [layout.rx_area(), layout.tx_area()];
        let head = 0..layout.rx_area().start;
        for part in [head].into_iter().chain(areas) {
            let len = (part.end - part.start).min(PART_LEN);
            self.bytes.resize(len as usize, 0);
            assert!(
                region.copy_out(part.start, &mut self.bytes),
                "the range lies in the region"
            );
            let users = &self.users;
            let is_foreign = |id: &u32| {
                let of = users.get(*id as usize);
                of.is_some_and(|of| !of.contains(&user))
            };
            for block in self.bytes.chunks(BLOCK).filter(|block| !is_zero(block)) {
                let found = connections_in(self.seed, block).find(is_foreign);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }
}

fn is_zero(block: &[u8]) -> bool {
    let (words, rest) = block.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use tidelane_ring::Layout;

    use super::*;
    use crate::{pattern::Content, plan::Role, scenario::Theme};

    #[test]
    fn only_bytes_of_a_foreign_stream_are_reported() {
        let scenario = Scenario::with_theme(3, Theme::Misbehaviour);
        let mut checker = ForeignBytes::new(&scenario, Rng::new(1));
        let plan = scenario
            .connections
            .iter()
            .find(|plan| plan.total(Role::Client) > 0);
        let plan = plan.expect("a connection that carries bytes");
        let user = scenario.programs[plan.client].user;
        let layout = Layout::new(16, 1 << 20, 1 << 20).expect("a possible layout");
        for place in [layout.rx_area().start + 12_345, layout.tx_area().start] {
            let region = ProgramRegion::heap(&layout).expect("there is memory");
            let mut piece = [0; 64];
            Content::of_client(scenario.seed, plan.id).fill(1000, &mut piece);
            assert!(region.copy_in(place, &piece));
            assert_eq!(checker.find(user, &region), None);
            assert_eq!(checker.find(1, &region), Some(plan.id));
        }
    }
}
