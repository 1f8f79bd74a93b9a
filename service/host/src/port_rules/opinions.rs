//! A cache of the actions that the rules give to the connections of ports. With the cache, the
//! filter does not compare each packet with each rule.
//!
//! An *opinion* is the action of the rules for a connection, looked up without counting a match of
//! a rule. A rule may apply to only one direction: connections that the peer opens, or connections
//! that the port opens. Each 5-tuple ([`Pair`]) of a port therefore has two opinions.

use tidelane_mux::PortId;

use super::associations::{Pair, PairHash};
use crate::rules::Action;

/// Number of entries of the cache.
const ENTRIES: usize = 1024;

/// The opinions on the connections of one port with one 5-tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opinions {
    /// The action for a connection that the peer opens.
    pub of_in: Action,
    /// The action for a connection that the port opens.
    pub of_out: Action,
}

/// A direct-mapped cache of `ENTRIES` entries: the hash of a 5-tuple selects the entry. New
/// opinions replace the opinions in the selected entry.
#[derive(Debug, Default)]
pub struct OpinionCache(Vec<Option<((PortId, Pair), Opinions)>>);

impl OpinionCache {
    /// Removes all opinions.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the opinions on the port and the 5-tuple of `key`. `hash` is the hash of the
    /// 5-tuple. If the cache does not have the opinions, the function calls `make` and stores the
    /// result.
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
