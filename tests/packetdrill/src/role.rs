//! The object of the engine (Tidelane's TCP) that a socket refers to: a listener or a flow
//! (connection).

use std::collections::VecDeque;

use tidelane_engine::{FlowId, ListenerId};

/// The object of the engine that a socket refers to.
#[derive(Debug)]
pub enum Role {
    /// No object, as for a new socket. The socket is neither listening nor connected.
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
    /// No object: the engine has already released (removed) the connection of the socket.
    Released,
}
