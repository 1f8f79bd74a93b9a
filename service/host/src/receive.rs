//! Receives frames from the NIC queues and from other cores, and segments of the local path.

use tidelane_engine::{Arrival, LinkId};
use tidelane_packet_io::{Burst, PacketIo};
use tidelane_time::Instant;
use tidelane_wire::{
    DropReason, Endpoint, FlowKey, IcmpError, IpAddress, Packet, RawSegment, parse_frame,
    parse_frame_v4, parse_icmp_error, parse_icmpv6_error, protocol, tcp_checksum_ok,
};

use crate::{
    Host, Siblings,
    links::{LOCAL_PATH_LINK, MUX_LINK},
};

/// Link number of the first port (NIC queue) of this core.
const OWN_LINK: LinkId = LinkId(1);
/// Limit of batches from other cores that one step receives.
const BATCHES_PER_STEP_MAX: usize = 8;

impl<P: PacketIo> Host<P> {
    /// Receives one burst from each port. Returns true if there was a frame.
    #[inline]
    pub(crate) fn receive_ports(&mut self, now: Instant) -> bool {
        let (mut index, mut most) = (0, 0);
        while let Some(received) = self.io.links.rx_burst(index) {
            if received > 0 {
                self.receive_burst(now, index);
                most = most.max(received);
            }
            index += 1;
        }
        self.io.links.note_longest_burst(most);
        most > 0
    }

    /// Processes the burst of port `index`, and then releases the frames to the port.
    #[inline(never)]
    fn receive_burst(&mut self, now: Instant, index: usize) {
        let Some((burst, partial_allowed)) = self.io.links.take_burst(index) else {
            return;
        };
        let link = LinkId(index as u16 + 1);
        if self.mux_ports.is_empty() {
            for frame in burst.iter() {
                self.receive_frame(now, link, frame, partial_allowed);
            }
        } else {
            self.receive_beside_ports(now, link, &burst, partial_allowed);
        }
        if self.io.hand_back.is_asked() {
            self.io.hand_back.keep(burst.iter(), &mut self.io.requests);
        }
        self.io.neighbours.end_frames();
        self.io.counters.in_frames += burst.len() as u64;
        self.io.links.release(index, burst);
        self.send_batches();
    }

    /// Sends the batches of frames for other cores. Counts the frames that a busy core does not
    /// take.
    #[inline]
    pub(crate) fn send_batches(&mut self) {
        if let Some(siblings) = &mut self.siblings {
            self.io.counters.drops[DropReason::CoreBusy.index()] += siblings.flush();
        }
    }

    /// Receives the frames that other cores have handed over. Returns true if there was a batch.
    #[inline(never)]
    pub(crate) fn receive_handed_over(&mut self, now: Instant) -> bool {
        let mut any = false;
        for _ in 0..BATCHES_PER_STEP_MAX {
            let Some(next) = self.siblings.as_mut().and_then(Siblings::next) else {
                break;
            };
            for (frame, link) in next.0.frames() {
                // Send the answer through a NIC queue of this core.
                let link = if link == MUX_LINK { link } else { OWN_LINK };
                self.receive_frame(now, link, frame, next.0.partial_allowed());
            }
            if self.io.hand_back.is_asked() {
                let frames = next.0.frames().map(|(frame, _)| frame);
                self.io.hand_back.keep(frames, &mut self.io.requests);
            }
            any = true;
            if let Some(siblings) = &mut self.siblings {
                siblings.recycle(next);
            }
        }
        self.io.neighbours.end_frames();
        if any {
            // A packet that this core has reassembled may belong to a flow of another core.
            self.send_batches();
        }
        any
    }

    /// Receives a frame. Hands the frame over if its flow belongs to another core, and otherwise
    /// passes the segment to the engine.
    #[inline(always)]
    pub(crate) fn receive_frame(
        &mut self,
        now: Instant,
        link: LinkId,
        frame: &[u8],
        partial_allowed: bool,
    ) {
        if self.siblings.is_some() && self.hand_over(link, frame, partial_allowed) {
            return;
        }
        let taken = match parse_frame_v4(frame) {
            Some(Ok(packet)) if packet.protocol == protocol::TCP => {
                self.receive_tcp(now, link, packet, partial_allowed)
            }
            Some(Err(reason)) => Err(reason),
            _ => self.receive_other(now, link, frame, partial_allowed),
        };
        if let Err(reason) = taken {
            self.refuse(now, link, frame, partial_allowed, reason);
        }
    }

    /// Passes a fragment to the reassembly. Counts any other frame as dropped for `reason`.
    #[cold]
    #[inline(never)]
    fn refuse(
        &mut self,
        now: Instant,
        link: LinkId,
        frame: &[u8],
        partial_allowed: bool,
        reason: DropReason,
    ) {
        let taken = match reason {
            DropReason::Fragment => self.receive_fragment(now, link, frame, partial_allowed),
            other => Err(other),
        };
        if let Err(reason) = taken {
            self.io.counters.drops[reason.index()] += 1;
        }
    }

    /// Hands a frame over to another core if its flow belongs to that core. Returns true if the
    /// frame was handed over.
    #[inline(never)]
    pub(crate) fn hand_over(&mut self, link: LinkId, frame: &[u8], partial_allowed: bool) -> bool {
        let (Some(siblings), Ok(packet)) = (&self.siblings, parse_frame(frame)) else {
            return false;
        };
        let Some(core) = siblings.elsewhere(&packet) else {
            return false;
        };
        self.hand_to(core, link, frame, partial_allowed);
        true
    }

    /// Hands a frame that arrived on `link` over to `core`.
    pub(crate) fn hand_to(
        &mut self,
        core: usize,
        link: LinkId,
        frame: &[u8],
        partial_allowed: bool,
    ) {
        if let Some(siblings) = &mut self.siblings {
            siblings.hand_over(core, link, frame, partial_allowed);
            self.io.counters.handed_over += 1;
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
}

/// Returns the error that an ICMP or ICMPv6 packet reports.
pub(crate) fn icmp_error(packet: &Packet<'_>) -> Result<IcmpError, DropReason> {
    match (packet.protocol, packet.dst.is_v4()) {
        (protocol::ICMP, true) => parse_icmp_error(packet.payload),
        (protocol::ICMPV6, false) => parse_icmpv6_error(packet),
        _ => Err(DropReason::UnsupportedProtocol),
    }
}
