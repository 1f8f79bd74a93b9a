//! [`Lingering`]: connections on which the server has sent its last answers, and which stay open
//! until the peer closes.
//!
//! If a server closes a connection whose peer does not read, the context (the sockets of the
//! server) keeps the unread answers and their buffers without a limit of time. A server therefore
//! closes only the sending direction, and waits for a limited time until the peer closes its
//! direction. If the server needs the buffers meanwhile, the server can abort the connection.

use std::collections::VecDeque;

use tidelane_rings::{Context, Descriptor};

/// Limit of the lingering connections. At the limit, a further lingering connection makes the
/// server abort the oldest.
const LINGERING_MAX: usize = 1024;
/// Time in seconds after which a lingering connection is aborted.
const LINGER_SECONDS: u64 = 30;

/// Lingering connections, oldest first.
#[derive(Debug, Default)]
pub struct Lingering {
    /// The connections, each with the Unix time in seconds of its abort.
    queue: VecDeque<(Descriptor, u64)>,
}

impl Lingering {
    /// Closes the sending direction after the answers, and keeps the connection until the peer
    /// closes, at most for `LINGER_SECONDS`. `unix` is the present Unix time in seconds.
    pub fn add(&mut self, context: &mut dyn Context, descriptor: Descriptor, unix: u64) {
        context.shutdown(descriptor);
        if self.queue.len() >= LINGERING_MAX {
            self.abort_oldest(context);
        }
        self.queue.push_back((descriptor, unix + LINGER_SECONDS));
    }

    /// Closes a lingering connection after its peer has closed or after the connection has failed.
    /// Does nothing if the connection does not linger.
    pub fn end(&mut self, context: &mut dyn Context, descriptor: Descriptor) {
        let place = self.queue.iter().position(|(at, _)| *at == descriptor);
        if let Some((descriptor, _)) = place.and_then(|place| self.queue.remove(place)) {
            context.close(descriptor);
        }
    }

    /// Aborts the connections whose time has passed. `unix` is the present Unix time in seconds.
    pub fn end_old(&mut self, context: &mut dyn Context, unix: u64) {
        while self.queue.front().is_some_and(|(_, end)| *end <= unix) {
            self.abort_oldest(context);
        }
    }

    /// Aborts the oldest lingering connection. Returns false if no connection lingers.
    pub fn abort_oldest(&mut self, context: &mut dyn Context) -> bool {
        let oldest = self.queue.pop_front();
        if let Some((descriptor, _)) = oldest {
            context.abort(descriptor);
        }
        oldest.is_some()
    }
}
