//! [`Sockets`]: the table of the sockets of a context (all sockets of one thread). The index in the
//! table is the descriptor, the number by which the program names a socket.

use std::os::fd::OwnedFd;

use tidelane_rings::Descriptor;

use crate::socket::{Phase, Socket};

/// Sockets, indexed by descriptor. The number of a removed socket is reused.
#[derive(Debug, Default)]
pub struct Sockets {
    places: Vec<Option<Socket>>,
    /// Indices of `places` without a socket.
    free: Vec<u32>,
}

impl Sockets {
    /// Adds a socket. Returns its descriptor.
    pub fn add(&mut self, fd: OwnedFd, phase: Phase) -> Descriptor {
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[number as usize] = Some(Socket::new(fd, phase));
        Descriptor(number)
    }

    /// Returns the socket of a descriptor.
    pub fn get(&self, descriptor: Descriptor) -> Option<&Socket> {
        self.places.get(descriptor.0 as usize)?.as_ref()
    }

    /// Returns the socket of a descriptor, mutably.
    pub fn get_mut(&mut self, descriptor: Descriptor) -> Option<&mut Socket> {
        self.places.get_mut(descriptor.0 as usize)?.as_mut()
    }

    /// If the program and the kernel have finished with the socket ([`Socket::is_over`]), removes
    /// the socket and frees its number.
    pub fn remove_if_over(&mut self, descriptor: Descriptor) {
        if self.get(descriptor).is_some_and(Socket::is_over) {
            self.places[descriptor.0 as usize] = None;
            self.free.push(descriptor.0);
        }
    }

    /// Drops the queued data of all sockets.
    pub fn drop_queues(&mut self) {
        self.places
            .iter_mut()
            .flatten()
            .for_each(Socket::drop_queue);
    }
}
