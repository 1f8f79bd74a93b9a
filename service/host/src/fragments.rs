//! Reassembly of IP fragments in the host. See `docs/design/fragments.md`.

use tidelane_fragments::{Counters, Reassembler, TimedOutPacket};
use tidelane_packet_io::PacketIo;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{DropReason, Fragment, FrameHeaders, IpFields, emit_time_exceeded};

use crate::io::HostIo;

/// Minimum time between two ICMP errors about incomplete packets.
const ERROR_INTERVAL: Duration = Duration::from_millis(100);

/// The incomplete packets of a core (polling thread): some fragments of each packet have not
/// arrived.
#[derive(Default)]
pub(crate) struct Fragments {
    reassembler: Reassembler,
    /// Time before which the host sends no further ICMP error.
    next_error: Instant,
}

impl Fragments {
    /// Returns the time at which the oldest incomplete packet reaches its time limit. Returns
    /// `None` if no packet is incomplete.
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

    /// Adds a fragment. Returns the frame of the reassembled packet if the fragment completes the
    /// packet.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        fragment: &Fragment<'_>,
    ) -> Result<Option<Vec<u8>>, DropReason> {
        self.reassembler.push(now, fragment)
    }

    /// Drops incomplete packets whose time limit has passed. If the first fragment of a packet has
    /// arrived, sends ICMP Time Exceeded to its sender (RFC 1122 §3.3.2, RFC 8200 §4.5), at most
    /// once per `ERROR_INTERVAL`.
    #[cold]
    #[inline(never)]
    pub(crate) fn expire<P: PacketIo>(&mut self, now: Instant, io: &mut HostIo<P>) {
        while let Some(timed_out) = self.reassembler.expire(now) {
            if now >= self.next_error && send_time_exceeded(now, &timed_out, io) {
                self.next_error = now + ERROR_INTERVAL;
            }
        }
    }
}

/// Sends ICMP Time Exceeded for a packet. Returns false if the first fragment of the packet has not
/// arrived, or if the host cannot send the error.
fn send_time_exceeded<P: PacketIo>(
    now: Instant,
    timed_out: &TimedOutPacket,
    io: &mut HostIo<P>,
) -> bool {
    let Some((first, packet)) = &timed_out.first else {
        return false;
    };
    let (neighbours, requests) = (&mut io.neighbours, &mut io.requests);
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
    let links = &mut io.links;
    let sent = links.send_frame(|frame| emit_time_exceeded(frame, first, packet, (ttl, ip_id)));
    io.counters.out_time_excds += u64::from(sent);
    sent
}
