//! A cache of the actions that the operator's rules give to the connections of mux ports (packet
//! rings of programs with TCP/IP stacks of their own). With the cache, the filter does not compare
//! each packet with each rule.
//!
//! A look-up in the cache does not count as a decision of a rule. A rule may apply to only one
//! direction: connections that the peer opens, or connections that the mux port opens. Each 5-tuple
//! ([`FiveTuple`]) of a port therefore has two actions.

use tidelane_mux::PortId;

use super::associations::{FiveTuple, FiveTupleHash};
use crate::rules::Action;

/// Number of entries of the cache.
const ENTRIES: usize = 1024;

/// The actions for the connections of one mux port with one 5-tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedActions {
    /// The action for a connection that the peer opens.
    pub inbound: Action,
    /// The action for a connection that the mux port opens.
    pub outbound: Action,
}

/// A direct-mapped cache of `ENTRIES` entries: the hash of a 5-tuple selects the entry. New
/// actions replace the actions in the selected entry.
#[derive(Debug, Default)]
pub struct ActionCache(Vec<Option<((PortId, FiveTuple), CachedActions)>>);

impl ActionCache {
    /// Removes all actions.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the actions for the mux port and the 5-tuple of `key`. `hash` is the hash of the
    /// 5-tuple. If the cache does not have the actions, the function calls `make` and stores the
    /// result.
    pub fn get(
        &mut self,
        hash: FiveTupleHash,
        key: (PortId, FiveTuple),
        make: impl FnOnce() -> CachedActions,
    ) -> CachedActions {
        if self.0.is_empty() {
            self.0.resize(ENTRIES, None);
        }
        let place = &mut self.0[hash.number() as usize % ENTRIES];
        match place {
            Some((known, actions)) if *known == key => *actions,
            _ => {
                let actions = make();
                *place = Some((key, actions));
                actions
            }
        }
    }
}
