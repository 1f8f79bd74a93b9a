//! Ports of the mux beside the host: programs with TCP/IP stacks of their own share the NIC and its
//! addresses. See `docs/design/mux.md`.
//!
//! The host gives a received frame to the port that has claimed the frame's destination. The engine
//! of the host gets only the other frames. The first NIC queue of this core sends the frames of the
//! ports. Frames between ports and sockets of the service pass over the link in memory
//! (`links/mux_link.rs`).

use tidelane_engine::{Arrival, FlowRoute, LinkId};
use tidelane_mux::{Egress, Filter, GsoFrame, PortId, Ports, Reception, Verdict, Way, copy_to};
use tidelane_packet_io::{Burst, Capabilities, PacketIo, Tapped};
use tidelane_packet_ring::ServiceEnd;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{
    Ecn, Endpoint, FlowKey, Segment, SeqNumber, TcpFlags, TcpOptions, parse_frame, parse_tcp,
    protocol, tcp_checksum_ok,
};

use crate::{
    Host, HostRequest,
    links::{MUX_LINK, MUX_ROUTE, MuxLink, MuxQueue, MuxWays},
    port_rules::{PortOwner, PortRules},
};

/// Largest number of ports of the mux.
pub const MUX_PORTS_MAX: usize = 4096;

/// Longest time for which packets of ports wait for a NIC that sends nothing. After this time,
/// packets for the NIC are lost, so that ports still reach each other and the service.
const NIC_WAIT_MAX: Duration = Duration::from_millis(100);

/// The ports of the mux on one core.
pub type MuxPorts = Ports<Tapped<ServiceEnd>>;

/// The destinations of the packets that leave the mux: a NIC queue, and the link to the engine.
struct Ways<'a, P> {
    queue: &'a mut P,
    mux_link: &'a mut MuxLink,
    rules: PortRules<'a>,
    /// True if the NIC queue took a frame.
    sent: bool,
}

impl<P: PacketIo> Ways<'_, P> {
    /// Returns true if the NIC queue has room for a frame.
    fn has_room(&mut self) -> bool {
        let has_room = self.queue.tx_frame().is_some();
        if has_room {
            self.mux_link.note_nic_room();
        }
        has_room
    }
}

impl<P> Filter for Ways<'_, P> {
    #[inline]
    fn passes_all(&self) -> bool {
        self.rules.passes_all()
    }

    fn judge(&mut self, port: PortId, way: Way, frame: &[u8]) -> Verdict {
        self.rules.judge(port, way, frame)
    }
}

impl<P: PacketIo> Egress for Ways<'_, P> {
    fn nic_capabilities(&self) -> Capabilities {
        self.queue.capabilities()
    }

    fn send_gso_to_nic(&mut self, frame: &GsoFrame<'_>) -> bool {
        frame.send(self.queue).is_ok()
    }

    fn send_to_nic(&mut self, frame: &[u8]) -> bool {
        let taken = copy_to(self.queue, frame);
        self.sent |= taken;
        taken
    }

    fn waits_for_nic(&mut self) -> bool {
        if self.has_room() {
            return false;
        }
        let now = self.rules.now;
        now - self.mux_link.note_nic_full(now) < NIC_WAIT_MAX
    }

    /// Queues the packet for the engine. A port can reach sockets of the service, but no sockets of
    /// the kernel.
    fn give_to_host(&mut self, frame: &[u8]) -> bool {
        self.mux_link.push(MuxQueue::ToEngine, frame)
    }

    /// Queues the packet for an answer. If the queue has no room, the packet gets no answer.
    fn answer_refused(&mut self, frame: &[u8]) {
        self.mux_link.push(MuxQueue::Refused, frame);
    }
}

impl<P: PacketIo> Host<P> {
    /// Returns the ports of this core.
    pub fn mux_ports(&self) -> &MuxPorts {
        &self.mux_ports
    }

    /// Opens a port of the program `owner`. Returns false if a port has the number `id`, or if the
    /// number is too large.
    pub fn open_port(&mut self, id: PortId, end: ServiceEnd, owner: PortOwner) -> bool {
        let opened = self.mux_ports.open_at(id, Tapped::of_program(end));
        if opened {
            self.port_owners.set(id, owner);
        }
        opened
    }

    /// Closes a port. Returns the mux's end of the port's packet rings.
    pub fn close_port(&mut self, id: PortId) -> Option<Tapped<ServiceEnd>> {
        self.port_owners.remove(id);
        self.mux_ports.close(id)
    }

    /// Returns the ports of this core. The driver claims 3-tuples for the ports, after the kernel
    /// has proved that the ports' programs may use these 3-tuples.
    pub fn mux_ports_mut(&mut self) -> &mut MuxPorts {
        &mut self.mux_ports
    }

    /// Sets the link address, the IP addresses from which ports may send, and the broadcast
    /// addresses.
    pub(crate) fn set_mux_link(&mut self) {
        let routes = self.io.neighbours.routes();
        let interface = routes.interface();
        self.mux_ports
            .set_link(interface.mac, interface.addresses.clone());
        self.mux_ports.set_broadcasts(routes.broadcasts());
    }

    /// Receives a burst while ports of the mux are open. Gives each frame to the port that has
    /// claimed the frame's destination, and the other frames to the engine.
    #[cold]
    #[inline(never)]
    pub(crate) fn receive_beside_ports(
        &mut self,
        now: Instant,
        link: LinkId,
        burst: &P::Burst,
        partial_allowed: bool,
    ) {
        for frame in burst.iter() {
            if !self.receive_for_ports(now, link, frame, partial_allowed) {
                self.receive_frame(now, link, frame, partial_allowed);
            }
        }
    }

    /// Gives a frame from the wire to the port that has claimed its destination. Returns false if
    /// no port has claimed the destination.
    pub(crate) fn receive_for_ports(
        &mut self,
        now: Instant,
        link: LinkId,
        frame: &[u8],
        partial_allowed: bool,
    ) -> bool {
        let mut rules = PortRules {
            rules: &mut self.io.rules,
            owners: &mut self.port_owners,
            counters: &mut self.io.counters,
            now,
        };
        let reception = self.mux_ports.receive(frame, true, &mut rules);
        if reception == Reception::Refused {
            self.answer_refused(now, link, frame, partial_allowed);
        }
        reception != Reception::Unclaimed
    }

    /// Answers a refused segment with a RST, as a closed port does. Answers no other packet.
    #[cold]
    fn answer_refused(&mut self, now: Instant, link: LinkId, frame: &[u8], partial_allowed: bool) {
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

    /// Returns the route to a port that has claimed `peer`, an address of the interface.
    pub(crate) fn route_to_port(&self, peer: Endpoint) -> Option<FlowRoute> {
        let is_claimed = self.io.neighbours.routes().is_local(peer.addr)
            && self.mux_ports.claims().owner(protocol::TCP, peer).is_some();
        is_claimed.then_some(MUX_ROUTE)
    }

    /// Sends packets of ports, and publishes the packets that ports received in this step. Returns
    /// true if a port has sent a packet, or has a packet for the next step.
    #[cold]
    #[inline(never)]
    pub(crate) fn serve_mux_ports(&mut self, now: Instant) -> bool {
        // Without turns of the engine, a port that floods the NIC would take all of its room in
        // each step.
        let worked = match self.io.links.is_turn_of_engine() {
            true => self.mux_ports.has_work(),
            false => self.take_port_turns(now),
        };
        self.receive_from_mux_ports(now);
        self.answer_refused_ports(now);
        self.mux_ports.flush();
        if self.mux_ports.has_corrupt() {
            self.io.requests.push_once(HostRequest::CorruptPorts);
        }
        worked
    }

    /// Sends packets of ports. Returns true if a port has sent a packet.
    #[inline]
    fn take_port_turns(&mut self, now: Instant) -> bool {
        let Some(MuxWays { queue, mux_link }) = self.io.links.mux_ways() else {
            return false;
        };
        let mut ways = Ways {
            queue,
            mux_link,
            rules: PortRules {
                rules: &mut self.io.rules,
                owners: &mut self.port_owners,
                counters: &mut self.io.counters,
                now,
            },
            sent: false,
        };
        if ways.mux_link.is_nic_full() {
            ways.has_room();
        }
        let count = self.mux_ports.take_turns(now, &mut ways);
        if ways.sent {
            self.io.links.note_queued();
        }
        count > 0
    }

    /// Receives the packets of ports for sockets of the service.
    fn receive_from_mux_ports(&mut self, now: Instant) {
        let Some(frames) = self.io.links.mux_link().take(MuxQueue::ToEngine) else {
            return;
        };
        for frame in frames.iter() {
            self.receive_frame(now, MUX_LINK, frame, false);
        }
        self.io.neighbours.end_frames();
        let mux_link = self.io.links.mux_link();
        mux_link.recycle(MuxQueue::ToEngine, frames);
        self.send_batches();
    }

    /// Answers the packets between ports that the rules have refused.
    fn answer_refused_ports(&mut self, now: Instant) {
        let Some(frames) = self.io.links.mux_link().take(MuxQueue::Refused) else {
            return;
        };
        for frame in frames.iter() {
            self.answer_refused(now, MUX_LINK, frame, false);
        }
        let mux_link = self.io.links.mux_link();
        mux_link.recycle(MuxQueue::Refused, frames);
    }

    /// Gives the frames of the engine to the ports that have claimed their destinations. If no port
    /// has claimed the destination, or if the rules refuse the segment, the engine gets the RST of
    /// a closed port (RFC 9293 §3.10.7.1).
    #[cold]
    #[inline(never)]
    pub(crate) fn send_to_mux_ports(&mut self, now: Instant) {
        let Some(frames) = self.io.links.mux_link().take(MuxQueue::ToPorts) else {
            return;
        };
        for frame in frames.iter() {
            let mut rules = PortRules {
                rules: &mut self.io.rules,
                owners: &mut self.port_owners,
                counters: &mut self.io.counters,
                now,
            };
            if self.mux_ports.receive(frame, false, &mut rules) != Reception::Taken {
                self.answer_without_port(now, frame);
            }
        }
        // The RSTs have queued no new frames, because the engine does not answer a RST.
        let mux_link = self.io.links.mux_link();
        mux_link.recycle(MuxQueue::ToPorts, frames);
        self.mux_ports.flush();
    }

    /// Delivers the RST of a closed port to the flow that sent `frame`. Ignores a frame with a RST.
    fn answer_without_port(&mut self, now: Instant, frame: &[u8]) {
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
