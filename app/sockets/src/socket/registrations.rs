//! The epoll instances with which a socket is registered.

use std::sync::atomic::Ordering;

use super::{Inner, Socket};

/// A reference to a registration: the number of the epoll instance's channel, and the index of the
/// registration in the instance's interest list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchRef {
    pub(crate) channel: u32,
    pub(crate) index: u32,
}

impl WatchRef {
    /// Packs the reference into a word that is never 0.
    pub(crate) const fn pack(self) -> u64 {
        (self.channel as u64) << 32 | (self.index as u64 + 1)
    }

    /// Unpacks a word of `pack`. Returns `None` for 0.
    #[inline]
    pub(crate) const fn unpack(word: u64) -> Option<Self> {
        if word == 0 {
            return None;
        }
        Some(Self {
            channel: (word >> 32) as u32,
            index: word as u32 - 1,
        })
    }
}

impl Inner {
    /// Returns all registrations of the socket.
    pub(crate) fn watches(&self, socket: &Socket) -> impl Iterator<Item = WatchRef> {
        let first = WatchRef::unpack(socket.watch.load(Ordering::Acquire));
        first.into_iter().chain(self.more_watches.iter().copied())
    }

    /// Adds a registration.
    pub(crate) fn add_watch(&mut self, socket: &Socket, watch: WatchRef) {
        if socket.watch.load(Ordering::Acquire) == 0 {
            socket.watch.store(watch.pack(), Ordering::Release);
        } else {
            self.more_watches.push(watch);
            socket.watched_more.store(true, Ordering::Release);
        }
    }

    /// Removes a registration.
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
