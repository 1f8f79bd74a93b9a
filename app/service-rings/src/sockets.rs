//! [`Sockets`]: the sockets of a context, which serves one thread. The program names each socket by
//! a number, its descriptor.

use tidelane_rings::Descriptor;

use crate::{connection::Connection, listener::Listener};

/// A socket of the program.
#[derive(Debug)]
pub enum Socket {
    Listener(Listener),
    Connection(Box<Connection>),
    /// A UDP socket: see [`Datagrams`](crate::datagrams::Datagrams).
    Datagram,
}

/// The record of a descriptor.
#[derive(Debug, Default)]
struct Place {
    /// The socket. `None` if the descriptor is free or reserved.
    socket: Option<Socket>,
    /// Number of times that this descriptor was reserved. The number is a part of the cookie, by
    /// which events of the service (the process `tidelaned`) name the socket. An event for an
    /// earlier socket of the descriptor is therefore recognised and ignored.
    uses: u32,
}

/// Sockets by descriptor. The number of a removed socket is reused.
#[derive(Debug, Default)]
pub struct Sockets {
    places: Vec<Place>,
    /// Numbers that neither have a socket nor are reserved.
    free: Vec<u32>,
    /// For each slot (record of a connection in the shared memory), the descriptor number of the
    /// connection plus one. Zero means that no connection is in the slot.
    by_slot: Vec<u32>,
}

impl Sockets {
    /// Reserves a free descriptor, whose socket [`Self::put`] sets later.
    pub fn next(&mut self) -> Descriptor {
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        self.places[number as usize].uses += 1;
        Descriptor(number)
    }

    /// Frees a reserved descriptor whose socket was not set.
    pub fn give_back(&mut self, descriptor: Descriptor) {
        self.free.push(descriptor.0);
    }

    /// Sets the socket of a descriptor.
    pub fn put(&mut self, descriptor: Descriptor, socket: Socket) {
        self.places[descriptor.0 as usize].socket = Some(socket);
    }

    /// Adds a connection. Returns its descriptor.
    pub fn add(&mut self, connection: Connection) -> Descriptor {
        let descriptor = self.next();
        self.put(descriptor, Socket::Connection(Box::new(connection)));
        descriptor
    }

    /// Returns the cookie of a descriptor, by which events of the service name its socket. Each
    /// reuse of a descriptor has another cookie.
    pub fn cookie(&self, descriptor: Descriptor) -> u64 {
        let uses = self.places[descriptor.0 as usize].uses;
        u64::from(uses) << 32 | u64::from(descriptor.0)
    }

    /// Returns the descriptor of a cookie. Returns `None` if the socket of the cookie is removed.
    pub fn of_cookie(&self, cookie: u64) -> Option<Descriptor> {
        let descriptor = Descriptor(cookie as u32);
        let place = self.places.get(descriptor.0 as usize)?;
        let is_present = place.socket.is_some() && self.cookie(descriptor) == cookie;
        is_present.then_some(descriptor)
    }

    /// Returns the socket of a descriptor.
    pub fn get(&self, descriptor: Descriptor) -> Option<&Socket> {
        self.places.get(descriptor.0 as usize)?.socket.as_ref()
    }

    /// Returns the connection of a descriptor.
    pub fn connection(&mut self, descriptor: Descriptor) -> Option<&mut Connection> {
        match self
            .places
            .get_mut(descriptor.0 as usize)?
            .socket
            .as_mut()?
        {
            Socket::Connection(connection) => Some(connection),
            Socket::Listener(_) | Socket::Datagram => None,
        }
    }

    /// Returns the listener of a descriptor.
    pub fn listener(&mut self, descriptor: Descriptor) -> Option<&mut Listener> {
        match self
            .places
            .get_mut(descriptor.0 as usize)?
            .socket
            .as_mut()?
        {
            Socket::Listener(listener) => Some(listener),
            Socket::Connection(_) | Socket::Datagram => None,
        }
    }

    /// Removes a socket, and frees its descriptor.
    pub fn remove(&mut self, descriptor: Descriptor) -> Option<Socket> {
        let place = self.places.get_mut(descriptor.0 as usize)?;
        let socket = place.socket.take()?;
        self.free.push(descriptor.0);
        Some(socket)
    }

    /// Sets or clears the descriptor of the connection in a slot of the shared memory.
    pub fn set_slot(&mut self, slot: u32, descriptor: Option<Descriptor>) {
        let slot = slot as usize;
        if slot >= self.by_slot.len() {
            self.by_slot.resize(slot + 1, 0);
        }
        self.by_slot[slot] = descriptor.map_or(0, |descriptor| descriptor.0 + 1);
    }

    /// Returns the descriptor of the connection in a slot of the shared memory.
    pub fn of_slot(&self, slot: u32) -> Option<Descriptor> {
        let found = self.by_slot.get(slot as usize).copied()?;
        found.checked_sub(1).map(Descriptor)
    }

    /// Returns the descriptors of all connections.
    pub fn connections(&self) -> Vec<Descriptor> {
        let numbered = (0..).zip(&self.places);
        numbered
            .filter(|(_, place)| matches!(place.socket, Some(Socket::Connection(_))))
            .map(|(number, _)| Descriptor(number))
            .collect()
    }
}
