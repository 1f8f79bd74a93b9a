//! IP reassembly (RFC 791 §3.2, RFC 815, RFC 8200 §4.5).
//!
//! A [`Reassembler`] takes fragments and returns the frames of reassembled packets. Its owner, the
//! crate `tidelane-host`, receives the fragments. The reassembler has no clock and does no I/O:
//! time is an argument, and the owner calls [`Reassembler::expire`] at
//! [`Reassembler::next_timeout`].
//!
//! All state is bounded, because an attacker can send fragments of packets that are never
//! completed. If a fragment would exceed a limit of memory or of incomplete packets, the
//! reassembler drops the oldest other incomplete packets. At [`SOURCE_BYTES_MAX`], the reassembler
//! drops the oldest other packets of the same source. The oldest packets are dropped because
//! fragments that are still in flight probably belong to recent packets. A packet with more than
//! [`FRAGMENTS_MAX`] fragments is invalid.
//!
//! | limit | limited quantity |
//! |---|---|
//! | [`BYTES_MAX`] | bytes of memory for all incomplete packets and their fragments |
//! | [`SOURCE_BYTES_MAX`] | bytes of memory for the incomplete packets from one source address |
//! | [`INCOMPLETE_PACKETS_MAX`] | incomplete packets |
//! | [`FRAGMENTS_MAX`] | fragments of one packet |
//! | [`DISTANCE_MAX`] | later packets of the same source before an incomplete packet is dropped |
//! | [`TIMEOUT`] | time from the first arrival of a fragment of a packet to the packet's timeout |
//!
//! The 16-bit identification of IPv4 can wrap within a second at 1 Gbit/s. A fragment of a later
//! packet could therefore complete a packet that has lost a fragment. [`DISTANCE_MAX`] limits this
//! risk, as `ipfrag_max_dist` does in Linux. The transport checksum detects most of the remaining
//! cases (RFC 4963).
//!
//! An overlapping fragment invalidates the whole packet (RFC 5722; Linux does this for IPv4, too),
//! and later fragments of the packet are dropped until its timeout. An exact duplicate of a
//! fragment is merely dropped.
#![forbid(unsafe_code)]

mod ecn;
mod fragment_queue;

use tidelane_time::{Duration, Instant};
use tidelane_wire::{DropReason, Fragment, IpAddress, PacketId};

pub use crate::fragment_queue::TimedOutPacket;
use crate::fragment_queue::{FRAGMENT_COST, FragmentQueue, QUEUE_COST};

/// Largest memory of all incomplete packets, in bytes.
pub const BYTES_MAX: usize = 256 << 10;
/// Largest memory of the incomplete packets from one source address, in bytes.
pub const SOURCE_BYTES_MAX: usize = 128 << 10;
/// Largest number of incomplete packets.
pub const INCOMPLETE_PACKETS_MAX: usize = 256;
/// Largest number of fragments per packet. A packet of 64 KiB fits, even over a path with an MTU of
/// 576 bytes.
pub const FRAGMENTS_MAX: usize = 128;
/// Largest number of later packets of the same source while a packet is incomplete. When one more
/// later packet begins to arrive, the incomplete packet is dropped.
pub const DISTANCE_MAX: u32 = 64;
/// Time that a packet waits for its fragments: the value of RFC 8200 §4.5, and the lowest value
/// that RFC 1122 §3.3.2 recommends.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A packet of any length and number of fragments fits within the limit of its source.
const _: () = assert!(QUEUE_COST + FRAGMENTS_MAX * FRAGMENT_COST + (64 << 10) <= SOURCE_BYTES_MAX);
const _: () = assert!(SOURCE_BYTES_MAX < BYTES_MAX);

/// Counters of reassembly, with the names of Linux: `reqds` is `IpReasmReqds`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Fragments received.
    pub reqds: u64,
    /// Packets reassembled.
    pub oks: u64,
    /// Packets dropped, for any reason, timeouts included.
    pub fails: u64,
    /// Packets dropped by a timeout.
    pub timeouts: u64,
}

/// Collects the fragments of incomplete IP packets, and reassembles the packets.
#[derive(Debug, Default)]
pub struct Reassembler {
    /// Incomplete packets, the oldest first.
    queues: Vec<FragmentQueue>,
    /// Memory charged for all incomplete packets, in bytes. At most [`BYTES_MAX`].
    bytes: usize,
    counters: Counters,
}

impl Reassembler {
    /// Adds a fragment. Returns the frame of the reassembled packet if this fragment completes the
    /// packet. Returns an error if the fragment or the completed packet is dropped.
    pub fn push(
        &mut self,
        now: Instant,
        fragment: &Fragment<'_>,
    ) -> Result<Option<Vec<u8>>, DropReason> {
        self.counters.reqds += 1;
        let at = match self.find(&fragment.packet_id) {
            Some(at) => at,
            None => self.create_queue(now, fragment.packet_id),
        };
        let Some(queue) = self.queues.get(at) else {
            return Err(DropReason::FragmentLimit);
        };
        let checked = queue.check(fragment);
        // Only a fragment that will be stored may replace other packets.
        let stored_cost = match checked {
            Ok(_) => FRAGMENT_COST + fragment.payload.len(),
            Err(_) => 0,
        };
        let at = self.make_room(at, stored_cost);
        let Some(queue) = self.queues.get_mut(at) else {
            return Err(DropReason::FragmentLimit);
        };
        let (cost, was_invalid) = (queue.cost(), queue.is_invalid());
        let inserted = queue.insert(fragment, checked);
        let complete = queue.is_complete();
        self.bytes = self.bytes - cost + queue.cost();
        self.counters.fails += u64::from(queue.is_invalid() && !was_invalid);
        inserted?;
        if !complete {
            return Ok(None);
        }
        let whole = self.remove(at).frame();
        match whole {
            Ok(_) => self.counters.oks += 1,
            Err(_) => self.counters.fails += 1,
        }
        whole.map(Some)
    }

    /// Removes and returns a packet that has timed out at `now`. An invalid packet is removed, but
    /// not returned. The caller repeats the call until the result is `None`.
    pub fn expire(&mut self, now: Instant) -> Option<TimedOutPacket> {
        loop {
            if self.next_timeout()? > now {
                return None;
            }
            let queue = self.remove(0);
            if queue.is_invalid() {
                continue;
            }
            self.counters.fails += 1;
            self.counters.timeouts += 1;
            return Some(queue.into_timed_out());
        }
    }

    /// Returns the time at which [`expire`](Self::expire) is due, or `None` if no packet is
    /// incomplete.
    pub fn next_timeout(&self) -> Option<Instant> {
        // All packets have the same timeout, so the first packet in the list, which is the oldest,
        // times out first.
        self.queues.first().map(FragmentQueue::deadline)
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the memory charged for all incomplete packets in bytes, at most [`BYTES_MAX`].
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of incomplete packets, at most [`INCOMPLETE_PACKETS_MAX`].
    pub fn incomplete_packets(&self) -> usize {
        self.queues.len()
    }

    fn find(&self, id: &PacketId) -> Option<usize> {
        self.queues.iter().rposition(|known| known.id() == id)
    }

    /// Adds a packet without fragments. Returns its index.
    fn create_queue(&mut self, now: Instant, id: PacketId) -> usize {
        for queue in &mut self.queues {
            queue.count_later(&id);
        }
        let too_old = |queue: &FragmentQueue| queue.distance() > DISTANCE_MAX;
        if let Some(at) = self.queues.iter().position(too_old) {
            self.evict(at);
        }
        if self.queues.len() >= INCOMPLETE_PACKETS_MAX {
            self.evict(0);
        }
        self.bytes += QUEUE_COST;
        self.queues.push(FragmentQueue::new(id, now + TIMEOUT));
        self.queues.len() - 1
    }

    /// Drops other packets until the packet at `at` may use `cost` more bytes. Returns the packet's
    /// new index.
    fn make_room(&mut self, mut at: usize, cost: usize) -> usize {
        while let Some(victim) = self.victim(at, cost) {
            self.evict(victim);
            at -= usize::from(victim < at);
        }
        at
    }

    /// Returns the index of the packet to drop so that the packet at `at` may use `cost` more
    /// bytes. Returns `None` if there is room. The result is the oldest other packet of the same
    /// source if this source would exceed its limit, and otherwise the oldest other packet of any
    /// source.
    fn victim(&self, at: usize, cost: usize) -> Option<usize> {
        let src = self.queues.get(at)?.id().src;
        let others = || (0..self.queues.len()).filter(|other| *other != at);
        if self.source_bytes(src) + cost > SOURCE_BYTES_MAX {
            let same = |other: &usize| self.queues[*other].id().src == src;
            return others().find(same);
        }
        (self.bytes + cost > BYTES_MAX).then(|| others().next())?
    }

    fn source_bytes(&self, src: IpAddress) -> usize {
        let of_source = self.queues.iter().filter(|known| known.id().src == src);
        of_source.map(FragmentQueue::cost).sum()
    }

    fn evict(&mut self, at: usize) {
        if !self.remove(at).is_invalid() {
            self.counters.fails += 1;
        }
    }

    fn remove(&mut self, at: usize) -> FragmentQueue {
        let queue = self.queues.remove(at);
        self.bytes -= queue.cost();
        queue
    }
}

#[cfg(test)]
mod props;
#[cfg(test)]
mod tests;
