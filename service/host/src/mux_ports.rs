//! The mux of a core, with its mux ports. A *mux port* is a pair of packet rings through which a
//! program with a TCP/IP stack of its own shares the NIC and its addresses. See
//! `docs/design/mux.md`.
//!
//! A mux port claims 3-tuples (protocol, address, port number), and receives the frames to these
//! 3-tuples. The host's TCP engine gets only the frames to other 3-tuples. The first NIC queue of
//! this core sends the frames of the mux ports. Frames between mux ports and the service's own
//! sockets pass over a link in memory (`links/mux_link.rs`).

use tidelane_mux::{Egress, Filter, GsoFrame, PortId, Ports, Reception, Verdict, Way, copy_to};
use tidelane_packet_io::{Burst, Capabilities, PacketIo, Tapped};
use tidelane_packet_ring::ServiceEnd;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, protocol};

use crate::{
    HostRequest,
    io::HostIo,
    links::{MuxLink, MuxQueue, MuxWays},
    neighbours::Routes,
    port_rules::{PortOwner, PortOwners, PortRules},
    stack::Stack,
    tcp_input,
};

/// Largest number of mux ports.
pub const MUX_PORTS_MAX: usize = 4096;

/// Longest time for which packets of mux ports wait for a NIC that sends nothing. After this time,
/// packets for the NIC are lost, so that ports still reach each other and the service.
const NIC_WAIT_MAX: Duration = Duration::from_millis(100);

/// The mux ports on one core, with their claims.
pub type MuxPorts = Ports<Tapped<ServiceEnd>>;

/// The mux of one core: the mux ports, and the programs behind the ports. The operator's rules
/// judge the packets of these programs.
///
/// Input: [`receive`](Self::receive), [`take_turns`](Self::take_turns),
/// [`send_from_engine`](Self::send_from_engine). Output: [`flush`](Self::flush).
pub(crate) struct PortMux {
    ports: MuxPorts,
    owners: PortOwners,
}

impl PortMux {
    /// Returns a mux without mux ports for the interface of `routes`.
    pub(crate) fn new(routes: &Routes) -> Self {
        let interface = routes.interface();
        let mut mux = Self {
            ports: MuxPorts::new(interface.mac, interface.addresses.clone(), MUX_PORTS_MAX),
            owners: PortOwners::default(),
        };
        mux.set_link(routes);
        mux
    }

    /// Returns the mux ports.
    #[inline]
    pub(crate) fn ports(&self) -> &MuxPorts {
        &self.ports
    }

    /// Returns the mux ports.
    pub(crate) fn ports_mut(&mut self) -> &mut MuxPorts {
        &mut self.ports
    }

    /// Opens a mux port of the program `owner`. Returns false if a mux port already has the number
    /// `id`, or if the number is too large.
    pub(crate) fn open(&mut self, id: PortId, end: ServiceEnd, owner: PortOwner) -> bool {
        let opened = self.ports.open_at(id, Tapped::of_program(end));
        if opened {
            self.owners.set(id, owner);
        }
        opened
    }

    /// Closes a mux port. Returns the mux's end of the port's packet rings. Returns `None` if no
    /// mux port has the number `id`.
    pub(crate) fn close(&mut self, id: PortId) -> Option<Tapped<ServiceEnd>> {
        self.owners.remove(id);
        self.ports.close(id)
    }

    /// Forgets the decisions of earlier rules, because the operator has changed the rules.
    pub(crate) fn rules_have_changed(&mut self) {
        self.owners.rules_have_changed();
    }

    /// Sets the link address, the MTU, the IP addresses from which mux ports may send, and the
    /// broadcast addresses.
    pub(crate) fn set_link(&mut self, routes: &Routes) {
        let interface = routes.interface();
        self.ports
            .set_link(interface.mac, interface.addresses.clone());
        self.ports.set_broadcasts(routes.broadcasts());
        self.ports
            .set_mtu(interface.mtu.try_into().unwrap_or(u16::MAX));
    }

    /// Returns true if a mux port has claimed the TCP endpoint `end`.
    pub(crate) fn has_claimed(&self, end: Endpoint) -> bool {
        self.ports.claims().owner(protocol::TCP, end).is_some()
    }

    /// Gives each frame of a burst to the mux port that has claimed the frame's destination.
    /// `from_wire` is true if the frames came from the wire. Replaces the content of `receptions`
    /// by the outcome for each frame.
    pub(crate) fn receive<'a, P: PacketIo>(
        &mut self,
        now: Instant,
        frames: impl Iterator<Item = &'a [u8]> + Clone,
        from_wire: bool,
        io: &mut HostIo<P>,
        receptions: &mut Vec<Reception>,
    ) {
        let mut rules = PortRules {
            rules: &mut io.rules,
            owners: &mut self.owners,
            counters: &mut io.counters,
            now,
        };
        self.ports
            .receive(frames, from_wire, &mut rules, receptions);
    }

    /// Sends packets of mux ports to their destinations. Returns true if a port has sent a packet.
    /// In a step that gives the mux ports no turns, the function sends nothing, and returns true if
    /// a port has a packet to send.
    pub(crate) fn take_turns<P: PacketIo>(&mut self, now: Instant, io: &mut HostIo<P>) -> bool {
        // Without turns of the engine, a mux port that floods the NIC would take all room of the
        // NIC in each step.
        if io.links.is_turn_of_engine() {
            return self.ports.has_work();
        }
        let Some(MuxWays { queue, mux_link }) = io.links.mux_ways() else {
            return false;
        };
        let mut ways = Ways {
            queue,
            mux_link,
            rules: PortRules {
                rules: &mut io.rules,
                owners: &mut self.owners,
                counters: &mut io.counters,
                now,
            },
            sent: false,
        };
        if ways.mux_link.is_nic_full() {
            ways.has_room();
        }
        let count = self.ports.take_turns(now, &mut ways);
        if ways.sent {
            io.links.note_queued();
        }
        count > 0
    }

    /// Gives the frames of the engine to the mux ports that have claimed their destinations. If no
    /// mux port has claimed a destination, or if the rules refuse the segment, the engine gets the
    /// RST of a closed TCP port (RFC 9293 §3.10.7.1).
    #[cold]
    #[inline(never)]
    pub(crate) fn send_from_engine<P: PacketIo>(&mut self, now: Instant, stack: &mut Stack<P>) {
        let Some(frames) = stack.io.links.mux_link().take(MuxQueue::ToPorts) else {
            return;
        };
        let mut receptions = Vec::with_capacity(frames.len());
        self.receive(now, frames.iter(), false, &mut stack.io, &mut receptions);
        for (frame, reception) in frames.iter().zip(receptions) {
            if reception != Reception::Taken {
                tcp_input::answer_without_port(stack, now, frame);
            }
        }
        // The RSTs have queued no new frames, because the engine does not answer a RST.
        let mux_link = stack.io.links.mux_link();
        mux_link.recycle(MuxQueue::ToPorts, frames);
        self.ports.flush();
    }

    /// Publishes the packets that mux ports received. Reports corrupt packet rings to the driver of
    /// the host (for example the daemon), which closes the mux ports with these rings.
    pub(crate) fn flush<P: PacketIo>(&mut self, io: &mut HostIo<P>) {
        self.ports.flush();
        if self.ports.has_corrupt() {
            io.requests.push_once(HostRequest::CorruptPorts);
        }
    }
}

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

    /// Queues the packet for the engine. A mux port can reach sockets of the service, but no
    /// sockets of the kernel.
    fn give_to_host(&mut self, frame: &[u8]) -> bool {
        self.mux_link.push(MuxQueue::ToEngine, frame)
    }

    /// Queues the packet for an answer. If the queue has no room, the packet gets no answer.
    fn answer_refused(&mut self, frame: &[u8]) {
        self.mux_link.push(MuxQueue::Refused, frame);
    }
}
