//! The cold states of flows, by flow number, in chunks: a chunk without flows gives its memory back.

use tidelane_flow::FlowId;
use tidelane_slowpath::Connection;

/// States of a chunk. Together they are longer than what an allocator keeps for itself.
const CHUNK: usize = 128;

/// A run of states, and how many of them there are.
#[derive(Debug, Default)]
struct Chunk {
    /// Empty without any.
    states: Vec<Option<Connection>>,
    count: usize,
}

/// All cold states of an engine.
#[derive(Debug, Default)]
pub struct Connections {
    chunks: Vec<Chunk>,
    /// States of a chunk that became empty, for the next one: flows come and go.
    spare: Vec<Option<Connection>>,
}

impl Connections {
    /// The place of a flow's state.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&Option<Connection>> {
        self.chunks.get(index / CHUNK)?.states.get(index % CHUNK)
    }

    /// The place of a flow's state, which is not to become empty.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Option<Connection>> {
        self.chunks
            .get_mut(index / CHUNK)?
            .states
            .get_mut(index % CHUNK)
    }

    /// A flow begins.
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

    /// A flow is over.
    pub fn remove(&mut self, id: FlowId) -> Option<Connection> {
        let chunk = self.chunks.get_mut(id.index() / CHUNK)?;
        let cold = chunk.states.get_mut(id.index() % CHUNK)?.take()?;
        chunk.count -= 1;
        if chunk.count == 0 {
            self.spare = std::mem::take(&mut chunk.states);
        }
        Some(cold)
    }

    /// All states.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        let places = self.chunks.iter_mut().flat_map(|chunk| &mut chunk.states);
        places.filter_map(Option::as_mut)
    }
}
