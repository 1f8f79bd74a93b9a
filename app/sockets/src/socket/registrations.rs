//! With which epoll instances a socket is registered. What each wants is theirs to know.

use std::sync::atomic::Ordering;

use super::{Inner, Socket};

/// A registration's place: which lane, which of its watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchRef {
    pub(crate) lane: u32,
    pub(crate) index: u32,
}

impl WatchRef {
    /// In one word that is never 0.
    pub(crate) const fn pack(self) -> u64 {
        (self.lane as u64) << 32 | (self.index as u64 + 1)
    }

    /// The reverse of `pack`; None for 0.
    #[inline]
    pub(crate) const fn unpack(word: u64) -> Option<Self> {
        if word == 0 {
            return None;
        }
        Some(Self {
            lane: (word >> 32) as u32,
            index: word as u32 - 1,
        })
    }
}

impl Inner {
    /// All registrations of the socket.
    pub(crate) fn watches(&self, socket: &Socket) -> impl Iterator<Item = WatchRef> {
        let first = WatchRef::unpack(socket.watch.load(Ordering::Acquire));
        first.into_iter().chain(self.more_watches.iter().copied())
    }

    /// Remembers a registration.
    pub(crate) fn add_watch(&mut self, socket: &Socket, watch: WatchRef) {
        if socket.watch.load(Ordering::Acquire) == 0 {
            socket.watch.store(watch.pack(), Ordering::Release);
        } else {
            self.more_watches.push(watch);
            socket.watched_more.store(true, Ordering::Release);
        }
    }

    /// Forgets a registration.
    pub(crate) fn remove_watch(&mut self, socket: &Socket, watch: WatchRef) {
        if socket.watch.load(Ordering::Acquire) == watch.pack() {
            let next = self.more_watches.pop();
            socket
                .watch
                .store(next.map_or(0, WatchRef::pack), Ordering::Release);
        } else {
            self.more_watches.retain(|other| *other != watch);
        }
        socket
            .watched_more
            .store(!self.more_watches.is_empty(), Ordering::Release);
    }
}
