//! Returns connections that a program never accepted to their listener.
//!
//! In the kernel, the accept queue belongs to the listener. When a worker process ends (a reload, a
//! crash), no connection of the queue is lost. The service assigns a connection to a context before
//! the program accepts the connection. The service therefore returns these connections to the
//! listener when the process ends.

use tidelane_abi::program_flags;
use tidelane_engine::{FlowId, FlowState};
use tidelane_packet_io::PacketIo;

use crate::{
    Host,
    bindings::{Binding, STAGING},
    buffer_copy::BufferIn,
    memory::Buffers,
};

impl<P: PacketIo> Host<P> {
    /// Takes `flow` back from its program, and returns the flow to the accept queue of its
    /// listener. Returns false and changes nothing if the program has accepted the connection, has
    /// read or written data, or is the only program with the listener, or if there is no memory.
    pub(crate) fn give_back(&mut self, flow: FlowId, program_flags: u32) -> bool {
        let Some(binding) = self.stack.io.bindings.get_mut(flow) else {
            return false;
        };
        let Some(listener) = binding.listener else {
            return false;
        };
        let home = binding.home;
        let untaken = program_flags & program_flags::TAKEN == 0 && binding.cause == 0;
        // Another program would miss the data that this program has read. The data that this
        // program has written is only in the memory of this program.
        let unused = |state: &FlowState| state.rx_read() == 0 && state.tx_head() == 0;
        let untaken = untaken && self.stack.engine.flow(flow).is_some_and(unused);
        let others = self
            .stack
            .io
            .listeners
            .get_mut(listener)
            .is_some_and(|entry| entry.holders.iter().any(|holder| *holder != home));
        if !untaken || !others {
            return false;
        }
        let account = self
            .stack
            .io
            .listeners
            .account(listener, &self.stack.io.programs)
            .cloned();
        let Some(binding) = self.stack.io.bindings.get_mut(flow) else {
            return false;
        };
        let Some(program) = self.stack.io.programs.get_mut(home) else {
            return false;
        };
        let (region, mut buffers) = self.stack.io.staging.of(account.as_ref());
        let staged = binding
            .rx
            .map(|buffer| (buffer, buffers.alloc(buffer.log2)));
        let staged = match staged {
            Some((_, None)) => return false,
            Some((buffer, Some(staged))) => {
                let home = BufferIn::new(program.region.region(), buffer);
                home.copy_to(
                    BufferIn::new(region, staged),
                    self.stack.engine.received(flow),
                );
                Some(staged)
            }
            None => None,
        };
        binding.free_rx(&mut program.rx);
        let (slot, context) = (binding.slot, binding.context);
        self.stack.io.programs.release_slot(home, slot, context);
        *binding = Binding {
            listener: Some(listener),
            rx: staged,
            rx_head: binding.rx_head,
            service_flags: binding.service_flags,
            urgent: binding.urgent,
            ..Binding::new(binding.path, binding.local_port)
        };
        debug_assert_eq!(binding.home, STAGING);
        self.stack.engine.accept_queue_added(listener);
        self.stack.io.bindings.note_accepted(flow, listener);
        true
    }
}
