//! The epoll instances with which a socket is registered. Each epoll instance has a channel: rings
//! over which the service (the process `tidelaned`) reports events to this process.

use std::sync::atomic::Ordering;

use super::{Inner, Socket};

/// A reference to a registration: the number of the epoll instance's channel, and the index of the
/// registration in the instance's interest list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegistrationRef {
    /// Number of the channel of the epoll instance.
    pub(crate) channel: u32,
    /// Index of the registration in the interest list of the instance.
    pub(crate) index: u32,
}

impl RegistrationRef {
    /// Packs the reference into a word that is not 0.
    pub(crate) const fn pack(self) -> u64 {
        (self.channel as u64) << 32 | (self.index as u64 + 1)
    }

    /// Unpacks a word that `pack` returned. Returns `None` for 0.
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
    pub(crate) fn registrations(&self, socket: &Socket) -> impl Iterator<Item = RegistrationRef> {
        let first = RegistrationRef::unpack(socket.registration.load(Ordering::Acquire));
        first
            .into_iter()
            .chain(self.more_registrations.iter().copied())
    }

    /// Adds a registration. The first registration is in `Socket::registration`, which a thread
    /// that handles events reads without the socket's lock.
    pub(crate) fn add_registration(&mut self, socket: &Socket, registration: RegistrationRef) {
        if socket.registration.load(Ordering::Acquire) == 0 {
            socket
                .registration
                .store(registration.pack(), Ordering::Release);
        } else {
            self.more_registrations.push(registration);
            socket.has_more_registrations.store(true, Ordering::Release);
        }
    }

    /// Removes a registration.
    pub(crate) fn remove_registration(&mut self, socket: &Socket, registration: RegistrationRef) {
        if socket.registration.load(Ordering::Acquire) == registration.pack() {
            let next = self.more_registrations.pop();
            socket
                .registration
                .store(next.map_or(0, RegistrationRef::pack), Ordering::Release);
        } else {
            self.more_registrations
                .retain(|other| *other != registration);
        }
        socket
            .has_more_registrations
            .store(!self.more_registrations.is_empty(), Ordering::Release);
    }
}
