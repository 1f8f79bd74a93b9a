//! The calls of the driver about the programs of a host.

use std::sync::Arc;

use tidelane_abi::TcpInfo;
use tidelane_packet_io::PacketIo;
use tidelane_ring::ProgramRegion;
use tidelane_time::Instant;

use super::Host;
use crate::{
    accounts::User,
    bindings::SlotUse,
    congestion::AllowedCongestion,
    contexts::{Bell, Context},
    credentials::Credentials,
    ids::{ProgramId, SlotId},
    options::tcp_info_of,
    program::Program,
    stack::Stack,
};

impl<P: PacketIo> Host<P> {
    /// Registers a program of a user without limits. Returns the program's number.
    pub fn add_program(&mut self, name: String, pid: u32, region: Arc<ProgramRegion>) -> ProgramId {
        self.add_program_of(&Arc::new(User::unlimited()), (name, pid), region)
    }

    /// Registers a program of `user`. `named` is the program's name and pid. `region` is the memory
    /// that the program shares with the service.
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

    /// Adds context `number` (the rings of one thread) of a program. `bell` wakes the thread.
    /// Returns false if the program does not exist or has ended, if the context exists already, or
    /// if `number` is too large.
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

    /// Removes a program, releases its listeners, and resets its connections. Connections that the
    /// program has closed go on, and so do connections that another process holds. A connection
    /// that the program has neither accepted nor used goes back to its listener, if another program
    /// holds the listener and there is memory for the received data. Until no connection has a slot
    /// in the region, the region stays mapped, and the program's number stays in use.
    pub fn remove_program(&mut self, now: Instant, id: ProgramId) {
        if let Some(program) = self.stack.io.programs.get_mut(id) {
            program.registered = false;
        }
        self.disconnect_program(now, id);
        self.stack.io.programs.remove_unused(id);
    }

    /// Releases a program's listeners, and ends its contexts and connections. The exceptions of
    /// [`remove_program`](Self::remove_program) apply. The program's number stays in use.
    pub(crate) fn disconnect_program(&mut self, now: Instant, id: ProgramId) {
        self.stack.io.now = now;
        for listener in self.stack.io.listeners.held_by(id) {
            self.stack.drop_listener_holder(now, id, listener);
        }
        self.stack.io.listeners.drop_suspended_holder(id, |_| true);
        self.stack.io.local_ports.forget(id);
        self.parked_opens.forget(id);
        let program = self.stack.io.programs.get(id);
        if program.is_some_and(|program| !program.gone) {
            self.sockets.end_program(now, id, &mut self.stack);
        }
    }

    /// Allows or forbids that the service makes a program's connections within this host (over
    /// loopback, and to addresses of other interfaces). The daemon allows only programs in the
    /// network namespace of the service, because another namespace has another loopback.
    pub fn allow_within_host(&mut self, id: ProgramId, allowed: bool) {
        if let Some(program) = self.stack.io.programs.get_mut(id) {
            program.within_host = allowed;
        }
    }

    /// Sets the congestion control algorithms that a program may choose.
    pub fn set_allowed_congestion(&mut self, id: ProgramId, allowed: AllowedCongestion) {
        if let Some(program) = self.stack.io.programs.get_mut(id) {
            program.congestion = allowed;
        }
    }

    /// Returns the statistics (TCP_INFO) of the connection in a program's slot (the record that the
    /// program and the service share). Returns `None` if the slot has no live connection, or if the
    /// slot's generation is not `generation`. The generation differs for each use of the slot.
    pub fn tcp_info(
        &mut self,
        now: Instant,
        id: ProgramId,
        slot: u32,
        generation: u32,
    ) -> Option<TcpInfo> {
        // Apply the changes that the program made to the slot before its request.
        self.stack.io.now = now;
        let slot = SlotId { program: id, slot };
        self.sockets.advance(now, slot, &mut self.stack);
        let Stack { engine, io } = &mut self.stack;
        let SlotUse::Live(flow) = *io.programs.slot_use(slot)? else {
            return None;
        };
        let is_current = io.bindings.get(flow)?.generation == generation;
        let info = engine.info(flow).filter(|_| is_current);
        let ato = engine.config().delayed_ack;
        info.map(|info| tcp_info_of(now, &info, ato))
    }
}
