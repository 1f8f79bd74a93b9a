//! TIME-WAIT: the state of closed connections for 2 MSL (RFC 9293 §3.6.1). The table of this module
//! has one entry per connection in TIME-WAIT. The table is separate from the flows (the full states
//! of connections), because an entry needs much less memory than a flow.

use std::collections::VecDeque;

use hashbrown::HashTable;
use tidelane_flow::LinkId;
use tidelane_time::Instant;
use tidelane_wire::{FlowKey, Segment, SeqNumber};

/// The table removes the stale elements of `TimeWaitTable::order` when `order` has more elements
/// than twice the number of entries plus this number.
const ORDER_SLACK: usize = 1024;
/// Number of TCP ports.
const PORTS: usize = 1 << 16;

/// A connection in TIME-WAIT, with the state from which the engine answers the peer.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// 4-tuple.
    pub key: FlowKey,
    /// Link that carries answers to the peer.
    pub link: LinkId,
    /// DiffServ field of the packets that the connection sent.
    pub traffic_class: u8,
    /// SND.NXT at the end of the connection.
    pub snd_nxt: SeqNumber,
    /// RCV.NXT at the end of the connection.
    pub rcv_nxt: SeqNumber,
    /// TS.Recent at the end of the connection, or `None` for a connection without timestamps.
    pub ts_recent: Option<u32>,
    /// Time of the last answer that counted towards the rate limit of answers in TIME-WAIT. `None`
    /// if no answer has counted yet.
    pub answered_at: Option<Instant>,
    /// Time at which TIME-WAIT ends.
    pub until: Instant,
}

impl Entry {
    /// Returns true if a SYN may open a new connection with this 4-tuple (RFC 6191 §2; RFC 9293
    /// MAY-2, SHLD-4). The SYN needs a newer timestamp, or an equal timestamp and a later sequence
    /// number. A SYN with an older timestamp is a duplicate (PAWS). Without timestamps in the SYN
    /// or in the old connection, a later sequence number suffices.
    pub fn may_be_reused(&self, syn: &Segment<'_>) -> bool {
        let later = syn.seq.after(self.rcv_nxt);
        match (self.ts_recent, syn.options.timestamps) {
            (Some(recent), Some(t)) => {
                let age = t.tsval.wrapping_sub(recent) as i32;
                age > 0 || (age == 0 && later)
            }
            _ => later,
        }
    }
}

/// All connections in TIME-WAIT.
#[derive(Debug)]
pub struct TimeWaitTable {
    /// Entries by the hash of their 4-tuples.
    entries: HashTable<Entry>,
    /// End of TIME-WAIT and 4-tuple of each inserted entry, in order of insertion. An element is
    /// stale if its entry was removed, or was replaced by an entry with the same 4-tuple.
    order: VecDeque<(Instant, FlowKey)>,
    /// Number of entries with each local port. The index is the port.
    by_port: Box<[u32]>,
    /// Key of the hash of 4-tuples.
    seed: [u64; 2],
    /// Largest number of entries.
    max: usize,
}

impl TimeWaitTable {
    /// Creates an empty table for at most `max` connections.
    pub fn new(seed: [u64; 2], max: u32) -> Self {
        Self {
            entries: HashTable::new(),
            order: VecDeque::new(),
            by_port: vec![0; PORTS].into(),
            seed,
            max: max as usize,
        }
    }

    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if the table has no room for a new entry. The next new entry then replaces the
    /// oldest entry. In a table for no connections, the new entry is dropped.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.max
    }

    /// Returns true if a connection with this local port is in TIME-WAIT.
    pub fn has_port(&self, port: u16) -> bool {
        self.by_port[usize::from(port)] > 0
    }

    /// Returns the entry with this 4-tuple, or `None` if the table has no such entry.
    pub fn find(&self, key: &FlowKey) -> Option<&Entry> {
        self.entries
            .find(key.hash64(self.seed), |entry| entry.key == *key)
    }

    /// Records `now` as the time of an answer that the rate limit counts ([`Entry::answered_at`]).
    pub fn note_answer(&mut self, key: &FlowKey, now: Instant) {
        let hash = key.hash64(self.seed);
        if let Some(entry) = self.entries.find_mut(hash, |entry| entry.key == *key) {
            entry.answered_at = Some(now);
        }
    }

    /// Adds an entry, and removes an older entry with the same 4-tuple. If the table is full, the
    /// new entry replaces the oldest entry. A table for no connections stays empty.
    pub fn insert(&mut self, entry: Entry) {
        self.remove(&entry.key);
        if self.max == 0 {
            return;
        }
        while self.entries.len() >= self.max {
            let Some((until, oldest)) = self.order.pop_front() else {
                break;
            };
            if self.find(&oldest).is_some_and(|e| e.until == until) {
                self.remove(&oldest);
            }
        }
        if self.order.len() > 2 * self.entries.len() + ORDER_SLACK {
            self.forget_stale_order();
        }
        let seed = self.seed;
        self.order.push_back((entry.until, entry.key));
        self.by_port[usize::from(entry.key.local.port)] += 1;
        self.entries
            .insert_unique(entry.key.hash64(seed), entry, |e| e.key.hash64(seed));
    }

    /// Removes the stale elements of `order`: elements whose entries were removed or replaced.
    fn forget_stale_order(&mut self) {
        let mut order = std::mem::take(&mut self.order);
        order.retain(|(until, key)| self.find(key).is_some_and(|entry| entry.until == *until));
        self.order = order;
    }

    /// Removes the entry with this 4-tuple, if there is one.
    pub fn remove(&mut self, key: &FlowKey) {
        let hash = key.hash64(self.seed);
        if let Ok(found) = self.entries.find_entry(hash, |entry| entry.key == *key) {
            found.remove();
            self.by_port[usize::from(key.local.port)] -= 1;
        }
    }

    /// Removes the entries whose TIME-WAIT has ended at `now`.
    pub fn expire(&mut self, now: Instant) {
        while let Some((until, key)) = self.order.front().copied() {
            if until > now {
                break;
            }
            self.order.pop_front();
            // The element is stale if a newer entry with this 4-tuple ends after `now`. This newer
            // entry stays in the table.
            if self.find(&key).is_some_and(|entry| entry.until <= now) {
                self.remove(&key);
            }
        }
    }

    /// Returns the time at which TIME-WAIT of the oldest entry ends, or an earlier time if the
    /// first element of `order` is stale. Returns `None` if `order` is empty.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.order.front().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use tidelane_wire::{Endpoint, IpAddress};

    use super::*;

    fn entry(port: u16, peer_port: u16, until: u64) -> Entry {
        let end = |port| Endpoint {
            addr: IpAddress::from_v4([10, 0, 0, 1]),
            port,
        };
        Entry {
            key: FlowKey {
                local: end(port),
                peer: end(peer_port),
            },
            link: LinkId(0),
            traffic_class: 0,
            snd_nxt: SeqNumber(0),
            rcv_nxt: SeqNumber(0),
            ts_recent: None,
            answered_at: None,
            until: Instant(until),
        }
    }

    #[test]
    fn a_table_for_no_connections_stays_empty() {
        let mut table = TimeWaitTable::new([1, 2], 0);
        table.insert(entry(80, 1, 10));
        assert_eq!((table.len(), table.next_deadline()), (0, None));
    }

    #[test]
    fn a_port_is_in_time_wait_with_the_last_of_its_connections() {
        let mut table = TimeWaitTable::new([1, 2], 3);
        table.insert(entry(80, 1, 10));
        table.insert(entry(80, 2, 20));
        // Insert the second connection again, with a later end.
        table.insert(entry(80, 2, 30));
        table.insert(entry(u16::MAX, 1, 40));
        assert!(table.has_port(80) && table.has_port(u16::MAX) && !table.has_port(81));
        // The table is full, so the new entry replaces the oldest entry.
        table.insert(entry(81, 1, 50));
        assert!(table.has_port(80) && table.has_port(81));
        table.expire(Instant(30));
        assert!(!table.has_port(80) && table.has_port(81));
        table.remove(&entry(81, 1, 0).key);
        table.expire(Instant(50));
        assert!(!table.has_port(81) && !table.has_port(u16::MAX) && table.len() == 0);
    }
}
