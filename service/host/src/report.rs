//! Reports of a host (the TCP/IP stack of one core) for listings: sockets, counters and memory
//! usage.

use tidelane_engine::{FlowId, FlowInfo};
use tidelane_packet_io::PacketIo;
use tidelane_wire::{DropReason, ETHERNET_HEADER_LEN, Endpoint};

use crate::{
    Host, bindings::Binding, listeners::Listener, program::Programs, shared::SharedConnections,
    stack::Stack,
};

/// A listener or a connection, as `tidelane ss` lists it.
#[derive(Clone, Debug)]
pub struct SocketReport {
    /// Kind of the socket, and the state of a connection.
    pub state: SocketState,
    /// Number that programs use for the listener; `None` for a connection.
    pub listener: Option<u32>,
    /// Local address and port.
    pub local: Endpoint,
    /// Peer's address and port; unspecified for a listener.
    pub peer: Endpoint,
    /// Name and pid of each program that holds the socket.
    pub programs: Vec<(String, u32)>,
    /// Number of received bytes that the program has not read. For a listener, number of
    /// connections in the accept queue.
    pub recv_q: u32,
    /// Number of written bytes that the peer has not acknowledged, including unsent bytes. For a
    /// listener, the backlog.
    pub send_q: u32,
    /// The engine's state of a connection; `None` for a listener.
    pub info: Option<FlowInfo>,
}

/// The kind of a socket in a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketState {
    /// A listener.
    Listen,
    /// A connection with its state, spelled as in RFC 9293 §3.3.2.
    Connection(String),
}

impl SocketReport {
    fn of_listener(listener: &Listener, backlog: u32, programs: &Programs) -> Self {
        let untaken = listener.members.iter().map(|member| member.untaken);
        let holders = listener.holders.iter();
        Self {
            state: SocketState::Listen,
            listener: Some(listener.number),
            local: listener.local,
            peer: Endpoint::default(),
            programs: holders
                .filter_map(|id| programs.name_and_pid(*id))
                .collect(),
            recv_q: listener.waiting.len() as u32 + untaken.sum::<u32>(),
            send_q: backlog,
            info: None,
        }
    }

    fn of_flow<P: PacketIo>(
        flow: FlowId,
        stack: &Stack<P>,
        shared: &SharedConnections,
    ) -> Option<Self> {
        let Stack { engine, io } = stack;
        let state = engine.flow(flow)?;
        let info = engine.info(flow)?;
        let binding = io.bindings.get(flow)?;
        Some(Self {
            state: SocketState::Connection(info.state.to_string()),
            listener: None,
            local: state.key().local,
            peer: state.key().peer,
            programs: holder_names(binding, shared, &io.programs),
            recv_q: state.rx_head().wrapping_sub(state.rx_read()),
            send_q: state.tx_head().wrapping_sub(state.tx_acked()),
            info: Some(info),
        })
    }
}

/// Returns the name and pid of each program that holds a connection. The *home* is the program
/// whose memory has the connection. If the home holds the connection, the home comes first. If no
/// registered program holds the connection, returns only the home.
fn holder_names(
    binding: &Binding,
    shared: &SharedConnections,
    programs: &Programs,
) -> Vec<(String, u32)> {
    let others = shared.programs(binding.connection);
    let others = others.filter(|id| *id != binding.home);
    let home = (!binding.closed_by_program).then_some(binding.home);
    let holders = home.into_iter().chain(others);
    let names: Vec<_> = holders.filter_map(|id| programs.name_and_pid(id)).collect();
    if names.is_empty() {
        // No registered program holds the connection, which may still send its data.
        return programs.name_and_pid(binding.home).into_iter().collect();
    }
    names
}

impl<P: PacketIo> Host<P> {
    /// Returns the length in bytes of the largest frame that the interface sends. The boolean is
    /// true if a received frame may have a partial checksum (only the pseudo-header sum).
    pub fn frame_terms(&self) -> (u32, bool) {
        let frame_len_max =
            self.stack.io.neighbours.routes().interface().mtu + ETHERNET_HEADER_LEN as u32;
        (frame_len_max, self.stack.io.links.checksum_may_be_partial())
    }

    /// Returns all listeners, and then all connections except connections in TIME-WAIT. The result
    /// has no suspended listener. The kernel socket of a suspended listener was shut down, or has
    /// moved to another port.
    pub fn sockets(&self) -> Vec<SocketReport> {
        let Stack { engine, io } = &self.stack;
        let listeners = io.listeners.iter().map(|(id, listener)| {
            let backlog = engine.backlog(id).unwrap_or(0);
            SocketReport::of_listener(listener, backlog, &io.programs)
        });
        let shared = self.sockets.shared();
        let flows = engine
            .flows()
            .filter_map(|flow| SocketReport::of_flow(flow, &self.stack, shared));
        listeners.chain(flows).collect()
    }

    /// Returns all counters by name: counters of the host, counters of the engine, and drops by
    /// reason.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let own = &self.stack.io.counters;
        let reasm = self.input.reassembly_counters();
        let mut all = vec![
            ("in_frames".to_owned(), own.in_frames),
            ("rx_overruns".to_owned(), self.stack.io.links.rx_overruns()),
            ("handed_over".to_owned(), self.input.handed_over()),
            ("memory_segments".to_owned(), own.memory_segments),
            ("out_frames".to_owned(), own.out_segments),
            ("bad_requests".to_owned(), own.bad_requests),
            ("misuses".to_owned(), own.misuses),
            ("corrupt_rings".to_owned(), own.corrupt_rings),
            ("stuck_doorbells".to_owned(), own.stuck_doorbells),
            ("path_doubts".to_owned(), own.path_doubts),
            ("reasm_reqds".to_owned(), reasm.reqds),
            ("reasm_oks".to_owned(), reasm.oks),
            ("reasm_fails".to_owned(), reasm.fails),
            ("reasm_timeout".to_owned(), reasm.timeouts),
            ("out_time_excds".to_owned(), own.out_time_excds),
        ];
        let engine = self.stack.engine.counters();
        all.extend(engine.iter().map(|(name, value)| (name.to_owned(), value)));
        for reason in DropReason::ALL {
            let count = own.drops[reason.index()] + engine.drops[reason.index()];
            all.push((format!("drop_{reason}"), count));
        }
        all
    }

    /// Returns the number of connections in TIME-WAIT, which the engine keeps in a table of their
    /// own.
    pub fn time_wait_len(&self) -> usize {
        self.stack.engine.time_wait_len()
    }

    /// Returns the number of programs, the number of connections, and the number of allocated bytes
    /// in receive buffers.
    pub fn usage(&self) -> (usize, usize, u64) {
        let programs = self.stack.io.programs.iter().count();
        let bytes = self
            .stack
            .io
            .programs
            .iter()
            .map(|(_, program)| program.rx.allocated_bytes())
            .sum();
        (programs, self.stack.engine.flows().count(), bytes)
    }
}
