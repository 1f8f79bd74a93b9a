//! The object of the engine that a socket refers to.

use std::collections::VecDeque;

use tidelane_engine::{FlowId, ListenerId};

/// The object of the engine that a socket refers to.
#[derive(Debug)]
pub enum Role {
    /// No object: the socket is neither listening nor connected, like a new socket.
    Unconnected,
    /// A listener with its accept queue.
    Listener {
        /// The engine's id of the listener.
        id: ListenerId,
        /// The accept queue: connections that no `accept` has returned yet.
        queue: VecDeque<FlowId>,
    },
    /// A connection.
    Flow(FlowId),
    /// A connection that the engine has already released.
    Released,
}
