//! The stack as a program uses it: listeners, connections, events and the event loop.

use tidelane_engine::{
    Arrival, Counters, Endpoint, Engine, FlowId, FlowInfo, FlowKey, FlowRoute, Instant, IpAddress,
    LinkId, ListenError, ListenerId, OpenError, SocketOptions,
};
use tidelane_packet_io::{BURST_MAX, Burst, PacketIo};
use tidelane_wire::{
    DropReason, MacAddress, Packet, TCP_HEADER_LEN, parse_frame, parse_icmp_error,
    parse_icmpv6_error, parse_tcp, protocol, tcp_checksum_ok,
};

use crate::{
    fn_port::ether_type,
    handles::{Connection, Event, Listener, StackConfig},
    io::{Binding, Drops, Io, Report},
    options::{OPTION_LEN_MAX, OptionHandler},
};

/// The engine's number of the only link. A stack has one port.
const LINK: LinkId = LinkId(0);
/// Local ports for active opens in which the program names no port (RFC 6056 §2.1).
const EPHEMERAL_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// A TCP stack on one port.
pub struct Stack<P: PacketIo> {
    engine: Engine,
    io: Io<P>,
    /// An empty burst; `None` while its frames are processed.
    burst: Option<P::Burst>,
    /// Addresses of this end.
    addresses: Vec<IpAddress>,
    /// True if other stacks have the same addresses.
    shared_addresses: bool,
    /// Options of new connections.
    options: SocketOptions,
    /// Time of the last poll.
    now: Instant,
    /// Local port that the stack chose last for an active open.
    last_port: u16,
    /// True if the port may deliver frames whose sender left the checksum to offload.
    partial_checksums: bool,
}

impl<P: PacketIo> Stack<P> {
    /// Makes a stack on `port`.
    ///
    /// # Panics
    ///
    /// If [`EngineConfig::check`](tidelane_engine::EngineConfig::check) fails.
    pub fn new(config: StackConfig, port: P) -> Self {
        let first_port = u16::from_be_bytes([config.secret[0], config.secret[1]]);
        Self {
            partial_checksums: port.capabilities().rx_checksum_may_be_partial,
            burst: Some(port.new_burst()),
            engine: Engine::new(config.engine, config.secret),
            io: Io::new(port, config.mac, config.gateway),
            addresses: config.addresses,
            shared_addresses: config.shared_addresses,
            options: config.options,
            now: Instant(0),
            last_port: first_port,
        }
    }

    /// Sets the link address of a neighbour.
    pub fn set_neighbour(&mut self, addr: IpAddress, mac: MacAddress) {
        self.io.neighbours.insert(addr, mac);
    }

    /// Adds TCP options of the program to all segments of later connections.
    ///
    /// # Panics
    ///
    /// If [`OptionHandler::len_max`] is no multiple of 4, or above
    /// [`OPTION_LEN_MAX`].
    pub fn set_option_handler(&mut self, handler: Box<dyn OptionHandler>) {
        let len = handler.len_max();
        assert!(
            len.is_multiple_of(4) && len <= OPTION_LEN_MAX,
            "options of {len} bytes"
        );
        self.io.options = Some(handler);
    }

    /// Returns the port, for example to wait for its descriptor.
    pub fn port(&self) -> &P {
        &self.io.port
    }

    /// Returns the port, for example to announce a sleep. The stack does not see frames that the
    /// program itself receives or sends over the port.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.io.port
    }

    /// Listens at `local` for connections. An unspecified address means all addresses. At most
    /// `backlog` connections wait to be accepted.
    pub fn listen(&mut self, local: Endpoint, backlog: u32) -> Result<Listener, ListenError> {
        self.engine
            .listen(local, backlog, self.options)
            .map(Listener)
    }

    /// Ends a listener. Connections that were not accepted are reset.
    pub fn unlisten(&mut self, listener: Listener) {
        let of_listener = |(of, _): &(ListenerId, FlowId)| *of == listener.0;
        let queue = &mut self.io.accept_queue;
        let waiting = queue.iter().filter(|entry| of_listener(entry));
        let waiting: Vec<FlowId> = waiting.map(|(_, flow)| *flow).collect();
        queue.retain(|entry| !of_listener(entry));
        for flow in waiting {
            self.engine.abort(self.now, flow, &mut self.io);
        }
        self.engine.unlisten(self.now, listener.0, &mut self.io);
    }

    /// Returns the oldest connection that waits to be accepted.
    pub fn accept(&mut self, listener: Listener) -> Option<Connection> {
        // Each connection in the queue has a binding, which stays until the program closes or
        // aborts the connection.
        let queue = &mut self.io.accept_queue;
        let at = queue.iter().position(|(of, _)| *of == listener.0)?;
        let (_, flow) = queue.remove(at)?;
        self.engine.accept_queue_removed(listener.0, 1);
        let binding = self.io.binding(flow)?;
        binding.listener = None;
        let (generation, cause) = (binding.generation, binding.cause);
        // The program got no event of this connection before accept. Report the present state.
        if binding.readable_reported {
            self.io.reports.push_back(Report::Readable(flow));
        }
        if let Some(cause) = cause {
            self.io.reports.push_back(Report::Closed(flow, cause));
        }
        Some(Connection { flow, generation })
    }

    /// Opens a connection. If the port of `local` is zero, the stack chooses a port. The SYN leaves
    /// with the next [`poll`](Self::poll) or [`flush`](Self::flush).
    pub fn connect(&mut self, local: Endpoint, peer: Endpoint) -> Result<Connection, OpenError> {
        let local = match local.port {
            0 => Endpoint::new(local.addr, self.free_port(local.addr, peer)?),
            _ => local,
        };
        let route = FlowRoute {
            link: LINK,
            mtu: self.io.path_mtu(),
        };
        let options = self.options;
        self.io.arrival = None;
        let flow = self
            .engine
            .open(self.now, local, peer, route, options, &mut self.io)?;
        let generation = self
            .io
            .binding(flow)
            .ok_or(OpenError::BadEndpoint)?
            .generation;
        Ok(Connection { flow, generation })
    }

    fn free_port(&mut self, local: IpAddress, peer: Endpoint) -> Result<u16, OpenError> {
        for _ in EPHEMERAL_PORTS {
            let next = self.last_port.wrapping_add(1);
            self.last_port = next.max(*EPHEMERAL_PORTS.start());
            let key = FlowKey {
                local: Endpoint::new(local, self.last_port),
                peer,
            };
            if self.engine.is_free(self.now, &key) {
                return Ok(self.last_port);
            }
        }
        Err(OpenError::InUse)
    }

    /// Receives packets, runs TCP and the timers, and sends. Returns true if a packet arrived.
    ///
    /// `now` is the time of a clock that never goes back. All other functions use the time of the
    /// last poll.
    pub fn poll(&mut self, now: Instant) -> bool {
        self.now = self.now.max(now);
        let received = self.receive_burst();
        if self.engine.is_due(self.now) {
            self.engine.advance_time(self.now, &mut self.io);
        }
        self.flush();
        received
    }

    /// Sends the data, ACKs and SYNs that TCP allows to send now. The MultiStack paper calls this
    /// function `tcp_output`.
    pub fn flush(&mut self) {
        self.io.send_late_resets();
        if self.io.blocked && self.io.port.tx_frame().is_some() {
            self.io.blocked = false;
            self.engine.resume_transmit();
        }
        self.engine.batch_end(self.now, &mut self.io);
        self.io.port.tx_flush();
    }

    /// Returns the time at which the next timer expires, or `None` if no timer runs.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.engine.next_timeout()
    }

    fn receive_burst(&mut self) -> bool {
        let Some(mut burst) = self.burst.take() else {
            return false;
        };
        let count = self.io.port.rx_burst(&mut burst, BURST_MAX);
        for frame in burst.iter() {
            self.input(frame);
        }
        self.io.port.rx_release(&mut burst);
        self.burst = Some(burst);
        count > 0
    }

    /// Returns the first address of this end; unspecified if there is none.
    pub fn address(&self) -> IpAddress {
        self.addresses.first().copied().unwrap_or_default()
    }

    /// Handles one received IP packet without an Ethernet header, as [`input`](Self::input) does.
    pub fn input_packet(&mut self, packet: &[u8]) {
        self.input(&[&[0; 12][..], &ether_type(packet), packet].concat());
    }

    /// Handles one received Ethernet frame. The MultiStack paper calls this function `tcp_input`. A
    /// program whose port delivers frames by itself needs [`poll`](Self::poll) only.
    pub fn input(&mut self, frame: &[u8]) {
        if let Err(reason) = self.receive(frame) {
            self.io.drops[reason.index()] += 1;
        }
        self.io.arrival = None;
    }

    fn receive(&mut self, frame: &[u8]) -> Result<(), DropReason> {
        let packet = parse_frame(frame)?;
        if !self.addresses.contains(&packet.dst) {
            return Err(DropReason::NotOurs);
        }
        let src = packet.src;
        let is_martian = src.is_multicast_or_broadcast()
            || src.is_unspecified()
            || src.is_this_network_v4()
            || src.is_loopback();
        let is_own = !self.shared_addresses && self.addresses.contains(&src);
        if is_martian || is_own {
            return Err(DropReason::MartianSource);
        }
        match (packet.protocol, packet.dst.is_v4()) {
            (protocol::TCP, _) => self.receive_tcp(&packet),
            (protocol::ICMP, true) => {
                let error = parse_icmp_error(packet.payload)?;
                self.engine.icmp_error(self.now, &error, &mut self.io);
                Ok(())
            }
            (protocol::ICMPV6, false) => {
                let error = parse_icmpv6_error(&packet)?;
                self.engine.icmp_error(self.now, &error, &mut self.io);
                Ok(())
            }
            _ => Err(DropReason::UnsupportedProtocol),
        }
    }

    fn receive_tcp(&mut self, packet: &Packet<'_>) -> Result<(), DropReason> {
        let partial = self.partial_checksums;
        if !tcp_checksum_ok(packet.src, packet.dst, packet.payload, partial) {
            return Err(DropReason::BadChecksum);
        }
        let segment = parse_tcp(packet.payload)?;
        let key = FlowKey {
            local: Endpoint::new(packet.dst, segment.dst_port),
            peer: Endpoint::new(packet.src, segment.src_port),
        };
        if let Some(handler) = &mut self.io.options {
            let end = packet.payload.len() - segment.payload.len();
            handler.read(&key, segment.flags, &packet.payload[TCP_HEADER_LEN..end]);
        }
        let arrival = Arrival {
            key,
            link: LINK,
            ecn: packet.ecn,
        };
        self.io.arrival = Some(packet.src_mac);
        self.engine
            .segment_arrives(self.now, &arrival, &segment, &mut self.io);
        Ok(())
    }

    /// Returns the next event.
    pub fn next_event(&mut self) -> Option<Event> {
        while let Some(report) = self.io.reports.pop_front() {
            let event = match report {
                Report::Incoming(listener) => Some(Event::Incoming(Listener(listener))),
                Report::Connected(flow) => self.handle(flow).map(Event::Connected),
                Report::Readable(flow) => self.handle(flow).map(Event::Readable),
                Report::Writable(flow) => self.handle(flow).map(Event::Writable),
                Report::Closed(flow, cause) => {
                    let handle = self.handle(flow);
                    handle.map(|connection| Event::Closed(connection, cause))
                }
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Returns the handle of a connection that the program has opened or accepted, and has not
    /// closed.
    fn handle(&mut self, flow: FlowId) -> Option<Connection> {
        let binding = self.io.binding(flow)?;
        let open = !binding.closed && binding.listener.is_none();
        let generation = binding.generation;
        open.then_some(Connection { flow, generation })
    }

    fn binding(&mut self, connection: Connection) -> Option<&mut Binding> {
        let binding = self.io.binding(connection.flow)?;
        (binding.generation == connection.generation && !binding.closed).then_some(binding)
    }

    /// Returns the received data that the program has not read. The data is not copied, and comes
    /// in two parts because the ring buffer may wrap.
    pub fn received(&self, connection: Connection) -> [&[u8]; 2] {
        let place = self.io.bindings.get(connection.flow.index());
        let Some(binding) = place.and_then(Option::as_ref) else {
            return [&[], &[]];
        };
        let Some(flow) = self.engine.flow(connection.flow) else {
            return [&[], &[]];
        };
        if binding.generation != connection.generation || binding.closed {
            return [&[], &[]];
        }
        let unread = flow.rx_head().wrapping_sub(binding.rx_read);
        binding.rx.slices(binding.rx_read, unread)
    }

    /// Returns the number of received bytes that the program has not read.
    fn unread(&self, connection: Connection) -> usize {
        let parts = self.received(connection);
        parts.iter().map(|part| part.len()).sum()
    }

    /// Counts `len` bytes of the received data as read. If `len` exceeds the received data, all
    /// received data counts as read.
    pub fn consume(&mut self, connection: Connection, len: usize) {
        let len = len.min(self.unread(connection)) as u32;
        let Some(binding) = self.binding(connection) else {
            return;
        };
        binding.readable_reported = false;
        binding.rx_read = binding.rx_read.wrapping_add(len);
        let rx_read = binding.rx_read;
        let _ = self.engine.rx_advance(connection.flow, rx_read);
    }

    /// Copies received data to `buffer`. Returns the number of bytes; zero if there is none.
    pub fn read(&mut self, connection: Connection, buffer: &mut [u8]) -> usize {
        let mut len = 0;
        for part in self.received(connection) {
            let count = part.len().min(buffer.len() - len);
            buffer[len..len + count].copy_from_slice(&part[..count]);
            len += count;
        }
        self.consume(connection, len);
        len
    }

    /// Returns true if the program has read all data and no more data can arrive, because the peer
    /// has closed its direction or the connection is over. Also returns true for an invalid handle.
    pub fn is_end(&mut self, connection: Connection) -> bool {
        let all_read = self.unread(connection) == 0;
        let binding = self.binding(connection);
        binding.is_none_or(|binding| all_read && (binding.peer_closed || binding.cause.is_some()))
    }

    /// Copies `data` to the send buffer as far as there is room. Returns the number of bytes. If
    /// the number is less than the length of `data`, an event reports when there is room.
    pub fn write(&mut self, connection: Connection, data: &[u8]) -> usize {
        let limit = self.engine.config().tx_limit;
        let Some(acked) = self
            .engine
            .flow(connection.flow)
            .map(|flow| flow.tx_acked())
        else {
            return 0;
        };
        let Some(binding) = self.binding(connection) else {
            return 0;
        };
        let used = binding.tx_head.wrapping_sub(acked);
        let len = data.len().min(limit.saturating_sub(used) as usize);
        binding.wants_room = len < data.len();
        binding.tx.reserve(acked, used + len as u32);
        binding.tx.write(binding.tx_head, &data[..len]);
        let tx_head = binding.tx_head.wrapping_add(len as u32);
        match self.engine.tx_advance(connection.flow, tx_head) {
            Ok(()) => {
                if let Some(binding) = self.binding(connection) {
                    binding.tx_head = tx_head;
                }
                len
            }
            // The connection is over, or its sending direction is closed.
            Err(_) => 0,
        }
    }

    /// Closes the sending direction. The peer gets all data and a FIN.
    pub fn shutdown(&mut self, connection: Connection) {
        if self.binding(connection).is_some() {
            self.engine.shutdown_write(connection.flow);
        }
    }

    /// Closes a connection: the stack sends the remaining data and a FIN. The handle becomes
    /// invalid. The MultiStack paper calls this function `tcp_close`.
    pub fn close(&mut self, connection: Connection) {
        if let Some(binding) = self.binding(connection) {
            binding.closed = true;
            self.engine.close(self.now, connection.flow, &mut self.io);
        }
    }

    /// Resets a connection. The handle becomes invalid.
    pub fn abort(&mut self, connection: Connection) {
        if let Some(binding) = self.binding(connection) {
            binding.closed = true;
            self.engine.abort(self.now, connection.flow, &mut self.io);
        }
    }

    /// Sets the options of a connection.
    pub fn set_options(&mut self, connection: Connection, options: SocketOptions) {
        if self.binding(connection).is_some() {
            let (now, flow) = (self.now, connection.flow);
            self.engine.set_options(now, flow, options, &mut self.io);
        }
    }

    /// Returns the state of a connection, for statistics.
    pub fn info(&mut self, connection: Connection) -> Option<FlowInfo> {
        self.binding(connection)?;
        self.engine.info(connection.flow)
    }

    /// Returns the counters of the engine.
    pub fn counters(&self) -> Counters {
        self.engine.counters()
    }

    /// Returns the number of dropped packets, by [`DropReason::index`].
    pub fn drops(&self) -> &Drops {
        &self.io.drops
    }

    /// Returns true if the stack has no connection and no listener with connections. Connections in
    /// TIME-WAIT do not count.
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty()
    }
}
