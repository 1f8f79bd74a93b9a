//! The accept queues of a stack. The engine (`tidelane-engine`, which runs TCP) identifies a
//! connection by its flow id.

use std::collections::VecDeque;

use tidelane_engine::{FlowId, ListenerId};

/// The connections that the program has not accepted, oldest first, each with its listener. The
/// backlogs of the listeners limit the number of connections in the queue. With Fast Open, a
/// connection enters the queue before its handshake is complete.
#[derive(Debug, Default)]
pub struct AcceptQueue(VecDeque<(ListenerId, FlowId)>);

impl AcceptQueue {
    pub fn push(&mut self, listener: ListenerId, flow: FlowId) {
        self.0.push_back((listener, flow));
    }

    /// Removes and returns the oldest connection of `listener`. Returns `None` if the queue has no
    /// connection of `listener`.
    pub fn pop(&mut self, listener: ListenerId) -> Option<FlowId> {
        let at = self.0.iter().position(|(of, _)| *of == listener)?;
        self.0.remove(at).map(|(_, flow)| flow)
    }
}
