//! [`Connections`]: the sockets of a context, which serves one thread, and the lists of connections
//! with pending work. The service (the process `tidelaned`) runs TCP for these connections.

use std::{net::SocketAddr, rc::Rc};

use tidelane_abi::{ROUTE_KERNEL, ROUTE_WITHIN_HOST, program_flags};
use tidelane_client::{ClientEvent, Connect, Context as Rings, Program};
use tidelane_rings::{Buffer, Cause, Descriptor, ReadyList, SendError, SendRefusal};

use crate::{
    cause::cause_of,
    connection::Connection,
    error::ServiceError,
    lent_stream_unsafe::{LentStream, Returned},
    options::ServiceOptions,
    sockets::{Socket, Sockets},
};

/// Flags of new connections: segments are sent without delay (TCP_NODELAY).
const FLAGS: u32 = program_flags::NODELAY;

/// The sockets of a context.
#[derive(Debug)]
pub struct Connections {
    program: Program,
    options: ServiceOptions,
    pub sockets: Sockets,
    /// Keys (descriptor numbers) of the streams to which the program has returned buffers.
    returned: Rc<Returned>,
    /// Connections with a pending shutdown or close, or with data to publish (show to the service).
    dirty: Vec<Descriptor>,
    /// Connections for which [`Self::report`] has to check for events.
    marked: Vec<Descriptor>,
    /// Connections that wait for memory for a send buffer.
    starved: Vec<Descriptor>,
    /// Number of copies of payload.
    copies: u64,
    /// Reused memory for `dirty` and `marked` while their entries are processed.
    work: Vec<Descriptor>,
    /// Reused memory for `returned` while its keys are processed.
    keys: Vec<u32>,
}

impl Connections {
    /// Returns the sockets of a new context.
    pub fn new(program: Program, options: ServiceOptions) -> Self {
        Self {
            program,
            options,
            sockets: Sockets::default(),
            returned: Rc::default(),
            dirty: Vec::new(),
            marked: Vec::new(),
            starved: Vec::new(),
            copies: 0,
            work: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Returns the number of copies of payload.
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// Returns true if [`Self::transmit`] is needed.
    pub fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Returns true if a connection lacks memory for its send buffer.
    pub fn has_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// Adds a connection to `peer`. Returns its descriptor, and the request that the caller has to
    /// send to the service.
    pub fn open(&mut self, peer: SocketAddr) -> Result<(Descriptor, Connect), ServiceError> {
        let peer_addr = match peer {
            SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped().octets(),
            SocketAddr::V6(v6) => v6.ip().octets(),
        };
        if self.program.service_known_gone() {
            return Err(ServiceError::Gone);
        }
        let route = self.program.route(peer_addr);
        let stays = route == ROUTE_WITHIN_HOST && !self.program.wants_within_host();
        if route == ROUTE_KERNEL || stays {
            return Err(ServiceError::NoRoute(peer));
        }
        let descriptor = self.sockets.add(Connection::opening());
        let request = Connect {
            cookie: self.sockets.cookie(descriptor),
            peer_addr,
            peer_port: peer.port(),
            flags: FLAGS,
            ..Connect::default()
        };
        Ok((descriptor, request))
    }

    /// Schedules a connection for [`Self::transmit`].
    pub fn mark_dirty(&mut self, descriptor: Descriptor) {
        if let Some(connection) = self.sockets.connection(descriptor)
            && !std::mem::replace(&mut connection.is_dirty, true)
        {
            self.dirty.push(descriptor);
        }
    }

    /// Schedules a connection for [`Self::report`].
    pub fn mark(&mut self, descriptor: Descriptor) {
        if let Some(connection) = self.sockets.connection(descriptor)
            && !std::mem::replace(&mut connection.is_marked, true)
        {
            self.marked.push(descriptor);
        }
    }

    /// Returns a part of the connection's send buffer as the first value, or `None`. The second
    /// value is true if the caller should take a buffer of the pool instead: for a UDP socket, or
    /// because the connection is not yet established.
    pub fn allocate(&mut self, descriptor: Descriptor) -> (Option<Buffer>, bool) {
        let Some(connection) = self.sockets.connection(descriptor) else {
            let is_datagram = matches!(self.sockets.get(descriptor), Some(Socket::Datagram));
            return (None, is_datagram);
        };
        if connection.is_opening() {
            return (None, true);
        }
        let (buffer, lacks_memory) = connection.allocate(&self.options);
        if lacks_memory && !std::mem::replace(&mut connection.is_starved, true) {
            self.starved.push(descriptor);
        }
        (buffer, false)
    }

    /// Returns the limit of the number of buffers that wait for sending on one descriptor.
    pub fn send_queue_max(&self) -> usize {
        self.options.send_queue_max
    }

    /// Writes or queues data of a connection.
    pub fn send(&mut self, descriptor: Descriptor, buffer: Buffer) -> Result<(), SendError> {
        let Some(connection) = self.sockets.connection(descriptor) else {
            let refusal = SendRefusal::NotConnected;
            return Err(SendError { buffer, refusal });
        };
        let queue_max = self.options.send_queue_max;
        match connection.send(buffer, queue_max, &mut self.copies) {
            Ok(()) => {
                self.mark_dirty(descriptor);
                Ok(())
            }
            Err((buffer, refusal)) => Err(SendError { buffer, refusal }),
        }
    }

    /// Processes the buffers that the program has returned to streams.
    pub fn collect(&mut self, rings: &mut Rings) {
        let mut keys = std::mem::take(&mut self.keys);
        self.returned.swap(&mut keys);
        for key in keys.drain(..) {
            let descriptor = Descriptor(key);
            let Some(connection) = self.sockets.connection(descriptor) else {
                continue;
            };
            if connection.collect(rings) {
                self.mark_dirty(descriptor);
            }
            self.mark(descriptor);
        }
        self.keys = keys;
    }

    /// Publishes written data, and performs shutdowns and closes.
    pub fn transmit(&mut self, rings: &mut Rings) {
        let mut work = std::mem::take(&mut self.work);
        std::mem::swap(&mut work, &mut self.dirty);
        for descriptor in work.drain(..) {
            let Some(connection) = self.sockets.connection(descriptor) else {
                continue;
            };
            connection.is_dirty = false;
            let slot = connection.stream().map(|stream| stream.slot());
            let has_ended = connection.transmit(rings, &mut self.copies);
            if connection.lacks_memory() && !std::mem::replace(&mut connection.is_starved, true) {
                self.starved.push(descriptor);
            }
            if has_ended {
                if let Some(slot) = slot {
                    self.sockets.set_slot(slot, None);
                }
                self.sockets.remove(descriptor);
            }
        }
        self.work = work;
    }

    /// Processes an event of the service.
    pub fn handle(&mut self, rings: &mut Rings, event: ClientEvent, list: &mut ReadyList) {
        match event {
            ClientEvent::Ready { slot } => {
                if let Some(descriptor) = self.sockets.of_slot(slot) {
                    self.mark(descriptor);
                }
            }
            ClientEvent::Accepted {
                cookie,
                listener,
                slot,
                generation,
            } => {
                rings.accept_taken(listener, slot);
                let listening = self.sockets.of_cookie(cookie);
                let added = self.add_stream(rings, (slot, generation), None);
                match (listening, added) {
                    (Some(listening), Some(descriptor)) => {
                        list.add_accepted(descriptor, listening);
                    }
                    (None, Some(descriptor)) => self.close(descriptor, true),
                    (_, None) => {}
                }
            }
            ClientEvent::ConnectStarted {
                cookie,
                slot,
                generation,
                ..
            } => {
                let opening = self.sockets.of_cookie(cookie);
                if let Some(descriptor) = self.add_stream(rings, (slot, generation), opening)
                    && opening.is_none()
                {
                    self.close(descriptor, true);
                }
            }
            ClientEvent::ConnectFailed { cookie, cause } => {
                self.fail_open(cookie, cause_of(cause).unwrap_or(Cause::Other), list);
            }
            ClientEvent::ConnectKernel { cookie, .. } => {
                self.fail_open(cookie, Cause::Unreachable, list);
            }
            ClientEvent::Released { .. } => {}
        }
    }

    /// Creates the stream of a new connection in `slot` (its record in the shared memory).
    /// `opening` is the descriptor of a connect. If `opening` is `None`, this function adds a
    /// descriptor, for an accepted connection or for a connect whose descriptor is gone. Returns
    /// the descriptor, or `None` if the slot number from the service is invalid.
    fn add_stream(
        &mut self,
        rings: &mut Rings,
        (slot, generation): (u32, u32),
        opening: Option<Descriptor>,
    ) -> Option<Descriptor> {
        let is_accepted = opening.is_none();
        let flags = FLAGS | if is_accepted { program_flags::TAKEN } else { 0 };
        let stream = self.program.stream(slot, generation, flags)?;
        let descriptor = opening.unwrap_or_else(|| self.sockets.add(Connection::opening()));
        let stream = LentStream::new(stream, descriptor.0, &self.returned);
        stream.submit(rings);
        match self.sockets.connection(descriptor) {
            Some(connection) if is_accepted => *connection = Connection::accepted(stream),
            Some(connection) => connection.set_stream(stream),
            None => return None,
        }
        self.sockets.set_slot(slot, Some(descriptor));
        self.mark(descriptor);
        self.mark_dirty(descriptor);
        Some(descriptor)
    }

    /// Ends a connect that has failed. Adds the event CLOSED to the list, unless the program has
    /// closed the descriptor.
    fn fail_open(&mut self, cookie: u64, cause: Cause, list: &mut ReadyList) {
        let Some(descriptor) = self.sockets.of_cookie(cookie) else {
            return;
        };
        if let Some(connection) = self.sockets.connection(descriptor) {
            connection.fail();
            if connection.is_open() {
                list.add_closed(descriptor, cause);
            }
            self.mark_dirty(descriptor);
        }
    }

    /// Adds the events of all marked connections to the list.
    pub fn report(&mut self, list: &mut ReadyList) {
        // Report each connection once, even if the report schedules the connection again.
        let mut work = std::mem::take(&mut self.work);
        std::mem::swap(&mut work, &mut self.marked);
        for descriptor in work.drain(..) {
            let Some(connection) = self.sockets.connection(descriptor) else {
                continue;
            };
            connection.is_marked = false;
            if connection.report_events(descriptor, &self.options, list, &mut self.copies) {
                self.mark_dirty(descriptor);
            }
        }
        self.work = work;
    }

    /// Frees the send buffers of idle connections, and lets starved connections try again.
    pub fn retry_starved(&mut self, rings: &mut Rings) {
        if self.starved.is_empty() {
            return;
        }
        self.trim(rings);
        for descriptor in std::mem::take(&mut self.starved) {
            if let Some(connection) = self.sockets.connection(descriptor) {
                connection.is_starved = false;
            }
            self.mark(descriptor);
            self.mark_dirty(descriptor);
        }
    }

    /// Reports the ends of the connections after the end of the service. The end of a paused
    /// connection is usually not reported before the program resumes the connection. Returns true
    /// if the list has a new entry.
    pub fn end_all(&mut self, list: &mut ReadyList) -> bool {
        let before = list.len();
        for descriptor in self.sockets.connections() {
            let Some(connection) = self.sockets.connection(descriptor) else {
                continue;
            };
            if connection.stream().is_some() {
                self.mark(descriptor);
                continue;
            }
            self.fail_open(self.sockets.cookie(descriptor), Cause::Other, list);
        }
        self.report(list);
        list.len() > before
    }

    /// Frees the send buffers of idle connections.
    pub fn trim(&mut self, rings: &mut Rings) {
        let sockets = &mut self.sockets;
        rings.trim(&mut |slot| {
            let descriptor = sockets.of_slot(slot);
            let connection = descriptor.and_then(|descriptor| sockets.connection(descriptor));
            let stream = connection.and_then(|connection| connection.stream());
            stream.is_none_or(|stream| stream.trim())
        });
    }

    /// Closes a connection after its queued data. If `abort` is true, resets the connection.
    pub fn close(&mut self, descriptor: Descriptor, abort: bool) {
        if let Some(connection) = self.sockets.connection(descriptor) {
            connection.close(abort);
            self.mark_dirty(descriptor);
        }
    }

    /// Removes a listener and returns it. Returns `None` if the descriptor is not a listener.
    pub fn take_listener(&mut self, descriptor: Descriptor) -> Option<crate::listener::Listener> {
        self.sockets.listener(descriptor)?;
        match self.sockets.remove(descriptor)? {
            Socket::Listener(listener) => Some(listener),
            Socket::Connection(_) | Socket::Datagram => None,
        }
    }
}
