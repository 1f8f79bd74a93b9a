//! Connections whose conversation is over, but whose last answers the peer may not have read.
//!
//! The close of a connection leaves its answers with the context, where they take buffers as long
//! as the peer does not read. A server therefore first closes the sending direction only, and waits
//! for a limited time until the peer closes, too. The connection can be aborted meanwhile.

use std::collections::VecDeque;

use tidelane_rings::{Context, Descriptor};

/// Limit of lingering connections. A further one ends the oldest.
const LINGERING_MAX: usize = 1024;
/// Seconds after which a connection is ended.
const LINGER_SECONDS: u64 = 30;

/// Lingering connections, oldest first.
#[derive(Debug, Default)]
pub struct Lingering {
    /// The connections, with the Unix time of their end.
    queue: VecDeque<(Descriptor, u64)>,
}

impl Lingering {
    /// Closes the sending direction of a connection after its answers, and waits for the peer.
    pub fn add(&mut self, context: &mut dyn Context, descriptor: Descriptor, unix: u64) {
        context.shutdown(descriptor);
        if self.queue.len() >= LINGERING_MAX {
            self.abort_oldest(context);
        }
        self.queue.push_back((descriptor, unix + LINGER_SECONDS));
    }

    /// Ends a connection that the peer has closed, too.
    pub fn end(&mut self, context: &mut dyn Context, descriptor: Descriptor) {
        let place = self.queue.iter().position(|(at, _)| *at == descriptor);
        if let Some((descriptor, _)) = place.and_then(|place| self.queue.remove(place)) {
            context.close(descriptor);
        }
    }

    /// Ends the connections whose time is over.
    pub fn end_old(&mut self, context: &mut dyn Context, unix: u64) {
        while self.queue.front().is_some_and(|(_, end)| *end <= unix) {
            self.abort_oldest(context);
        }
    }

    /// Aborts the oldest connection. Returns false if there is none.
    pub fn abort_oldest(&mut self, context: &mut dyn Context) -> bool {
        let oldest = self.queue.pop_front();
        if let Some((descriptor, _)) = oldest {
            context.abort(descriptor);
        }
        oldest.is_some()
    }
}
