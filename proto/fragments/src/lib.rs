//! Fragments of packets become whole again (RFC 791 §3.2, RFC 815, RFC 8200 §4.5).
//!
//! A [`Reassembler`] takes fragments and gives frames. It has no clock and does no I/O: time is an
//! argument, and who drives it calls [`Reassembler::expire`] at [`Reassembler::next_timeout`].
//!
//! Anybody can send fragments that never become whole, so all that is kept is bounded, and what has
//! waited longest makes room: a packet whose other fragments are still on their way is young.
//!
//! | bound | |
//! |---|---|
//! | [`BYTES_MAX`] | of memory, the cost of each packet and fragment included |
//! | [`SOURCE_BYTES_MAX`] | of these, for packets from one address |
//! | [`DATAGRAMS_MAX`] | packets that wait |
//! | [`PIECES_MAX`] | fragments of one packet |
//! | [`YOUNGER_MAX`] | packets of the same source that were begun after one that waits |
//! | [`TIMEOUT`] | from a packet's first arrival on |
//!
//! The sixteen bits of IPv4's identification come again within a second at a gigabit: a packet
//! that lost a fragment must not wait for one of a later packet's. That is what [`YOUNGER_MAX`] is
//! for, as `ipfrag_max_dist` is in Linux; what slips through, the transport's checksum is for (RFC
//! 4963).
//!
//! Fragments that overlap end their packet (RFC 5722; so does Linux, also over IPv4), and what else
//! comes of it is dropped, too, until it is forgotten. Only an exact copy is just a copy.
#![forbid(unsafe_code)]

mod datagram;
mod ecn;

use tidelane_time::{Duration, Instant};
use tidelane_wire::{DatagramId, DropReason, Fragment, IpAddress};

pub use crate::datagram::Unfinished;
use crate::datagram::{DATAGRAM_COST, Datagram, PIECE_COST};

/// Bytes of memory that waiting packets may have.
pub const BYTES_MAX: usize = 256 << 10;
/// Of these, for packets from one address.
pub const SOURCE_BYTES_MAX: usize = 128 << 10;
/// Packets that may wait.
pub const DATAGRAMS_MAX: usize = 256;
/// Fragments that one packet may have: the longest one, in the fragments of a path of 576 bytes.
pub const PIECES_MAX: usize = 128;
/// So many packets of the same source may be begun while one waits.
pub const YOUNGER_MAX: u32 = 64;
/// How long a packet waits for its fragments: RFC 8200 §4.5, and the least that RFC 1122 §3.3.2
/// allows.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// One packet has room, however many fragments it has.
const _: () = assert!(DATAGRAM_COST + PIECES_MAX * PIECE_COST + (64 << 10) <= SOURCE_BYTES_MAX);
const _: () = assert!(SOURCE_BYTES_MAX < BYTES_MAX);

/// What happened, named as Linux' `IpReasm…`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Fragments that came.
    pub reqds: u64,
    /// Packets that became whole.
    pub oks: u64,
    /// Packets that were given up, for whatever reason.
    pub fails: u64,
    /// Of these: because time was over.
    pub timeouts: u64,
}

/// Packets that wait for fragments.
#[derive(Debug, Default)]
pub struct Reassembler {
    /// Oldest first.
    datagrams: Vec<Datagram>,
    /// Of memory, by the reckoning of [`BYTES_MAX`].
    bytes: usize,
    counters: Counters,
}

impl Reassembler {
    /// Takes a fragment. The frame of the whole packet if it was the last that was missing; an
    /// error if it cannot be used.
    pub fn push(
        &mut self,
        now: Instant,
        fragment: &Fragment<'_>,
    ) -> Result<Option<Vec<u8>>, DropReason> {
        self.counters.reqds += 1;
        let at = match self.find(&fragment.datagram) {
            Some(at) => at,
            None => self.begin(now, fragment.datagram),
        };
        let at = self.make_room(at, PIECE_COST + fragment.payload.len());
        let Some(datagram) = self.datagrams.get_mut(at) else {
            return Err(DropReason::FragmentLimit);
        };
        let (cost, was_broken) = (datagram.cost(), datagram.is_broken());
        let taken = datagram.take(fragment);
        let done = datagram.is_done();
        self.bytes = self.bytes - cost + datagram.cost();
        self.counters.fails += u64::from(datagram.is_broken() && !was_broken);
        taken?;
        if !done {
            return Ok(None);
        }
        let whole = self.remove(at).frame();
        match whole {
            Ok(_) => self.counters.oks += 1,
            Err(_) => self.counters.fails += 1,
        }
        whole.map(Some)
    }

    /// A packet that has waited too long, if there is one: to be called until there is none.
    pub fn expire(&mut self, now: Instant) -> Option<Unfinished> {
        loop {
            if self.next_timeout()? > now {
                return None;
            }
            let datagram = self.remove(0);
            if datagram.is_broken() {
                continue;
            }
            self.counters.fails += 1;
            self.counters.timeouts += 1;
            return Some(datagram.unfinished());
        }
    }

    /// When [`expire`](Self::expire) has something to do.
    pub fn next_timeout(&self) -> Option<Instant> {
        // All wait equally long.
        self.datagrams.first().map(Datagram::deadline)
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes of memory that waiting packets have, at most [`BYTES_MAX`].
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Packets that wait, at most [`DATAGRAMS_MAX`].
    pub fn waiting(&self) -> usize {
        self.datagrams.len()
    }

    fn find(&self, id: &DatagramId) -> Option<usize> {
        self.datagrams.iter().rposition(|known| known.id() == id)
    }

    /// A new packet, the youngest. Its place.
    fn begin(&mut self, now: Instant, id: DatagramId) -> usize {
        for datagram in &mut self.datagrams {
            datagram.note_younger(&id);
        }
        let too_old = |datagram: &Datagram| datagram.younger() > YOUNGER_MAX;
        if let Some(at) = self.datagrams.iter().position(too_old) {
            self.give_up(at);
        }
        if self.datagrams.len() >= DATAGRAMS_MAX {
            self.give_up(0);
        }
        self.bytes += DATAGRAM_COST;
        self.datagrams.push(Datagram::new(id, now + TIMEOUT));
        self.datagrams.len() - 1
    }

    /// Gives up others until the packet at `at` can have `cost` bytes more. Where it is then.
    fn make_room(&mut self, mut at: usize, cost: usize) -> usize {
        while let Some(victim) = self.victim(at, cost) {
            self.give_up(victim);
            at -= usize::from(victim < at);
        }
        at
    }

    /// The oldest packet but that at `at`, of its source if that has too much.
    fn victim(&self, at: usize, cost: usize) -> Option<usize> {
        let src = self.datagrams.get(at)?.id().src;
        let others = || (0..self.datagrams.len()).filter(|other| *other != at);
        if self.bytes_of(src) + cost > SOURCE_BYTES_MAX {
            let same = |other: &usize| self.datagrams[*other].id().src == src;
            return others().find(same);
        }
        (self.bytes + cost > BYTES_MAX).then(|| others().next())?
    }

    fn bytes_of(&self, src: IpAddress) -> usize {
        let of_source = self.datagrams.iter().filter(|known| known.id().src == src);
        of_source.map(Datagram::cost).sum()
    }

    fn give_up(&mut self, at: usize) {
        if !self.remove(at).is_broken() {
            self.counters.fails += 1;
        }
    }

    fn remove(&mut self, at: usize) -> Datagram {
        let datagram = self.datagrams.remove(at);
        self.bytes -= datagram.cost();
        datagram
    }
}

#[cfg(test)]
mod props;
#[cfg(test)]
mod tests;
