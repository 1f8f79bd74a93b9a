//! TIME-WAIT: the state of closed connections for 2 MSL (RFC 9293 §3.6.1), kept apart from the
//! flows.

use std::collections::VecDeque;

use hashbrown::HashTable;
use tidelane_flow::LinkId;
use tidelane_time::Instant;
use tidelane_wire::{FlowKey, Segment, SeqNumber};

/// Number of stale elements in `order` before it is swept, in addition to the number of entries.
const ORDER_SLACK: usize = 1024;

/// A connection in TIME-WAIT.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// 4-tuple.
    pub key: FlowKey,
    /// Link to answer on.
    pub link: LinkId,
    /// DiffServ field of the connection's packets.
    pub traffic_class: u8,
    /// SND.NXT.
    pub snd_nxt: SeqNumber,
    /// RCV.NXT.
    pub rcv_nxt: SeqNumber,
    /// TS.Recent, if timestamps were in use.
    pub ts_recent: Option<u32>,
    /// Time of the last rate-limited answer.
    pub answered_at: Option<Instant>,
    /// End of TIME-WAIT.
    pub until: Instant,
}

impl Entry {
    /// Returns true if a SYN may open a new connection with this 4-tuple (RFC 6191 §2; RFC 9293
    /// MAY-2, SHLD-4): its timestamp is newer or, without timestamps, its sequence number is. A SYN
    /// with an older timestamp is a duplicate (PAWS).
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
    entries: HashTable<Entry>,
    order: VecDeque<(Instant, FlowKey)>,
    seed: [u64; 2],
    max: usize,
}

impl TimeWaitTable {
    /// Creates an empty table for at most `max` connections.
    pub fn new(seed: [u64; 2], max: u32) -> Self {
        Self {
            entries: HashTable::new(),
            order: VecDeque::new(),
            seed,
            max: max as usize,
        }
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if a new entry would replace the oldest.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.max
    }

    /// Returns the entry with this 4-tuple.
    pub fn find(&self, key: &FlowKey) -> Option<&Entry> {
        self.entries
            .find(key.hash64(self.seed), |entry| entry.key == *key)
    }

    /// Records the time of a rate-limited answer.
    pub fn note_answer(&mut self, key: &FlowKey, now: Instant) {
        let hash = key.hash64(self.seed);
        if let Some(entry) = self.entries.find_mut(hash, |entry| entry.key == *key) {
            entry.answered_at = Some(now);
        }
    }

    /// Adds an entry, which replaces the oldest one if the table is full.
    pub fn insert(&mut self, entry: Entry) {
        self.remove(&entry.key);
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
        self.entries
            .insert_unique(entry.key.hash64(seed), entry, |e| e.key.hash64(seed));
    }

    /// Removes stale elements from `order`, which replaced entries have left behind.
    fn forget_stale_order(&mut self) {
        let mut order = std::mem::take(&mut self.order);
        order.retain(|(until, key)| self.find(key).is_some_and(|entry| entry.until == *until));
        self.order = order;
    }

    /// Removes the entry with this 4-tuple.
    pub fn remove(&mut self, key: &FlowKey) {
        let hash = key.hash64(self.seed);
        if let Ok(found) = self.entries.find_entry(hash, |entry| entry.key == *key) {
            found.remove();
        }
    }

    /// Removes the entries whose time has passed.
    pub fn expire(&mut self, now: Instant) {
        while let Some((until, key)) = self.order.front().copied() {
            if until > now {
                break;
            }
            self.order.pop_front();
            // A newer entry with the same 4-tuple has a later end.
            if self.find(&key).is_some_and(|entry| entry.until <= now) {
                self.remove(&key);
            }
        }
    }

    /// Returns the end of the oldest entry.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.order.front().map(|(until, _)| *until)
    }
}
