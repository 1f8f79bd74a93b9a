//! The numbers by which a host knows programs, slots and listeners.

use tidelane_engine::ListenerId;

/// Number of a program within a host. Zero stands for the staging area, in which the host keeps the
/// receive buffers of connections that no program has yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramId(pub u32);

/// A slot, with the program in whose region the slot lies. A *slot* is the record of one connection
/// that the program and the service share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotId {
    /// The program.
    pub program: ProgramId,
    /// Number of the slot in the region.
    pub slot: u32,
}

/// The listener of an accepted connection. After the listener has ended, the engine may use its id
/// for a later listener. The two listeners differ in `number`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerOfFlow {
    /// The engine's id of the listener.
    pub id: ListenerId,
    /// Number by which programs refer to the listener.
    pub number: u32,
}
