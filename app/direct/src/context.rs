//! A context on a port: the calls of the program, and the cycle of receiving and sending.

use std::{collections::HashMap, io, net::SocketAddr, os::fd::BorrowedFd, time};

use tidelane_embedded::{Addresses, Drops, EphemeralPorts};
use tidelane_engine::{
    Counters, Duration, Endpoint, Engine, FlowId, FlowInfo, FlowKey, FlowState, Instant, IpAddress,
    ListenError, ListenerId, OpenError, SocketOptions, State,
};
use tidelane_packet_io::{BURST_MAX, PacketIo};
use tidelane_rings::{
    Buffer, Context, Descriptor, Events, ListenOptions, Pool, ReadyList, SendError, SendRefusal,
    Wait,
};
use tidelane_wire::MacAddress;

use crate::{
    connection::{Ending, cause_of},
    counters::DirectCounters,
    descriptors::{Descriptors, Listener, Socket},
    input::Input,
    io::{Io, LinkAddresses},
    options::DirectOptions,
    segment_writer::HEADERS_LEN_MAX,
    supply::Supply,
    time::TimeSource,
};

/// Wait after which a context tries to send again if the port had no free frame.
const BLOCKED_WAIT: time::Duration = time::Duration::from_millis(1);
/// Limit of bursts in one cycle, so that a call ends while frames keep arriving.
const BURSTS_MAX: usize = 16;
/// Room for headers before the payload of an allocated buffer: all headers and the memory that a
/// port needs before them.
const HEADROOM: u32 = HEADERS_LEN_MAX as u32 + 16;

/// Sockets on the engine of this process, on a port that this process owns, for one thread.
///
/// The end of a context resets its connections.
pub struct DirectContext<P: PacketIo> {
    engine: Engine,
    io: Io<P>,
    input: Input<P>,
    time: Box<dyn TimeSource<P>>,
    /// Time of the present call.
    now: Instant,
    descriptors: Descriptors,
    /// Descriptors of the engine's listeners.
    listeners: HashMap<ListenerId, Descriptor>,
    /// Listeners that may have connections to accept.
    due: Vec<Descriptor>,
    /// Connections with requests of the program.
    dirty: Vec<FlowId>,
    ephemeral_ports: EphemeralPorts,
    options: SocketOptions,
    send_queue_max: usize,
}

impl<P: PacketIo> DirectContext<P> {
    /// Opens a context on `port`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for impossible options. Otherwise the errors of `mmap`.
    pub fn open(
        options: &DirectOptions,
        port: P,
        time: impl TimeSource<P> + 'static,
    ) -> io::Result<Self> {
        let stack = &options.stack;
        let checked = stack.engine.check();
        checked.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
        let pool = Pool::with_headroom(options.buffers, options.buffer_len, HEADROOM)?;
        let addresses = Addresses::new(stack.addresses.clone(), stack.shared_addresses);
        let link = LinkAddresses::new(stack.mac, stack.gateway);
        Ok(Self {
            engine: Engine::new(stack.engine.clone(), stack.secret),
            input: Input::new(&port, addresses),
            io: Io::new(port, Supply::new(pool), link),
            now: time.now(),
            time: Box::new(time),
            descriptors: Descriptors::default(),
            listeners: HashMap::new(),
            due: Vec::new(),
            dirty: Vec::new(),
            ephemeral_ports: EphemeralPorts::new(u16::from_be_bytes([
                stack.secret[0],
                stack.secret[1],
            ])),
            options: stack.options,
            send_queue_max: options.send_queue_max.max(1),
        })
    }

    /// Sets the link address of a neighbour.
    pub fn set_neighbour(&mut self, addr: IpAddress, mac: MacAddress) {
        self.io.link.set_neighbour(addr, mac);
    }

    /// Returns the port. The context does not see frames that the program itself receives or sends.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.io.port
    }

    /// Returns the counters of the context.
    pub fn counters(&self) -> DirectCounters {
        self.io.counters
    }

    /// Returns the counters of TCP.
    pub fn tcp_counters(&self) -> Counters {
        self.engine.counters()
    }

    /// Returns the number of dropped packets, by [`DropReason::index`].
    ///
    /// [`DropReason::index`]: tidelane_wire::DropReason::index
    pub fn drops(&self) -> &Drops {
        &self.io.drops
    }

    /// Returns TCP's state of a connection, for statistics.
    pub fn info(&self, descriptor: Descriptor) -> Option<FlowInfo> {
        self.engine.info(self.descriptors.flow(descriptor)?)
    }

    /// Returns the time at which the next timer expires, or `None` if no timer runs.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.engine.next_timeout()
    }

    /// Returns true if there is no connection, whether the program has its descriptor or not.
    /// Connections in TIME-WAIT do not count.
    pub fn has_no_connections(&self) -> bool {
        self.engine.is_empty()
    }

    /// Sets the time of the present call.
    fn tick(&mut self) {
        self.now = self.now.max(self.time.now());
    }

    /// Passes the requests of the program to the engine, and sends.
    fn transmit(&mut self) {
        self.tick();
        let mut dirty = std::mem::take(&mut self.dirty);
        for flow in dirty.drain(..) {
            self.apply(flow);
        }
        self.dirty = dirty;
        self.flush();
    }

    /// Passes the requests of the program for one connection to the engine.
    fn apply(&mut self, flow: FlowId) {
        let Some(connection) = self.io.connection_mut(flow) else {
            return;
        };
        connection.is_dirty = false;
        let (ending, is_shut_down) = (connection.ending, connection.is_shut_down);
        let head = connection.tx.head();
        if ending == Some(Ending::Abort) {
            return self.engine.abort(self.now, flow, &mut self.io);
        }
        // A failure means that the connection is over, which an event reports.
        let _ = self.engine.tx_advance(flow, head);
        let state = self.engine.flow(flow).map(FlowState::state);
        if ending == Some(Ending::Close) {
            if state == Some(State::SynSent) && head > 0 {
                // A close would end the open. The data is sent first: `report_connection` closes.
                return;
            }
            self.engine.close(self.now, flow, &mut self.io);
        } else if is_shut_down {
            self.engine.shutdown_write(flow);
        }
    }

    /// Sends the data and ACKs that TCP allows to send now.
    fn flush(&mut self) {
        self.io.send_late_resets();
        if self.io.is_blocked && self.io.port.tx_frame().is_some() {
            self.io.is_blocked = false;
            self.engine.resume_transmit();
        }
        self.engine.batch_end(self.now, &mut self.io);
        self.io.port.tx_flush();
    }

    /// Adds events to the list. Waits for the first event if there is none.
    fn receive(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        self.tick();
        let deadline = match wait {
            Wait::No => Some(self.now),
            Wait::For(limit) => {
                let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
                self.now.0.checked_add(nanos).map(Instant)
            }
            Wait::Forever => None,
        };
        loop {
            self.tick();
            let received = self.receive_bursts(list);
            if self.engine.is_due(self.now) {
                self.engine.advance_time(self.now, &mut self.io);
            }
            self.report(list);
            self.flush();
            let is_over = deadline.is_some_and(|deadline| deadline <= self.now);
            if !list.is_empty() || is_over {
                return Ok(());
            }
            if !received && !self.io.has_events() {
                let limit = self.wait_limit(deadline);
                self.io.counters.waits += 1;
                self.time.wait(&mut self.io.port, limit)?;
            }
        }
    }

    /// Receives the frames that have arrived, burst by burst. Returns true if there were any.
    fn receive_bursts(&mut self, list: &mut ReadyList) -> bool {
        for at in 0..BURSTS_MAX {
            let count = self.input.receive(self.now, &mut self.engine, &mut self.io);
            if count < BURST_MAX {
                return at > 0 || count > 0;
            }
            self.report(list);
            self.flush();
        }
        true
    }

    /// Returns the time until `deadline` or the next timer.
    fn wait_limit(&mut self, deadline: Option<Instant>) -> Option<time::Duration> {
        let timer = self.engine.next_timeout();
        let until = deadline.into_iter().chain(timer).min();
        let limit = until.map(|until| {
            let left = if until > self.now {
                until - self.now
            } else {
                Duration::from_nanos(0)
            };
            time::Duration::from_nanos(left.as_nanos())
        });
        match self.io.is_blocked || self.io.port.tx_pending() {
            true => Some(limit.unwrap_or(BLOCKED_WAIT).min(BLOCKED_WAIT)),
            false => limit,
        }
    }

    /// Adds the accepted connections, and the events of all connections that have some.
    fn report(&mut self, list: &mut ReadyList) {
        while let Some((listener, flow)) = self.io.accepted.pop_front() {
            let descriptor = self.listeners.get(&listener).copied();
            match descriptor.and_then(|of| Some((of, self.descriptors.listener_mut(of)?))) {
                Some((of, listener)) => {
                    listener.queue.push_back(flow);
                    self.due.push(of);
                }
                None => self.engine.abort(self.now, flow, &mut self.io),
            }
        }
        let mut due = std::mem::take(&mut self.due);
        for listener in due.drain(..) {
            self.accept(listener, list);
        }
        self.due = due;
        // The events of a connection cause no events of other connections.
        let count = self.io.touched_len();
        for at in 0..count {
            self.report_connection(self.io.touched_at(at), list);
        }
        self.io.drain_touched(count);
    }

    /// Adds the connections that wait at a listener.
    fn accept(&mut self, of: Descriptor, list: &mut ReadyList) {
        while let Some(listener) = self.descriptors.listener_mut(of)
            && !listener.is_paused
            && let Some(flow) = listener.queue.pop_front()
        {
            let id = listener.id;
            self.engine.accept_queue_removed(id, 1);
            let descriptor = self.descriptors.add(Socket::Connection(flow));
            let Some(connection) = self.io.connection_mut(flow) else {
                self.descriptors.remove(descriptor);
                continue;
            };
            connection.descriptor = Some(descriptor);
            list.add_accepted(descriptor, of);
            self.io.touch(flow);
        }
    }

    /// Releases acknowledged data of a connection, and adds its events.
    fn report_connection(&mut self, flow: FlowId, list: &mut ReadyList) {
        if let Some(state) = self.engine.flow(flow) {
            self.io.acknowledge(flow, state.tx_acked());
        }
        let Some(connection) = self.io.connection_mut(flow) else {
            return;
        };
        connection.is_touched = false;
        let is_over = connection.cause.is_some();
        if connection.ending.is_some() && (is_over || connection.owes_connected) {
            connection.owes_connected = false;
            return self.apply(flow);
        }
        if let Some(descriptor) = connection.descriptor {
            if std::mem::take(&mut connection.owes_connected) {
                list.add_events(descriptor, Events::CONNECTED);
            }
            let has_room = connection.tx.len() < self.send_queue_max && connection.can_queue();
            if has_room && std::mem::take(&mut connection.owes_writable) {
                list.add_events(descriptor, Events::WRITABLE);
            }
            if !connection.is_paused {
                let has_data = connection.rx.has_ready();
                while let Some(buffer) = connection.rx.take() {
                    list.add_buffer(descriptor, buffer);
                }
                if std::mem::take(&mut connection.owes_end) {
                    list.add_events(descriptor, Events::END);
                }
                if std::mem::take(&mut connection.owes_closed)
                    && let Some(cause) = connection.cause.and_then(cause_of)
                {
                    list.add_closed(descriptor, cause);
                }
                if has_data {
                    let read = connection.rx.next();
                    // The chain has no more than the engine has received in order.
                    let _ = self.engine.rx_advance(flow, read);
                }
            }
        }
        if is_over {
            self.io.drop_unsent(flow);
        }
    }

    /// Puts a connection on the list of connections with requests of the program.
    fn mark_dirty(&mut self, flow: FlowId) {
        if let Some(connection) = self.io.connection_mut(flow)
            && !std::mem::replace(&mut connection.is_dirty, true)
        {
            self.dirty.push(flow);
        }
    }

    /// Ends a connection or a listener, whose descriptor is free from now on.
    fn end(&mut self, descriptor: Descriptor, ending: Ending) {
        match self.descriptors.remove(descriptor) {
            Some(Socket::Listener(listener)) => {
                self.listeners.remove(&listener.id);
                for flow in listener.queue {
                    self.engine.abort(self.now, flow, &mut self.io);
                }
                self.engine.unlisten(self.now, listener.id, &mut self.io);
            }
            Some(Socket::Connection(flow)) => {
                if let Some(connection) = self.io.connection_mut(flow) {
                    connection.descriptor = None;
                    connection.ending = Some(ending);
                    self.mark_dirty(flow);
                }
            }
            None => {}
        }
    }

    /// Returns the room for bytes on a connection.
    fn refusal(&mut self, descriptor: Descriptor, len: u32) -> Option<SendRefusal> {
        let (queue_max, bytes_max) = (self.send_queue_max, self.engine.config().tx_limit);
        let flow = self.descriptors.flow(descriptor);
        let connection = flow.and_then(|flow| self.io.connection_mut(flow));
        let Some(connection) = connection.filter(|connection| connection.can_queue()) else {
            return Some(SendRefusal::NotConnected);
        };
        let is_full = connection.tx.len() >= queue_max
            || connection.tx.len() > 0 && connection.tx.bytes() + len > bytes_max;
        connection.owes_writable |= is_full;
        is_full.then_some(SendRefusal::Full)
    }
}

impl<P: PacketIo> Context for DirectContext<P> {
    fn pool(&self) -> &Pool {
        self.io.supply.pool()
    }

    fn listen(&mut self, local: SocketAddr, options: &ListenOptions) -> io::Result<Descriptor> {
        let local = endpoint(local);
        if !local.addr.is_unspecified() && !self.input.addresses().has(local.addr) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let opened = self.engine.listen(local, options.backlog, self.options);
        let id = opened.map_err(|error| match error {
            ListenError::InUse => io::Error::from(io::ErrorKind::AddrInUse),
            ListenError::Full => io::Error::other(error),
            ListenError::BadEndpoint => io::ErrorKind::InvalidInput.into(),
        })?;
        let descriptor = self.descriptors.add(Socket::Listener(Listener {
            id,
            queue: Default::default(),
            is_paused: false,
        }));
        self.listeners.insert(id, descriptor);
        Ok(descriptor)
    }

    fn connect(&mut self, peer: SocketAddr) -> io::Result<Descriptor> {
        let peer = endpoint(peer);
        let address = self.input.addresses().first_for(peer.addr);
        let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        self.tick();
        let is_free = |port| {
            let local = Endpoint::new(address, port);
            self.engine.is_free(self.now, &FlowKey { local, peer })
        };
        let port = self.ephemeral_ports.choose(is_free);
        let local = Endpoint::new(address, port.ok_or(io::ErrorKind::AddrInUse)?);
        let (now, route, options) = (self.now, self.io.flow_route(), self.options);
        let opened = self
            .engine
            .open(now, local, peer, route, options, &mut self.io);
        let flow = opened.map_err(|error| match error {
            OpenError::InUse => io::Error::from(io::ErrorKind::AddrInUse),
            OpenError::Full => io::Error::other(error),
            OpenError::BadEndpoint => io::ErrorKind::InvalidInput.into(),
        })?;
        let descriptor = self.descriptors.add(Socket::Connection(flow));
        if let Some(connection) = self.io.connection_mut(flow) {
            connection.descriptor = Some(descriptor);
        }
        Ok(descriptor)
    }

    fn send(&mut self, descriptor: Descriptor, buffer: Buffer) -> Result<(), SendError> {
        if let Some(refusal) = self.refusal(descriptor, buffer.len() as u32) {
            return Err(SendError { buffer, refusal });
        }
        if let Some(flow) = self
            .descriptors
            .flow(descriptor)
            .filter(|_| !buffer.is_empty())
            && let Some(connection) = self.io.connection_mut(flow)
        {
            connection.tx.push(buffer);
            self.mark_dirty(flow);
        }
        Ok(())
    }

    fn sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        list.clear();
        self.transmit();
        self.receive(list, wait)
    }

    fn tx_sync(&mut self) -> io::Result<()> {
        self.transmit();
        Ok(())
    }

    fn rx_sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        list.clear();
        self.receive(list, wait)
    }

    fn pause(&mut self, descriptor: Descriptor) {
        if let Some(listener) = self.descriptors.listener_mut(descriptor) {
            listener.is_paused = true;
        } else if let Some(flow) = self.descriptors.flow(descriptor)
            && let Some(connection) = self.io.connection_mut(flow)
        {
            connection.is_paused = true;
        }
    }

    fn resume(&mut self, descriptor: Descriptor) -> io::Result<()> {
        if let Some(listener) = self.descriptors.listener_mut(descriptor) {
            listener.is_paused = false;
            self.due.push(descriptor);
        } else if let Some(flow) = self.descriptors.flow(descriptor)
            && let Some(connection) = self.io.connection_mut(flow)
        {
            connection.is_paused = false;
            self.io.touch(flow);
        }
        Ok(())
    }

    fn shutdown(&mut self, descriptor: Descriptor) {
        if let Some(flow) = self.descriptors.flow(descriptor)
            && let Some(connection) = self.io.connection_mut(flow)
        {
            connection.is_shut_down = true;
            self.mark_dirty(flow);
        }
    }

    fn close(&mut self, descriptor: Descriptor) {
        self.end(descriptor, Ending::Close);
    }

    fn abort(&mut self, descriptor: Descriptor) {
        self.end(descriptor, Ending::Abort);
    }

    fn is_open(&self, descriptor: Descriptor) -> bool {
        self.descriptors.has(descriptor)
    }

    /// Returns `None`: the kernel knows nothing of the connections.
    fn socket(&self, _descriptor: Descriptor) -> Option<BorrowedFd<'_>> {
        None
    }

    fn system_calls(&self) -> u64 {
        self.io.counters.waits + self.io.port.system_calls()
    }
}

impl<P: PacketIo> Drop for DirectContext<P> {
    /// Resets all connections, so that their peers do not wait.
    fn drop(&mut self) {
        let flows: Vec<FlowId> = self.engine.flows().collect();
        for flow in flows {
            self.engine.abort(self.now, flow, &mut self.io);
        }
        self.flush();
    }
}

fn endpoint(address: SocketAddr) -> Endpoint {
    let ip = match address {
        SocketAddr::V4(v4) => IpAddress::from_v4(v4.ip().octets()),
        SocketAddr::V6(v6) => IpAddress(v6.ip().octets()),
    };
    Endpoint::new(ip, address.port())
}
