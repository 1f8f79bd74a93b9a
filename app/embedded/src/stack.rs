//! [`Stack`]: the interface of the embedded stack. The program opens listeners and connections,
//! reads, writes, and polls the stack in its event loop.

use tidelane_engine::{
    Arrival, Counters, Endpoint, Engine, FastOpenKeys, FastOpenRequest, FlowInfo, FlowKey,
    FlowRoute, FlowState, Instant, IpAddress, LinkId, ListenError, OpenError, SocketOptions,
};
use tidelane_packet_io::{BURST_MAX, Burst, PacketIo};
use tidelane_wire::{
    DropReason, MacAddress, Packet, TCP_HEADER_LEN, parse_frame, parse_icmp_error,
    parse_icmpv6_error, parse_tcp, protocol, tcp_checksum_ok,
};

use crate::{
    addresses::Addresses,
    binding::Binding,
    ephemeral_ports::EphemeralPorts,
    fn_port::ether_type,
    handles::{Connection, Event, Listener, StackConfig},
    io::Io,
    link_addresses::LinkAddresses,
    options::{OPTION_LEN_MAX, OptionHandler},
    status::Status,
};

/// The engine's number of the only link. A stack has one port.
const LINK: LinkId = LinkId(0);

/// A TCP stack on one port (packet interface). TCP runs in the calls of the program, such as
/// [`Self::poll`] and [`Self::flush`].
pub struct Stack<P: PacketIo> {
    engine: Engine,
    io: Io<P>,
    /// A reusable list of received frames. `None` while the frames are processed.
    burst: Option<P::Burst>,
    addresses: Addresses,
    /// Options of new connections.
    options: SocketOptions,
    /// Time of the most recent poll.
    now: Instant,
    /// Selects local ports for active opens.
    ephemeral_ports: EphemeralPorts,
    /// True if a received checksum may be partial (only the sum of the pseudo-header).
    partial_checksums: bool,
}

impl<P: PacketIo> Stack<P> {
    /// Creates a stack on `port`.
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
            io: Io::new(port, LinkAddresses::new(config.mac, config.gateway)),
            addresses: Addresses::new(config.addresses, config.shared_addresses),
            options: config.options,
            now: Instant(0),
            ephemeral_ports: EphemeralPorts::new(first_port),
        }
    }

    /// Sets the link address of a neighbour.
    pub fn set_neighbour(&mut self, addr: IpAddress, mac: MacAddress) {
        self.io.link.set_neighbour(addr, mac);
    }

    /// Makes `handler` read and add TCP options. Must be called before the first connection,
    /// because the MSS of an existing connection leaves no room for the options.
    ///
    /// # Panics
    ///
    /// If [`OptionHandler::len_max`] is not a multiple of 4, or exceeds [`OPTION_LEN_MAX`].
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
    /// program receives or sends through this reference.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.io.port
    }

    /// Listens at `local`. `0.0.0.0` means all IPv4 addresses, and `::` all addresses. As in Linux,
    /// the accept queue holds at most `backlog + 1` connections.
    pub fn listen(&mut self, local: Endpoint, backlog: u32) -> Result<Listener, ListenError> {
        self.listen_with(local, backlog, self.options)
    }

    /// Listens as [`listen`](Self::listen) does, with `options` for the listener's connections.
    pub fn listen_with(
        &mut self,
        local: Endpoint,
        backlog: u32,
        options: SocketOptions,
    ) -> Result<Listener, ListenError> {
        self.engine.listen(local, backlog, options).map(Listener)
    }

    /// Sets the options of a listener's future connections.
    pub fn set_listener_options(&mut self, listener: Listener, options: SocketOptions) {
        self.engine.set_listener_options(listener.0, options);
    }

    /// Sets a listener's backlog, as [`listen`](Self::listen) does.
    pub fn set_backlog(&mut self, listener: Listener, backlog: u32) {
        self.engine.set_backlog(listener.0, backlog);
    }

    /// Sets how many connections of a listener may be in SYN-RECEIVED after a SYN with data (RFC
    /// 7413 §5.1). Zero disables Fast Open.
    pub fn set_fast_open_backlog(&mut self, listener: Listener, backlog: u32) {
        self.engine.set_fast_open_qlen_max(listener.0, backlog);
    }

    /// Sets the keys of Fast Open cookies. Stacks with the same keys and address accept each
    /// other's cookies. By default, the keys derive from the stack's secret.
    pub fn set_fast_open_keys(&mut self, keys: FastOpenKeys) {
        self.engine.set_fast_open_keys(None, keys);
    }

    /// Closes a listener, and resets the connections in its accept queue.
    pub fn unlisten(&mut self, listener: Listener) {
        while let Some(flow) = self.io.accept_queue.pop(listener.0) {
            self.engine.abort(self.now, flow, &mut self.io);
        }
        self.engine.unlisten(self.now, listener.0, &mut self.io);
    }

    /// Accepts the oldest connection of `listener`. Returns `None` if the accept queue is empty.
    pub fn accept(&mut self, listener: Listener) -> Option<Connection> {
        let connection = self.io.accept(listener.0)?;
        self.engine.accept_queue_removed(listener.0, 1);
        Some(connection)
    }

    /// Opens a connection. If the port of `local` is zero, the stack selects a port. The SYN leaves
    /// with the next [`poll`](Self::poll) or [`flush`](Self::flush) at the latest.
    pub fn connect(&mut self, local: Endpoint, peer: Endpoint) -> Result<Connection, OpenError> {
        self.connect_with(local, peer, self.options)
    }

    /// Opens a connection as [`connect`](Self::connect) does, with `options`.
    pub fn connect_with(
        &mut self,
        local: Endpoint,
        peer: Endpoint,
        options: SocketOptions,
    ) -> Result<Connection, OpenError> {
        let (now, route) = (self.now, self.route());
        let local = self.complete(local, peer)?;
        let opened = self
            .engine
            .open(now, local, peer, route, options, &mut self.io)?;
        self.io.handle(opened).ok_or(OpenError::BadEndpoint)
    }

    /// Returns the largest payload of the SYN of a [`connect_fast`](Self::connect_fast) to `peer`,
    /// in bytes. Returns `None` if the SYN may carry no data.
    pub fn fast_open_room(&self, peer: IpAddress, options: &SocketOptions) -> Option<u32> {
        let (mtu, request) = (self.io.path_mtu(), FastOpenRequest::default());
        self.engine
            .fast_open_room(self.now, peer, mtu, options, request)
    }

    /// Opens a connection as [`connect_with`](Self::connect_with) does, with the beginning of
    /// `data` in the SYN (RFC 7413). Returns the connection and the number of bytes in the SYN. The
    /// peer may receive these bytes twice. If the stack has no cookie of the peer, by default the
    /// SYN has no data and requests a cookie: see [`EngineConfig::fast_open`](crate::EngineConfig).
    pub fn connect_fast(
        &mut self,
        local: Endpoint,
        peer: Endpoint,
        options: SocketOptions,
        data: &[u8],
    ) -> Result<(Connection, usize), OpenError> {
        let room = self.fast_open_room(peer.addr, &options).unwrap_or(0);
        let local = self.complete(local, peer)?;
        let how = (options, FastOpenRequest::default());
        let (ends, route) = ((local, peer), self.route());
        let opened = self
            .engine
            .open_fast(self.now, ends, route, how, &mut self.io)?;
        let connection = self.io.handle(opened).ok_or(OpenError::BadEndpoint)?;
        let data = &data[..data.len().min(room as usize)];
        Ok((connection, self.write(connection, data)))
    }

    fn route(&self) -> FlowRoute {
        let mtu = self.io.path_mtu();
        FlowRoute { link: LINK, mtu }
    }

    /// Returns `local`, with an ephemeral port if its port is zero. Returns an error if the next
    /// hop to `peer` is unknown, or if no ephemeral port is free.
    fn complete(&mut self, local: Endpoint, peer: Endpoint) -> Result<Endpoint, OpenError> {
        let next_hop = self.io.link.next_hop(peer.addr);
        next_hop.ok_or(OpenError::BadEndpoint)?;
        let with_port = |port| Endpoint::new(local.addr, port);
        if local.port != 0 {
            return Ok(local);
        }
        let is_free = |port| {
            let local = with_port(port);
            self.engine.is_free(self.now, &FlowKey { local, peer })
        };
        let port = self.ephemeral_ports.choose(is_free);
        port.map(with_port).ok_or(OpenError::InUse)
    }

    /// Receives packets, runs TCP and the timers, and sends. Returns true if a packet has arrived.
    /// `now` is the time of a monotonic clock. The other functions use this time, too.
    pub fn poll(&mut self, now: Instant) -> bool {
        let received = self.poll_input(now);
        self.flush();
        received
    }

    /// Does the same as [`poll`](Self::poll), but without the final [`flush`](Self::flush). If a
    /// program handles the events before it calls `flush`, its data and FINs carry the ACKs.
    pub fn poll_input(&mut self, now: Instant) -> bool {
        self.now = self.now.max(now);
        let received = self.receive_burst();
        if self.engine.is_due(self.now) {
            self.engine.advance_time(self.now, &mut self.io);
        }
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
        self.io.flush_port();
    }

    /// Returns the time by which to poll even if no packet arrives: the time of the next timer.
    /// While frames wait to be sent, the time is at most 1 ms after the most recent poll. Returns
    /// `None` if no timer runs and no frame waits.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.io.next_poll(self.now, self.engine.next_timeout())
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

    /// Returns the first local address, or the unspecified address if the stack has no address.
    pub fn address(&self) -> IpAddress {
        self.addresses.first()
    }

    /// Handles one received IP packet without an Ethernet header, as [`input`](Self::input) does.
    pub fn input_packet(&mut self, packet: &[u8]) {
        self.input(&[&[0; 12][..], &ether_type(packet), packet].concat());
    }

    /// Handles one received Ethernet frame. The MultiStack paper calls this function `tcp_input`. A
    /// program does not need this function if its port delivers the frames to [`poll`](Self::poll).
    pub fn input(&mut self, frame: &[u8]) {
        if let Err(reason) = self.receive(frame) {
            self.io.drops[reason.index()] += 1;
        }
        self.io.link.set_arrival(None);
    }

    fn receive(&mut self, frame: &[u8]) -> Result<(), DropReason> {
        let packet = parse_frame(frame)?;
        self.addresses.check(&packet)?;
        let error = match (packet.protocol, packet.dst.is_v4()) {
            (protocol::TCP, _) => return self.receive_tcp(&packet),
            (protocol::ICMP, true) => parse_icmp_error(packet.payload)?,
            (protocol::ICMPV6, false) => parse_icmpv6_error(&packet)?,
            _ => return Err(DropReason::UnsupportedProtocol),
        };
        self.engine.icmp_error(self.now, &error, &mut self.io);
        Ok(())
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
        self.io.link.set_arrival(Some(packet.src_mac));
        self.engine
            .segment_arrives(self.now, &arrival, &segment, &mut self.io);
        Ok(())
    }

    /// Returns the next event, if any.
    pub fn next_event(&mut self) -> Option<Event> {
        self.io.next_event()
    }

    /// Returns the state of a connection. Returns `None` for an invalid handle.
    fn lookup(&self, connection: Connection) -> Option<(&Binding, &FlowState)> {
        let place = self.io.bindings.get(connection.flow.index());
        let binding = place.and_then(Option::as_ref)?;
        let flow = self.engine.flow(connection.flow)?;
        binding.is_of(connection).then_some((binding, flow))
    }

    fn binding(&mut self, connection: Connection) -> Option<&mut Binding> {
        let binding = self.io.binding(connection.flow)?;
        binding.is_of(connection).then_some(binding)
    }

    /// Returns the status of a connection. Returns `None` for an invalid handle.
    pub fn status(&self, connection: Connection) -> Option<Status> {
        let (binding, flow) = self.lookup(connection)?;
        let limit = self.engine.config().tx_limit;
        Some(binding.status(flow.rx_head(), flow.tx_acked(), limit))
    }

    /// Returns the unread received data without a copy. The data has two parts, because the ring
    /// buffer may wrap.
    pub fn received(&self, connection: Connection) -> [&[u8]; 2] {
        match self.lookup(connection) {
            Some((binding, flow)) => binding.received(flow.rx_head()),
            None => [&[], &[]],
        }
    }

    /// Marks `len` bytes of the received data as read, or all received data if `len` is larger.
    pub fn consume(&mut self, connection: Connection, len: usize) {
        let readable = self.status(connection).map_or(0, |status| status.readable);
        let len = len.min(readable as usize) as u32;
        let Some(binding) = self.binding(connection) else {
            return;
        };
        binding.readable_reported = false;
        binding.rx_read = binding.rx_read.wrapping_add(len);
        let rx_read = binding.rx_read;
        let _ = self.engine.rx_advance(connection.flow, rx_read);
    }

    /// Copies received data to `buffer`. Returns the number of bytes: zero if there is no data.
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

    /// Returns true at the end of the stream ([`Status::is_end`]), and for an invalid handle.
    pub fn is_end(&self, connection: Connection) -> bool {
        self.status(connection).is_none_or(|status| status.is_end())
    }

    /// Copies as much of `data` as the send buffer has room for. Returns the number of bytes. If
    /// bytes remain, [`Event::Writable`] follows once there is room. If the sending direction is
    /// closed ([`Status::writable`] is `None`), returns 0, and no [`Event::Writable`] follows.
    pub fn write(&mut self, connection: Connection, data: &[u8]) -> usize {
        self.write_vectored(connection, &[data])
    }

    /// Copies as much of `parts`, one after another, as the send buffer has room for, as
    /// [`write`](Self::write) does with one part. Returns the number of bytes.
    pub fn write_vectored(&mut self, connection: Connection, parts: &[&[u8]]) -> usize {
        let limit = self.engine.config().tx_limit;
        let acked = self.lookup(connection).map(|(_, flow)| flow.tx_acked());
        let copied = acked.and_then(|at| self.io.copy_to_send(connection, (at, limit), parts));
        let Some((len, tx_head)) = copied else {
            return 0;
        };
        // An error means that the connection or its sending direction is closed.
        if self.engine.tx_advance(connection.flow, tx_head).is_err() {
            return 0;
        }
        if let Some(binding) = self.binding(connection) {
            binding.tx_head = tx_head;
        }
        len
    }

    /// Writes `data` as [`write`](Self::write) does, and announces the written bytes to the peer as
    /// urgent (RFC 9293 §3.8.5). Nagle's algorithm and `cork` do not delay urgent data.
    pub fn write_urgent(&mut self, connection: Connection, data: &[u8]) -> usize {
        let writable = self.status(connection).and_then(|status| status.writable);
        let len = data.len().min(writable.unwrap_or(0) as usize);
        let binding = self.binding(connection).filter(|_| len > 0);
        let Some(end) = binding.map(|binding| binding.tx_head.wrapping_add(len as u32)) else {
            return self.write(connection, data);
        };
        let (now, flow) = (self.now, connection.flow);
        match self.engine.tx_urgent(now, flow, end, &mut self.io) {
            Ok(()) => self.write(connection, data),
            Err(_) => 0,
        }
    }

    /// Closes the sending direction. The stack sends the remaining data and a FIN.
    pub fn shutdown(&mut self, connection: Connection) {
        if let Some(binding) = self.binding(connection) {
            binding.write_closed = true;
            self.engine.shutdown_write(connection.flow);
        }
    }

    /// Closes a connection: the stack sends the remaining data and a FIN, or a RST if received data
    /// is unread. The handle becomes invalid. The MultiStack paper calls this function `tcp_close`.
    pub fn close(&mut self, connection: Connection) {
        if let Some(binding) = self.binding(connection) {
            binding.closed_by_program = true;
            self.engine.close(self.now, connection.flow, &mut self.io);
        }
    }

    /// Resets a connection. The handle becomes invalid.
    pub fn abort(&mut self, connection: Connection) {
        if let Some(binding) = self.binding(connection) {
            binding.closed_by_program = true;
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

    /// Returns the options of a connection. Returns `None` for an invalid handle.
    pub fn options(&self, connection: Connection) -> Option<SocketOptions> {
        self.lookup(connection)?;
        self.engine.options(connection.flow)
    }

    /// Returns TCP variables of a connection for statistics, such as the congestion window.
    pub fn info(&self, connection: Connection) -> Option<FlowInfo> {
        self.lookup(connection)?;
        self.engine.info(connection.flow)
    }

    /// Returns the counters of the engine.
    pub fn counters(&self) -> Counters {
        self.engine.counters()
    }

    /// Returns the numbers of dropped packets, indexed by [`DropReason::index`].
    pub fn drops(&self) -> &crate::Drops {
        &self.io.drops
    }

    /// Returns true if the stack has no connection, except closed connections in TIME-WAIT.
    pub fn is_empty(&self) -> bool {
        self.engine.is_empty()
    }
}
