//! Forwards packets between the NIC, the host and the ports.

use std::{collections::BTreeMap, sync::Arc};

use tidelane_packet_io::{BURST_MAX, Burst, PacketIo, TxChecksum};
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

/// Error of [`Mux::open`]: the largest number of ports is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortsFull;

/// Counters of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets that the port has received.
    pub received: u64,
    /// Packets that the port has sent.
    pub sent: u64,
    /// Packets for the port that were lost because the port had no free frame.
    pub overruns: u64,
    /// Packets of the port that were not sent, by reason.
    pub refused: BTreeMap<SendRefusal, u64>,
}

/// Counters of the packets that belong to no port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets of the NIC that went to the host, because no port has claimed them.
    pub to_host: u64,
    /// Packets that were lost because the host took none.
    pub host_overruns: u64,
    /// Packets that were lost because the NIC took none.
    pub nic_overruns: u64,
}

/// A port.
struct Port<P: PacketIo> {
    io: P,
    /// An empty burst; `None` while its frames are processed.
    burst: Option<P::Burst>,
    counters: PortCounters,
    /// True if the port got frames since the last flush.
    queued: bool,
}

/// Destination of a checked packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Destination {
    Port(PortId),
    Host,
    Nic,
}

/// A mux with a NIC of type `N`, a way to the host of type `H`, and ports of type `P`.
pub struct Mux<N: PacketIo, H: PacketIo, P: PacketIo> {
    nic: N,
    host: H,
    mac: MacAddress,
    addresses: Vec<IpAddress>,
    claims: Claims,
    ports: Vec<Option<Port<P>>>,
    ready: Arc<ReadySet>,
    /// Ports whose turn it is in this step.
    turns: Vec<PortId>,
    /// Number of the port with the first turn in the next step.
    first: usize,
    /// Ports with frames to flush.
    queued: Vec<PortId>,
    counters: Counters,
    nic_burst: Option<N::Burst>,
    host_burst: Option<H::Burst>,
}

impl<N: PacketIo, H: PacketIo, P: PacketIo> Mux<N, H, P> {
    /// Makes a mux for at most `ports_max` ports. `mac` and `addresses` are those of the interface.
    pub fn new(
        nic: N,
        host: H,
        mac: MacAddress,
        addresses: Vec<IpAddress>,
        ports_max: usize,
    ) -> Self {
        let mut ports = Vec::new();
        ports.resize_with(ports_max, || None);
        Self {
            nic_burst: Some(nic.new_burst()),
            host_burst: Some(host.new_burst()),
            nic,
            host,
            mac,
            addresses,
            claims: Claims::default(),
            ports,
            ready: Arc::new(ReadySet::new(ports_max)),
            turns: Vec::new(),
            first: 0,
            queued: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Opens a port. `io` is the mux's end of the port's packet rings; the program's end gets the
    /// doorbell. The frames that `io` receives lie in memory that the program cannot write to, so
    /// that a packet stays as the mux has checked it.
    pub fn open(&mut self, io: P) -> Result<(PortId, Doorbell), PortsFull> {
        let free = self.ports.iter().position(Option::is_none);
        let at = free.ok_or(PortsFull)?;
        let port = PortId(at as u32);
        self.ports[at] = Some(Port {
            burst: Some(io.new_burst()),
            io,
            counters: PortCounters::default(),
            queued: false,
        });
        let doorbell = Doorbell {
            set: Arc::clone(&self.ready),
            port,
            partial_checksums: self.nic.capabilities().rx_checksum_may_be_partial,
        };
        Ok((port, doorbell))
    }

    /// Closes a port: its 3-tuples are free, and its packets are lost. Returns the mux's end of its
    /// packet rings.
    pub fn close(&mut self, port: PortId) -> Option<P> {
        let closed = self.ports.get_mut(port.0 as usize)?.take()?;
        self.claims.release_all(port);
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

    /// Returns the counters of the packets that belong to no port.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn port(&self, port: PortId) -> Option<&Port<P>> {
        self.ports.get(port.0 as usize)?.as_ref()
    }

    fn port_mut(&mut self, port: PortId) -> Option<&mut Port<P>> {
        self.ports.get_mut(port.0 as usize)?.as_mut()
    }

    /// Forwards a burst of the NIC, a burst of the host, and a turn of each port that has packets.
    /// Returns true if there was a packet.
    pub fn step(&mut self) -> bool {
        let mut count = self.forward_from_nic();
        count += self.forward_from_host();
        count += self.forward_from_ports();
        self.flush();
        count > 0
    }

    fn forward_from_nic(&mut self) -> usize {
        let Some(mut burst) = self.nic_burst.take() else {
            return 0;
        };
        let count = self.nic.rx_burst(&mut burst, BURST_MAX);
        for frame in burst.iter() {
            match self.receiver(frame, true) {
                Some(port) => self.give(port, frame),
                None => {
                    self.counters.to_host += 1;
                    self.give_host(frame);
                }
            }
        }
        self.nic.rx_release(&mut burst);
        self.nic_burst = Some(burst);
        count
    }

    fn forward_from_host(&mut self) -> usize {
        let Some(mut burst) = self.host_burst.take() else {
            return 0;
        };
        let count = self.host.rx_burst(&mut burst, BURST_MAX);
        for frame in burst.iter() {
            match self.receiver(frame, false) {
                Some(port) => self.give(port, frame),
                None => self.give_nic(frame),
            }
        }
        self.host.rx_release(&mut burst);
        self.host_burst = Some(burst);
        count
    }

    /// Gives each port that has rung its doorbell a turn. A port with more packets comes again in
    /// the next step, after the other ports: no port can delay another by more than a turn.
    fn forward_from_ports(&mut self) -> usize {
        let mut turns = std::mem::take(&mut self.turns);
        self.ready.take(self.first, &mut turns);
        if let Some(first) = turns.first() {
            self.first = first.0 as usize + 1;
        }
        let mut count = 0;
        for port in turns.drain(..) {
            count += self.forward_from(port);
        }
        self.turns = turns;
        count
    }

    fn forward_from(&mut self, id: PortId) -> usize {
        let Some(port) = self.port_mut(id) else {
            return 0;
        };
        let Some(mut burst) = port.burst.take() else {
            return 0;
        };
        let count = port.io.rx_burst(&mut burst, TURN_MAX);
        for frame in burst.iter() {
            self.forward_sent(id, frame);
        }
        if let Some(port) = self.port_mut(id) {
            port.io.rx_release(&mut burst);
            port.burst = Some(burst);
        }
        if count == TURN_MAX {
            self.ready.add(id);
        }
        count
    }

    /// Checks a packet that a port sends, and forwards it.
    fn forward_sent(&mut self, id: PortId, frame: &[u8]) {
        let checked = check_sent(frame, id, &self.claims, self.mac, &self.addresses);
        let Some(port) = self.port_mut(id) else {
            return;
        };
        let ends = match checked {
            Ok(ends) => ends,
            Err(refusal) => return *port.counters.refused.entry(refusal).or_default() += 1,
        };
        port.counters.sent += 1;
        match self.destination(ends.protocol, ends.dst) {
            Destination::Port(to) => self.give(to, frame),
            Destination::Host => self.give_host(frame),
            Destination::Nic => self.give_nic(frame),
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

    fn give_host(&mut self, frame: &[u8]) {
        if !copy_to(&mut self.host, frame) {
            self.counters.host_overruns += 1;
        }
    }

    fn give_nic(&mut self, frame: &[u8]) {
        if !copy_to(&mut self.nic, frame) {
            self.counters.nic_overruns += 1;
        }
    }

    fn flush(&mut self) {
        self.nic.tx_flush();
        self.host.tx_flush();
        let mut queued = std::mem::take(&mut self.queued);
        for id in queued.drain(..) {
            if let Some(port) = self.port_mut(id) {
                port.queued = false;
                port.io.tx_flush();
            }
        }
        self.queued = queued;
    }
}

/// Copies a frame to the next free frame of `to`. Returns false if there is none, or if the frame
/// is too long for `to`.
fn copy_to<T: PacketIo>(to: &mut T, frame: &[u8]) -> bool {
    let room = to.tx_frame();
    let Some(room) = room.and_then(|room| room.get_mut(..frame.len())) else {
        return false;
    };
    room.copy_from_slice(frame);
    to.tx_commit(frame.len(), TxChecksum::Done);
    true
}
