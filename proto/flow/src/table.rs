//! The flow table: a slab of [`FlowState`] entries, one for each flow (connection), and a hash
//! index by 4-tuple.

use hashbrown::HashTable;
use tidelane_interface::FlowId;
use tidelane_wire::FlowKey;

use crate::flow_state::{FlowState, flags};

/// Number of entries in the cache of recently used flows.
const CACHE_LEN: usize = 4096;

/// All flows of one engine, found by id or by 4-tuple.
///
/// The ids of removed flows are not reused before [`FlowTable::recycle`]. The driver (the program
/// that runs the engine) can therefore collect events until this call without confusing two flows.
#[derive(Debug)]
pub struct FlowTable {
    /// Ids by the hash of the 4-tuple. Flows without [`flags::INDEXED`] are not in the index.
    index: HashTable<FlowId>,
    /// Entries by id, in use or not.
    states: Vec<FlowState>,
    /// The flow that [`FlowTable::lookup_and_cache`] found most recently for each value of
    /// [`FlowKey::quick_hash`] modulo `CACHE_LEN`. Several 4-tuples share each value, so
    /// [`FlowTable::cached`] compares the full key.
    recent: Box<[FlowId; CACHE_LEN]>,
    /// Ids of removed flows. New flows may use these ids.
    free: Vec<FlowId>,
    /// Ids of flows removed since the last [`FlowTable::recycle`].
    quarantine: Vec<FlowId>,
    /// Key of the hash of 4-tuples.
    seed: [u64; 2],
    /// Largest number of flows.
    flows_max: u32,
}

impl FlowTable {
    /// Creates an empty table for at most `flows_max` flows. `seed` is the key of the hash.
    ///
    /// Reserves the address space of all states, so that growth never moves a state.
    pub fn new(flows_max: u32, seed: [u64; 2]) -> Self {
        Self {
            index: HashTable::new(),
            states: Vec::with_capacity(flows_max as usize),
            recent: Box::new([FlowId(0); CACHE_LEN]),
            free: Vec::new(),
            quarantine: Vec::new(),
            seed,
            flows_max,
        }
    }

    /// Returns the flow with this 4-tuple if the flow is in the cache. The flow may have left the
    /// index after it was cached, so the caller checks [`FlowState::is_indexed`] together with
    /// other flags.
    #[inline(always)]
    pub fn cached(&mut self, key: &FlowKey) -> Option<(FlowId, &mut FlowState)> {
        let guess = self.recent[key.quick_hash() as usize % CACHE_LEN];
        let state = self.states.get_mut(guess.index())?;
        (state.key == *key).then_some((guess, state))
    }

    /// Looks up a flow by its 4-tuple in the index, and puts the flow into the cache. Returns true
    /// if the index has a flow with this 4-tuple.
    #[inline(never)]
    pub fn lookup_and_cache(&mut self, key: &FlowKey) -> bool {
        let Some(id) = self.find(key) else {
            return false;
        };
        self.recent[key.quick_hash() as usize % CACHE_LEN] = id;
        true
    }

    /// Looks up a flow by its 4-tuple in the index.
    #[inline(never)]
    pub fn find(&self, key: &FlowKey) -> Option<FlowId> {
        let states = &self.states;
        self.index
            .find(key.hash64(self.seed), |id| {
                states
                    .get(id.index())
                    .is_some_and(|state| state.key == *key)
            })
            .copied()
    }

    /// Adds a flow. Returns `None` if the table is full, or if the index has a flow with this
    /// 4-tuple.
    pub fn insert(&mut self, key: FlowKey) -> Option<FlowId> {
        if self.find(&key).is_some() {
            return None;
        }
        let id = match self.free.pop() {
            Some(id) => id,
            None if (self.states.len() as u32) < self.flows_max => {
                self.states.push(FlowState::default());
                FlowId(self.states.len() as u32 - 1)
            }
            None => return None,
        };
        let state = &mut self.states[id.index()];
        *state = FlowState {
            key,
            flags: flags::USED | flags::INDEXED,
            ..FlowState::default()
        };
        let (states, seed) = (&self.states, self.seed);
        self.index.insert_unique(key.hash64(seed), id, |other| {
            states[other.index()].key.hash64(seed)
        });
        Some(id)
    }

    /// Removes a flow from the index, so that segments no longer find the flow. The state of the
    /// flow stays in the table.
    pub fn unindex(&mut self, id: FlowId) {
        let seed = self.seed;
        let Some(state) = self.get_mut(id) else {
            return;
        };
        if !state.has(flags::INDEXED) {
            return;
        }
        state.clear(flags::INDEXED);
        let hash = state.key.hash64(seed);
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
    }

    /// Removes a flow. The id of the flow is not reused before [`FlowTable::recycle`].
    pub fn remove(&mut self, id: FlowId) {
        self.unindex(id);
        if let Some(state) = self.get_mut(id) {
            *state = FlowState::default();
            self.quarantine.push(id);
        }
    }

    /// Makes the ids of removed flows available again.
    #[inline]
    pub fn recycle(&mut self) {
        if !self.quarantine.is_empty() {
            self.free.append(&mut self.quarantine);
        }
    }

    /// Returns the memory of an empty table to the system, but keeps the address space reserved.
    /// The call has no effect while the table has a flow, or a removed id that is not yet recycled.
    pub fn shrink(&mut self) {
        if self.is_empty() && self.quarantine.is_empty() {
            self.index = HashTable::new();
            self.states = Vec::with_capacity(self.flows_max as usize);
            self.free = Vec::new();
        }
    }

    /// Returns the state of a flow; `None` if the id is not in use.
    #[inline]
    pub fn get(&self, id: FlowId) -> Option<&FlowState> {
        self.states
            .get(id.index())
            .filter(|state| state.has(flags::USED))
    }

    /// Returns the state of a flow; `None` if the id is not in use.
    #[inline]
    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut FlowState> {
        self.states
            .get_mut(id.index())
            .filter(|state| state.has(flags::USED))
    }

    /// Returns the table's entry for an id, in use or not. The flags of an unused entry are zero.
    #[inline]
    pub fn entry_mut(&mut self, id: FlowId) -> Option<&mut FlowState> {
        self.states.get_mut(id.index())
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.states.len() - self.free.len() - self.quarantine.len()
    }

    /// Returns true if there is no flow.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a number that is larger than every id that was in use since the last
    /// [`FlowTable::shrink`].
    pub fn id_bound(&self) -> u32 {
        self.states.len() as u32
    }

    /// Returns an iterator over all flows.
    pub fn iter(&self) -> impl Iterator<Item = (FlowId, &FlowState)> {
        (0..)
            .map(FlowId)
            .zip(&self.states)
            .filter(|(_, state)| state.has(flags::USED))
    }
}
