//! Reports of a host for listings: sockets, counters and memory usage.

use tidelane_engine::{FlowId, FlowInfo};
use tidelane_packet_io::PacketIo;
use tidelane_wire::{DropReason, ETHERNET_HEADER_LEN, Endpoint};

use crate::{Host, bindings::Binding};

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
    /// Name and pid of the programs that hold the socket.
    pub programs: Vec<(String, u32)>,
    /// Received and unread bytes; for a listener, the length of the accept queue.
    pub recv_q: u32,
    /// Unacknowledged and unsent bytes; for a listener, the backlog.
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

impl<P: PacketIo> Host<P> {
    /// Returns the length in bytes of the largest frame that the interface sends. The boolean is
    /// true if a received frame may have a partial checksum (only the pseudo-header sum).
    pub fn frame_terms(&self) -> (u32, bool) {
        let frame_len_max =
            self.stack.io.neighbours.routes().interface().mtu + ETHERNET_HEADER_LEN as u32;
        (frame_len_max, self.stack.io.links.checksum_may_be_partial())
    }

    /// Returns all listeners, and then all connections except connections in TIME-WAIT.
    pub fn sockets(&self) -> Vec<SocketReport> {
        let listeners = self
            .stack
            .io
            .listeners
            .iter()
            .map(|(id, entry)| SocketReport {
                state: SocketState::Listen,
                listener: Some(entry.number),
                local: entry.local,
                peer: Endpoint::default(),
                programs: entry
                    .holders
                    .iter()
                    .filter_map(|id| self.program_name(*id))
                    .collect(),
                recv_q: entry.waiting.len() as u32
                    + entry
                        .members
                        .iter()
                        .map(|member| member.untaken)
                        .sum::<u32>(),
                send_q: self.stack.engine.backlog(id).unwrap_or(0),
                info: None,
            });
        let flows = self
            .stack
            .engine
            .flows()
            .filter_map(|flow| self.report_flow(flow));
        listeners.chain(flows).collect()
    }

    fn report_flow(&self, flow: FlowId) -> Option<SocketReport> {
        let state = self.stack.engine.flow(flow)?;
        let info = self.stack.engine.info(flow)?;
        let binding = self.stack.io.bindings.get(flow)?;
        Some(SocketReport {
            state: SocketState::Connection(info.state.to_string()),
            listener: None,
            local: state.key().local,
            peer: state.key().peer,
            programs: self.holder_names(binding),
            recv_q: state.rx_head().wrapping_sub(state.rx_read()),
            send_q: state.tx_head().wrapping_sub(state.tx_acked()),
            info: Some(info),
        })
    }

    /// Returns the name and pid of the program whose memory has a connection, and then of the other
    /// programs that hold the connection.
    fn holder_names(&self, binding: &Binding) -> Vec<(String, u32)> {
        let others = self.sockets.shared().programs(binding.connection);
        let others = others.filter(|id| *id != binding.home);
        let has = (!binding.closed_by_program).then_some(binding.home);
        let has_or_had = has.into_iter().chain(others);
        let names: Vec<_> = has_or_had.filter_map(|id| self.program_name(id)).collect();
        if names.is_empty() {
            return self.program_name(binding.home).into_iter().collect();
        }
        names
    }

    fn program_name(&self, id: crate::ProgramId) -> Option<(String, u32)> {
        self.stack
            .io
            .programs
            .get(id)
            .map(|program| (program.name.clone(), program.pid))
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

    /// Returns the number of programs, the number of connections, and the number of bytes in
    /// receive buffers.
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
