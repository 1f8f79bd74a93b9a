//! Functions for a host's driver (daemon or simulator): programs, listeners, addresses and routes.

use std::{collections::VecDeque, sync::Arc};

use tidelane_engine::{EngineConfig, FlowId, ListenerId, SocketOptions};
use tidelane_packet_io::PacketIo;
use tidelane_ring::ProgramRegion;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, IpAddress, MacAddress};

use crate::{
    Bell, Host, HostRequest, IngressPolicy, ProgramId, Route,
    accounts::User,
    bindings::SlotUse,
    contexts::Context,
    listeners::Listener,
    program::Program,
    rules::{Action, Credentials, Direction, Opening, RuleSet},
    shared::Holder,
};

/// Interval of sweeps. A sweep frees empty receive buffers that were idle since the last sweep.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// The reason for which a listener was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// A listener of another kernel socket has the address and port.
    InUse,
    /// The engine has the largest number of listeners.
    Limit,
    /// The program does not exist, or has ended.
    NoProgram,
}

/// A listening kernel socket for which [`Host::listen`] makes a listener.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// Number that programs use for the listener; unique, and the same on all cores.
    pub number: u32,
    /// The kernel socket's cookie (SO_COOKIE).
    pub key: u64,
    /// Listening address and port; `::` means both IP versions.
    pub local: Endpoint,
    /// True if `::` means IPv6 only.
    pub v6_only: bool,
    /// User id of the owner of the socket's SO_REUSEPORT group. The listeners of a group share an
    /// address and port.
    pub group: Option<u32>,
    /// Limit of connections in the accept queue.
    pub backlog: u32,
    /// True if the listener also gets connections within the host (loopback, other interfaces).
    pub within_host: bool,
}

impl<P: PacketIo> Host<P> {
    /// Registers a program of a user without limits. Returns the program's number.
    pub fn add_program(&mut self, name: String, pid: u32, region: Arc<ProgramRegion>) -> ProgramId {
        self.add_program_of(&Arc::new(User::unlimited()), (name, pid), region)
    }

    /// Registers a program of `user`. `named` is the program's name and pid.
    pub fn add_program_of(
        &mut self,
        user: &Arc<User>,
        named: (String, u32),
        region: Arc<ProgramRegion>,
    ) -> ProgramId {
        let core_index = self.input.core_index();
        let (core, cores) = (core_index.core, core_index.cores);
        let share = region.layout().share(core, cores);
        let account = self.stack.io.ledger.account(user);
        let memory = self.stack.io.staging.memory().clone();
        self.stack
            .io
            .programs
            .insert(Program::new(named, account, region, share, memory))
    }

    /// Sets the credentials of a newly added program.
    pub fn set_credentials(&mut self, id: ProgramId, credentials: Credentials) {
        if let Some(program) = self.stack.io.programs.get_mut(id) {
            program.credentials = Arc::new(credentials);
        }
    }

    /// Replaces the rules, and resets the connections that the new rules deny. Returns the number
    /// of resets.
    pub fn set_rules(&mut self, now: Instant, rules: RuleSet) -> usize {
        self.stack.io.now = now;
        self.stack.io.rules = rules;
        self.input.mux_mut().rules_have_changed();
        if self.stack.io.rules.accepts_all() {
            return 0;
        }
        let mut denied: Vec<FlowId> = self.stack.engine.flows().collect();
        denied.retain(|flow| self.is_denied(*flow));
        for flow in &denied {
            self.stack.engine.abort(now, *flow, &mut self.stack.io);
        }
        denied.len()
    }

    /// Returns true if the rules would deny the connection of `flow`.
    fn is_denied(&self, flow: FlowId) -> bool {
        let binding = self.stack.io.bindings.get(flow);
        let (Some(info), Some(binding)) = (self.stack.engine.info(flow), binding) else {
            return false;
        };
        let nobody = Credentials::default();
        let opening = Opening {
            direction: match info.listener {
                Some(_) => Direction::In,
                None => Direction::Out,
            },
            local: info.key.local,
            peer: info.key.peer,
            owner: binding.owner.as_deref().unwrap_or(&nobody),
        };
        self.stack.io.rules.uncounted_action(&opening) != Action::Accept
    }

    /// Returns the number of decisions of each rule; see [`RuleSet::hits`].
    pub fn rule_hits(&self) -> Vec<u64> {
        self.stack.io.rules.hits()
    }

    /// Adds context `number` of a program, which `bell` wakes. Returns false if the program has
    /// ended, if the context exists, or if `number` is too large.
    pub fn add_context(&mut self, id: ProgramId, number: u32, bell: Box<dyn Bell>) -> bool {
        let Some(program) = self.stack.io.programs.get_mut(id) else {
            return false;
        };
        if program.gone {
            return false;
        }
        let rings = program.share.ring_set(number);
        let context = rings.and_then(|rings| Context::new(program.region.clone(), rings, bell));
        context.is_some_and(|context| self.stack.io.programs.contexts.insert(id, number, context))
    }

    /// Removes a program, ends its listeners, and resets its connections. Connections that the
    /// program has closed go on. The region stays mapped, and the program's number stays in use,
    /// until the last of these connections ends.
    pub fn remove_program(&mut self, now: Instant, id: ProgramId) {
        if let Some(program) = self.stack.io.programs.get_mut(id) {
            program.registered = false;
        }
        self.disconnect_program(now, id);
        self.stack.io.programs.remove_unused(id);
    }

    /// Ends a program's listeners, contexts and connections. The program's number stays in use.
    pub(crate) fn disconnect_program(&mut self, now: Instant, id: ProgramId) {
        self.stack.io.now = now;
        for listener in self.stack.io.listeners.held_by(id) {
            self.drop_listener_holder(now, id, listener);
        }
        self.stack.io.local_ports.forget(id);
        self.parked_opens.forget(id);
        let Some(program) = self.stack.io.programs.get_mut(id) else {
            return;
        };
        if program.gone {
            return;
        }
        // Process the last requests, because a program that exits in an orderly way closes its
        // connections just before its exit.
        let slots: Vec<u32> = program.slots().map(|(slot, _)| slot).collect();
        slots.iter().for_each(|slot| self.advance(now, id, *slot));
        if let Some(program) = self.stack.io.programs.get_mut(id) {
            program.gone = true;
        }
        self.stack.io.programs.contexts.remove_all(id);
        self.leave_all(now, Holder::Program(id), true);
        let Some(program) = self.stack.io.programs.get_mut(id) else {
            return;
        };
        let mut flows: Vec<FlowId> = Vec::new();
        let mut ended: Vec<u32> = Vec::new();
        for (slot, slot_use) in program.slots() {
            match slot_use {
                SlotUse::Free | SlotUse::Former(_) => {}
                SlotUse::Live(flow) => flows.push(*flow),
                // Other processes that hold the connection may still read its data.
                SlotUse::Ended(binding) if binding.closed_by_program => {}
                SlotUse::Ended(_) => ended.push(slot),
            }
        }
        ended.into_iter().for_each(|slot| self.free_ended(id, slot));
        for flow in flows {
            let binding = self.stack.io.bindings.get(flow);
            let orphan = binding.is_some_and(|binding| binding.closed_by_program);
            let flags = binding.map_or(0, |binding| binding.program_flags);
            if !orphan && !self.give_back(flow, flags) {
                self.stack.engine.abort(now, flow, &mut self.stack.io);
            }
        }
    }

    /// Adds a listener for a kernel socket of a program. A second program with the same socket gets
    /// the same listener.
    pub fn listen(&mut self, id: ProgramId, listen: &Listen) -> Result<ListenerId, ListenError> {
        let &Listen {
            number,
            key,
            local,
            v6_only,
            group,
            backlog,
            within_host,
        } = listen;
        let program = self
            .stack
            .io
            .programs
            .get(id)
            .filter(|program| !program.gone);
        let owner = program.map(|program| program.credentials.clone());
        let Some(owner) = owner else {
            return Err(ListenError::NoProgram);
        };
        if let Some(known) = self.stack.io.listeners.find(key) {
            self.stack.engine.set_backlog(known, backlog);
            if let Some(entry) = self.stack.io.listeners.get_mut(known) {
                entry.within_host |= within_host;
                if !entry.holders.contains(&id) {
                    entry.holders.push(id);
                }
            }
            return Ok(known);
        }
        let options = SocketOptions {
            v6_only,
            ..self.base_options
        };
        let listener = match self
            .stack
            .engine
            .listen_in_group(local, backlog, options, group)
        {
            Ok(listener) => listener,
            Err(tidelane_engine::ListenError::InUse) => return Err(ListenError::InUse),
            Err(_) => return Err(ListenError::Limit),
        };
        let entry = Listener {
            number,
            key,
            local,
            within_host,
            owner,
            holders: vec![id],
            members: Vec::new(),
            waiting: VecDeque::new(),
        };
        self.stack.io.listeners.insert(listener, entry);
        Ok(listener)
    }

    /// Releases a program's hold of a listener. The listener ends with its last holder.
    pub fn unlisten(&mut self, now: Instant, id: ProgramId, listener: ListenerId) {
        self.stack.io.now = now;
        self.drop_listener_holder(now, id, listener);
    }

    fn drop_listener_holder(&mut self, now: Instant, id: ProgramId, listener: ListenerId) {
        let Some(entry) = self.stack.io.listeners.get_mut(listener) else {
            return;
        };
        let (last, untaken) = entry.drop_holder(id);
        self.stack.engine.accept_queue_removed(listener, untaken);
        if !last {
            return;
        }
        let waiting = self
            .stack
            .io
            .listeners
            .remove(listener)
            .map(|entry| entry.waiting);
        self.stack
            .engine
            .unlisten(now, listener, &mut self.stack.io);
        for flow in waiting.into_iter().flatten() {
            self.stack.engine.abort(now, flow, &mut self.stack.io);
        }
    }

    /// Calls [`unlisten`](Self::unlisten) for the listener of the kernel socket with cookie `key`.
    pub fn unlisten_key(&mut self, now: Instant, id: ProgramId, key: u64) {
        if let Some(listener) = self.stack.io.listeners.find(key) {
            self.unlisten(now, id, listener);
        }
    }

    /// Returns the cookie (SO_COOKIE) of each listener's kernel socket.
    pub fn listener_keys(&self) -> Vec<u64> {
        let listeners = self.stack.io.listeners.iter();
        listeners.map(|(_, entry)| entry.key).collect()
    }

    /// Records that a program reserved a local port with a kernel socket. Returns false if the
    /// program does not exist or has ended.
    pub fn reserve(&mut self, id: ProgramId, endpoint: Endpoint) -> bool {
        let known = self
            .stack
            .io
            .programs
            .get(id)
            .is_some_and(|program| !program.gone);
        if known {
            self.stack.io.local_ports.reserve(id, endpoint);
        }
        known
    }

    /// Returns true for each port of `ends` that no connection of this core needs, and ends the
    /// program's reservation of the port. A connection that the program opened from its reserved
    /// port needs the port, also in TIME-WAIT, so that the kernel does not choose the port for
    /// another `bind`. Without a program, each connection at the port needs the port.
    pub fn give_up(&mut self, ends: &[(Option<ProgramId>, Endpoint)]) -> Vec<bool> {
        let (ports, engine) = (&mut self.stack.io.local_ports, &self.stack.engine);
        let unused = |(program, end): &(Option<ProgramId>, Endpoint)| match program {
            Some(program) => {
                !engine.is_port_in_time_wait(end.port) && ports.give_up(*program, *end)
            }
            None => !ports.is_used(end.port),
        };
        ends.iter().map(unused).collect()
    }

    /// Adds ports that the driver reserved for [`MorePorts`](crate::HostRequest::MorePorts). An
    /// empty list means that the driver can reserve no more ports.
    pub fn add_ports(&mut self, now: Instant, addr: IpAddress, ports: &[u16]) {
        self.stack.io.now = now;
        self.stack.io.ephemeral_ports.add(addr, ports);
        self.retry_parked(now);
    }

    /// Removes `ends` from the pool of ephemeral ports. Returns true for each port that no
    /// connection of this core uses, so that the driver may return the port to the kernel.
    /// Afterwards, the driver has to [add](Self::add_ports) the ports that it keeps.
    pub fn retire_ports(&mut self, ends: &[Endpoint]) -> Vec<bool> {
        let removed = ends.iter().copied().collect();
        self.stack.io.ephemeral_ports.remove(&removed);
        let ports = &self.stack.io.local_ports;
        ends.iter().map(|end| !ports.is_used(end.port)).collect()
    }

    /// Replaces the interface's addresses and routes.
    pub fn set_routes(&mut self, now: Instant, addresses: Vec<IpAddress>, routes: Vec<Route>) {
        self.stack.io.now = now;
        let table = self.stack.io.neighbours.routes_mut();
        let before = table.set_addresses(addresses);
        let differ = table.set_routes(routes);
        for addr in before {
            if !table.is_local(addr) {
                self.stack.io.ephemeral_ports.remove_address(addr);
            }
        }
        if differ {
            self.stack.io.reroute_paths();
        }
        self.input
            .mux_mut()
            .set_link(self.stack.io.neighbours.routes());
        self.retry_parked(now);
    }

    /// Sets the source address checks for new flows. Existing flows go on, as in the kernel.
    pub fn set_ingress(&mut self, ingress: IngressPolicy) {
        self.stack.io.neighbours.routes_mut().set_ingress(ingress);
    }

    /// Sets the interface's link address.
    pub fn set_link_address(&mut self, mac: MacAddress) {
        self.stack.io.neighbours.routes_mut().set_link_address(mac);
        self.input
            .mux_mut()
            .set_link(self.stack.io.neighbours.routes());
        self.stack.io.refresh_paths();
    }

    /// Sets the interface's MTU in bytes, also for open connections. Limits the value to the
    /// largest MTU that all ports support.
    pub fn set_mtu(&mut self, now: Instant, mtu: u32) {
        let mtu = mtu.min(self.stack.io.links.nic_mtu_max());
        if !self.stack.io.neighbours.routes_mut().set_mtu(mtu) {
            return;
        }
        self.stack.io.now = now;
        let link = self.stack.io.neighbours.routes().interface().link;
        let all: Vec<FlowId> = self.stack.engine.flows().collect();
        for flow in all {
            let state = self.stack.engine.flow(flow);
            if state.is_some_and(|state| state.link == link) {
                self.stack
                    .engine
                    .set_link_mtu(now, flow, mtu, &mut self.stack.io);
            }
        }
    }

    /// Applies the kernel's entry for neighbour `addr`. `mac` is `None` while the kernel has not
    /// resolved the neighbour.
    pub fn set_neighbour(&mut self, now: Instant, addr: IpAddress, mac: Option<MacAddress>) {
        self.stack.io.now = now;
        let Some(is_used) = self.stack.io.neighbours.set_neighbour(addr, mac) else {
            return;
        };
        if is_used {
            self.stack.io.refresh_paths();
        }
        self.retry_parked(now);
    }

    /// Resets all connections, because the service ends.
    pub fn shut_down(&mut self, now: Instant) {
        self.stack.io.now = now;
        let flows: Vec<FlowId> = self.stack.engine.flows().collect();
        for flow in flows {
            self.stack.engine.abort(now, flow, &mut self.stack.io);
        }
        self.publish(now);
        self.stack.io.links.flush();
        self.ring_doorbells(now);
    }

    /// Does the periodic work: frees idle memory, updates the journal, assigns waiting connections,
    /// and follows memory pressure.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.next_sweep = now + SWEEP_INTERVAL;
        let (bindings, programs) = (&mut self.stack.io.bindings, &mut self.stack.io.programs);
        bindings.free_idle(&self.stack.engine, programs);
        self.shrink();
        let (flows, in_frames) = (
            self.stack.io.bindings.bound(),
            self.stack.io.counters.in_frames,
        );
        self.stack
            .io
            .journal
            .tend(&self.stack.engine, flows, in_frames);
        if self.has_unassigned {
            self.assign_waiting(now);
        }
        if self.stack.io.programs.check_idle() {
            self.stack.io.requests.push(HostRequest::IdleMemory);
        }
        self.follow_pressure();
    }

    /// Returns true if the table of bindings has a large capacity, but no flow exists.
    fn is_oversized(&self) -> bool {
        self.stack.io.bindings.is_oversized() && self.stack.engine.is_empty()
    }

    /// Frees the tables of flows if the tables are large and no flow exists.
    fn shrink(&mut self) {
        if self.is_oversized() && !self.stack.io.bindings.has_unpublished() {
            self.stack.io.bindings.shrink();
            self.stack.engine.shrink();
        }
    }

    /// Stops the growth of receive windows under memory pressure, and allows growth otherwise.
    fn follow_pressure(&mut self) {
        let pressed = self.stack.io.staging.memory().is_pressed();
        let most = if pressed {
            self.stack.engine.config().rx_window_initial
        } else {
            self.rx_window_max
        };
        if self.stack.engine.config().rx_window_max != most {
            self.stack.engine.set_config(EngineConfig {
                rx_window_max: most,
                ..self.stack.engine.config().clone()
            });
        }
    }

    /// Returns the time of the next sweep. Returns `None` while a sweep has no work.
    pub(crate) fn sweep_due(&self) -> Option<Instant> {
        let mut programs = self.stack.io.programs.iter();
        let mut needs_idle_check = || programs.any(|(_, entry)| entry.rx.needs_idle_check());
        let any =
            self.stack.io.bindings.has_buffers() || self.has_unassigned || self.is_oversized();
        let is_journal_stale = self
            .stack
            .io
            .journal
            .is_stale(self.stack.io.counters.in_frames);
        (any || needs_idle_check() || is_journal_stale).then_some(self.next_sweep)
    }
}
