//! Active opens: the requests of programs to connect.

use tidelane_abi::{ControlEvent, close_cause, control_event, fast_open, not_accelerated};
use tidelane_engine::{
    Endpoint, FastOpenRequest, FlowId, FlowKey, FlowRoute, IpAddress, OpenError, SocketOptions,
};
use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;
use tidelane_wire::DropReason;

use crate::{
    AllowedCongestion, HostRequest,
    accounts::{Charge, Resource},
    admission::judge_connect,
    contexts::slot_event,
    ephemeral_ports::{Choice, PortShare},
    ip_input::IpInput,
    links::{LOCAL_PATH_LINK, LOCAL_PATH_ROUTE, MUX_LINK, MUX_ROUTE},
    neighbours::can_be_a_host,
    options::{opened_with, options_of},
    parked_opens::Parked,
    rules::Action,
    stack::Stack,
};

/// The reason for which an active open has not started.
pub(crate) enum Unopened {
    /// The open has failed with this `close_cause`.
    Failed(u32),
    /// The program has to connect through the kernel, for this reason of `not_accelerated`.
    Kernel(u32),
    /// The open has to wait for an ephemeral port, or for the resolution of a neighbour.
    Wait,
}

/// One attempt to start an active open. [`start`](Self::start) runs the steps: route, source
/// address, local port, the operator's rules, the user's limits, SYN, and slot.
pub(crate) struct ActiveOpen<'a, P: PacketIo> {
    pub(crate) now: Instant,
    pub(crate) stack: &'a mut Stack<P>,
    /// The input of IP packets, which knows the core of each connection, and the mux ports. Through
    /// a mux port, a program with a stack of its own shares the NIC.
    pub(crate) input: &'a IpInput,
    /// Options of connections whose program sets no options.
    pub(crate) base_options: &'a SocketOptions,
    /// The program that opens the connection, with its request. All words of the request are
    /// untrusted.
    pub(crate) asked: &'a Parked,
}

impl<P: PacketIo> ActiveOpen<'_, P> {
    /// Opens the connection, and binds it to a slot of the program (the record of the connection in
    /// the program's shared memory). Returns the event for the program. If the operator's rules
    /// drop the connection, its frames go nowhere, and the open fails after the retransmissions of
    /// the SYN.
    pub(crate) fn start(&mut self) -> Result<ControlEvent, Unopened> {
        let peer = Endpoint {
            addr: IpAddress(self.asked.request.peer_addr),
            port: self.asked.request.peer_port,
        };
        let route = self.route(peer)?;
        let addr = self.local_address(peer, route)?;
        let local = self.local_endpoint(addr, peer)?;
        let action = self.judge(local, peer);
        if action == Action::Refuse {
            return Err(Unopened::Failed(close_cause::REFUSED));
        }
        let charge = self.charge(route)?;
        self.stack
            .io
            .neighbours
            .set_opens_nowhere(action == Action::Drop);
        let opened = self.open((local, peer), route);
        self.stack.io.neighbours.set_opens_nowhere(false);
        let (flow, syn_room) = opened.map_err(|error| match error {
            OpenError::InUse => Unopened::Failed(close_cause::NO_PORT),
            _ => Unopened::Failed(close_cause::ABORTED),
        })?;
        let program = self.stack.io.programs.get(self.asked.program);
        let owner = program.map(|program| program.credentials.clone());
        if let Some(binding) = self.stack.io.bindings.get_mut(flow) {
            (binding.charge, binding.owner) = (charge, owner);
        }
        self.bind_to_slot(flow, local, syn_room)
    }

    /// Returns the route to `peer`: within this host, to a mux port, or over the interface.
    fn route(&mut self, peer: Endpoint) -> Result<FlowRoute, Unopened> {
        let in_memory = self.route_within(peer).or_else(|| self.route_to_port(peer));
        match in_memory {
            Some(route) => Ok(route),
            None => self.route_from_interface(peer),
        }
    }

    /// Returns the local path if all of the following conditions hold, and `None` otherwise. The
    /// local path carries segments in memory between two programs of this host.
    ///
    /// - `peer` is at an address of this host that the served interface does not have.
    /// - The opening program may connect within the host.
    /// - The service has a listener at `peer`, and this listener accepts connections within the
    ///   host.
    ///
    /// `tidelaned` does not set `within_host` for a listener of a SO_REUSEPORT group, because the
    /// group may have kernel sockets that the service does not know.
    fn route_within(&self, peer: Endpoint) -> Option<FlowRoute> {
        let Stack { engine, io } = &*self.stack;
        if !io.within.has(peer.addr) {
            return None;
        }
        let allowed = io.programs.get(self.asked.program)?.within_host;
        let id = engine.listener_at(peer)?;
        let wanted = io.listeners.get(id)?.within_host;
        (allowed && wanted).then_some(LOCAL_PATH_ROUTE)
    }

    /// Returns the route to the mux ports if `peer` is at an address of the interface, and if a mux
    /// port has claimed this endpoint.
    fn route_to_port(&self, peer: Endpoint) -> Option<FlowRoute> {
        let is_local = self.stack.io.neighbours.routes().is_local(peer.addr);
        (is_local && self.input.mux().has_claimed(peer)).then_some(MUX_ROUTE)
    }

    /// Returns the route over the interface, or the local path to a listener at an address of the
    /// interface.
    fn route_from_interface(&mut self, peer: Endpoint) -> Result<FlowRoute, Unopened> {
        let Stack { engine, io } = &mut *self.stack;
        let routes = io.neighbours.routes();
        if routes.is_local(peer.addr) {
            if engine.listener_at(peer).is_none() {
                return Err(Unopened::Kernel(not_accelerated::ROUTE));
            }
            return Ok(LOCAL_PATH_ROUTE);
        }
        // If the peer is not reached over the interface (for example at another address of this
        // host), or if no host can have the peer's address (for example a multicast group), the
        // program gets the result of the kernel's `connect`.
        if !routes.leads_out(peer.addr) || !can_be_a_host(peer.addr) {
            return Err(Unopened::Kernel(not_accelerated::ROUTE));
        }
        let hop = io
            .neighbours
            .next_hop(self.now, peer.addr, &mut io.requests);
        let Some(hop) = hop else {
            return Err(Unopened::Failed(close_cause::NET_UNREACHABLE));
        };
        if hop.mac.is_none() {
            return Err(Unopened::Wait);
        }
        let interface = io.neighbours.routes().interface();
        Ok(FlowRoute {
            link: interface.link,
            mtu: interface.mtu,
        })
    }

    /// Returns the source address of the connection to `peer` over `route`.
    fn local_address(&self, peer: Endpoint, route: FlowRoute) -> Result<IpAddress, Unopened> {
        let io = &self.stack.io;
        let wanted = IpAddress(self.asked.request.local_addr);
        if io.within.has(peer.addr) {
            let port = self.asked.request.local_port;
            let source = io.within.source(wanted, port, peer.addr);
            return source.ok_or(Unopened::Kernel(not_accelerated::ROUTE));
        }
        let unreachable = Unopened::Failed(close_cause::NET_UNREACHABLE);
        if !wanted.is_unspecified() {
            return match io.neighbours.routes().is_local(wanted) {
                true => Ok(wanted),
                false => Err(unreachable),
            };
        }
        if route.link == LOCAL_PATH_LINK || route.link == MUX_LINK {
            return Ok(peer.addr);
        }
        let found = io.neighbours.routes().lookup(peer.addr);
        found.map(|found| found.source).ok_or(unreachable)
    }

    /// Returns the local address and port: the port that the program reserved, or an ephemeral port
    /// for which the connection belongs to this core.
    fn local_endpoint(&mut self, addr: IpAddress, peer: Endpoint) -> Result<Endpoint, Unopened> {
        let Stack { engine, io } = &mut *self.stack;
        let core_index = self.input.core_index();
        let is_mine = |port| core_index.has(port, peer.port);
        let port = self.asked.request.local_port;
        if port != 0 {
            let local = Endpoint { addr, port };
            let entitled = is_mine(port) && io.local_ports.is_reserved(self.asked.program, local);
            return match entitled {
                true => Ok(local),
                false => Err(Unopened::Failed(close_cause::NO_PORT)),
            };
        }
        let now = io.now;
        let owner = io.programs.get(self.asked.program);
        let user = owner.map(|program| program.account.user());
        let share = user.map_or(PortShare::ALL, |user| io.ephemeral_ports.share_of(user));
        let is_free = |port| {
            let local = Endpoint { addr, port };
            let key = FlowKey { local, peer };
            is_mine(port) && share.has(&key) && engine.is_free(now, &key)
        };
        let Choice {
            port,
            ask,
            exhausted,
        } = io.ephemeral_ports.choose(addr, peer, is_free);
        if ask {
            io.requests.push(HostRequest::MorePorts { addr });
        }
        match port {
            Some(port) => Ok(Endpoint { addr, port }),
            None if exhausted => Err(Unopened::Failed(close_cause::NO_PORT)),
            None => Err(Unopened::Wait),
        }
    }

    /// Returns the verdict of the operator's rules, and counts a denied connection.
    fn judge(&mut self, local: Endpoint, peer: Endpoint) -> Action {
        let io = &mut self.stack.io;
        let program = io.programs.get(self.asked.program);
        let owner = program.map(|program| &*program.credentials);
        let action = judge_connect(&mut io.rules, owner, local, peer);
        if action != Action::Accept {
            io.counters.drops[DropReason::RuleDenied.index()] += 1;
        }
        action
    }

    /// Charges the program's user for a connection. If the accounts refuse the charge, an open over
    /// the local path goes to the kernel, because its program waits for the answer CONNECT_STARTED
    /// or CONNECT_KERNEL. Any other open fails.
    fn charge(&self, route: FlowRoute) -> Result<Option<Charge>, Unopened> {
        let Some(program) = self.stack.io.programs.get(self.asked.program) else {
            return Ok(None);
        };
        match program.account.charge(Resource::Connections, 1) {
            Ok(charge) => Ok(Some(charge)),
            Err(refused) if route.link == LOCAL_PATH_LINK => {
                Err(Unopened::Kernel(refused.reason()))
            }
            Err(_) => Err(Unopened::Failed(close_cause::LIMIT)),
        }
    }

    /// Returns the socket options of the request. If the program may not choose the requested
    /// congestion control algorithm, the result has the algorithm of `base_options`.
    fn options(&self) -> SocketOptions {
        let asked = opened_with(&self.asked.request.options, *self.base_options);
        let program = self.stack.io.programs.get(self.asked.program);
        let allowed = program.map_or(AllowedCongestion::ALL, |program| program.congestion);
        options_of(
            self.asked.request.flags,
            allowed.restrict(asked, self.base_options),
        )
    }

    /// Sends the SYN, or lets the SYN wait for data (TCP Fast Open). Returns the flow, and the
    /// number of bytes of data for which a waiting SYN has room. The number is 0 if the SYN does
    /// not wait.
    fn open(
        &mut self,
        (local, peer): (Endpoint, Endpoint),
        route: FlowRoute,
    ) -> Result<(FlowId, u32), OpenError> {
        let (now, options) = (self.now, self.options());
        let Stack { engine, io } = &mut *self.stack;
        let asked = self.asked.request.fast_open;
        if asked & fast_open::REQUESTED == 0 {
            let flow = engine.open(now, local, peer, route, options, io)?;
            return Ok((flow, 0));
        }
        let how = FastOpenRequest {
            without_cookie: asked & fast_open::WITHOUT_COOKIE != 0,
            more_follows: false,
            held: true,
        };
        let room = engine.fast_open_room(now, peer.addr, route.mtu, &options, how);
        let flow = engine.open_fast(now, (local, peer), route, (options, how), io)?;
        Ok((flow, room.unwrap_or(0)))
    }

    /// Binds the new flow to a slot of the program. Aborts the flow and fails if the program has no
    /// free slot.
    fn bind_to_slot(
        &mut self,
        flow: FlowId,
        local: Endpoint,
        syn_room: u32,
    ) -> Result<ControlEvent, Unopened> {
        let Stack { engine, io } = &mut *self.stack;
        let (program, request) = (self.asked.program, &self.asked.request);
        let Some(taken) = io.programs.take_slot(program, self.asked.context) else {
            engine.abort(io.now, flow, io);
            return Err(Unopened::Failed(close_cause::ABORTED));
        };
        let reserved = (request.local_port != 0).then_some((program, local));
        if reserved.is_some() {
            io.local_ports.begin_reserved(program, local);
        }
        if let Some(binding) = io.bindings.get_mut(flow) {
            binding.program_flags = request.flags;
            binding.reserved = reserved;
        }
        io.bindings.attach(flow, &taken, engine, &mut io.programs);
        let (slot, generation) = (taken.id.slot, taken.generation);
        let started = control_event::CONNECT_STARTED;
        Ok(ControlEvent {
            syn_room,
            ..slot_event(started, slot, generation, request.cookie)
        })
    }
}
