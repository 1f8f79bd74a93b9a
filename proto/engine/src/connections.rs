//! Cold states of all flows (connections). The cold state of a flow, a `Connection`, is the state
//! that the fast path does not use. The states are indexed by flow id and stored in chunks, so that
//! a chunk without flows holds no memory.

use tidelane_flow::FlowId;
use tidelane_slowpath::Connection;

/// Number of states per chunk. A chunk is so large that the memory allocator returns the memory of
/// a freed chunk to the kernel.
const CHUNK: usize = 128;

/// The cold states of consecutive flow ids.
#[derive(Debug, Default)]
struct Chunk {
    /// States by the flow id modulo `CHUNK`; empty if no state is in use.
    states: Vec<Option<Connection>>,
    /// Number of states in use.
    count: usize,
}

/// Cold states of all flows of an engine.
#[derive(Debug, Default)]
pub struct Connections {
    chunks: Vec<Chunk>,
    /// Memory of the chunk that most recently became empty, for the next chunk that needs memory.
    spare: Vec<Option<Connection>>,
}

impl Connections {
    /// Returns the entry of the flow with id `index`. The entry is `None` if no flow has this id.
    /// The result is `None` if the chunk of the id does not exist or holds no memory.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&Option<Connection>> {
        self.chunks.get(index / CHUNK)?.states.get(index % CHUNK)
    }

    /// Returns the entry of the flow with id `index`, like [`get`](Self::get). The caller must not
    /// set the entry to `None`, because only [`remove`](Self::remove) updates the number of states
    /// in use.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Option<Connection>> {
        self.chunks
            .get_mut(index / CHUNK)?
            .states
            .get_mut(index % CHUNK)
    }

    /// Adds the state of a new flow.
    pub fn insert(&mut self, id: FlowId, cold: Connection) {
        let (chunk, at) = (id.index() / CHUNK, id.index() % CHUNK);
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, Chunk::default);
        }
        let chunk = &mut self.chunks[chunk];
        if chunk.states.is_empty() {
            chunk.states = std::mem::take(&mut self.spare);
            chunk.states.reserve_exact(CHUNK - chunk.states.len());
            chunk.states.resize_with(CHUNK, || None);
        }
        chunk.count += usize::from(chunk.states[at].is_none());
        chunk.states[at] = Some(cold);
    }

    /// Removes the state of a flow.
    pub fn remove(&mut self, id: FlowId) {
        let Some(chunk) = self.chunks.get_mut(id.index() / CHUNK) else {
            return;
        };
        let Some(place) = chunk.states.get_mut(id.index() % CHUNK) else {
            return;
        };
        if place.is_none() {
            return;
        }
        *place = None;
        chunk.count -= 1;
        if chunk.count == 0 {
            self.spare = std::mem::take(&mut chunk.states);
        }
    }

    /// Iterates over all states.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        let places = self.chunks.iter_mut().flat_map(|chunk| &mut chunk.states);
        places.filter_map(Option::as_mut)
    }
}
