//! A cache of the rules' actions for pairs of a port and a peer, so that the filter need not
//! compare each packet with each rule.

use tidelane_mux::PortId;

use super::associations::{Pair, PairHash};
use crate::rules::Action;

/// Number of entries.
const ENTRIES: usize = 1024;

/// The actions of the rules for connections of one pair, for each opener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opinions {
    /// The action for a connection that the peer opens.
    pub of_in: Action,
    /// The action for a connection that the port opens.
    pub of_out: Action,
}

/// A cache of fixed size. A new entry replaces the entry in the same place.
#[derive(Debug, Default)]
pub struct OpinionCache(Vec<Option<((PortId, Pair), Opinions)>>);

impl OpinionCache {
    /// Removes all opinions.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the opinions about a port and a pair. `hash` is the hash of the pair. Calls `make`
    /// if the opinions are not in the cache.
    pub fn get(
        &mut self,
        hash: PairHash,
        key: (PortId, Pair),
        make: impl FnOnce() -> Opinions,
    ) -> Opinions {
        if self.0.is_empty() {
            self.0.resize(ENTRIES, None);
        }
        let place = &mut self.0[hash.number() as usize % ENTRIES];
        match place {
            Some((known, opinions)) if *known == key => *opinions,
            _ => {
                let opinions = make();
                *place = Some((key, opinions));
                opinions
            }
        }
    }
}
