//! The TCP engine of a host with its environment, and the way of received packets into the engine.

use tidelane_abi::service_flags;
use tidelane_engine::{Arrival, Engine, FlowId, LinkId};
use tidelane_packet_io::{Burst, PacketIo};
use tidelane_time::Instant;
use tidelane_wire::{
    DropReason, Ecn, Endpoint, FlowKey, IcmpError, IpAddress, Packet, RawSegment, Segment,
    SeqNumber, TcpFlags, TcpOptions, parse_frame, parse_frame_v4, parse_icmp_error,
    parse_icmpv6_error, parse_tcp, protocol, tcp_checksum_ok,
};

use crate::{
    HostRequest, ProgramId,
    bindings::{SlotUse, cause_or_finished},
    io::HostIo,
    links::{LOCAL_PATH_LINK, MUX_LINK, MuxQueue},
    program::SlotId,
    shared::{Move, Take},
};

/// The TCP engine, and the parts of the host that the engine calls through its
/// [`Driver`](tidelane_engine::Driver).
///
/// Input: the `receive` functions check the packets of this core's flows and pass the segments to
/// the engine. The other parts of the host call the engine directly.
pub(crate) struct Stack<P: PacketIo> {
    /// The TCP engine.
    pub(crate) engine: Engine,
    /// The engine's environment.
    pub(crate) io: HostIo<P>,
}

impl<P: PacketIo> Stack<P> {
    /// Receives a frame whose flow belongs to this core.
    #[inline(always)]
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        link: LinkId,
        frame: &[u8],
        partial_allowed: bool,
    ) -> Result<(), DropReason> {
        match parse_frame_v4(frame) {
            Some(Ok(packet)) if packet.protocol == protocol::TCP => {
                self.receive_tcp(now, link, packet, partial_allowed)
            }
            Some(Err(reason)) => Err(reason),
            _ => self.receive_other(now, link, frame, partial_allowed),
        }
    }

    /// Receives a frame other than TCP over IPv4 without IP options: IPv6, IP options, ICMP.
    #[inline(never)]
    pub(crate) fn receive_other(
        &mut self,
        now: Instant,
        link: LinkId,
        frame: &[u8],
        partial_allowed: bool,
    ) -> Result<(), DropReason> {
        let packet = parse_frame(frame)?;
        match packet.protocol {
            protocol::TCP => self.receive_tcp(now, link, packet, partial_allowed),
            protocol::ICMP | protocol::ICMPV6 => {
                self.io.neighbours.begin_frame(&packet.src_mac);
                self.receive_icmp(now, &packet)
            }
            _ => Err(DropReason::UnsupportedProtocol),
        }
    }

    #[inline(always)]
    fn receive_tcp<A: Copy + Into<IpAddress>>(
        &mut self,
        now: Instant,
        link: LinkId,
        packet: Packet<'_, A>,
        partial_allowed: bool,
    ) -> Result<(), DropReason> {
        self.io.neighbours.begin_frame(&packet.src_mac);
        // Use closures, so that the conversion happens where the value is needed.
        let (src, dst) = (|| packet.src.into(), || packet.dst.into());
        if !self.io.neighbours.routes().is_local(dst()) {
            return Err(DropReason::NotOurs);
        }
        // Connections between addresses of this host use the local path, or the link to the ports
        // of the mux. `HostIo::check_source` checks other sources, but only for segments without a
        // flow.
        if self.io.neighbours.routes().is_local_unlikely(src()) && link != MUX_LINK {
            return Err(DropReason::MartianSource);
        }
        if !tcp_checksum_ok(src(), dst(), packet.payload, partial_allowed) {
            return Err(DropReason::BadChecksum);
        }
        let raw = RawSegment::new_checked(packet.payload)?;
        let (src_port, dst_port) = raw.ports();
        let arrival = Arrival {
            key: FlowKey {
                local: Endpoint::new(dst(), dst_port),
                peer: Endpoint::new(src(), src_port),
            },
            link,
            ecn: packet.ecn,
        };
        match raw.timestamps_only() {
            Some(segment) => self
                .engine
                .segment_arrives(now, &arrival, &segment, &mut self.io),
            None => self.receive_other_options(now, arrival, packet.payload),
        }
        Ok(())
    }

    /// Receives a segment with options other than timestamps.
    #[inline(never)]
    fn receive_other_options(&mut self, now: Instant, arrival: Arrival, transport: &[u8]) {
        if let Ok(raw) = RawSegment::new_checked(transport) {
            self.engine
                .segment_arrives(now, &arrival, &raw.segment(), &mut self.io);
        }
    }

    #[inline(never)]
    fn receive_icmp(&mut self, now: Instant, packet: &Packet<'_>) -> Result<(), DropReason> {
        let error = icmp_error(packet)?;
        // Process only errors for addresses of the interface, so that no ICMP error ends a
        // connection within the host.
        if error.key.local.addr != packet.dst || !self.io.neighbours.routes().is_local(packet.dst) {
            return Err(DropReason::NotOurs);
        }
        self.io.neighbours.routes().check_source(packet.src)?;
        // No ICMP error quotes a genuine segment of the local path, which has no routers.
        if self.io.neighbours.routes().is_local(error.key.peer.addr) {
            return Err(DropReason::MartianSource);
        }
        self.engine.icmp_error(now, &error, &mut self.io);
        Ok(())
    }

    /// Delivers the segments of the local path, which programs of this host have sent to each
    /// other.
    #[inline(never)]
    pub(crate) fn receive_local(&mut self, now: Instant) {
        let batch = self.io.links.take_segments();
        for (key, out, segment) in batch.iter() {
            self.io.counters.memory_segments += 1;
            let arrival = Arrival {
                key,
                link: LOCAL_PATH_LINK,
                ecn: out.ecn,
            };
            self.engine
                .segment_arrives(now, &arrival, &segment, &mut self.io);
        }
        self.io.links.recycle(batch);
    }

    /// Closes the connection of a flow, with a reset if `abort` is true.
    pub(crate) fn close(&mut self, now: Instant, flow: FlowId, abort: bool) {
        if abort {
            self.engine.close_with_reset(now, flow, &mut self.io);
        } else {
            self.engine.close(now, flow, &mut self.io);
        }
    }

    /// Aborts a connection, because its program wrote invalid values to the slot.
    #[cold]
    pub(crate) fn abort_misuse(&mut self, now: Instant, flow: FlowId) {
        self.io.counters.misuses += 1;
        self.engine.abort(now, flow, &mut self.io);
    }

    /// Closes the connection in a slot after the last process that held the connection has left.
    pub(crate) fn close_unheld(&mut self, now: Instant, id: SlotId, abort: bool) {
        if let Some(SlotUse::Live(flow)) = self.io.programs.slot_use(id) {
            let flow = *flow;
            self.close(now, flow, abort);
        } else {
            self.free_ended(id);
            self.io.programs.remove_unused(id.program);
        }
    }

    /// Frees a slot whose flow has ended, after its last holder has closed the slot.
    pub(crate) fn free_ended(&mut self, id: SlotId) {
        self.io.programs.free_ended(id);
        self.io.listeners.note_room();
    }

    /// Ends the connections in the slots of a program that is gone. Connections that the program
    /// has closed go on, and connections that it has not accepted go back to their listener.
    pub(crate) fn end_connections(&mut self, now: Instant, program: ProgramId) {
        let Some(entry) = self.io.programs.get(program) else {
            return;
        };
        let mut flows: Vec<FlowId> = Vec::new();
        let mut ended: Vec<SlotId> = Vec::new();
        for (slot, slot_use) in entry.slots() {
            match slot_use {
                SlotUse::Free | SlotUse::Former(_) => {}
                SlotUse::Live(flow) => flows.push(*flow),
                // Other processes that hold the connection may still read its data.
                SlotUse::Ended(binding) if binding.closed_by_program => {}
                SlotUse::Ended(_) => ended.push(SlotId { program, slot }),
            }
        }
        ended.into_iter().for_each(|id| self.free_ended(id));
        for flow in flows {
            let binding = self.io.bindings.get(flow);
            let orphan = binding.is_some_and(|binding| binding.closed_by_program);
            let flags = binding.map_or(0, |binding| binding.program_flags);
            if !orphan && !self.give_back(flow, flags) {
                self.engine.abort(now, flow, &mut self.io);
            }
        }
    }

    /// Ends the binding of a flow, which has ended. Returns the slot and the context of a program
    /// that still has to learn of the end, and to close the slot.
    pub(crate) fn end_binding(&mut self, flow: FlowId) -> Option<(SlotId, u32)> {
        let io = &mut self.io;
        let mut binding = io.bindings.remove(flow)?;
        io.local_ports.end(binding.local_port);
        io.journal.clear(flow);
        if let Some((program, endpoint)) = binding.reserved.take() {
            io.local_ports.end_reserved(program, endpoint);
            io.requests
                .push(HostRequest::PortIdle { program, endpoint });
        }
        io.neighbours.leave(&mut binding.path);
        let (id, context) = (binding.slot_id(), binding.context);
        let Some(program) = io.programs.get_mut(id.program) else {
            binding.free_rx(&mut io.staging.of(None).1);
            if let Some(listener) = binding.listener {
                self.forget_waiting(flow, listener);
            }
            return None;
        };
        let shared = binding.service_flags & service_flags::SHARED != 0;
        if !shared && (binding.closed_by_program || program.gone) {
            binding.free_rx(&mut program.rx);
            io.programs.release_slot(id, context);
            io.programs.remove_unused(id.program);
            io.listeners.note_room();
            return None;
        }
        binding.cause = cause_or_finished(binding.cause);
        binding.service_flags |= service_flags::CLOSED;
        program.set_slot(id.slot, SlotUse::Ended(Box::new(binding)));
        Some((id, context))
    }

    /// Begins the move of the connection in the slot `from` to the program `to`.
    pub(crate) fn begin_move(&mut self, from: SlotId, to: ProgramId, take: Take) -> Move<'_> {
        Move {
            engine: &self.engine,
            programs: &mut self.io.programs,
            bindings: &mut self.io.bindings,
            listeners: &self.io.listeners,
            from,
            to,
            take,
        }
    }

    /// Answers the packets between ports of the mux that the operator's rules have refused.
    pub(crate) fn answer_refused_ports(&mut self, now: Instant) {
        let Some(frames) = self.io.links.mux_link().take(MuxQueue::Refused) else {
            return;
        };
        for frame in frames.iter() {
            self.answer_refused(now, MUX_LINK, frame, false);
        }
        let mux_link = self.io.links.mux_link();
        mux_link.recycle(MuxQueue::Refused, frames);
    }

    /// Answers a refused segment with a RST, as a closed port does. Answers no other packet.
    #[cold]
    pub(crate) fn answer_refused(
        &mut self,
        now: Instant,
        link: LinkId,
        frame: &[u8],
        partial_allowed: bool,
    ) {
        let Ok(packet) = parse_frame(frame) else {
            return;
        };
        let is_right = packet.protocol == protocol::TCP
            && tcp_checksum_ok(packet.src, packet.dst, packet.payload, partial_allowed);
        let Some(segment) = parse_tcp(packet.payload).ok().filter(|_| is_right) else {
            return;
        };
        let arrival = Arrival {
            key: FlowKey {
                local: Endpoint::new(packet.dst, segment.dst_port),
                peer: Endpoint::new(packet.src, segment.src_port),
            },
            link,
            ecn: Ecn::NotEct,
        };
        self.io.neighbours.begin_frame(&packet.src_mac);
        self.engine
            .answer_refused(now, &arrival, &segment, &mut self.io);
    }

    /// Delivers the RST of a closed port to the flow that sent `frame`. Ignores a frame with a RST.
    pub(crate) fn answer_without_port(&mut self, now: Instant, frame: &[u8]) {
        let Ok(packet) = parse_frame(frame) else {
            return;
        };
        let Ok(segment) = parse_tcp(packet.payload) else {
            return;
        };
        if segment.flags.contains(TcpFlags::RST) {
            return;
        }
        let arrival = Arrival {
            key: FlowKey {
                local: Endpoint::new(packet.src, segment.src_port),
                peer: Endpoint::new(packet.dst, segment.dst_port),
            },
            link: MUX_LINK,
            ecn: Ecn::NotEct,
        };
        self.engine
            .segment_arrives(now, &arrival, &reset_for(&segment), &mut self.io);
    }
}

/// Returns the error that an ICMP or ICMPv6 packet reports.
pub(crate) fn icmp_error(packet: &Packet<'_>) -> Result<IcmpError, DropReason> {
    match (packet.protocol, packet.dst.is_v4()) {
        (protocol::ICMP, true) => parse_icmp_error(packet.payload),
        (protocol::ICMPV6, false) => parse_icmpv6_error(packet),
        _ => Err(DropReason::UnsupportedProtocol),
    }
}

/// Returns the RST of a closed port for `segment` (RFC 9293 §3.10.7.1).
fn reset_for<'a>(segment: &Segment<'_>) -> Segment<'a> {
    let (seq, ack, flags) = if segment.flags.contains(TcpFlags::ACK) {
        (segment.ack, SeqNumber(0), TcpFlags::RST)
    } else {
        let end = segment.seq.add(segment.len());
        (SeqNumber(0), end, TcpFlags::RST.union(TcpFlags::ACK))
    };
    Segment {
        src_port: segment.dst_port,
        dst_port: segment.src_port,
        seq,
        ack,
        flags,
        wnd: 0,
        urgent: 0,
        options: TcpOptions::NONE,
        payload: &[],
    }
}
