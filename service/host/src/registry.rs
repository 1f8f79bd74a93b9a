//! What the driver tells the host: programs, listeners, addresses, neighbours.

use std::{collections::VecDeque, sync::Arc};

use tidelane_engine::{FlowId, ListenerId, SocketOptions};
use tidelane_packet_io::PacketIo;
use tidelane_ring::ProgramRegion;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, IpAddress, MacAddress};

use crate::{
    Bell, Host, ProgramId, Route, binding::SlotUse, contexts::Context, listeners::Listener,
    program::Program, shared::Holder,
};

/// Idle receive buffers are looked for this often; one that was idle for a whole interval goes.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
/// Flows that one sweep looks at.
const SWEEP_MAX: usize = 16_384;

/// Why a listener was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// Another kernel socket's listener has the address and port.
    InUse,
    /// No more listeners.
    Limit,
    /// No such program.
    NoProgram,
}

/// A kernel socket that listens. See [`Host::listen`].
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// What programs call the listener: the same on all cores, and no other listener's.
    pub number: u32,
    /// The kernel socket's cookie (SO_COOKIE).
    pub key: u64,
    /// Where it listens: `::` stands for both IP versions.
    pub local: Endpoint,
    /// `::` is for IPv6 only.
    pub v6_only: bool,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
}

impl<P: PacketIo> Host<P> {
    /// Registers a program with its region.
    pub fn add_program(&mut self, name: String, pid: u32, region: Arc<ProgramRegion>) -> ProgramId {
        let share = region.layout().share(self.place.core, self.place.cores);
        self.io
            .programs
            .insert(Program::new(name, pid, region, share))
    }

    /// A context of a program exists; `bell` wakes it. False if there can be no such context.
    pub fn add_context(&mut self, id: ProgramId, number: u32, bell: Box<dyn Bell>) -> bool {
        let Some(program) = self.io.programs.get_mut(id) else {
            return false;
        };
        if program.gone {
            return false;
        }
        let rings = program.share.rings(number);
        let context = rings.and_then(|rings| Context::new(program.region.clone(), rings, bell));
        context.is_some_and(|context| self.io.programs.contexts.insert(id, number, context))
    }

    /// The program is gone: its listeners end, its connections are reset. Connections that it had
    /// closed are finished first; its region goes with the last of them. Its number may be given
    /// to another program from then on.
    pub fn remove_program(&mut self, now: Instant, id: ProgramId) {
        if let Some(program) = self.io.programs.get_mut(id) {
            program.registered = false;
        }
        self.expel(now, id);
        self.io.programs.remove_unused(id);
    }

    /// Everything of the program ends; only the driver can give its number away.
    pub(crate) fn expel(&mut self, now: Instant, id: ProgramId) {
        self.io.now = now;
        for listener in self.io.listeners.held_by(id) {
            self.drop_listener_holder(now, id, listener);
        }
        self.reservations.retain(|(program, _)| *program != id);
        self.parked.retain(|parked| parked.program() != id);
        let Some(program) = self.io.programs.get_mut(id) else {
            return;
        };
        if program.gone {
            return;
        }
        // What the program asked for last still counts: an orderly exit closes just before it.
        let slots: Vec<u32> = program.slots().map(|(slot, _)| slot).collect();
        slots.iter().for_each(|slot| self.advance(now, id, *slot));
        if let Some(program) = self.io.programs.get_mut(id) {
            program.gone = true;
        }
        self.io.programs.contexts.remove_all(id);
        self.leave_all(now, Holder::Program(id), true);
        let Some(program) = self.io.programs.get_mut(id) else {
            return;
        };
        let mut flows: Vec<FlowId> = Vec::new();
        let mut ended: Vec<u32> = Vec::new();
        for (slot, slot_use) in program.slots() {
            match slot_use {
                SlotUse::Free | SlotUse::Elsewhere(_) => {}
                SlotUse::Live(flow) => flows.push(*flow),
                // Others may still want what is unread.
                SlotUse::Ended(binding) if binding.closed_by_program => {}
                SlotUse::Ended(_) => ended.push(slot),
            }
        }
        ended.into_iter().for_each(|slot| self.free_ended(id, slot));
        for flow in flows {
            let orphan = self
                .io
                .binding(flow)
                .is_some_and(|binding| binding.closed_by_program);
            let flags = self
                .io
                .binding(flow)
                .map_or(0, |binding| binding.program_flags);
            if !orphan && !self.give_back(flow, flags) {
                self.engine.abort(now, flow, &mut self.io);
            }
        }
    }

    /// A kernel socket of a program listens. A second program with the same socket gets the same
    /// listener, under the number that it has.
    pub fn listen(&mut self, id: ProgramId, listen: &Listen) -> Result<ListenerId, ListenError> {
        let &Listen {
            number,
            key,
            local,
            v6_only,
            backlog,
        } = listen;
        if self.io.programs.get(id).is_none_or(|program| program.gone) {
            return Err(ListenError::NoProgram);
        }
        if let Some(known) = self.io.listeners.find(key) {
            self.engine.set_backlog(known, backlog);
            if let Some(entry) = self.io.listeners.get_mut(known)
                && !entry.holders.contains(&id)
            {
                entry.holders.push(id);
            }
            return Ok(known);
        }
        let options = SocketOptions {
            v6_only,
            ..self.base_options
        };
        let listener = match self.engine.listen(local, backlog, options) {
            Ok(listener) => listener,
            Err(tidelane_engine::ListenError::InUse) => return Err(ListenError::InUse),
            Err(_) => return Err(ListenError::Limit),
        };
        let entry = Listener {
            number,
            key,
            local,
            holders: vec![id],
            members: Vec::new(),
            waiting: VecDeque::new(),
        };
        self.io.listeners.insert(listener, entry);
        Ok(listener)
    }

    /// A program closed its descriptor of a listener. With the last one the listener ends.
    pub fn unlisten(&mut self, now: Instant, id: ProgramId, listener: ListenerId) {
        self.io.now = now;
        self.drop_listener_holder(now, id, listener);
    }

    fn drop_listener_holder(&mut self, now: Instant, id: ProgramId, listener: ListenerId) {
        let Some(entry) = self.io.listeners.get_mut(listener) else {
            return;
        };
        let (last, untaken) = entry.drop_holder(id);
        self.engine.accept_taken(listener, untaken);
        if !last {
            return;
        }
        let waiting = self
            .io
            .listeners
            .remove(listener)
            .map(|entry| entry.waiting);
        self.engine.unlisten(now, listener, &mut self.io);
        for flow in waiting.into_iter().flatten() {
            self.engine.abort(now, flow, &mut self.io);
        }
    }

    /// As [`unlisten`](Self::unlisten), by the kernel socket.
    pub fn unlisten_key(&mut self, now: Instant, id: ProgramId, key: u64) {
        if let Some(listener) = self.io.listeners.find(key) {
            self.unlisten(now, id, listener);
        }
    }

    /// The kernel sockets of the listeners in use.
    pub fn listener_keys(&self) -> Vec<u64> {
        let listeners = self.io.listeners.iter();
        listeners.map(|(_, entry)| entry.key).collect()
    }

    /// A program reserved a local port with a kernel socket of its own.
    pub fn reserve(&mut self, id: ProgramId, endpoint: Endpoint) {
        self.reservations.insert((id, endpoint));
    }

    /// Answer to [`MorePorts`](crate::HostRequest::MorePorts); none: there are no more.
    pub fn add_ports(&mut self, now: Instant, addr: IpAddress, ports: &[u16]) {
        self.io.now = now;
        self.io.pool.add(addr, ports);
        self.retry_parked(now);
    }

    /// The interface's addresses and routes, whole.
    pub fn set_routes(&mut self, now: Instant, addresses: Vec<IpAddress>, routes: Vec<Route>) {
        let before = std::mem::replace(&mut self.io.routes.interface.addresses, addresses);
        for addr in before {
            if !self.io.routes.is_local(addr) {
                self.io.pool.remove_address(addr);
            }
        }
        self.io.routes.set_routes(routes);
        self.retry_parked(now);
    }

    /// What the kernel knows of a neighbour now.
    pub fn set_neighbour(&mut self, now: Instant, addr: IpAddress, mac: Option<MacAddress>) {
        self.io.now = now;
        if self.io.routes.hops.set_neighbour(addr, mac) {
            self.io.refresh_paths();
            self.retry_parked(now);
        }
    }

    /// Resets all connections: the service ends.
    pub fn shut_down(&mut self, now: Instant) {
        self.io.now = now;
        let flows: Vec<FlowId> = self.engine.flows().collect();
        for flow in flows {
            self.engine.abort(now, flow, &mut self.io);
        }
        self.publish(now);
        self.io.ports.iter_mut().for_each(PacketIo::tx_flush);
        self.ring(now);
    }

    /// Gives back receive buffers that hold nothing and were not used lately, and homes to those
    /// that wait for one.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.next_sweep = now + SWEEP_INTERVAL;
        let total = self.io.bindings.len();
        for _ in 0..total.min(SWEEP_MAX) {
            self.sweep_at = (self.sweep_at + 1) % total;
            let index = self.sweep_at;
            let Some(binding) = self.io.bindings[index].as_mut() else {
                continue;
            };
            if std::mem::take(&mut binding.active) || binding.rx.is_none() {
                continue;
            }
            let empty = self
                .engine
                .info(FlowId(index as u32))
                .is_some_and(|info| info.unread == 0 && info.ooo_ranges == 0);
            if empty && binding.is_bound() && binding.rx_old.is_empty() {
                let Some(program) = self.io.programs.get_mut(binding.home) else {
                    continue;
                };
                binding.free_rx(&mut program.rx);
                if let Some(slot) = program.region.slot(binding.slot) {
                    crate::slots::set_rx_buffer(slot, binding.rx_word());
                }
            }
        }
        if self.unhoused {
            self.house_waiting(now);
        }
    }

    /// When the next sweep is due; none while there is nothing to sweep.
    pub(crate) fn sweep_due(&self) -> Option<Instant> {
        let any = self
            .io
            .bindings
            .iter()
            .flatten()
            .any(|binding| binding.rx.is_some());
        (any || self.unhoused).then_some(self.next_sweep)
    }
}
