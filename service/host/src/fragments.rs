//! Reassembly of IP fragments in the host. See `docs/design/fragments.md`.

use tidelane_engine::LinkId;
use tidelane_fragments::{Counters, Reassembler, TimedOutPacket};
use tidelane_packet_io::PacketIo;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{DropReason, FrameHeaders, IpFields, emit_time_exceeded, parse_fragment};

use crate::{Host, Siblings};

/// Minimum time between two ICMP errors about incomplete packets.
const ERROR_INTERVAL: Duration = Duration::from_millis(100);

/// The incomplete packets of a core, whose fragments have not all arrived.
#[derive(Default)]
pub(crate) struct Fragments {
    reassembler: Reassembler,
    /// Time before which the host sends no further ICMP error.
    next_error: Instant,
}

impl Fragments {
    /// Returns the time limit of the oldest incomplete packet.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.reassembler.next_timeout()
    }

    /// Returns true if an incomplete packet has reached its time limit.
    #[inline]
    pub(crate) fn are_due(&self, now: Instant) -> bool {
        self.next_timeout().is_some_and(|at| at <= now)
    }

    /// Returns the counters of the reassembly.
    pub(crate) fn counters(&self) -> Counters {
        self.reassembler.counters()
    }
}

impl<P: PacketIo> Host<P> {
    /// Receives a frame with a fragment. One core reassembles all fragments of a packet, because
    /// the fragments may arrive on any queue. A NIC selects the queue of a fragment by the
    /// addresses, and a veth selects the queue by the sender's CPU.
    #[cold]
    #[inline(never)]
    pub(crate) fn receive_fragment(
        &mut self,
        now: Instant,
        link: LinkId,
        frame: &[u8],
        partial_allowed: bool,
    ) -> Result<(), DropReason> {
        let fragment = parse_fragment(frame)?;
        let id = fragment.packet_id;
        let elsewhere = |siblings: &Siblings| siblings.elsewhere_in_fragments(id.id);
        if let Some(core) = self.siblings.as_ref().and_then(elsewhere) {
            self.hand_to(core, link, frame, partial_allowed);
            return Ok(());
        }
        if !self.io.neighbours.routes().is_local(id.dst) {
            return Err(DropReason::NotOurs);
        }
        self.io.neighbours.routes().check_source(id.src)?;
        let Some(whole) = self.fragments.reassembler.push(now, &fragment)? else {
            return Ok(());
        };
        if self.receive_for_ports(now, link, &whole, partial_allowed) {
            return Ok(());
        }
        if self.siblings.is_some() && self.hand_over(link, &whole, partial_allowed) {
            return Ok(());
        }
        self.receive_other(now, link, &whole, partial_allowed)
    }

    /// Drops incomplete packets whose time limit has passed. If the first fragment of a packet has
    /// arrived, sends ICMP Time Exceeded to its sender (RFC 1122 §3.3.2, RFC 8200 §4.5), at most
    /// once per `ERROR_INTERVAL`.
    #[cold]
    #[inline(never)]
    pub(crate) fn expire_fragments(&mut self, now: Instant) {
        while let Some(timed_out) = self.fragments.reassembler.expire(now) {
            if now >= self.fragments.next_error && self.send_time_exceeded(now, &timed_out) {
                self.fragments.next_error = now + ERROR_INTERVAL;
            }
        }
    }

    /// Sends ICMP Time Exceeded for a packet. Returns false if the first fragment of the packet has
    /// not arrived, or if the host cannot send the error.
    fn send_time_exceeded(&mut self, now: Instant, timed_out: &TimedOutPacket) -> bool {
        let Some((first, packet)) = &timed_out.first else {
            return false;
        };
        let (neighbours, requests) = (&mut self.io.neighbours, &mut self.io.requests);
        let back = Some(first.src_mac);
        let Some(src_mac) = neighbours.mac_for_reply_to(now, first.src, back, requests) else {
            return false;
        };
        let dst_mac = neighbours.routes().interface().mac;
        let first = &FrameHeaders {
            src_mac,
            dst_mac,
            ..*first
        };
        let ttl = IpFields::default().hop_limit;
        let ip_id = neighbours.stray_ip_id(first.src, now);
        let links = &mut self.io.links;
        let sent = links.send_frame(|frame| emit_time_exceeded(frame, first, packet, (ttl, ip_id)));
        self.io.counters.out_time_excds += u64::from(sent);
        sent
    }
}
