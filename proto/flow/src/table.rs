//! Where flows are: a slab of hot states, and the index that finds one by its ends.

use hashbrown::HashTable;
use tidelane_wire::FlowKey;

use crate::{
    flow_state::{FlowState, flags},
    ids::FlowId,
};

/// Flows that are found without the index while their segments keep coming.
const RECENT: usize = 4096;

/// All flows of one engine.
///
/// Numbers of released flows rest until [`FlowTable::recycle`], so that a driver that gathers
/// events never meets an old number with a new meaning.
#[derive(Debug)]
pub struct FlowTable {
    index: HashTable<FlowId>,
    states: Vec<FlowState>,
    /// The flow found last for each value of [`FlowKey::quick_hash`]: a guess that is checked.
    recent: Box<[FlowId; RECENT]>,
    free: Vec<FlowId>,
    resting: Vec<FlowId>,
    seed: [u64; 2],
    flows_max: u32,
}

impl FlowTable {
    /// An empty table for at most `flows_max` flows; `seed` keys the hash.
    ///
    /// Address space for all states is reserved now, so that growing never moves them.
    pub fn new(flows_max: u32, seed: [u64; 2]) -> Self {
        Self {
            index: HashTable::new(),
            states: Vec::with_capacity(flows_max as usize),
            recent: Box::new([FlowId(0); RECENT]),
            free: Vec::new(),
            resting: Vec::new(),
            seed,
            flows_max,
        }
    }

    /// The flow that was found last for ends like these, if it has these. It is theirs only if it
    /// [is found](FlowState::is_found) by them: that is left to the caller, who looks at other
    /// flags, too.
    #[inline(always)]
    pub fn recent(&mut self, key: &FlowKey) -> Option<(FlowId, &mut FlowState)> {
        let guess = self.recent[key.quick_hash() as usize % RECENT];
        let state = self.states.get_mut(guess.index())?;
        (state.key == *key).then_some((guess, state))
    }

    /// Makes a flow the one that [`FlowTable::recent`] gives for its ends. False if there is none.
    #[inline(never)]
    pub fn make_recent(&mut self, key: &FlowKey) -> bool {
        let Some(id) = self.find(key) else {
            return false;
        };
        self.recent[key.quick_hash() as usize % RECENT] = id;
        true
    }

    /// Finds a flow by its ends.
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

    /// Makes a flow with these ends. `None` if the table is full, or there is one already.
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

    /// Makes a flow unfindable; its state stays.
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

    /// Ends a flow. Its number rests until [`FlowTable::recycle`].
    pub fn remove(&mut self, id: FlowId) {
        self.unindex(id);
        if let Some(state) = self.get_mut(id) {
            *state = FlowState::default();
            self.resting.push(id);
        }
    }

    /// Gives resting numbers free.
    #[inline]
    pub fn recycle(&mut self) {
        if !self.resting.is_empty() {
            self.free.append(&mut self.resting);
        }
    }

    /// The state of a flow.
    #[inline]
    pub fn get(&self, id: FlowId) -> Option<&FlowState> {
        self.states
            .get(id.index())
            .filter(|state| state.has(flags::USED))
    }

    /// The state of a flow.
    #[inline]
    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut FlowState> {
        self.states
            .get_mut(id.index())
            .filter(|state| state.has(flags::USED))
    }

    /// What is at a flow's place, in use or not: then it has no flags.
    #[inline]
    pub fn place_mut(&mut self, id: FlowId) -> Option<&mut FlowState> {
        self.states.get_mut(id.index())
    }

    /// Flows in use.
    pub fn len(&self) -> usize {
        self.states.len() - self.free.len() - self.resting.len()
    }

    /// Whether no flow is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Places that were ever in use: every [`FlowId`] is below this.
    pub fn bound(&self) -> u32 {
        self.states.len() as u32
    }

    /// All flows in use.
    pub fn iter(&self) -> impl Iterator<Item = (FlowId, &FlowState)> {
        (0..)
            .map(FlowId)
            .zip(&self.states)
            .filter(|(_, state)| state.has(flags::USED))
    }
}
