//! Reads and executes the requests in the programs' rings. All words of a request are untrusted.

use tidelane_abi::{
    ControlRequest, close_cause, control_event, control_request, data_request, not_accelerated,
};
use tidelane_engine::{Endpoint, FlowId, FlowKey, FlowRoute, IpAddress, OpenError};
use tidelane_packet_io::PacketIo;
use tidelane_ring::{Corrupt, words::DataWord};
use tidelane_time::Instant;
use tidelane_wire::DropReason;

use crate::{
    AllowedCongestion, Host, HostRequest,
    accounts::{Charge, Refused, Resource},
    admission::judge_connect,
    bindings::SlotUse,
    contexts::{Context, failed_event, slot_event},
    ephemeral_ports::{Choice, PortShare},
    links::{LOCAL_PATH_LINK, LOCAL_PATH_ROUTE, MUX_ROUTE},
    listeners::Acceptor,
    neighbours::can_be_a_host,
    options::{opened_with, options_of},
    parked_opens::Parked,
    program::ProgramId,
    rules::Action,
};

/// Limit of the data requests, and of the control requests, that one step reads from a context.
const REQUESTS_PER_STEP_MAX: u32 = 512;

/// The outcome of an attempt to start an active open.
pub(crate) enum Start {
    /// The open has started, and the program has the event.
    Done,
    /// The open has failed with this `close_cause`.
    Failed(u32),
    /// The program has to connect through the kernel, for a reason of `not_accelerated`.
    Kernel(u32),
    /// The open has to wait for an ephemeral port or a neighbour.
    Wait,
}

impl<P: PacketIo> Host<P> {
    /// Reads requests from all rings. Returns true if there was a request.
    pub(crate) fn poll_requests(&mut self, now: Instant) -> bool {
        let mut any = false;
        let mut from = 0;
        while let Some(place) = self.stack.io.programs.contexts.next_with_requests(from) {
            from = place + 1;
            match self.poll_context(now, place) {
                Ok(some) => any |= some,
                Err(Corrupt) => self.expel_corrupt(now, place),
            }
        }
        any
    }

    /// Disconnects a program with a corrupt ring. The indices of other contexts change. If a
    /// context moves to an index that the scan has passed, the next step reads the context.
    #[cold]
    fn expel_corrupt(&mut self, now: Instant, place: usize) {
        self.stack.io.counters.corrupt_rings += 1;
        if let Some(((id, _), _)) = self.stack.io.programs.contexts.owned(place) {
            self.disconnect_program(now, id);
        }
    }

    #[inline(never)]
    fn poll_context(&mut self, now: Instant, place: usize) -> Result<bool, Corrupt> {
        let mut any = false;
        let Some((owner, mut context)) = self.stack.io.programs.contexts.owned(place) else {
            return Ok(false);
        };
        let id = owner.0;
        if context.has_control() {
            any = self.poll_control(now, place, owner)?;
            let Some(again) = self.stack.io.programs.contexts.at(place) else {
                return Ok(any);
            };
            context = again;
        }
        let waiting = context.data_waiting()?.min(REQUESTS_PER_STEP_MAX);
        for ahead in 0..waiting {
            let Some(context) = self.stack.io.programs.contexts.at(place) else {
                break;
            };
            let word = DataWord::decode(context.data_word(ahead));
            self.data(now, id, word);
        }
        if let Some(context) = self.stack.io.programs.contexts.at(place) {
            context.drop_data(waiting);
        }
        Ok(any || waiting > 0)
    }

    #[inline(never)]
    fn poll_control(
        &mut self,
        now: Instant,
        place: usize,
        (id, number): (ProgramId, u32),
    ) -> Result<bool, Corrupt> {
        let mut any = false;
        for _ in 0..REQUESTS_PER_STEP_MAX {
            let Some(context) = self.stack.io.programs.contexts.at(place) else {
                break;
            };
            let Some(request) = context.next_control()? else {
                break;
            };
            any = true;
            self.control(now, id, number, request);
        }
        Ok(any)
    }

    fn data(&mut self, now: Instant, id: ProgramId, word: DataWord) {
        match word.kind {
            data_request::ADVANCE => self.advance_slot(now, id, word.slot),
            data_request::ASSIGN => self.assign(id, word.slot, word.arg),
            data_request::ACCEPT_TAKEN => self.accept_taken(id, word.slot, word.arg),
            _ => self.stack.io.counters.bad_requests += 1,
        }
    }

    /// Returns context `number` of a program, to answer a request, if the context exists.
    fn context(&mut self, id: ProgramId, number: u32) -> Option<&mut Context> {
        let contexts = &mut self.stack.io.programs.contexts;
        contexts
            .exists(id, number)
            .then(|| contexts.for_event(id, number))?
    }

    fn control(&mut self, now: Instant, id: ProgramId, context: u32, request: ControlRequest) {
        match request.kind {
            control_request::CONNECT => self.connect(now, id, context, request, now),
            control_request::LISTENER_JOIN => {
                self.join_listener(id, context, &request);
            }
            control_request::LISTENER_LEAVE => {
                if let Some(listener) = self.stack.io.listeners.numbered(request.listener)
                    && let Some(entry) = self.stack.io.listeners.get_mut(listener)
                {
                    let untaken = entry.leave(id, context);
                    self.stack.engine.accept_queue_removed(listener, untaken);
                }
            }
            _ => self.stack.io.counters.bad_requests += 1,
        }
    }

    /// Makes a context a member of a listener, and charges the program's user for the membership.
    fn join_listener(&mut self, id: ProgramId, context: u32, request: &ControlRequest) {
        let Some(listener) = self.stack.io.listeners.numbered(request.listener) else {
            return;
        };
        let (Some(entry), Some(program)) = (
            self.stack.io.listeners.get_mut(listener),
            self.stack.io.programs.get(id),
        ) else {
            return;
        };
        if !entry.holders.contains(&id) {
            return;
        }
        if entry.member(id, context).is_none() {
            let Ok(place) = program.account.charge(Resource::Holds, 1) else {
                return;
            };
            let acceptor = Acceptor {
                program: id,
                context,
                cookie: request.cookie,
            };
            entry.join(acceptor, place);
        }
        let waiting = std::mem::take(&mut entry.waiting);
        for flow in waiting {
            self.stack.io.bindings.note_accepted(flow, listener);
        }
    }

    fn accept_taken(&mut self, id: ProgramId, number: u32, count: u32) {
        let Some(listener) = self.stack.io.listeners.numbered(number) else {
            return;
        };
        let Some(entry) = self.stack.io.listeners.get_mut(listener) else {
            return;
        };
        let taken = entry.taken(id, count);
        self.stack.engine.accept_queue_removed(listener, taken);
    }

    fn assign(&mut self, id: ProgramId, slot: u32, context: u32) {
        let Some(program) = self.stack.io.programs.get_mut(id) else {
            return;
        };
        match program.slot_use(slot) {
            Some(SlotUse::Live(flow)) => {
                let flow = *flow;
                if let Some(binding) = self.stack.io.bindings.get_mut(flow) {
                    binding.context = context;
                    binding.announce = true;
                    self.stack.io.bindings.mark_dirty(flow);
                }
            }
            Some(SlotUse::Ended(binding)) => {
                binding.context = context;
                self.announce_ended(id, slot, context);
            }
            Some(SlotUse::Former(former)) => former.context = context,
            _ => {}
        }
    }

    /// Starts, parks or refuses an active open. `since` is the time of the program's request.
    pub(crate) fn connect(
        &mut self,
        now: Instant,
        program: ProgramId,
        context: u32,
        request: ControlRequest,
        since: Instant,
    ) {
        let answer = match self.start_connect(now, program, context, &request) {
            Start::Done => return,
            Start::Failed(cause) => failed_event(request.cookie, cause),
            Start::Kernel(reason) => {
                let mut event = slot_event(control_event::CONNECT_KERNEL, 0, 0, request.cookie);
                event.cause = reason;
                event
            }
            Start::Wait => match self.park(program, context, request, since) {
                Ok(()) => return,
                Err(_) => failed_event(request.cookie, close_cause::LIMIT),
            },
        };
        if let Some(context) = self.context(program, context) {
            let _ = context.push_control(answer);
        }
    }

    /// Parks an active open, unless the program's user has reached the limit of parked opens.
    fn park(
        &mut self,
        program: ProgramId,
        context: u32,
        request: ControlRequest,
        since: Instant,
    ) -> Result<(), Refused> {
        let Some(owner) = self.stack.io.programs.get(program) else {
            return Ok(());
        };
        let place = owner.account.charge(Resource::ParkedOpens, 1)?;
        self.parked_opens.push(Parked {
            program,
            context,
            request,
            since,
            place,
        });
        if let Some(context) = self.context(program, context) {
            context.reserve_answer();
        }
        Ok(())
    }

    /// Tries all parked opens again, after a change or a timeout. Opens past the time limit fail.
    pub(crate) fn retry_parked(&mut self, now: Instant) {
        for parked in self.parked_opens.take_all() {
            let is_overdue = parked.is_overdue(now);
            let Parked {
                program,
                context,
                request,
                since,
                place,
            } = parked;
            drop(place);
            if let Some(context) = self.context(program, context) {
                context.release_answer();
            }
            if is_overdue {
                let event = failed_event(request.cookie, close_cause::HOST_UNREACHABLE);
                if let Some(context) = self.context(program, context) {
                    let _ = context.push_control(event);
                }
            } else {
                self.connect(now, program, context, request, since);
            }
        }
    }

    fn start_connect(
        &mut self,
        now: Instant,
        program: ProgramId,
        context: u32,
        request: &ControlRequest,
    ) -> Start {
        let peer = Endpoint {
            addr: IpAddress(request.peer_addr),
            port: request.peer_port,
        };
        let within = self.route_within(program, peer);
        let found = match within.or_else(|| self.route_to_port(peer)) {
            Some(route) => Ok(route),
            None => self.route_to(now, peer),
        };
        let route = match found {
            Ok(route) => route,
            Err(other) => return other,
        };
        let local_addr = match self.local_address(request, peer, route) {
            Ok(addr) => addr,
            Err(other) => return other,
        };
        let local = match self.local_endpoint(program, local_addr, request.local_port, peer) {
            Ok(local) => local,
            Err(other) => return other,
        };
        let asked = opened_with(&request.options, self.base_options);
        let allowed = self.stack.io.programs.get(program);
        let allowed = allowed.map_or(AllowedCongestion::ALL, |program| program.congestion);
        let options = options_of(request.flags, allowed.restrict(asked, &self.base_options));
        let owner = self.stack.io.programs.get(program);
        let owner = owner.map(|program| program.credentials.clone());
        let action = judge_connect(&mut self.stack.io.rules, owner.as_deref(), local, peer);
        if action != Action::Accept {
            self.stack.io.counters.drops[DropReason::RuleDenied.index()] += 1;
        }
        if action == Action::Refuse {
            return Start::Failed(close_cause::REFUSED);
        }
        let charge = match self.charge_connection(program, route) {
            Ok(charge) => charge,
            Err(other) => return other,
        };
        let neighbours = &mut self.stack.io.neighbours;
        neighbours.set_opens_nowhere(action == Action::Drop);
        let opened = self.open(now, (local, peer), route, options, request);
        self.stack.io.neighbours.set_opens_nowhere(false);
        match opened {
            Ok(opened) => {
                if let Some(binding) = self.stack.io.bindings.get_mut(opened.0) {
                    (binding.charge, binding.owner) = (charge, owner);
                }
                self.connect_started(opened, program, context, request, local)
            }
            Err(OpenError::InUse) => Start::Failed(close_cause::NO_PORT),
            Err(_) => Start::Failed(close_cause::ABORTED),
        }
    }

    /// Charges the program's user for a connection. Beyond the limit, an open within this host goes
    /// to the kernel, because its program waits for CONNECT_KERNEL. Any other open fails.
    fn charge_connection(
        &self,
        program: ProgramId,
        route: FlowRoute,
    ) -> Result<Option<Charge>, Start> {
        let Some(program) = self.stack.io.programs.get(program) else {
            return Ok(None);
        };
        match program.account.charge(Resource::Connections, 1) {
            Ok(charge) => Ok(Some(charge)),
            Err(refused) if route.link == LOCAL_PATH_LINK => Err(Start::Kernel(refused.reason())),
            Err(_) => Err(Start::Failed(close_cause::LIMIT)),
        }
    }

    fn route_to(&mut self, now: Instant, peer: Endpoint) -> Result<FlowRoute, Start> {
        if self.stack.io.neighbours.routes().is_local(peer.addr) {
            if self.stack.engine.listener_at(peer).is_none() {
                return Err(Start::Kernel(not_accelerated::ROUTE));
            }
            return Ok(LOCAL_PATH_ROUTE);
        }
        // For martians, other addresses of this host and multicast groups, the program gets the
        // result of the kernel's `connect`.
        if !self.stack.io.neighbours.routes().leads_out(peer.addr) || !can_be_a_host(peer.addr) {
            return Err(Start::Kernel(not_accelerated::ROUTE));
        }
        let (neighbours, requests) = (&mut self.stack.io.neighbours, &mut self.stack.io.requests);
        let Some(hop) = neighbours.next_hop(now, peer.addr, requests) else {
            return Err(Start::Failed(close_cause::NET_UNREACHABLE));
        };
        if hop.mac.is_none() {
            return Err(Start::Wait);
        }
        let interface = self.stack.io.neighbours.routes().interface();
        Ok(FlowRoute {
            link: interface.link,
            mtu: interface.mtu,
        })
    }

    /// Returns the route to a port of the mux that has claimed `peer`, an address of the interface.
    fn route_to_port(&self, peer: Endpoint) -> Option<FlowRoute> {
        let is_local = self.stack.io.neighbours.routes().is_local(peer.addr);
        (is_local && self.input.mux().has_claimed(peer)).then_some(MUX_ROUTE)
    }

    fn local_endpoint(
        &mut self,
        program: ProgramId,
        addr: IpAddress,
        port: u16,
        peer: Endpoint,
    ) -> Result<Endpoint, Start> {
        let core_index = self.input.core_index();
        let is_mine = |port| core_index.has(port, peer.port);
        if port != 0 {
            let local = Endpoint { addr, port };
            let entitled = is_mine(port) && self.stack.io.local_ports.is_reserved(program, local);
            return if entitled {
                Ok(local)
            } else {
                Err(Start::Failed(close_cause::NO_PORT))
            };
        }
        let (engine, now) = (&self.stack.engine, self.stack.io.now);
        let owner = self.stack.io.programs.get(program);
        let user = owner.map(|program| program.account.user());
        let share = user.map_or(PortShare::ALL, |user| {
            self.stack.io.ephemeral_ports.share_of(user)
        });
        let is_free = |port| {
            let local = Endpoint { addr, port };
            let key = FlowKey { local, peer };
            is_mine(port) && share.has(&key) && engine.is_free(now, &key)
        };
        let Choice {
            port,
            ask,
            exhausted,
        } = self.stack.io.ephemeral_ports.choose(addr, peer, is_free);
        if ask {
            self.stack.io.requests.push(HostRequest::MorePorts { addr });
        }
        match port {
            Some(port) => Ok(Endpoint { addr, port }),
            None if exhausted => Err(Start::Failed(close_cause::NO_PORT)),
            None => Err(Start::Wait),
        }
    }

    fn connect_started(
        &mut self,
        (flow, syn_room): (FlowId, u32),
        id: ProgramId,
        context: u32,
        request: &ControlRequest,
        local: Endpoint,
    ) -> Start {
        let taken = self
            .stack
            .io
            .programs
            .get_mut(id)
            .and_then(|program| program.take_slot());
        let Some((slot, generation)) = taken else {
            self.stack
                .engine
                .abort(self.stack.io.now, flow, &mut self.stack.io);
            return Start::Failed(close_cause::ABORTED);
        };
        let reserved = (request.local_port != 0).then_some((id, local));
        if reserved.is_some() {
            self.stack.io.local_ports.begin_reserved(id, local);
        }
        if let Some(binding) = self.stack.io.bindings.get_mut(flow) {
            binding.program_flags = request.flags;
            binding.reserved = reserved;
        }
        self.attach(flow, id, context, slot, generation);
        let mut event = slot_event(
            control_event::CONNECT_STARTED,
            slot,
            generation,
            request.cookie,
        );
        event.syn_room = syn_room;
        if let Some(context) = self.context(id, context) {
            let _ = context.push_control(event);
        }
        Start::Done
    }
}
