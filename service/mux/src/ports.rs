//! The ports of a mux: their packet rings, 3-tuples, turns and counters. A *turn* is one burst of
//! frames that the mux takes from a port.

use std::{collections::VecDeque, sync::Arc};

use tidelane_abi::port::PORT_FRAME_LEN_MAX;
use tidelane_packet_io::Burst;
use tidelane_time::Instant;
use tidelane_wire::{IpAddress, MacAddress};

use crate::{
    check::SendRefusal,
    claims::{ClaimError, Claims, PortId, Tuple},
    directory::{Destination, Directory},
    egress::Egress,
    filter::{Filter, Reception, Verdict, Way},
    port::{Port, PortsFull},
    port_counters::PortCounters,
    port_end::PortEnd,
    rate::{Amount, SendRate},
    ready::{Doorbell, ReadySet},
    waiting::Waiting,
};

/// Largest number of frames in a turn of a port.
const TURN_MAX: usize = 32;
/// Number of packets from all ports after which a step ends, so that the NIC is served, too.
const STEP_MAX: usize = 256;
/// Largest number of ports that one step polls for new frames.
const POLLS_MAX: usize = 32;

/// The ports of one fast-path core (polling thread). All ports use the addresses of one interface.
pub struct Ports<P: PortEnd> {
    directory: Directory,
    ports: Vec<Option<Port<P>>>,
    /// Largest number of ports.
    ports_max: usize,
    /// Numbers of the open ports, in no order.
    open: Vec<PortId>,
    /// Position in `open` of the next port to poll.
    next_look: usize,
    ready: Arc<ReadySet>,
    /// Ports that have rung their doorbells.
    rung: Vec<PortId>,
    /// Ports that wait for a turn, next first.
    turns: VecDeque<PortId>,
    /// Ports that wait until their rate lets them send.
    waiting: Waiting,
    /// Ports with frames to flush.
    queued: Vec<PortId>,
    /// An empty burst, which all ports use in turn; `None` while its frames are processed.
    burst: Option<P::Burst>,
    /// Buffer for one segment of a GSO frame.
    segment: Vec<u8>,
    /// Ports with invalid values in their packet rings.
    corrupt: Vec<PortId>,
}

impl<P: PortEnd> Ports<P> {
    /// Makes an empty set for at most `ports_max` ports. `mac` and `addresses` are those of the
    /// interface.
    pub fn new(mac: MacAddress, addresses: Vec<IpAddress>, ports_max: usize) -> Self {
        Self {
            directory: Directory::new(mac, addresses),
            ports: Vec::new(),
            ports_max,
            open: Vec::new(),
            next_look: 0,
            ready: Arc::new(ReadySet::new(ports_max)),
            rung: Vec::new(),
            turns: VecDeque::new(),
            waiting: Waiting::default(),
            queued: Vec::new(),
            burst: None,
            segment: Vec::new(),
            corrupt: Vec::new(),
        }
    }

    /// Sets the link address and the addresses of the interface.
    pub fn set_link(&mut self, mac: MacAddress, addresses: Vec<IpAddress>) {
        self.directory.set_link(mac, addresses);
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
        self.ports[at] = Some(Port::new(io));
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

    /// Closes a port. The port's 3-tuples become free, and the packets in its packet rings are
    /// lost. Returns the mux's end of these rings.
    pub fn close(&mut self, port: PortId) -> Option<P> {
        let closed = self.ports.get_mut(port.0 as usize)?.take()?;
        self.directory.claims.release_all(port);
        self.open.retain(|open| *open != port);
        self.turns.retain(|turn| *turn != port);
        if let Some(due) = closed.waits_until {
            self.waiting.remove(due, port);
        }
        self.corrupt.retain(|corrupt| *corrupt != port);
        Some(closed.io)
    }

    /// Claims a 3-tuple for a port. The caller has the kernel's proof that the port's program may
    /// use the 3-tuple.
    pub fn claim(&mut self, tuple: Tuple, port: PortId) -> Result<(), ClaimError> {
        match self.port(port) {
            Some(_) => self.directory.claims.claim(tuple, port),
            None => Err(ClaimError::Invalid),
        }
    }

    /// Ends a claim. Returns false if the port has no such claim.
    pub fn release(&mut self, tuple: Tuple, port: PortId) -> bool {
        self.directory.claims.release(tuple, port)
    }

    /// Moves the claim of one 3-tuple from port `from` to port `to`. At all times, one of the two
    /// ports has the claim. Returns false, and changes nothing, if `from` has no such claim or `to`
    /// is not open.
    pub fn move_claim(&mut self, tuple: Tuple, from: PortId, to: PortId) -> bool {
        self.port(to).is_some() && self.directory.claims.move_claim(tuple, from, to)
    }

    /// Moves all claims of port `from` to port `to`. At all times, one of the two ports has the
    /// claims. Returns false, and changes nothing, if a port is not open.
    pub fn hand_over(&mut self, from: PortId, to: PortId) -> bool {
        let open = self.port(from).is_some() && self.port(to).is_some();
        if open {
            self.directory.claims.hand_over(from, to);
        }
        open
    }

    /// Returns the claims.
    pub fn claims(&self) -> &Claims {
        &self.directory.claims
    }

    /// Limits the rate at which a port sends. A port that waits has its next turn at once.
    pub fn set_rate(&mut self, id: PortId, rate: SendRate) {
        let Some(port) = self.port_mut(id) else {
            return;
        };
        port.set_rate(rate);
        if let Some(due) = port.waits_until.take() {
            self.waiting.remove(due, id);
            self.add_turn(id);
        }
    }

    /// Returns the limits of a port.
    pub fn rate(&self, id: PortId) -> Option<SendRate> {
        Some(self.port(id)?.rate())
    }

    /// Returns the time at which a port that waits may send. The driver calls
    /// [`take_turns`](Self::take_turns) then.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.waiting.next_due()
    }

    /// Returns the mux's end of a port's packet rings.
    pub fn end_mut(&mut self, port: PortId) -> Option<&mut P> {
        Some(&mut self.port_mut(port)?.io)
    }

    /// Returns the counters of a port.
    pub fn port_counters(&self, port: PortId) -> Option<&PortCounters> {
        Some(&self.port(port)?.counters)
    }

    /// Returns true if there are ports that [`take_corrupt`](Self::take_corrupt) returns.
    pub fn has_corrupt(&self) -> bool {
        !self.corrupt.is_empty()
    }

    /// Takes the numbers of corrupt ports, whose programs have written invalid values into the
    /// packet rings. The caller closes these ports.
    pub fn take_corrupt(&mut self) -> Vec<PortId> {
        let mut corrupt = std::mem::take(&mut self.corrupt);
        corrupt.sort_unstable();
        corrupt.dedup();
        corrupt
    }

    /// Returns true if a port has sent packets, and does not wait for its rate. The core calls this
    /// function after it has announced its sleep, and before it sleeps.
    pub fn has_work(&self) -> bool {
        let is_ready = |port: &PortId| self.port(*port).is_some_and(Port::is_ready);
        !self.turns.is_empty() || self.open.iter().any(is_ready)
    }

    fn port(&self, port: PortId) -> Option<&Port<P>> {
        self.ports.get(port.0 as usize)?.as_ref()
    }

    fn port_mut(&mut self, port: PortId) -> Option<&mut Port<P>> {
        self.ports.get_mut(port.0 as usize)?.as_mut()
    }

    /// Forwards packets of the ports: at most one turn of each port with packets. A port with more
    /// packets has its next turn after all other waiting ports. Returns the number of packets.
    pub fn take_turns(&mut self, now: Instant, outlet: &mut impl Egress) -> usize {
        if !self.waiting.is_empty() {
            self.end_waits(now);
        }
        self.find_ready();
        let mut count = 0;
        for _ in 0..self.turns.len() {
            let Some(port) = self.turns.pop_front() else {
                break;
            };
            count += self.take_turn(now, port, outlet);
            if count >= STEP_MAX {
                break;
            }
        }
        count
    }

    /// Gives a turn to the ports that have waited long enough.
    #[cold]
    fn end_waits(&mut self, now: Instant) {
        while let Some(id) = self.waiting.pop(now) {
            if let Some(port) = self.port_mut(id) {
                port.waits_until = None;
            }
            self.add_turn(id);
        }
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
        for _ in 0..self.open.len().min(POLLS_MAX) {
            if self.next_look >= self.open.len() {
                self.next_look = 0;
            }
            let id = self.open[self.next_look];
            self.next_look += 1;
            if self.port(id).is_some_and(Port::is_ready) {
                self.add_turn(id);
            }
        }
    }

    fn add_turn(&mut self, id: PortId) {
        let Some(port) = self.port_mut(id) else {
            return;
        };
        if !port.in_turns && port.waits_until.is_none() {
            port.in_turns = true;
            self.turns.push_back(id);
        }
    }

    fn take_turn(&mut self, now: Instant, id: PortId, outlet: &mut impl Egress) -> usize {
        let Some(port) = self.ports.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return 0;
        };
        port.in_turns = false;
        let max = match port.begin_turn(now, TURN_MAX) {
            Ok(max) => max,
            Err(due) => {
                self.waiting.add(due, id);
                return 0;
            }
        };
        let Some(mut burst) = self.burst.take() else {
            return 0;
        };
        port.io.rx_burst(&mut burst, max);
        // The amount of the segments of GSO frames beyond one packet for each frame.
        let mut beyond = Amount::default();
        for (at, frame) in burst.iter().enumerate() {
            match burst.segment_size(at) {
                0 => self.forward(id, frame, outlet),
                size => beyond += self.forward_gso(id, (frame, size), outlet).beyond(frame),
            }
        }
        let packets = burst.len() as u64 + beyond.packets;
        let mut has_more = packets >= TURN_MAX as u64;
        if let Some(port) = self.port_mut(id) {
            if port.is_limited() {
                beyond += Amount::of_frames(burst.iter());
                has_more |= port.end_turn(now, beyond);
            }
            port.io.rx_release(&mut burst);
            if port.io.is_corrupt() {
                self.corrupt.push(id);
            }
        }
        self.burst = Some(burst);
        if has_more {
            self.add_turn(id);
        }
        packets as usize
    }

    /// Checks a packet that a port sends, and forwards the packet.
    #[inline(always)]
    fn forward(&mut self, id: PortId, frame: &[u8], outlet: &mut impl Egress) {
        match self.directory.send_check(id).check(frame) {
            Ok(ends) if self.may_send(id, frame, outlet) => {
                self.count(id, |counters| counters.sent += 1);
                let destination = self.directory.destination(&ends);
                self.deliver(id, destination, frame, outlet);
            }
            Ok(_) => {}
            Err(refusal) => self.refuse(id, refusal),
        }
    }

    /// Checks a GSO frame that a port sends, and forwards the frame or its segments. Returns the
    /// amount of the segments. `sent` has the frame and its segment size.
    #[cold]
    #[inline(never)]
    fn forward_gso(&mut self, id: PortId, sent: (&[u8], u16), outlet: &mut impl Egress) -> Amount {
        let nic = outlet.nic_capabilities();
        let frame_len_max = nic.tx_frame_len_max.min(PORT_FRAME_LEN_MAX) as usize;
        let checked = self
            .directory
            .send_check(id)
            .check_gso(sent.0, sent.1, frame_len_max);
        let (ends, gso) = match checked {
            Ok(checked) => checked,
            Err(refusal) => {
                self.refuse(id, refusal);
                return Amount::of_frame(sent.0);
            }
        };
        if !self.may_send(id, sent.0, outlet) {
            return Amount::of_frame(sent.0);
        }
        let amount = gso.amount();
        self.count(id, |counters| {
            counters.sent += amount.packets;
            counters.gso_frames += 1;
        });
        let destination = self.directory.destination(&ends);
        if destination == Destination::Nic && gso.len() <= nic.tx_gso_len_max as usize {
            if !outlet.send_gso_to_nic(&gso) {
                self.count(id, |counters| counters.lost += amount.packets);
            }
            return amount;
        }
        let mut segment = std::mem::take(&mut self.segment);
        for at in 0..gso.segments() {
            gso.write_segment(at, &mut segment);
            self.deliver(id, destination, &segment, outlet);
        }
        self.segment = segment;
        amount
    }

    /// Returns true if the filter passes a checked packet of port `id`. Counts a packet that does
    /// not pass.
    #[inline]
    fn may_send(&mut self, id: PortId, frame: &[u8], filter: &mut impl Filter) -> bool {
        let passes = filter.passes_all() || filter.judge(id, Way::Out, frame) == Verdict::Pass;
        if !passes {
            self.refuse(id, SendRefusal::Rule);
        }
        passes
    }

    /// Gives a checked packet of port `id` to its destination.
    #[inline(always)]
    fn deliver(
        &mut self,
        id: PortId,
        destination: Destination,
        frame: &[u8],
        outlet: &mut impl Egress,
    ) {
        let taken = match destination {
            Destination::Port(to) => {
                if self.give_filtered(to, frame, outlet) == Reception::Refused {
                    outlet.answer_refused(frame);
                }
                return;
            }
            Destination::Host => outlet.give_to_host(frame),
            Destination::Nic => outlet.send_to_nic(frame),
        };
        if !taken {
            self.count(id, |counters| counters.lost += 1);
        }
    }

    #[inline]
    fn count(&mut self, id: PortId, count: impl FnOnce(&mut PortCounters)) {
        if let Some(port) = self.port_mut(id) {
            count(&mut port.counters);
        }
    }

    /// Counts a packet of port `id` that is not sent.
    #[cold]
    fn refuse(&mut self, id: PortId, refusal: SendRefusal) {
        self.count(id, |counters| counters.count_refused(refusal));
    }

    /// Gives a packet of the NIC or the host to the port that has claimed the packet's 3-tuple, if
    /// `filter` passes the packet. `from_wire` is true for a packet of the NIC.
    pub fn receive(
        &mut self,
        frame: &[u8],
        from_wire: bool,
        filter: &mut impl Filter,
    ) -> Reception {
        match self.directory.receiver(frame, from_wire) {
            Some(port) => self.give_filtered(port, frame, filter),
            None => Reception::Unclaimed,
        }
    }

    /// Gives a packet to port `to`, if `filter` passes the packet.
    #[inline]
    fn give_filtered(&mut self, to: PortId, frame: &[u8], filter: &mut impl Filter) -> Reception {
        if !filter.passes_all() {
            match filter.judge(to, Way::In, frame) {
                Verdict::Pass => {}
                Verdict::Refuse => return Reception::Refused,
                Verdict::Drop => return Reception::Taken,
            }
        }
        let port = self.ports.get_mut(to.0 as usize).and_then(Option::as_mut);
        if port.is_some_and(|port| port.give(frame)) {
            self.queued.push(to);
        }
        Reception::Taken
    }

    /// Publishes the packets that were copied to ports, so that the ports' programs see them.
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
