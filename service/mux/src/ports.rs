//! The ports of a mux: their packet rings, 3-tuples, turns and counters.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use tidelane_packet_io::{Burst, MemPort, PacketIo, TxChecksum};
use tidelane_packet_ring::ServiceEnd;
use tidelane_wire::{
    Endpoint, IpAddress, MacAddress, parse_frame, parse_icmp_error, parse_icmpv6_error, protocol,
};

use crate::{
    check::{SendRefusal, check_sent, ends},
    claims::{ClaimError, Claims, PortId, Tuple},
    ready::{Doorbell, ReadySet},
};

/// Frames that the mux takes from one port before the next port has its turn.
const TURN_MAX: usize = 32;
/// Frames that the mux takes from all ports in one step, so that the NIC has its turn.
const STEP_MAX: usize = 256;
/// Ports that one step looks at for new frames.
const LOOKS_MAX: usize = 32;

/// The mux's end of a port's packet rings. The frames that it receives lie in memory that the
/// program cannot write to, so that a packet stays as the mux has checked it.
pub trait PortEnd: PacketIo {
    /// True if the mux looks for frames of idle ports. False if the program's end rings a
    /// [`Doorbell`].
    const POLLED: bool;

    /// Returns true if the program has sent frames that the mux has not received.
    fn has_frames(&self) -> bool;

    /// Returns true if the program has made the port unusable, so that its owner has to close it.
    fn is_corrupt(&self) -> bool;
}

impl PortEnd for MemPort {
    const POLLED: bool = false;

    fn has_frames(&self) -> bool {
        self.rx_queued() > 0
    }

    fn is_corrupt(&self) -> bool {
        false
    }
}

impl PortEnd for ServiceEnd {
    const POLLED: bool = true;

    #[inline]
    fn has_frames(&self) -> bool {
        ServiceEnd::has_frames(self)
    }

    fn is_corrupt(&self) -> bool {
        ServiceEnd::is_corrupt(self)
    }
}

/// Receiver of the packets that ports send to other stacks. Both methods return false if the packet
/// was lost.
pub trait Outlet {
    /// Sends a packet through the NIC.
    fn send_to_nic(&mut self, frame: &[u8]) -> bool;

    /// Gives a packet to the host.
    fn give_to_host(&mut self, frame: &[u8]) -> bool;
}

/// Error of [`Ports::open`]: the largest number of ports is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortsFull;

/// Counters of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets that the port has received.
    pub received: u64,
    /// Packets that the port has sent.
    pub sent: u64,
    /// Packets for the port that were lost because the port had no room.
    pub overruns: u64,
    /// Packets of the port that were lost because the NIC or the host had no room.
    pub lost: u64,
    /// Packets of the port that were not sent, by reason.
    pub refused: BTreeMap<SendRefusal, u64>,
}

/// A port.
struct Port<P> {
    io: P,
    counters: PortCounters,
    /// True if the port got frames since the last flush.
    queued: bool,
    /// True if the port waits for a turn.
    in_turns: bool,
}

/// Destination of a checked packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Destination {
    Port(PortId),
    Host,
    Nic,
}

/// The ports of one core, which share the addresses of one interface.
pub struct Ports<P: PortEnd> {
    mac: MacAddress,
    addresses: Vec<IpAddress>,
    claims: Claims,
    ports: Vec<Option<Port<P>>>,
    /// Largest number of ports.
    ports_max: usize,
    /// Numbers of the open ports, in no order.
    open: Vec<PortId>,
    /// Position in `open` of the next port to look at.
    next_look: usize,
    ready: Arc<ReadySet>,
    /// Ports that have rung their doorbells.
    rung: Vec<PortId>,
    /// Ports that wait for a turn, next first.
    turns: VecDeque<PortId>,
    /// Ports with frames to flush.
    queued: Vec<PortId>,
    /// An empty burst, which all ports use in turn; `None` while its frames are processed.
    burst: Option<P::Burst>,
    /// Ports that have become corrupt.
    corrupt: Vec<PortId>,
}

impl<P: PortEnd> Ports<P> {
    /// Makes an empty set for at most `ports_max` ports. `mac` and `addresses` are those of the
    /// interface.
    pub fn new(mac: MacAddress, addresses: Vec<IpAddress>, ports_max: usize) -> Self {
        Self {
            mac,
            addresses,
            claims: Claims::default(),
            ports: Vec::new(),
            ports_max,
            open: Vec::new(),
            next_look: 0,
            ready: Arc::new(ReadySet::new(ports_max)),
            rung: Vec::new(),
            turns: VecDeque::new(),
            queued: Vec::new(),
            burst: None,
            corrupt: Vec::new(),
        }
    }

    /// Sets the link address and the addresses of the interface.
    pub fn set_link(&mut self, mac: MacAddress, addresses: Vec<IpAddress>) {
        self.mac = mac;
        self.addresses = addresses;
    }

    /// Returns the number of open ports.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns true if no port is open.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Opens a port with the lowest free number. `io` is the mux's end of the port's packet rings.
    pub fn open(&mut self, io: P) -> Result<PortId, PortsFull> {
        let free = self.ports.iter().position(Option::is_none);
        let id = PortId(free.unwrap_or(self.ports.len()) as u32);
        match self.open_at(id, io) {
            true => Ok(id),
            false => Err(PortsFull),
        }
    }

    /// Opens a port with number `id`. Returns false if a port has this number, or if the number is
    /// too large.
    pub fn open_at(&mut self, id: PortId, io: P) -> bool {
        let at = id.0 as usize;
        if at >= self.ports_max || self.port(id).is_some() {
            return false;
        }
        if at >= self.ports.len() {
            self.ports.resize_with(at + 1, || None);
        }
        if self.burst.is_none() {
            self.burst = Some(io.new_burst());
        }
        self.ports[at] = Some(Port {
            io,
            counters: PortCounters::default(),
            queued: false,
            in_turns: false,
        });
        self.open.push(id);
        true
    }

    /// Returns the doorbell for the program's end of a port. `partial_checksums` is true if the NIC
    /// may deliver packets with an unfinished checksum.
    pub fn doorbell(&self, port: PortId, partial_checksums: bool) -> Doorbell {
        Doorbell {
            set: Arc::clone(&self.ready),
            port,
            partial_checksums,
        }
    }

    /// Closes a port: its 3-tuples are free, and its packets are lost. Returns the mux's end of its
    /// packet rings.
    pub fn close(&mut self, port: PortId) -> Option<P> {
        let closed = self.ports.get_mut(port.0 as usize)?.take()?;
        self.claims.release_all(port);
        self.open.retain(|open| *open != port);
        self.turns.retain(|waiting| *waiting != port);
        Some(closed.io)
    }

    /// Claims a 3-tuple for a port. The caller has the kernel's proof that the port's program may
    /// use the 3-tuple.
    pub fn claim(&mut self, tuple: Tuple, port: PortId) -> Result<(), ClaimError> {
        match self.port(port) {
            Some(_) => self.claims.claim(tuple, port),
            None => Err(ClaimError::Invalid),
        }
    }

    /// Ends a claim. Returns false if the port has no such claim.
    pub fn release(&mut self, tuple: Tuple, port: PortId) -> bool {
        self.claims.release(tuple, port)
    }

    /// Gives one 3-tuple of a port to another port, between two packets. Returns false, and changes
    /// nothing, if `from` has no such claim or `to` is not open.
    pub fn move_claim(&mut self, tuple: Tuple, from: PortId, to: PortId) -> bool {
        self.port(to).is_some() && self.claims.move_claim(tuple, from, to)
    }

    /// Gives all 3-tuples of one port to another port, between two packets. Returns false, and
    /// changes nothing, if a port is not open.
    pub fn hand_over(&mut self, from: PortId, to: PortId) -> bool {
        let open = self.port(from).is_some() && self.port(to).is_some();
        if open {
            self.claims.hand_over(from, to);
        }
        open
    }

    /// Returns the claims.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Returns the counters of a port.
    pub fn port_counters(&self, port: PortId) -> Option<&PortCounters> {
        Some(&self.port(port)?.counters)
    }

    /// Returns true if there are ports that [`take_corrupt`](Self::take_corrupt) returns.
    pub fn has_corrupt(&self) -> bool {
        !self.corrupt.is_empty()
    }

    /// Takes the numbers of ports that have become corrupt. The owner of the ports closes them.
    pub fn take_corrupt(&mut self) -> Vec<PortId> {
        let mut corrupt = std::mem::take(&mut self.corrupt);
        corrupt.sort_unstable();
        corrupt.dedup();
        corrupt
    }

    /// Returns true if a port has sent packets. The owner of the ports calls this before it sleeps,
    /// after it has announced its sleep.
    pub fn has_work(&self) -> bool {
        let has_frames = |port: &PortId| self.port(*port).is_some_and(|port| port.io.has_frames());
        !self.turns.is_empty() || self.open.iter().any(has_frames)
    }

    fn port(&self, port: PortId) -> Option<&Port<P>> {
        self.ports.get(port.0 as usize)?.as_ref()
    }

    fn port_mut(&mut self, port: PortId) -> Option<&mut Port<P>> {
        self.ports.get_mut(port.0 as usize)?.as_mut()
    }

    /// Gives ports that have packets their turns. A port with more packets has its next turn after
    /// all other ports that wait. Returns the number of packets.
    pub fn take_turns(&mut self, outlet: &mut impl Outlet) -> usize {
        self.find_ready();
        let mut count = 0;
        for _ in 0..self.turns.len() {
            let Some(port) = self.turns.pop_front() else {
                break;
            };
            count += self.take_turn(port, outlet);
            if count >= STEP_MAX {
                break;
            }
        }
        count
    }

    /// Finds the ports that have packets.
    fn find_ready(&mut self) {
        if !P::POLLED {
            self.ready.take(&mut self.rung);
            while let Some(port) = self.rung.pop() {
                self.add_turn(port);
            }
            return;
        }
        for _ in 0..self.open.len().min(LOOKS_MAX) {
            if self.next_look >= self.open.len() {
                self.next_look = 0;
            }
            let id = self.open[self.next_look];
            self.next_look += 1;
            if self.port(id).is_some_and(|port| port.io.has_frames()) {
                self.add_turn(id);
            }
        }
    }

    fn add_turn(&mut self, id: PortId) {
        let Some(port) = self.port_mut(id) else {
            return;
        };
        if !port.in_turns {
            port.in_turns = true;
            self.turns.push_back(id);
        }
    }

    fn take_turn(&mut self, id: PortId, outlet: &mut impl Outlet) -> usize {
        let Some(mut burst) = self.burst.take() else {
            return 0;
        };
        let mut count = 0;
        if let Some(port) = self.port_mut(id) {
            port.in_turns = false;
            count = port.io.rx_burst(&mut burst, TURN_MAX);
        }
        for frame in burst.iter() {
            self.forward(id, frame, outlet);
        }
        if let Some(port) = self.port_mut(id) {
            port.io.rx_release(&mut burst);
            if port.io.is_corrupt() {
                self.corrupt.push(id);
            }
        }
        self.burst = Some(burst);
        if count == TURN_MAX {
            self.add_turn(id);
        }
        count
    }

    /// Checks a packet that a port sends, and forwards it.
    fn forward(&mut self, id: PortId, frame: &[u8], outlet: &mut impl Outlet) {
        let checked = check_sent(frame, id, &self.claims, self.mac, &self.addresses);
        let Some(port) = self.port_mut(id) else {
            return;
        };
        let ends = match checked {
            Ok(ends) => ends,
            Err(refusal) => return *port.counters.refused.entry(refusal).or_default() += 1,
        };
        port.counters.sent += 1;
        let taken = match self.destination(ends.protocol, ends.dst) {
            Destination::Port(to) => return self.give(to, frame),
            Destination::Host => outlet.give_to_host(frame),
            Destination::Nic => outlet.send_to_nic(frame),
        };
        if !taken && let Some(port) = self.port_mut(id) {
            port.counters.lost += 1;
        }
    }

    fn destination(&self, protocol: u8, dst: Endpoint) -> Destination {
        if !self.addresses.contains(&dst.addr) {
            return Destination::Nic;
        }
        match self.claims.owner(protocol, dst) {
            Some(port) => Destination::Port(port),
            None => Destination::Host,
        }
    }

    /// Gives a packet of the NIC or the host to the port that has claimed it. Returns false if no
    /// port has claimed the packet. `from_wire` is true for a packet of the NIC.
    pub fn receive(&mut self, frame: &[u8], from_wire: bool) -> bool {
        match self.receiver(frame, from_wire) {
            Some(port) => {
                self.give(port, frame);
                true
            }
            None => false,
        }
    }

    /// Returns the port that has claimed a received packet: the owner of its destination 3-tuple,
    /// or of the source 3-tuple of the packet that an ICMP error quotes. The stack of the port
    /// checks the transport checksum, as it would behind a NIC.
    ///
    /// A packet of the wire with an address of this host as its source is forged. No port gets such
    /// a packet; the host counts and drops it.
    fn receiver(&self, frame: &[u8], from_wire: bool) -> Option<PortId> {
        let packet = parse_frame(frame).ok()?;
        let is_forged = from_wire && self.addresses.contains(&packet.src);
        if is_forged || !self.addresses.contains(&packet.dst) {
            return None;
        }
        let error = match (packet.protocol, packet.dst.is_v4()) {
            (protocol::ICMP, true) => parse_icmp_error(packet.payload),
            (protocol::ICMPV6, false) => parse_icmpv6_error(&packet),
            _ => {
                let ends = ends(&packet).ok()?;
                return self.claims.owner(ends.protocol, ends.dst);
            }
        };
        self.claims.owner(protocol::TCP, error.ok()?.key.local)
    }

    fn give(&mut self, to: PortId, frame: &[u8]) {
        let Some(port) = self.ports.get_mut(to.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        if copy_to(&mut port.io, frame) {
            port.counters.received += 1;
        } else {
            port.counters.overruns += 1;
        }
        if !port.queued {
            port.queued = true;
            self.queued.push(to);
        }
    }

    /// Makes the packets that ports got visible to their programs.
    pub fn flush(&mut self) {
        let mut queued = std::mem::take(&mut self.queued);
        for id in queued.drain(..) {
            if let Some(port) = self.port_mut(id) {
                port.queued = false;
                port.io.tx_flush();
                if port.io.is_corrupt() {
                    self.corrupt.push(id);
                }
            }
        }
        self.queued = queued;
    }
}

/// Copies a frame to the next free frame of `to`. Returns false if there is none, or if the frame
/// is too long for `to`.
pub fn copy_to<T: PacketIo>(to: &mut T, frame: &[u8]) -> bool {
    let room = to.tx_frame();
    let Some(room) = room.and_then(|room| room.get_mut(..frame.len())) else {
        return false;
    };
    room.copy_from_slice(frame);
    to.tx_commit(frame.len(), TxChecksum::Done);
    true
}
