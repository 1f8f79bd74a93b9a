//! Requests about listeners and opens, in the order in which the program has made them.

use std::collections::VecDeque;

use tidelane_client::{Connect, Context, ListenerHandle, QueueError};

/// A request to the service.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// Open a connection.
    Connect(Connect),
    /// Deliver the connections of a listener. The number is the cookie of their events.
    Join(ListenerHandle, u64),
    /// Deliver no more connections of a listener.
    Leave(ListenerHandle),
}

/// Requests that wait for room in the control ring. The program's sockets bound their number: each
/// call of the program adds at most one.
#[derive(Debug, Default)]
pub struct Requests(VecDeque<Request>);

impl Requests {
    /// Adds a request.
    pub fn push(&mut self, request: Request) {
        self.0.push_back(request);
    }

    /// Queues the requests in the control ring, as far as they fit.
    pub fn queue(&mut self, context: &mut Context) {
        while let Some(request) = self.0.front() {
            let queued = match request {
                Request::Connect(connect) => context.connect(connect),
                Request::Join(listener, cookie) => context.listener_join(*listener, *cookie),
                Request::Leave(listener) => context.listener_leave(*listener),
            };
            // A dead service ends all sockets, and needs no request.
            if queued == Err(QueueError::Full) {
                return;
            }
            self.0.pop_front();
        }
    }

    /// Returns true if requests wait for room.
    pub fn has_waiting(&self) -> bool {
        !self.0.is_empty()
    }
}
