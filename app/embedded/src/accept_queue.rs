//! The accept queues of a stack. The engine identifies a connection by its flow id.

use std::collections::VecDeque;

use tidelane_engine::{FlowId, ListenerId};

/// The connections of all listeners that the program has not accepted, oldest first. The backlogs
/// of the listeners bound the number of connections. With Fast Open, a connection enters the queue
/// before its handshake is complete.
#[derive(Debug, Default)]
pub struct AcceptQueue(VecDeque<(ListenerId, FlowId)>);

impl AcceptQueue {
    pub fn push(&mut self, listener: ListenerId, flow: FlowId) {
        self.0.push_back((listener, flow));
    }

    /// Removes and returns the oldest connection of `listener`. Returns `None` if there is none.
    pub fn pop(&mut self, listener: ListenerId) -> Option<FlowId> {
        let at = self.0.iter().position(|(of, _)| *of == listener)?;
        self.0.remove(at).map(|(_, flow)| flow)
    }
}
