//! The table of the connections and datagrams of one user's mux ports (packet rings of programs
//! with TCP/IP stacks of their own). The table also has the answers that handshakes still expect.
//! The filter of the operator's rules reads the table to judge each packet that is not a SYN.
//!
//! The table has a fixed size. An entry is one word:
//!
//! ```text
//!   63            24 23   22 21        20           0
//!  +----------------+-------+---------+--------------+
//!  |  tag           | kind  | opener  | time         |
//!  +----------------+-------+---------+--------------+
//! ```
//!
//! The tag is a keyed hash, so that neither a program nor a peer can make entries collide. The hash
//! of the 5-tuple selects a *set* of [`WAYS`] places, and the entry lies in one of these places. A
//! new entry replaces an expected answer or an unanswered datagram before it replaces a connection.
//! A flood of SYNs or datagrams therefore replaces a connection only in a set that is full of
//! connections. The loss of an entry can deny packets, but never admits packets.
//!
//! The cores (polling threads of the service) share the table, because a program may answer a
//! packet over another core than the core that received the packet. An entry is one atomic word, so
//! that no core waits for another core.

use std::{
    hash::Hasher,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use siphasher::sip::SipHasher13;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, SeqNumber};

use crate::rules::{Direction, RuleSet};

/// Number of entries. The table has 256 KiB.
const ENTRIES: usize = 1 << 15;
/// Number of places in a set. A set has the size of a cache line.
const WAYS: usize = 8;
const SETS: usize = ENTRIES / WAYS;
/// Time for which a handshake expects an answer, and for which answers to a datagram pass.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Unit of the time in an entry. The time in an entry is modulo 2^21 units (97 days).
const TICK: Duration = Duration::from_secs(4);
const TIME_BITS: u32 = 21;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
/// Bit that is set if the peer is the opener.
const BY_PEER: u64 = 1 << TIME_BITS;
const KIND_SHIFT: u32 = TIME_BITS + 1;
const KIND_MASK: u64 = 3 << KIND_SHIFT;
const TAG_MASK: u64 = !((1 << (KIND_SHIFT + 2)) - 1);
/// Limit of attempts to write an entry while other cores write to its set.
const ATTEMPTS_MAX: usize = 2 * WAYS;

/// Kind of an entry for an answer that a handshake expects. A new entry replaces an entry of the
/// lowest kind in the set. Kind zero is a free place.
const EXPECTED: u64 = 1 << KIND_SHIFT;
/// Kind of an entry for datagrams that the other side has not answered.
const UNANSWERED: u64 = 2 << KIND_SHIFT;
/// Kind of an entry for a connection, or for datagrams that the other side has answered.
const ANSWERED: u64 = 3 << KIND_SHIFT;

/// The 5-tuple of packets between a mux port and a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FiveTuple {
    /// Protocol number.
    pub protocol: u8,
    /// Address and port of the mux port.
    pub local: Endpoint,
    /// Address and port of the peer.
    pub peer: Endpoint,
}

/// The keyed hash of a [`FiveTuple`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FiveTupleHash(u64);

impl FiveTupleHash {
    /// Returns the 64 bits of the hash.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// An acknowledgment that one side of a handshake waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// Side that opens the connection.
    pub opener: Direction,
    /// Side that has sent the SYN or the SYN-ACK, and waits for the answer.
    pub waits: Direction,
    /// SEG.ACK of the answer.
    pub ack: SeqNumber,
}

/// The table of one user. The table has no memory before [`prepare`](Self::prepare).
#[derive(Debug)]
pub struct Associations {
    /// Key of the hashes.
    secret: [u8; 16],
    /// The entries. The [`WAYS`] places of a set are adjacent.
    entries: OnceLock<Box<[AtomicU64]>>,
}

impl Associations {
    /// Makes a table whose hashes have the key `secret`.
    pub fn new(secret: [u8; 16]) -> Self {
        Self {
            secret,
            entries: OnceLock::new(),
        }
    }

    /// Allocates the memory of the table. Without memory, the table records nothing. The daemon
    /// calls this function on a thread that is not a core, before a core applies rules to the
    /// user's mux ports.
    pub fn prepare(&self) {
        self.entries
            .get_or_init(|| (0..ENTRIES).map(|_| AtomicU64::new(0)).collect());
    }

    /// Prepares the table for a change from the rules `old` to the rules `new`. The daemon calls
    /// this function on a thread that is not a core, before the cores get the new rules.
    ///
    /// Without rules, the cores record nothing, so the entries become stale: while there are no
    /// rules, a connection may end, and the other side may open a new connection of the same
    /// 5-tuple. The change from no rules to rules therefore clears the table.
    pub fn rules_change(&self, old: &RuleSet, new: &RuleSet) {
        if new.accepts_all() {
            return;
        }
        self.prepare();
        if old.accepts_all() {
            for entry in self.entries.get().into_iter().flatten() {
                entry.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Returns the hash of a 5-tuple.
    pub fn hash(&self, five_tuple: &FiveTuple) -> FiveTupleHash {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        hasher.write_u8(five_tuple.protocol);
        for end in [&five_tuple.local, &five_tuple.peer] {
            hasher.write(&end.addr.0);
            hasher.write_u16(end.port);
        }
        FiveTupleHash(hasher.finish())
    }

    /// Returns the side that opened the connection of `five_tuple`. Returns `None` if the table has
    /// no entry. Renews the time of the entry, because a new entry in a full set replaces the
    /// oldest entry of the lowest kind.
    pub fn opener(&self, five_tuple: FiveTupleHash, now: Instant) -> Option<Direction> {
        let word = self.change(five_tuple, |word| (word & !TIME_MASK) | ticks(now))?;
        Some(opener_of(word))
    }

    /// Returns the recorded opener of `five_tuple`: the side that sent the first datagram. Returns
    /// `None` if the table has no entry, or if the entry is older than `ANSWER_MAX`.
    pub fn recent_opener(&self, five_tuple: FiveTupleHash, now: Instant) -> Option<Direction> {
        let (_, word) = self.find(five_tuple, tag_of(five_tuple.0), is_association)?;
        is_recent(word, now).then(|| opener_of(word))
    }

    /// Prolongs the time in which answers to datagrams of `five_tuple` pass.
    pub fn prolong(&self, five_tuple: FiveTupleHash, now: Instant) {
        self.change(five_tuple, |word| (word & !TIME_MASK) | ticks(now));
    }

    /// Records that the other side has answered a datagram of `five_tuple`.
    pub fn mark_answered(&self, five_tuple: FiveTupleHash) {
        self.change(five_tuple, |word| word | ANSWERED);
    }

    /// Records the side that has opened the connection of `five_tuple`, or has sent the first
    /// datagram of `five_tuple`. `answered` is true if the other side has answered.
    pub fn record(
        &self,
        five_tuple: FiveTupleHash,
        opener: Direction,
        answered: bool,
        now: Instant,
    ) {
        let kind = if answered { ANSWERED } else { UNANSWERED };
        let word = tag_of(five_tuple.0) | kind | by(opener) | ticks(now);
        self.write(five_tuple, word, is_association);
    }

    /// Removes the entry of the connection of `five_tuple`.
    pub fn forget(&self, five_tuple: FiveTupleHash) {
        self.change(five_tuple, |_| 0);
    }

    /// Records that a handshake expects an answer.
    pub fn expect(&self, five_tuple: FiveTupleHash, expected: &Expected, now: Instant) {
        let tag = self.tag_of_answer(five_tuple, expected);
        let word = tag | EXPECTED | by(expected.opener) | ticks(now);
        self.write(five_tuple, word, is_expected);
    }

    /// Returns true if a handshake expects this answer.
    pub fn expects(&self, five_tuple: FiveTupleHash, expected: &Expected, now: Instant) -> bool {
        let tag = self.tag_of_answer(five_tuple, expected);
        let found = self.find(five_tuple, tag, is_expected);
        found.is_some_and(|(_, word)| is_recent(word, now))
    }

    fn tag_of_answer(&self, five_tuple: FiveTupleHash, expected: &Expected) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        hasher.write_u64(five_tuple.0);
        hasher.write_u8(u8::from(expected.opener == Direction::In));
        hasher.write_u8(u8::from(expected.waits == Direction::In));
        hasher.write_u32(expected.ack.to_u32());
        tag_of(hasher.finish())
    }

    /// Returns the set for the entries of a 5-tuple. The set is empty if the table has no memory.
    fn set(&self, five_tuple: FiveTupleHash) -> &[AtomicU64] {
        let start = (five_tuple.0 as usize % SETS) * WAYS;
        let entries = self.entries.get();
        entries.map_or(&[], |entries| &entries[start..start + WAYS])
    }

    /// Returns the place and the word of the entry that has this tag and for which `fits` returns
    /// true.
    fn find(
        &self,
        five_tuple: FiveTupleHash,
        tag: u64,
        fits: fn(u64) -> bool,
    ) -> Option<(&AtomicU64, u64)> {
        let words = self.set(five_tuple).iter();
        let mut words = words.map(|place| (place, place.load(Ordering::Relaxed)));
        words.find(|(_, word)| word & TAG_MASK == tag && fits(*word))
    }

    /// Changes the entry of the connection of `five_tuple`. Returns the entry before the change. If
    /// another core changes the entry at the same time, the change of this call is lost.
    fn change(&self, five_tuple: FiveTupleHash, change: impl FnOnce(u64) -> u64) -> Option<u64> {
        let (place, word) = self.find(five_tuple, tag_of(five_tuple.0), is_association)?;
        let new = change(word);
        if new != word {
            let _ = place.compare_exchange(word, new, Ordering::Relaxed, Ordering::Relaxed);
        }
        Some(word)
    }

    /// Writes an entry. If the set has an entry with the same tag for which `fits` returns true,
    /// the new entry replaces this entry. Otherwise, the new entry takes the place that
    /// [`lowest`](Self::lowest) returns. The new entry is lost if another core changes the chosen
    /// place in each of the [`ATTEMPTS_MAX`] attempts.
    fn write(&self, five_tuple: FiveTupleHash, word: u64, fits: fn(u64) -> bool) {
        for _ in 0..ATTEMPTS_MAX {
            let same = self.find(five_tuple, word & TAG_MASK, fits);
            let Some((place, old)) = same.or_else(|| self.lowest(five_tuple, word & TIME_MASK))
            else {
                return;
            };
            let order = Ordering::Relaxed;
            if place.compare_exchange(old, word, order, order).is_ok() {
                return;
            }
        }
    }

    /// Returns the place that a new entry takes: a free place, or else the place of the oldest
    /// entry of the lowest kind. `now` is the present time in units of [`TICK`].
    fn lowest(&self, five_tuple: FiveTupleHash, now: u64) -> Option<(&AtomicU64, u64)> {
        let words = self.set(five_tuple).iter();
        let words = words.map(|place| (place, place.load(Ordering::Relaxed)));
        words.min_by_key(|(_, word)| {
            // The oldest entry has the lowest key of its kind.
            let age = now.wrapping_sub(*word) & TIME_MASK;
            (word & KIND_MASK, TIME_MASK - age)
        })
    }
}

fn tag_of(hash: u64) -> u64 {
    hash & TAG_MASK
}

fn is_association(word: u64) -> bool {
    matches!(word & KIND_MASK, UNANSWERED | ANSWERED)
}

fn is_expected(word: u64) -> bool {
    word & KIND_MASK == EXPECTED
}

fn by(opener: Direction) -> u64 {
    match opener {
        Direction::In => BY_PEER,
        Direction::Out => 0,
    }
}

fn opener_of(word: u64) -> Direction {
    match word & BY_PEER {
        0 => Direction::Out,
        _ => Direction::In,
    }
}

fn ticks(now: Instant) -> u64 {
    (now.0 / TICK.0) & TIME_MASK
}

/// Returns true if an entry is not older than [`ANSWER_MAX`], counted in units of [`TICK`].
fn is_recent(word: u64, now: Instant) -> bool {
    let age = ticks(now).wrapping_sub(word) & TIME_MASK;
    age <= ANSWER_MAX.0 / TICK.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_secs(1000);

    fn table() -> Associations {
        let table = Associations::new([7; 16]);
        table.prepare();
        table
    }

    fn five_tuple(number: u32) -> FiveTuple {
        let [a, b, c, d] = number.to_be_bytes();
        FiveTuple {
            protocol: 6,
            local: Endpoint::v4([10, 0, 0, 1], 80),
            peer: Endpoint::v4([10, a, b, c], 1000 + u16::from(d)),
        }
    }

    fn expected(ack: u32) -> Expected {
        Expected {
            opener: Direction::In,
            waits: Direction::Out,
            ack: SeqNumber(ack),
        }
    }

    #[test]
    fn each_part_of_an_entry_counts() {
        let table = table();
        let (one, other) = (table.hash(&five_tuple(1)), table.hash(&five_tuple(2)));
        table.expect(one, &expected(5), NOW);
        assert!(table.expects(one, &expected(5), NOW));
        let opener = Direction::Out;
        let waits = Direction::In;
        for wrong in [
            expected(6),
            Expected {
                opener,
                ..expected(5)
            },
            Expected {
                waits,
                ..expected(5)
            },
        ] {
            assert!(!table.expects(one, &wrong, NOW), "{wrong:?}");
        }
        assert!(!table.expects(other, &expected(5), NOW));
        assert_eq!(table.opener(one, NOW), None);
        for opener in [Direction::In, Direction::Out] {
            table.record(one, opener, true, NOW);
            assert_eq!(table.opener(one, NOW), Some(opener));
            assert_eq!(table.opener(other, NOW), None);
        }
        table.forget(one);
        assert_eq!(table.opener(one, NOW), None);
        assert!(table.expects(one, &expected(5), NOW));
        // The hash covers the protocol, and differs if the two ends are exchanged.
        let base = five_tuple(1);
        let swapped = FiveTuple {
            local: base.peer,
            peer: base.local,
            ..base
        };
        let udp = FiveTuple {
            protocol: 17,
            ..base
        };
        assert!(table.hash(&swapped) != one && table.hash(&udp) != one);
    }

    #[test]
    fn answers_and_datagrams_expire_and_connections_do_not() {
        let table = table();
        let hash = table.hash(&five_tuple(1));
        table.expect(hash, &expected(5), NOW);
        table.record(hash, Direction::In, false, NOW);
        let last = NOW + ANSWER_MAX;
        assert!(table.expects(hash, &expected(5), last));
        assert_eq!(table.recent_opener(hash, last), Some(Direction::In));
        let late = last + TICK;
        assert!(!table.expects(hash, &expected(5), late));
        assert_eq!(table.recent_opener(hash, late), None);
        let days = NOW + Duration::from_secs(30 * 86_400);
        assert_eq!(table.opener(hash, days), Some(Direction::In));
    }

    /// The flood writes entries for SYNs and datagrams, a hundred times as many as the table has
    /// places.
    #[test]
    fn a_flood_replaces_no_connection_that_has_packets() {
        let table = table();
        let connections: Vec<FiveTupleHash> = (0..ENTRIES as u32 / 16)
            .map(|number| table.hash(&five_tuple(number)))
            .collect();
        for hash in &connections {
            table.record(*hash, Direction::In, true, NOW);
        }
        for number in 0..ENTRIES as u32 * 100 {
            let hash = FiveTupleHash(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            match number % 2 {
                0 => table.expect(hash, &expected(number), NOW),
                _ => table.record(hash, Direction::In, false, NOW),
            }
        }
        let kept = connections.iter();
        let kept = kept.filter(|hash| table.opener(**hash, NOW).is_some());
        // The flood replaces a connection only in the few sets whose places all have connections.
        assert!(kept.count() * 1000 > connections.len() * 999);
    }

    #[test]
    fn the_oldest_connection_of_a_full_set_is_replaced() {
        let table = table();
        // Hashes of one set, with different tags.
        let hash = |number: u64| FiveTupleHash(3 | (number << 40));
        for number in 0..WAYS as u64 {
            let at = NOW + TICK * (1 + (number + 3) % WAYS as u64);
            table.record(hash(number), Direction::Out, true, at);
        }
        table.record(hash(100), Direction::Out, true, NOW + TICK * 20u64);
        let missing = |number: &u64| table.opener(hash(*number), NOW).is_none();
        let missing: Vec<u64> = (0..WAYS as u64).filter(missing).collect();
        assert_eq!(missing, [5]);
    }

    #[test]
    fn a_table_without_memory_forgets() {
        let table = Associations::new([7; 16]);
        let hash = table.hash(&five_tuple(1));
        table.record(hash, Direction::In, true, NOW);
        table.expect(hash, &expected(5), NOW);
        assert_eq!(table.opener(hash, NOW), None);
        assert!(!table.expects(hash, &expected(5), NOW));
    }

    /// Threads write to the same sets. No entry is lost, because each set has room for all entries.
    #[test]
    fn concurrent_writes_lose_no_entry() {
        let table = table();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..20_000u64 {
                        // Two entries of each thread in set `round % 64`.
                        let hash = FiveTupleHash(
                            (round % 64) | ((thread * 2 + (round / 64) % 2 + 1) << 40),
                        );
                        table.record(hash, Direction::In, true, NOW);
                        assert_eq!(table.opener(hash, NOW), Some(Direction::In));
                    }
                });
            }
        });
    }
}
