//! TIME-WAIT: what is kept of a finished connection for twice the maximum segment lifetime
//! (RFC 9293 §3.6.1), apart from the flows.

use std::collections::VecDeque;

use hashbrown::HashTable;
use tidelane_flow::LinkId;
use tidelane_time::Instant;
use tidelane_wire::{FlowKey, Segment, SeqNumber};

/// Places in the order that may be stale, besides as many as there are entries.
const ORDER_SLACK: usize = 1024;

/// A finished connection.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Both ends.
    pub key: FlowKey,
    /// Where to answer.
    pub link: LinkId,
    /// DiffServ field of the connection's packets.
    pub traffic_class: u8,
    /// SND.NXT.
    pub snd_nxt: SeqNumber,
    /// RCV.NXT.
    pub rcv_nxt: SeqNumber,
    /// TS.Recent, if timestamps were in use.
    pub ts_recent: Option<u32>,
    /// When a segment that may be answered only now and then last was.
    pub answered_at: Option<Instant>,
    /// When it may be forgotten.
    pub until: Instant,
}

impl Entry {
    /// Whether a SYN may open a new connection now (RFC 6191 §2; RFC 9293 MAY-2, SHLD-4): its
    /// timestamp is newer, or there are none and its number is; one with an older timestamp is
    /// itself old (PAWS).
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

/// All of them.
#[derive(Debug)]
pub struct TimeWait {
    entries: HashTable<Entry>,
    order: VecDeque<(Instant, FlowKey)>,
    seed: [u64; 2],
    max: usize,
}

impl TimeWait {
    /// None yet; at most `max`.
    pub fn new(seed: [u64; 2], max: u32) -> Self {
        Self {
            entries: HashTable::new(),
            order: VecDeque::new(),
            seed,
            max: max as usize,
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether another entry takes the oldest one's place.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.max
    }

    /// The entry with these ends.
    pub fn find(&self, key: &FlowKey) -> Option<&Entry> {
        self.entries
            .find(key.hash64(self.seed), |entry| entry.key == *key)
    }

    /// A segment of the entry with these ends was answered.
    pub fn note_answer(&mut self, key: &FlowKey, now: Instant) {
        let hash = key.hash64(self.seed);
        if let Some(entry) = self.entries.find_mut(hash, |entry| entry.key == *key) {
            entry.answered_at = Some(now);
        }
    }

    /// Adds an entry; the oldest makes room if there are too many.
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

    /// Entries that were replaced leave their place in the order behind: it is swept when those are
    /// the most.
    fn forget_stale_order(&mut self) {
        let mut order = std::mem::take(&mut self.order);
        order.retain(|(until, key)| self.find(key).is_some_and(|entry| entry.until == *until));
        self.order = order;
    }

    /// Forgets the entry with these ends.
    pub fn remove(&mut self, key: &FlowKey) {
        let hash = key.hash64(self.seed);
        if let Ok(found) = self.entries.find_entry(hash, |entry| entry.key == *key) {
            found.remove();
        }
    }

    /// Forgets what has waited long enough.
    pub fn expire(&mut self, now: Instant) {
        while let Some((until, key)) = self.order.front().copied() {
            if until > now {
                break;
            }
            self.order.pop_front();
            // A newer entry with the same ends has a later time.
            if self.find(&key).is_some_and(|entry| entry.until <= now) {
                self.remove(&key);
            }
        }
    }

    /// When the first may be forgotten.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.order.front().map(|(until, _)| *until)
    }
}
