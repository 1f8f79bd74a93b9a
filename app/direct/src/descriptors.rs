//! [`Descriptors`]: the sockets of a context by descriptor. A context has the sockets of one
//! thread. A descriptor is the number by which the program names a socket.

use std::collections::VecDeque;

use tidelane_engine::{FlowId, ListenerId};
use tidelane_rings::Descriptor;

use crate::datagrams::DatagramSocketId;

/// A TCP listener of the program, with its accept queue.
#[derive(Debug)]
pub struct Listener {
    /// The engine's listener.
    pub id: ListenerId,
    /// Accept queue: established connections that the program has not accepted. As in Linux, the
    /// maximum length of the queue is the backlog plus one.
    pub queue: VecDeque<FlowId>,
    /// True while the program has paused accepting.
    pub is_paused: bool,
}

/// A socket of the program.
#[derive(Debug)]
pub enum Socket {
    /// A TCP listener.
    Listener(Listener),
    /// A TCP connection, by the engine's number.
    Connection(FlowId),
    /// A UDP socket, by its number.
    Datagram(DatagramSocketId),
}

/// Sockets by descriptor. The number of a removed socket is reused.
#[derive(Debug, Default)]
pub struct Descriptors {
    places: Vec<Option<Socket>>,
    /// Numbers without a socket, for reuse.
    free: Vec<u32>,
}

impl Descriptors {
    /// Adds a socket. Returns its descriptor.
    pub fn add(&mut self, socket: Socket) -> Descriptor {
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[number as usize] = Some(socket);
        Descriptor(number)
    }

    /// Removes and returns a socket, and frees its descriptor. Returns `None` if the descriptor is
    /// not in use.
    pub fn remove(&mut self, descriptor: Descriptor) -> Option<Socket> {
        let removed = self.places.get_mut(descriptor.0 as usize)?.take();
        if removed.is_some() {
            self.free.push(descriptor.0);
        }
        removed
    }

    /// Returns the engine's number of a connection. Returns `None` if the descriptor is not that of
    /// a connection.
    pub fn flow(&self, descriptor: Descriptor) -> Option<FlowId> {
        match self.places.get(descriptor.0 as usize)? {
            Some(Socket::Connection(flow)) => Some(*flow),
            _ => None,
        }
    }

    /// Returns the number of a UDP socket. Returns `None` if the descriptor is not that of a UDP
    /// socket.
    pub fn datagram_socket(&self, descriptor: Descriptor) -> Option<DatagramSocketId> {
        match self.places.get(descriptor.0 as usize)? {
            Some(Socket::Datagram(id)) => Some(*id),
            _ => None,
        }
    }

    /// Returns a listener, mutably. Returns `None` if the descriptor is not that of a listener.
    pub fn listener_mut(&mut self, descriptor: Descriptor) -> Option<&mut Listener> {
        match self.places.get_mut(descriptor.0 as usize)? {
            Some(Socket::Listener(listener)) => Some(listener),
            _ => None,
        }
    }

    /// Returns true if the descriptor is in use.
    pub fn has(&self, descriptor: Descriptor) -> bool {
        let place = self.places.get(descriptor.0 as usize);
        place.is_some_and(Option::is_some)
    }
}
