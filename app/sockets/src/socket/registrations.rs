//! The epoll instances with which a socket is registered. Each epoll instance has a channel: rings
//! over which the service (the process `tidelaned`) reports events to this process.

use std::sync::atomic::Ordering;

use super::{Inner, Socket, registration_ref::RegistrationRef};

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
