//! What programs ask for, through their rings. Nothing here is trusted.

use tidelane_abi::{ControlRequest, close_cause, control_event, control_request, data_request};
use tidelane_engine::{Endpoint, FlowId, FlowKey, IpAddress, OpenError, Route};
use tidelane_packet_io::PacketIo;
use tidelane_ring::{Corrupt, words::DataWord};
use tidelane_time::{Duration, Instant};

use crate::{
    Host, HostRequest,
    binding::SlotUse,
    contexts::Context,
    io::{MEMORY_LINK, failed_event, slot_event},
    memory_wire,
    options::{opened_with, options_of},
    ports::Choice,
    program::ProgramId,
};

/// Requests taken from one context per step: the rest waits for the next.
const REQUESTS_PER_STEP_MAX: u32 = 512;
/// Active opens that wait for a port or a neighbour.
const PARKED_MAX: usize = 65_536;
/// How long an active open waits for a neighbour: what the kernel takes to give up.
const PARKED_TIMEOUT: Duration = Duration::from_secs(3);

/// An active open that cannot start yet.
pub struct Parked {
    program: ProgramId,
    context: u32,
    request: ControlRequest,
    since: Instant,
}

impl Parked {
    /// Who waits.
    pub fn program(&self) -> ProgramId {
        self.program
    }
}

/// What became of an attempt to start an active open.
enum Start {
    Done,
    Failed(u32),
    Kernel,
    Wait,
}

impl<P: PacketIo> Host<P> {
    /// Takes requests from all rings. Whether there were any.
    pub(crate) fn poll_requests(&mut self, now: Instant) -> bool {
        let mut any = false;
        let mut from = 0;
        while let Some(place) = self.io.programs.contexts.next_asking(from) {
            from = place + 1;
            match self.poll_context(now, place) {
                Ok(some) => any |= some,
                Err(Corrupt) => self.expel_corrupt(now, place),
            }
        }
        any
    }

    /// The program's contexts are no more: who came after them is looked at in the next step.
    #[cold]
    fn expel_corrupt(&mut self, now: Instant, place: usize) {
        self.io.counters.corrupt_rings += 1;
        if let Some(((id, _), _)) = self.io.programs.contexts.owned(place) {
            self.expel(now, id);
        }
    }

    #[inline(never)]
    fn poll_context(&mut self, now: Instant, place: usize) -> Result<bool, Corrupt> {
        let mut any = false;
        let Some((owner, mut context)) = self.io.programs.contexts.owned(place) else {
            return Ok(false);
        };
        let id = owner.0;
        if context.has_control() {
            any = self.poll_control(now, place, owner)?;
            let Some(again) = self.io.programs.contexts.at(place) else {
                return Ok(any);
            };
            context = again;
        }
        let waiting = context.data_waiting()?.min(REQUESTS_PER_STEP_MAX);
        for ahead in 0..waiting {
            let Some(context) = self.io.programs.contexts.at(place) else {
                break;
            };
            let word = DataWord::decode(context.data_word(ahead));
            self.data(now, id, word);
        }
        if let Some(context) = self.io.programs.contexts.at(place) {
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
            let Some(context) = self.io.programs.contexts.at(place) else {
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
            _ => self.io.counters.bad_requests += 1,
        }
    }

    /// A context that is answered.
    fn context(&mut self, id: ProgramId, number: u32) -> Option<&mut Context> {
        let contexts = &mut self.io.programs.contexts;
        contexts
            .exists(id, number)
            .then(|| contexts.tell(id, number))?
    }

    fn control(&mut self, now: Instant, id: ProgramId, context: u32, request: ControlRequest) {
        match request.kind {
            control_request::CONNECT => self.connect(now, id, context, request, now),
            control_request::LISTENER_JOIN => {
                if let Some(listener) = self.io.listeners.numbered(request.listener)
                    && let Some(entry) = self.io.listeners.get_mut(listener)
                {
                    entry.join(id, context, request.cookie);
                    let waiting = std::mem::take(&mut entry.waiting);
                    self.io
                        .accepted
                        .extend(waiting.into_iter().map(|flow| (flow, listener)));
                }
            }
            control_request::LISTENER_LEAVE => {
                if let Some(listener) = self.io.listeners.numbered(request.listener)
                    && let Some(entry) = self.io.listeners.get_mut(listener)
                {
                    let untaken = entry.leave(id, context);
                    self.engine.accept_taken(listener, untaken);
                }
            }
            _ => self.io.counters.bad_requests += 1,
        }
    }

    fn accept_taken(&mut self, id: ProgramId, number: u32, count: u32) {
        let Some(listener) = self.io.listeners.numbered(number) else {
            return;
        };
        let Some(entry) = self.io.listeners.get_mut(listener) else {
            return;
        };
        let taken = entry.taken(id, count);
        self.engine.accept_taken(listener, taken);
    }

    fn assign(&mut self, id: ProgramId, slot: u32, context: u32) {
        let Some(program) = self.io.programs.get_mut(id) else {
            return;
        };
        match program.slot_use(slot) {
            Some(SlotUse::Live(flow)) => {
                let flow = *flow;
                if let Some(binding) = self.io.binding(flow) {
                    binding.context = context;
                    binding.announce = true;
                    self.io.mark(flow);
                }
            }
            Some(SlotUse::Ended(binding)) => {
                binding.context = context;
                self.announce_ended(id, slot, context);
            }
            Some(SlotUse::Elsewhere(stub)) => stub.context = context,
            _ => {}
        }
    }

    /// Starts an active open, parks it, or refuses it.
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
            Start::Kernel => slot_event(control_event::CONNECT_KERNEL, 0, 0, request.cookie),
            Start::Wait if self.parked.len() < PARKED_MAX => {
                self.parked.push_back(Parked {
                    program,
                    context,
                    request,
                    since,
                });
                return;
            }
            Start::Wait => failed_event(request.cookie, close_cause::NO_PORT),
        };
        if let Some(context) = self.context(program, context) {
            let _ = context.push_control(answer);
        }
    }

    /// Tries all parked active opens again: something that they wait for has changed.
    pub(crate) fn retry_parked(&mut self, now: Instant) {
        for parked in std::mem::take(&mut self.parked) {
            let Parked {
                program,
                context,
                request,
                since,
            } = parked;
            if now - since >= PARKED_TIMEOUT {
                let event = failed_event(request.cookie, close_cause::HOST_UNREACHABLE);
                if let Some(context) = self.context(program, context) {
                    let _ = context.push_control(event);
                }
            } else {
                self.connect(now, program, context, request, since);
            }
        }
    }

    /// When the oldest parked active open must be looked at again.
    pub(crate) fn parked_deadline(&self) -> Option<Instant> {
        self.parked
            .front()
            .map(|parked| parked.since + PARKED_TIMEOUT)
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
        let route = match self.route_to(now, peer) {
            Ok(route) => route,
            Err(other) => return other,
        };
        let wanted = IpAddress(request.local_addr);
        let local_addr = if wanted.is_unspecified() {
            if route.link == MEMORY_LINK {
                peer.addr
            } else {
                match self.io.routes.lookup(peer.addr) {
                    Some(found) => found.source,
                    None => return Start::Failed(close_cause::NET_UNREACHABLE),
                }
            }
        } else if self.io.routes.is_local(wanted) {
            wanted
        } else {
            return Start::Failed(close_cause::NET_UNREACHABLE);
        };
        let local = match self.local_endpoint(program, local_addr, request.local_port, peer) {
            Ok(local) => local,
            Err(other) => return other,
        };
        let options = options_of(
            request.flags,
            opened_with(&request.options, self.base_options),
        );
        match self.open(now, (local, peer), route, options, request) {
            Ok(opened) => self.connect_started(opened, program, context, request, local),
            Err(OpenError::InUse) => Start::Failed(close_cause::NO_PORT),
            Err(_) => Start::Failed(close_cause::ABORTED),
        }
    }

    fn route_to(&mut self, now: Instant, peer: Endpoint) -> Result<Route, Start> {
        if self.io.routes.is_local(peer.addr) {
            if !self.engine.has_listener(peer) {
                return Err(Start::Kernel);
            }
            return Ok(Route {
                link: MEMORY_LINK,
                mtu: memory_wire::MTU,
            });
        }
        let Some(hop) = self.io.routes.hop_to(peer.addr) else {
            return Err(Start::Failed(close_cause::NET_UNREACHABLE));
        };
        if let Some(addr) = self.io.routes.hops.use_at(hop, now) {
            self.io.request(HostRequest::Resolve { addr });
        }
        if self.io.routes.hops.get(hop).mac.is_none() {
            return Err(Start::Wait);
        }
        let interface = &self.io.routes.interface;
        Ok(Route {
            link: interface.link,
            mtu: interface.mtu,
        })
    }

    fn local_endpoint(
        &mut self,
        program: ProgramId,
        addr: IpAddress,
        port: u16,
        peer: Endpoint,
    ) -> Result<Endpoint, Start> {
        let place = self.place;
        let is_mine = |port| place.has(port, peer.port);
        if port != 0 {
            let local = Endpoint { addr, port };
            let entitled = is_mine(port) && self.reservations.contains(&(program, local));
            return if entitled {
                Ok(local)
            } else {
                Err(Start::Failed(close_cause::NO_PORT))
            };
        }
        let (engine, now) = (&self.engine, self.io.now);
        let is_free = |port| {
            let local = Endpoint { addr, port };
            is_mine(port) && engine.is_free(now, &FlowKey { local, peer })
        };
        match self.io.pool.choose(addr, is_free) {
            Choice::Port(port) => Ok(Endpoint { addr, port }),
            Choice::Exhausted => Err(Start::Failed(close_cause::NO_PORT)),
            Choice::Wait { ask } => {
                if ask {
                    self.io.request(HostRequest::MorePorts { addr });
                }
                Err(Start::Wait)
            }
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
            .io
            .programs
            .get_mut(id)
            .and_then(|program| program.take_slot());
        let Some((slot, generation)) = taken else {
            self.engine.abort(self.io.now, flow, &mut self.io);
            return Start::Failed(close_cause::ABORTED);
        };
        let reserved = (request.local_port != 0).then_some(local);
        if let Some(binding) = self.io.binding(flow) {
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
