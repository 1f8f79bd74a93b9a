//! [`Requests`]: the requests to open connections, and to join and leave listeners. A context (the
//! sockets of one thread) sends these requests to the service (the process `tidelaned`) in the
//! order of the program's calls.

use std::collections::VecDeque;

use tidelane_client::{Connect, Context, ListenerHandle, QueueError};

/// A request to the service.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// Open a connection.
    Connect(Connect),
    /// Deliver connections of a listener to this context. The number is the cookie by which the
    /// service's events name the listener.
    Join(ListenerHandle, u64),
    /// Deliver no more connections of a listener to this context.
    Leave(ListenerHandle),
}

/// Requests that wait for room in the control ring, which the program shares with the service. The
/// queue has no limit of its own: each call of the program adds at most one request.
#[derive(Debug, Default)]
pub struct Requests(VecDeque<Request>);

impl Requests {
    pub fn push(&mut self, request: Request) {
        self.0.push_back(request);
    }

    /// Moves requests to the control ring until the ring is full.
    pub fn queue(&mut self, context: &mut Context) {
        while let Some(request) = self.0.front() {
            let queued = match request {
                Request::Connect(connect) => context.connect(connect),
                Request::Join(listener, cookie) => context.listener_join(*listener, *cookie),
                Request::Leave(listener) => context.listener_leave(*listener),
            };
            // A request to a dead service is dropped, because its connections and listeners end
            // anyway.
            if queued == Err(QueueError::Full) {
                return;
            }
            self.0.pop_front();
        }
    }

    /// Returns true if requests wait for room in the control ring.
    pub fn has_waiting(&self) -> bool {
        !self.0.is_empty()
    }
}
