//! [`DirectContext`]: the sockets of one thread, with the calls of the ring API (`tidelane-rings`).
//! A [`Cycle`] does the work of the calls: it receives, runs TCP and sends.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::BorrowedFd,
    rc::Rc,
};

use tidelane_embedded::{Addresses, Drops, EphemeralPorts, LinkAddresses};
use tidelane_engine::{
    Counters, Endpoint, Engine, FlowInfo, FlowKey, Instant, IpAddress, ListenError, OpenError,
    SocketOptions,
};
use tidelane_packet_io::PacketIo;
use tidelane_rings::{
    Buffer, Context, Descriptor, ListenOptions, Pool, ReadyList, SendError, SendRefusal, Wait,
};
use tidelane_wire::MacAddress;

use crate::{
    connection::Ending,
    counters::DirectCounters,
    cycle::Cycle,
    datagrams::OutgoingDatagram,
    descriptors::{Descriptors, Listener, Socket},
    input::Input,
    io::Io,
    ip::{address_of, endpoint},
    loans_unsafe::{Loans, SentBuffer},
    options::DirectOptions,
    segment_writer::HEADERS_LEN_MAX,
    time::TimeSource,
};

/// Longest payload of a UDP datagram over IPv4, in bytes.
const DATAGRAM_MAX: usize = 65_507;
/// Headroom for protocol headers before the payload of an allocated buffer, in bytes.
const HEADROOM: u32 = HEADERS_LEN_MAX as u32;

/// TCP and UDP sockets for one thread, on a port: a packet interface that the program owns, such as
/// a queue of a NIC. The TCP engine runs in the program's thread.
///
/// Dropping a context resets its connections.
pub struct DirectContext<P: PacketIo> {
    cycle: Cycle<P>,
    /// Chooses the local ports of connections and UDP sockets.
    ephemeral_ports: EphemeralPorts,
    /// Options of all connections.
    options: SocketOptions,
}

impl<P: PacketIo> DirectContext<P> {
    /// Opens a context on `port`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for impossible options. Otherwise, the errors of `mmap`.
    pub fn open(
        options: &DirectOptions,
        mut port: P,
        time: impl TimeSource<P> + 'static,
    ) -> io::Result<Self> {
        let stack = &options.stack;
        let checked = stack.engine.check();
        checked.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
        let loans = Loans::open(&mut port, HEADROOM, || {
            Pool::with_headroom(options.buffers, options.buffer_len, HEADROOM)
        })?;
        if loans.pool().buffer_len() > stack.engine.tx_limit {
            let message = "a buffer is longer than tx_limit";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let addresses = Addresses::new(stack.addresses.clone(), stack.shared_addresses);
        let link = LinkAddresses::new(stack.mac, stack.gateway);
        Ok(Self {
            cycle: Cycle {
                engine: Engine::new(stack.engine.clone(), stack.secret),
                input: Input::new(&port, addresses),
                io: Io::new(port, loans, link, options.mtu),
                now: time.now(),
                time: Box::new(time),
                descriptors: Descriptors::default(),
                listeners: HashMap::new(),
                listeners_to_accept: Vec::new(),
                dirty: Vec::new(),
                send_queue_max: options.send_queue_max.max(1),
            },
            ephemeral_ports: EphemeralPorts::new(u16::from_be_bytes([
                stack.secret[0],
                stack.secret[1],
            ])),
            options: stack.options,
        })
    }

    /// Sets the link address `mac` of the next hop for the IP address `addr`. The next hop is a
    /// neighbour, or the router to `addr`. A peer that sends first needs no entry, because answers
    /// without an entry go to the source link address of the peer's frame.
    pub fn set_neighbour(&mut self, addr: IpAddress, mac: MacAddress) {
        self.cycle.io.link.set_neighbour(addr, mac);
    }

    /// Returns true if the link address of the next hop to `peer` is known, as [`Context::connect`]
    /// requires.
    pub fn is_reachable(&self, peer: IpAddress) -> bool {
        self.cycle.io.link.next_hop(peer).is_some()
    }

    /// Starts a connection to `peer` like [`Context::connect`], from the local port `port` and
    /// through the next hop with the link address `next_hop`.
    ///
    /// # Errors
    ///
    /// The errors of [`Context::connect`]. `AddrInUse` if the port already has a connection to
    /// `peer`, or is blocked for `peer` by a connection in TIME-WAIT.
    pub fn connect_from(
        &mut self,
        port: u16,
        peer: SocketAddr,
        next_hop: MacAddress,
    ) -> io::Result<Descriptor> {
        let (local, peer) = (self.local_address(peer)?, endpoint(peer));
        self.cycle.tick();
        let link = &mut self.cycle.io.link;
        let before = link.replace_neighbour(peer.addr, Some(next_hop));
        let opened = self.open_connection(Endpoint::new(local, port), peer);
        // Restore the previous entry: the connection has copied the link address to its header
        // template.
        let link = &mut self.cycle.io.link;
        link.replace_neighbour(peer.addr, before);
        opened
    }

    /// Returns true if [`Self::connect_from`] can connect from local port `port` to `peer`.
    pub fn is_port_free(&mut self, port: u16, peer: SocketAddr) -> bool {
        let Ok(local) = self.local_address(peer) else {
            return false;
        };
        self.cycle.tick();
        let (local, peer) = (Endpoint::new(local, port), endpoint(peer));
        self.cycle
            .engine
            .is_free(self.cycle.now, &FlowKey { local, peer })
    }

    /// Queues a datagram as [`Context::send_to`] does. `next_hop` is the link address of the next
    /// hop to `peer`, or `None` if the caller does not know the address. If `peer` has recently
    /// sent a datagram to the socket, the datagram goes to the source link address of the peer's
    /// frame instead. An address that [`Self::set_neighbour`] has set for `peer` has precedence
    /// over both.
    ///
    /// # Errors
    ///
    /// The errors of [`Context::send_to`].
    pub fn send_to_via(
        &mut self,
        descriptor: Descriptor,
        buffer: Buffer,
        peer: SocketAddr,
        next_hop: Option<MacAddress>,
    ) -> Result<(), SendError> {
        let queue_max = self.cycle.send_queue_max;
        let datagrams = &mut self.cycle.io.datagrams;
        let id = self.cycle.descriptors.datagram_socket(descriptor);
        let socket = id.and_then(|id| datagrams.get_mut(id));
        let Some((id, socket)) = id.zip(socket) else {
            let refusal = SendRefusal::NotConnected;
            return Err(SendError { buffer, refusal });
        };
        let refusal = if buffer.len() > DATAGRAM_MAX {
            SendRefusal::TooLong
        } else if socket.refuses_send(queue_max) {
            SendRefusal::Full
        } else {
            let datagram = OutgoingDatagram {
                peer: endpoint(peer),
                buffer: SentBuffer::new(buffer, &self.cycle.io.loans),
                next_hop,
            };
            datagrams.queue(id, datagram);
            return Ok(());
        };
        Err(SendError { buffer, refusal })
    }

    /// Returns true if `peer` has recently sent a datagram to the UDP socket, so that the socket
    /// knows the link address for answers to `peer`.
    pub fn knows_sender(&mut self, descriptor: Descriptor, peer: IpAddr) -> bool {
        let id = self.cycle.descriptors.datagram_socket(descriptor);
        let socket = id.and_then(|id| self.cycle.io.datagrams.get_mut(id));
        socket.is_some_and(|socket| socket.sender_mac(address_of(peer)).is_some())
    }

    /// Returns the context's local addresses.
    pub fn addresses(&self) -> &Addresses {
        self.cycle.input.addresses()
    }

    /// Returns the local address for connections to `peer`.
    ///
    /// # Errors
    ///
    /// `AddrNotAvailable` if the context has no address of this IP version.
    pub fn local_address(&self, peer: SocketAddr) -> io::Result<IpAddress> {
        let address = self.cycle.input.addresses().first_for(endpoint(peer).addr);
        address.ok_or_else(|| {
            let message = format!("the context has no address of the IP version of {peer}");
            io::Error::new(io::ErrorKind::AddrNotAvailable, message)
        })
    }

    /// Starts a connection between two endpoints.
    fn open_connection(&mut self, local: Endpoint, peer: Endpoint) -> io::Result<Descriptor> {
        if !self.is_reachable(peer.addr) {
            let message = format!(
                "the link address of {} is unknown; set the neighbour's address or a router",
                peer.addr
            );
            return Err(io::Error::new(io::ErrorKind::HostUnreachable, message));
        }
        let (now, route, options) = (self.cycle.now, self.cycle.io.flow_route(), self.options);
        let opened = self
            .cycle
            .engine
            .open(now, local, peer, route, options, &mut self.cycle.io);
        let flow = opened.map_err(|error| match error {
            OpenError::InUse => io::Error::from(io::ErrorKind::AddrInUse),
            OpenError::Full => io::Error::other(error),
            OpenError::BadEndpoint => io::ErrorKind::InvalidInput.into(),
        })?;
        let descriptor = self.cycle.descriptors.add(Socket::Connection(flow));
        if let Some(connection) = self.cycle.io.connection_mut(flow) {
            connection.descriptor = Some(descriptor);
        }
        Ok(descriptor)
    }

    /// Returns the port. The context does not see frames that the program itself receives or sends
    /// on the port.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.cycle.io.port
    }

    /// Returns the counters of the context.
    pub fn counters(&self) -> DirectCounters {
        self.cycle.io.counters
    }

    /// Returns the counters of TCP.
    pub fn tcp_counters(&self) -> Counters {
        self.cycle.engine.counters()
    }

    /// Returns the numbers of dropped packets, indexed by [`DropReason::index`].
    ///
    /// [`DropReason::index`]: tidelane_wire::DropReason::index
    pub fn drops(&self) -> &Drops {
        &self.cycle.io.drops
    }

    /// Returns the TCP state of a connection, for statistics.
    pub fn info(&self, descriptor: Descriptor) -> Option<FlowInfo> {
        self.cycle
            .engine
            .info(self.cycle.descriptors.flow(descriptor)?)
    }

    /// Returns the TCP state of each connection. Connections that the program has closed or has not
    /// yet accepted are included. Connections in TIME-WAIT are not included.
    pub fn flows(&self) -> impl Iterator<Item = FlowInfo> {
        let engine = &self.cycle.engine;
        engine.flows().filter_map(|flow| engine.info(flow))
    }

    /// Returns the time at which the next timer expires, or `None` if no timer runs.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.cycle.engine.next_timeout()
    }

    /// Returns true if the engine has no connection. Connections that the program has closed count
    /// until they end. Connections in TIME-WAIT do not count.
    pub fn has_no_connections(&self) -> bool {
        self.cycle.engine.is_empty()
    }
}

impl<P: PacketIo> Context for DirectContext<P> {
    fn pool(&self) -> &Pool {
        self.cycle.io.supply.pool()
    }

    fn listen(&mut self, local: SocketAddr, options: &ListenOptions) -> io::Result<Descriptor> {
        let local = endpoint(local);
        if !local.addr.is_unspecified() && !self.cycle.input.addresses().has(local.addr) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let opened = self
            .cycle
            .engine
            .listen(local, options.backlog, self.options);
        let id = opened.map_err(|error| match error {
            ListenError::InUse => io::Error::from(io::ErrorKind::AddrInUse),
            ListenError::Full => io::Error::other(error),
            ListenError::BadEndpoint => io::ErrorKind::InvalidInput.into(),
        })?;
        let descriptor = self.cycle.descriptors.add(Socket::Listener(Listener {
            id,
            queue: Default::default(),
            is_paused: false,
        }));
        self.cycle.listeners.insert(id, descriptor);
        Ok(descriptor)
    }

    fn connect(&mut self, peer: SocketAddr) -> io::Result<Descriptor> {
        let (address, peer) = (self.local_address(peer)?, endpoint(peer));
        self.cycle.tick();
        let is_free = |port| {
            let local = Endpoint::new(address, port);
            self.cycle
                .engine
                .is_free(self.cycle.now, &FlowKey { local, peer })
        };
        let port = self.ephemeral_ports.choose(is_free);
        let local = Endpoint::new(address, port.ok_or(io::ErrorKind::AddrInUse)?);
        self.open_connection(local, peer)
    }

    /// Opens a UDP socket. `local` is an address of the context, or the unspecified address of an
    /// IP version. Port 0 selects a free port.
    fn bind(&mut self, local: SocketAddr) -> io::Result<Descriptor> {
        let mut local = endpoint(local);
        if !local.addr.is_unspecified() && !self.cycle.input.addresses().has(local.addr) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let datagrams = &mut self.cycle.io.datagrams;
        if local.port == 0 {
            let port = self
                .ephemeral_ports
                .choose(|port| datagrams.is_port_free(port));
            local.port = port.ok_or(io::ErrorKind::AddrInUse)?;
        }
        let id = datagrams.open(local).ok_or(io::ErrorKind::AddrInUse)?;
        let descriptor = self.cycle.descriptors.add(Socket::Datagram(id));
        if let Some(socket) = self.cycle.io.datagrams.get_mut(id) {
            socket.descriptor = Some(descriptor);
        }
        Ok(descriptor)
    }

    /// Queues a datagram. The context does not fragment IP packets: a datagram beyond the MTU fails
    /// with the event SEND_FAILED.
    fn send_to(
        &mut self,
        descriptor: Descriptor,
        buffer: Buffer,
        peer: SocketAddr,
    ) -> Result<(), SendError> {
        self.send_to_via(descriptor, buffer, peer, None)
    }

    fn send(&mut self, descriptor: Descriptor, buffer: Buffer) -> Result<(), SendError> {
        if let Some(refusal) = self.cycle.refusal(descriptor, buffer.len() as u32) {
            return Err(SendError { buffer, refusal });
        }
        let loans = Rc::clone(&self.cycle.io.loans);
        if !buffer.is_empty()
            && let Some(flow) = self.cycle.descriptors.flow(descriptor)
            && let Some(connection) = self.cycle.io.connection_mut(flow)
        {
            connection.tx.push(SentBuffer::new(buffer, &loans));
            self.cycle.mark_dirty(flow);
        }
        Ok(())
    }

    fn sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        list.clear();
        self.cycle.transmit();
        self.cycle.receive(list, wait)
    }

    fn tx_sync(&mut self) -> io::Result<()> {
        self.cycle.transmit();
        Ok(())
    }

    fn rx_sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        list.clear();
        self.cycle.receive(list, wait)
    }

    fn pause(&mut self, descriptor: Descriptor) {
        if let Some(listener) = self.cycle.descriptors.listener_mut(descriptor) {
            listener.is_paused = true;
        } else if let Some(flow) = self.cycle.descriptors.flow(descriptor)
            && let Some(connection) = self.cycle.io.connection_mut(flow)
        {
            connection.is_paused = true;
        } else if let Some(id) = self.cycle.descriptors.datagram_socket(descriptor)
            && let Some(socket) = self.cycle.io.datagrams.get_mut(id)
        {
            socket.is_paused = true;
        }
    }

    fn resume(&mut self, descriptor: Descriptor) -> io::Result<()> {
        if let Some(listener) = self.cycle.descriptors.listener_mut(descriptor) {
            listener.is_paused = false;
            self.cycle.listeners_to_accept.push(descriptor);
        } else if let Some(flow) = self.cycle.descriptors.flow(descriptor)
            && let Some(connection) = self.cycle.io.connection_mut(flow)
        {
            connection.is_paused = false;
            self.cycle.io.mark_ready(flow);
        } else if let Some(id) = self.cycle.descriptors.datagram_socket(descriptor)
            && let Some(socket) = self.cycle.io.datagrams.get_mut(id)
        {
            socket.is_paused = false;
            self.cycle.io.datagrams.mark_ready(id);
        }
        Ok(())
    }

    fn shutdown(&mut self, descriptor: Descriptor) {
        if let Some(flow) = self.cycle.descriptors.flow(descriptor)
            && let Some(connection) = self.cycle.io.connection_mut(flow)
        {
            connection.is_shut_down = true;
            self.cycle.mark_dirty(flow);
        }
    }

    fn close(&mut self, descriptor: Descriptor) {
        self.cycle.end(descriptor, Ending::Close);
    }

    fn abort(&mut self, descriptor: Descriptor) {
        self.cycle.end(descriptor, Ending::Abort);
    }

    fn is_open(&self, descriptor: Descriptor) -> bool {
        self.cycle.descriptors.has(descriptor)
    }

    /// Returns `None`, because the kernel has no sockets for these connections.
    fn socket(&self, _descriptor: Descriptor) -> Option<BorrowedFd<'_>> {
        None
    }

    fn system_calls(&self) -> u64 {
        self.cycle.io.counters.waits + self.cycle.io.port.system_calls()
    }
}
