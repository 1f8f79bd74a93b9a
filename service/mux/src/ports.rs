//! The mux ports: their packet rings, 3-tuples, turns and counters.
//!
//! A mux shares one NIC between TCP/IP stacks. A *mux port* is the pair of packet rings of a
//! program that has its own stack. The program claims *3-tuples* (protocol, local address, local
//! port) for its mux port. The *host* is the stack that gets all unclaimed packets. A *turn* is one
//! burst of frames that the mux takes from a mux port. A mux port *waits for its rate* while its
//! rate limits allow no turn.

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
    gso::GsoFrame,
    lookahead::Lookahead,
    port::{Port, PortsFull},
    port_counters::PortCounters,
    port_end::PortEnd,
    port_table::PortTable,
    rate::{Amount, SendRate},
    ready::Doorbell,
    turn::{Progress, Turn},
    turn_queue::TurnQueue,
};

/// Largest number of frames in a turn of a mux port.
const TURN_MAX: usize = 32;
/// Number of packets after which the turns of a step end, so that the core serves the NIC, too.
const STEP_MAX: usize = 256;

/// The mux ports of one fast-path core (polling thread), with the addresses of one interface.
pub struct Ports<P: PortEnd> {
    directory: Directory,
    table: PortTable<P>,
    turns: TurnQueue,
    /// A burst for the turns of all mux ports. `None` before the first port is open, and while a
    /// turn processes the frames of the burst. If no turn is paused, the burst is empty.
    burst: Option<P::Burst>,
    /// Buffer for one segment of a GSO frame.
    segment: Vec<u8>,
}

impl<P: PortEnd> Ports<P> {
    /// Makes an empty set for at most `ports_max` mux ports. `mac` and `addresses` belong to the
    /// interface.
    pub fn new(mac: MacAddress, addresses: Vec<IpAddress>, ports_max: usize) -> Self {
        Self {
            directory: Directory::new(mac, addresses),
            table: PortTable::new(ports_max),
            turns: TurnQueue::new(ports_max),
            burst: None,
            segment: Vec::new(),
        }
    }

    /// Sets the link address and the addresses of the interface.
    pub fn set_link(&mut self, mac: MacAddress, addresses: Vec<IpAddress>) {
        self.directory.set_link(mac, addresses);
    }

    /// Sets the MTU of the interface in bytes, also for open mux ports. A mux port that sends a
    /// longer packet to the NIC gets an ICMP error, as from a router (RFC 1191, RFC 8201).
    pub fn set_mtu(&mut self, mtu: u16) {
        self.directory.set_mtu(mtu);
    }

    /// Sets the broadcast addresses of the interface's IPv4 networks.
    pub fn set_broadcasts(&mut self, broadcasts: Vec<IpAddress>) {
        self.directory.set_broadcasts(broadcasts);
    }

    /// Returns the number of open mux ports.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns true if no mux port is open.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Opens a mux port with the lowest free number. `io` is the mux's end of its packet rings.
    pub fn open(&mut self, io: P) -> Result<PortId, PortsFull> {
        let id = self.table.lowest_free();
        self.open_at(id, io).then_some(id).ok_or(PortsFull)
    }

    /// Opens a mux port with number `id`. Returns false if the number is in use or too large.
    pub fn open_at(&mut self, id: PortId, io: P) -> bool {
        if self.burst.is_none() {
            self.burst = Some(io.new_burst());
        }
        self.table.add(id, io)
    }

    /// Returns the doorbell for the program's end of a mux port. `partial_checksums` is true if the
    /// NIC may deliver packets with a partial checksum (only the pseudo-header sum).
    pub fn doorbell(&self, port: PortId, partial_checksums: bool) -> Doorbell {
        Doorbell::new(&self.turns.ready, port, partial_checksums)
    }

    /// Closes a mux port. The port's 3-tuples become free, and the packets in its packet rings are
    /// lost. Returns the mux's end of these rings.
    pub fn close(&mut self, port: PortId) -> Option<P> {
        let mut closed = self.table.remove(port)?;
        self.directory.claims.release_all(port);
        if self.turns.remove(port, &closed)
            && let Some(burst) = &mut self.burst
        {
            closed.io.rx_release(burst);
        }
        Some(closed.io)
    }

    /// Claims a 3-tuple for a mux port. A bound kernel socket of the caller proves that the port's
    /// program may use the 3-tuple. Returns [`ClaimError::Invalid`] if the port is not open.
    pub fn claim(&mut self, tuple: Tuple, port: PortId) -> Result<(), ClaimError> {
        match self.table.get(port) {
            Some(_) => self.directory.claims.claim(tuple, port),
            None => Err(ClaimError::Invalid),
        }
    }

    /// Ends a claim. Returns false if the mux port has no such claim.
    pub fn release(&mut self, tuple: Tuple, port: PortId) -> bool {
        self.directory.claims.release(tuple, port)
    }

    /// Moves the claim of one 3-tuple from mux port `from` to port `to`. At all times, one of the
    /// two ports has the claim. Returns false, and changes nothing, if `from` has no such claim or
    /// `to` is not open.
    pub fn move_claim(&mut self, tuple: Tuple, from: PortId, to: PortId) -> bool {
        self.table.get(to).is_some() && self.directory.claims.move_claim(tuple, from, to)
    }

    /// Moves all claims of mux port `from` to port `to`. At all times, one of the two ports has the
    /// claims. Returns false, and changes nothing, if a port is not open.
    pub fn hand_over(&mut self, from: PortId, to: PortId) -> bool {
        let open = self.table.get(from).is_some() && self.table.get(to).is_some();
        if open {
            self.directory.claims.hand_over(from, to);
        }
        open
    }

    /// Returns the claims.
    pub fn claims(&self) -> &Claims {
        &self.directory.claims
    }

    /// Sets the limits of the rate at which a mux port sends. If the port waits for its rate, the
    /// wait ends and the port joins the queue for a turn.
    pub fn set_rate(&mut self, id: PortId, rate: SendRate) {
        if let Some(port) = self.table.get_mut(id) {
            port.set_rate(rate);
            self.turns.end_wait(&mut self.table, id);
        }
    }

    /// Returns the rate limits of a mux port.
    pub fn rate(&self, id: PortId) -> Option<SendRate> {
        Some(self.table.get(id)?.rate())
    }

    /// Returns the earliest time at which a mux port that waits for its rate may send. The core
    /// calls [`take_turns`](Self::take_turns) at this time.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.turns.next_timeout()
    }

    /// Returns the mux's end of a mux port's packet rings.
    pub fn end_mut(&mut self, port: PortId) -> Option<&mut P> {
        Some(&mut self.table.get_mut(port)?.io)
    }

    /// Returns the counters of a mux port.
    pub fn port_counters(&self, port: PortId) -> Option<&PortCounters> {
        Some(&self.table.get(port)?.counters)
    }

    /// Returns true if [`take_corrupt`](Self::take_corrupt) would return a mux port.
    pub fn has_corrupt(&self) -> bool {
        self.table.has_corrupt()
    }

    /// Takes the numbers of the corrupt mux ports, in ascending order. The packet rings of these
    /// ports are unusable ([`PortEnd::is_corrupt`]). The caller closes the ports.
    pub fn take_corrupt(&mut self) -> Vec<PortId> {
        self.table.take_corrupt()
    }

    /// Returns true if a mux port is in the queue for a turn, if a turn is paused, or if a mux port
    /// has packets to send and does not wait for its rate. The core calls this function between the
    /// announcement of its sleep and the sleep, so that no packet is missed.
    pub fn has_work(&self) -> bool {
        !self.turns.is_empty() || self.table.iter().any(Port::is_ready)
    }

    /// Returns true if a packet of the mux port waits until the NIC has room.
    pub fn waits_for_nic(&self, port: PortId) -> bool {
        self.turns.is_paused(port)
    }

    /// Forwards packets of the mux ports: continues a paused turn, and runs at most one new turn of
    /// each port with packets. A port with more packets has its next turn after all other waiting
    /// ports. Returns early after `STEP_MAX` packets, or if the NIC has no room. The other packets
    /// stay in the packet rings. Returns the number of packets.
    pub fn take_turns(&mut self, now: Instant, outlet: &mut impl Egress) -> usize {
        self.turns.begin_step(now, &mut self.table);
        let paused = self.turns.resume();
        let mut count = paused.map_or(0, |turn| self.run_turn(now, turn, outlet));
        for _ in 0..self.turns.len() {
            let Some(port) = self.turns.pop() else {
                break;
            };
            // The next port's frames are often in another CPU's cache. Fetch them in this turn.
            if let Some(next) = self.turns.next().and_then(|id| self.table.get(id)) {
                next.io.prefetch_rx(TURN_MAX);
            }
            count += self.take_turn(now, port, outlet);
            if count >= STEP_MAX {
                break;
            }
        }
        count
    }

    fn take_turn(&mut self, now: Instant, id: PortId, outlet: &mut impl Egress) -> usize {
        let Some(port) = self.table.get_mut(id) else {
            return 0;
        };
        port.in_turns = false;
        let max = match port.begin_turn(now, TURN_MAX) {
            Ok(max) => max,
            Err(due) => {
                self.turns.add_wait(due, id);
                return 0;
            }
        };
        if let Some(burst) = &mut self.burst {
            port.io.rx_burst(burst, max);
        }
        self.run_turn(now, Turn::new(id), outlet)
    }

    /// Forwards the packets of a turn. Pauses the turn if a packet has to wait for room in the NIC.
    /// Returns the number of packets.
    fn run_turn(&mut self, now: Instant, mut turn: Turn, outlet: &mut impl Egress) -> usize {
        let Some(mut burst) = self.burst.take() else {
            return 0;
        };
        let before = turn.packets();
        while let Some(frame) = burst.frame(turn.next) {
            let progress = match burst.segment_size(turn.next) {
                0 => self.forward(turn.port, frame, outlet),
                size => self.forward_gso(&mut turn, (frame, size), outlet),
            };
            if progress == Progress::WaitsForNic {
                let count = turn.packets() - before;
                self.turns.pause(turn);
                self.burst = Some(burst);
                return count;
            }
            turn.end_frame();
        }
        self.end_turn(now, &turn, &mut burst);
        self.burst = Some(burst);
        turn.packets() - before
    }

    /// Ends a turn: releases its frames, charges the rate limits, and may queue the mux port again.
    #[inline]
    fn end_turn(&mut self, now: Instant, turn: &Turn, burst: &mut P::Burst) {
        let id = turn.port;
        let mut has_more = turn.packets() >= TURN_MAX;
        if let Some(port) = self.table.get_mut(id) {
            if port.is_limited() {
                let mut sent = turn.beyond;
                sent += Amount::of_frames(burst.iter());
                has_more |= port.end_turn(now, sent);
            }
            port.io.rx_release(burst);
        }
        self.table.note_if_corrupt(id);
        if has_more {
            self.turns.add(&mut self.table, id);
        }
    }

    /// Checks a packet that a mux port sends, and forwards the packet.
    #[inline(always)]
    fn forward(&mut self, id: PortId, frame: &[u8], outlet: &mut impl Egress) -> Progress {
        match self.directory.check_sent(id, frame) {
            Ok(destination) => {
                if !outlet.passes_all()
                    && let Some(progress) = self.filter(id, destination, frame, outlet)
                {
                    return progress;
                }
                self.deliver(id, destination, frame, outlet)
            }
            Err(refusal) => {
                self.table.refuse(id, refusal);
                Progress::Done
            }
        }
    }

    /// Checks a GSO frame that a mux port sends, and forwards the frame or its segments. `sent` has
    /// the frame and its segment size in bytes.
    #[cold]
    #[inline(never)]
    fn forward_gso(
        &mut self,
        turn: &mut Turn,
        sent: (&[u8], u16),
        outlet: &mut impl Egress,
    ) -> Progress {
        let (id, nic) = (turn.port, outlet.nic_capabilities());
        let frame_len_max = nic.tx_frame_len_max.min(PORT_FRAME_LEN_MAX) as usize;
        let send_check = self.directory.send_check(id);
        let (ends, gso) = match send_check.check_gso(sent.0, sent.1, frame_len_max) {
            Ok(checked) => checked,
            Err(refusal) => {
                self.table.refuse(id, refusal);
                return Progress::Done;
            }
        };
        let destination = self.directory.destination(id, &ends);
        let is_judged = turn.segment > 0 || outlet.passes_all();
        let judge = || self.filter(id, destination, sent.0, outlet);
        if let Some(progress) = (!is_judged).then(judge).flatten() {
            return progress;
        }
        if destination.is_nic() && gso.segment_len_max() > self.directory.nic_frame_len_max() {
            self.refuse_long(id, sent.0);
            return Progress::Done;
        }
        let is_whole = turn.segment == 0
            && destination == Destination::Nic
            && gso.len() <= nic.tx_gso_len_max as usize;
        if is_whole && outlet.send_gso_to_nic(&gso) {
            self.table.count(id, |counters| {
                counters.count_sent(gso.segments() as u64, false);
            });
        } else if self.send_segments(turn, &gso, destination, outlet) == Progress::WaitsForNic {
            return Progress::WaitsForNic;
        }
        turn.segment = 0;
        turn.beyond += gso.amount().beyond(sent.0);
        self.table.count(id, |counters| counters.gso_frames += 1);
        Progress::Done
    }

    /// Refuses a packet of mux port `id` that is longer than the MTU, and gives the mux port the
    /// ICMP error.
    #[cold]
    fn refuse_long(&mut self, id: PortId, frame: &[u8]) {
        self.table.refuse(id, SendRefusal::TooLong);
        if let Some(error) = self.directory.too_big(frame) {
            self.table.give(id, &error);
        }
    }

    /// Sends the segments of a GSO frame, from `turn.segment` on.
    fn send_segments(
        &mut self,
        turn: &mut Turn,
        gso: &GsoFrame<'_>,
        destination: Destination,
        outlet: &mut impl Egress,
    ) -> Progress {
        let mut progress = Progress::Done;
        let mut segment = std::mem::take(&mut self.segment);
        while turn.segment < gso.segments() {
            gso.write_segment(turn.segment, &mut segment);
            progress = self.deliver(turn.port, destination, &segment, outlet);
            if progress == Progress::WaitsForNic {
                break;
            }
            turn.segment += 1;
        }
        self.segment = segment;
        progress
    }

    /// Filters a checked packet of mux port `id`. Returns `None` if the packet passes. The filter
    /// counts each packet that it judges, and must not count a packet twice. A packet for a NIC
    /// without room therefore waits first, and the filter judges the packet after the wait.
    fn filter(
        &mut self,
        id: PortId,
        destination: Destination,
        frame: &[u8],
        outlet: &mut impl Egress,
    ) -> Option<Progress> {
        if destination.is_nic() && outlet.waits_for_nic() {
            return Some(Progress::WaitsForNic);
        }
        if outlet.judge(id, Way::Out, frame) == Verdict::Pass {
            return None;
        }
        self.table.refuse(id, SendRefusal::Rule);
        Some(Progress::Done)
    }

    /// Gives a checked packet of mux port `id` to its destination.
    #[inline(always)]
    fn deliver(
        &mut self,
        id: PortId,
        destination: Destination,
        frame: &[u8],
        outlet: &mut impl Egress,
    ) -> Progress {
        let taken = match destination {
            Destination::Port(to) => {
                if self.give_filtered(to, frame, outlet) == Reception::Refused {
                    outlet.answer_refused(frame);
                }
                true
            }
            Destination::Host => outlet.give_to_host(frame),
            Destination::Nic | Destination::NicAndPort(_)
                if frame.len() > self.directory.nic_frame_len_max() =>
            {
                self.refuse_long(id, frame);
                return Progress::Done;
            }
            Destination::Nic | Destination::NicAndPort(_) => {
                let taken = outlet.send_to_nic(frame);
                if !taken && outlet.waits_for_nic() {
                    return Progress::WaitsForNic;
                }
                if let Destination::NicAndPort(to) = destination {
                    self.give_filtered(to, frame, outlet);
                }
                taken
            }
        };
        self.table
            .count(id, |counters| counters.count_sent(1, !taken));
        Progress::Done
    }

    /// Gives each packet of a burst to the mux port that has claimed the packet's 3-tuple, if
    /// `filter` lets the packet pass. `from_wire` is true if the packets came from the NIC, and not
    /// from the host. Replaces the content of `receptions` by the outcome for each packet.
    pub fn receive<'a>(
        &mut self,
        frames: impl Iterator<Item = &'a [u8]> + Clone,
        from_wire: bool,
        filter: &mut impl Filter,
        receptions: &mut Vec<Reception>,
    ) {
        receptions.clear();
        let (mut lookahead, mut ahead) = (Lookahead::default(), frames.clone());
        for frame in frames {
            while !lookahead.is_full()
                && let Some(next) = ahead.next()
            {
                let receiver = self.directory.receiver(next, from_wire);
                lookahead.add(receiver, next.len(), &self.table);
            }
            receptions.push(match lookahead.take() {
                Some(port) => self.give_filtered(port, frame, filter),
                None => Reception::Unclaimed,
            });
        }
    }

    /// Gives a packet to mux port `to`, if `filter` lets the packet pass.
    #[inline]
    fn give_filtered(&mut self, to: PortId, frame: &[u8], filter: &mut impl Filter) -> Reception {
        if !filter.passes_all() {
            match filter.judge(to, Way::In, frame) {
                Verdict::Pass => {}
                Verdict::Refuse => return Reception::Refused,
                Verdict::Drop => return Reception::Taken,
            }
        }
        self.table.give(to, frame);
        Reception::Taken
    }

    /// Makes the packets that the mux copied to mux ports visible to the ports' programs.
    pub fn flush(&mut self) {
        self.table.flush();
    }
}
