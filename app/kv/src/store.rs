//! [`Store`]: items by key, in a limited amount of memory.
//!
//! An item (a key, its value and its properties) is a chain of blocks ([`arena`]). A hash table
//! finds the item of a key. The hash is keyed with a secret of the process, so that no client can
//! choose many keys of one bucket. The LRU list orders the items by their most recent use. When no
//! block is free, the store evicts the least recently used item that is not pinned. An item that
//! is expired, or that a flush (command `flush_all`) covers, is removed when a lookup or the sweep
//! (a walk through the hash table in small steps) finds the item.
//!
//! If a value does not fit into the output of a client, the session of the client pins the item and
//! sends the value in pieces with a [`Reader`]. A pinned item keeps its bytes, even if the item is
//! replaced, deleted or expired before the pin ends.

use siphasher::sip::SipHasher13;

use self::arena::{Arena, BLOCK_LEN, FIRST_DATA, NONE, Word, blocks_for};
pub use self::{
    chain::{OutOfMemory, Reader, Upload},
    head::{Mark, New},
};
use crate::{base64::KEY_LEN_MAX, clock::Second};

mod arena;
mod chain;
mod head;

/// Smallest memory of a store in bytes: room for several of the largest items.
pub const MEMORY_MIN: u64 = 8 << 20;
/// Largest memory of a store in bytes. With this memory, each block number fits into 32 bits.
pub const MEMORY_MAX: u64 = 256 << 30;
/// Length in bytes of the largest item, by memcached's count.
pub const ITEM_LEN_MAX: usize = 1 << 20;
/// Bytes that memcached counts for an item in addition to key, value and flags.
const ITEM_OVERHEAD: usize = 59;
/// Limit of the items that one allocation visits to free a block.
const EVICTION_TRIES_MAX: u32 = 32;

/// An item in the store: the number of its first block. The number is valid until the store frees
/// the item. Any allocation, lookup or sweep may free an item that is not pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item(u32);

/// Statistics of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Number of items in the hash table.
    pub items: u64,
    /// Bytes of the items in the hash table, by memcached's count.
    pub bytes: u64,
    /// Number of items stored since the start or the last reset.
    pub items_total: u64,
    /// Number of items evicted for lack of memory.
    pub evictions: u64,
    /// Number of evicted items that no client had read.
    pub evicted_unfetched: u64,
    /// Number of expired items that a lookup has removed.
    pub get_expired: u64,
    /// Number of flushed items that a lookup has removed.
    pub get_flushed: u64,
    /// Number of expired and flushed items that the sweep has removed.
    pub reclaimed: u64,
    /// Number of expired or flushed items that were removed, and that no client had read.
    pub expired_unfetched: u64,
}

/// A hash table of items with an LRU list.
pub struct Store {
    arena: Arena,
    /// First item of each bucket of the hash table, or [`NONE`].
    buckets: Vec<u32>,
    /// Secret key of the hash.
    keys: (u64, u64),
    /// Most recently used item, or [`NONE`].
    newest: u32,
    /// Least recently used item, or [`NONE`].
    oldest: u32,
    /// The most recently issued CAS number (version of an item, for memcached's command `cas`).
    last_cas: u64,
    /// Final second that the most recent flush covers, or zero if there is no flush. Once the clock
    /// has reached this second, all items whose last access was in this second or earlier are
    /// flushed.
    flushed_until: u32,
    /// CAS number issued at the most recent flush without delay. Once the clock has reached
    /// `flushed_until`, items with a lower CAS number are flushed, too.
    flushed_below: u64,
    /// Bucket at which the next sweep starts.
    sweep_at: usize,
    /// Number of blocks of unfinished uploads (items whose values are being received).
    uploading: u32,
    /// Number of blocks of pinned items.
    pinned: u32,
    counts: StoreCounts,
}

impl Store {
    /// Returns an empty store. `memory` is in bytes, and is clamped to the range from
    /// [`MEMORY_MIN`] to [`MEMORY_MAX`]. `seed` keys the hash and must be secret.
    pub fn new(memory: u64, seed: [u8; 16]) -> Self {
        let memory = memory.clamp(MEMORY_MIN, MEMORY_MAX);
        // The table has at most one bucket per block.
        let blocks = (memory / (BLOCK_LEN + size_of::<u32>()) as u64) as u32;
        let buckets = 1usize << blocks.ilog2();
        let (low, high) = seed.split_at(8);
        let key = |half: &[u8]| half.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        Self {
            arena: Arena::new(blocks),
            buckets: vec![NONE; buckets],
            keys: (key(low), key(high)),
            newest: NONE,
            oldest: NONE,
            last_cas: 0,
            flushed_until: 0,
            flushed_below: 0,
            sweep_at: 0,
            uploading: 0,
            pinned: 0,
            counts: StoreCounts::default(),
        }
    }

    pub fn counts(&self) -> &StoreCounts {
        &self.counts
    }

    /// Resets the counts of past events.
    pub fn reset_counts(&mut self) {
        self.counts = StoreCounts {
            items: self.counts.items,
            bytes: self.counts.bytes,
            ..StoreCounts::default()
        };
    }

    /// Returns the memory in bytes of the used blocks and of the table.
    pub fn memory_used(&self) -> u64 {
        u64::from(self.arena.used()) * BLOCK_LEN as u64
            + (self.buckets.len() * size_of::<u32>()) as u64
    }

    /// Returns true if the pinned items alone, or the unfinished uploads alone, hold more than a
    /// quarter of the blocks, so that new items may lack room.
    pub fn is_pinned_high(&self) -> bool {
        self.pinned.max(self.uploading) > self.arena.count_max() / 4
    }

    /// Returns true if the pinned items alone, or the unfinished uploads alone, hold more than 3/8
    /// of the blocks. The store refuses further uploads once all uploads together hold one half.
    pub fn is_pinned_full(&self) -> bool {
        self.pinned.max(self.uploading) > self.arena.count_max() / 8 * 3
    }

    pub fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    /// Returns true if an item of this size is not larger than [`ITEM_LEN_MAX`].
    pub fn is_size_allowed(key: &[u8], value_len: usize, client_flags: u32) -> bool {
        Self::counted_len(key.len(), value_len, client_flags) <= ITEM_LEN_MAX
    }

    /// Returns the length of an item in bytes, by memcached's count.
    fn counted_len(key_len: usize, value_len: usize, client_flags: u32) -> usize {
        let flags_len = if client_flags == 0 { 0 } else { 4 };
        ITEM_OVERHEAD + key_len + flags_len + value_len
    }

    /// Returns the length of `item` in bytes, by memcached's count.
    pub fn counted_len_of(&self, item: Item) -> usize {
        Self::counted_len(
            self.key_len(item),
            self.value_len(item),
            self.client_flags(item),
        )
    }

    fn hash(&self, key: &[u8]) -> u32 {
        SipHasher13::new_with_keys(self.keys.0, self.keys.1).hash(key) as u32
    }

    fn bucket_of(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// Returns the item of a key, or `None` if no item has the key. If the item is expired or
    /// flushed, removes the item and returns `None`.
    pub fn find(&mut self, now: Second, key: &[u8]) -> Option<Item> {
        let hash = self.hash(key);
        let mut at = self.buckets[self.bucket_of(hash)];
        while at != NONE {
            let item = Item(at);
            let block = self.arena.get(at);
            if block.word(Word::Hash) == hash && self.has_key(item, key) {
                return self.keep_if_alive(now, item);
            }
            at = block.word(Word::BucketNext);
        }
        None
    }

    /// Returns the item if it is neither expired nor flushed. Otherwise removes the item and
    /// returns `None`.
    fn keep_if_alive(&mut self, now: Second, item: Item) -> Option<Item> {
        if self.is_flushed(now, item) {
            self.counts.get_flushed += 1;
        } else if self.expiry(item).is_over(now) {
            self.counts.get_expired += 1;
        } else {
            return Some(item);
        }
        self.count_unfetched(item);
        self.remove(item);
        None
    }

    fn count_unfetched(&mut self, item: Item) {
        self.counts.expired_unfetched += u64::from(!self.is_marked(item, Mark::Fetched));
    }

    /// Returns true if the clock has reached `flushed_until`, and if the time of the last access or
    /// the CAS number shows that a flush covers the item.
    fn is_flushed(&self, now: Second, item: Item) -> bool {
        if self.flushed_until == 0 || self.flushed_until > now.0 {
            return false;
        }
        self.last_access(item).0 <= self.flushed_until || self.cas(item) < self.flushed_below
    }

    /// Replaces the previous flush. Once the second `from - 1` has come, all items whose last
    /// access was before `from` are flushed. If this second has come already, all present items are
    /// flushed. If `from` is at most 1, no item is flushed.
    pub fn flush(&mut self, now: Second, from: Second) {
        self.flushed_until = from.0.saturating_sub(1);
        if self.flushed_until <= now.0 {
            self.flushed_below = self.next_cas();
        }
    }

    pub fn next_cas(&mut self) -> u64 {
        self.last_cas += 1;
        self.last_cas
    }

    /// Removes the expired and flushed items of the next `buckets` buckets.
    pub fn sweep(&mut self, now: Second, buckets: usize) {
        for _ in 0..buckets {
            let mut at = self.buckets[self.sweep_at];
            while at != NONE {
                let item = Item(at);
                at = self.arena.get(at).word(Word::BucketNext);
                if self.is_flushed(now, item) || self.expiry(item).is_over(now) {
                    self.counts.reclaimed += 1;
                    self.count_unfetched(item);
                    self.remove(item);
                }
            }
            self.sweep_at = (self.sweep_at + 1) % self.buckets.len();
        }
    }

    /// Records a read of the item, which becomes the most recently used item.
    pub fn record_read(&mut self, now: Second, item: Item) {
        // As in memcached, the first read does not change the time of the last access.
        if self.is_marked(item, Mark::Fetched) {
            self.set_last_access(item, now);
        } else {
            self.mark(item, Mark::Fetched, true);
        }
        self.make_newest(item);
    }

    /// Records an access that is not a read. The item becomes the most recently used item.
    pub fn touch(&mut self, now: Second, item: Item) {
        self.set_last_access(item, now);
        self.make_newest(item);
    }

    /// Inserts a received item, in place of `old` if given. The item gets a new CAS number.
    ///
    /// # Panics
    ///
    /// If the upload lacks bytes of the value.
    pub fn link(&mut self, now: Second, old: Option<Item>, upload: Upload) -> Item {
        if let Some(old) = old {
            self.remove(old);
        }
        let item = self.finish_upload(upload);
        let cas = self.next_cas();
        self.set_cas(item, cas);
        self.set_last_access(item, now);
        self.mark(item, Mark::Linked, true);
        let bucket = self.bucket_of(self.arena.get(item.0).word(Word::Hash));
        let next = std::mem::replace(&mut self.buckets[bucket], item.0);
        self.arena.get_mut(item.0).set_word(Word::BucketNext, next);
        self.push_newest(item);
        self.counts.items += 1;
        self.counts.items_total += 1;
        self.counts.bytes += self.counted_len_of(item) as u64;
        item
    }

    /// Removes the item from the hash table and the LRU list. If no reader pins the item, frees the
    /// memory of the item.
    pub fn remove(&mut self, item: Item) {
        self.unlink_bucket(item);
        self.unlink_list(item);
        self.mark(item, Mark::Linked, false);
        self.counts.items -= 1;
        self.counts.bytes -= self.counted_len_of(item) as u64;
        if self.pins(item) == 0 {
            self.free(item);
        }
    }

    fn unlink_bucket(&mut self, item: Item) {
        let block = self.arena.get(item.0);
        let (hash, next) = (block.word(Word::Hash), block.word(Word::BucketNext));
        let bucket = self.bucket_of(hash);
        if self.buckets[bucket] == item.0 {
            self.buckets[bucket] = next;
            return;
        }
        let mut at = self.buckets[bucket];
        while at != NONE {
            let after = self.arena.get(at).word(Word::BucketNext);
            if after == item.0 {
                self.arena.get_mut(at).set_word(Word::BucketNext, next);
                return;
            }
            at = after;
        }
    }

    fn push_newest(&mut self, item: Item) {
        let older = std::mem::replace(&mut self.newest, item.0);
        let block = self.arena.get_mut(item.0);
        block.set_word(Word::Newer, NONE);
        block.set_word(Word::Older, older);
        match older {
            NONE => self.oldest = item.0,
            older => self.arena.get_mut(older).set_word(Word::Newer, item.0),
        }
    }

    fn unlink_list(&mut self, item: Item) {
        let block = self.arena.get(item.0);
        let (newer, older) = (block.word(Word::Newer), block.word(Word::Older));
        match newer {
            NONE => self.newest = older,
            newer => self.arena.get_mut(newer).set_word(Word::Older, older),
        }
        match older {
            NONE => self.oldest = newer,
            older => self.arena.get_mut(older).set_word(Word::Newer, newer),
        }
    }

    fn make_newest(&mut self, item: Item) {
        if self.newest != item.0 {
            self.unlink_list(item);
            self.push_newest(item);
        }
    }

    /// Takes a free block. If no block is free, evicts the least recently used item that is not
    /// pinned. Each pinned item that the search visits becomes the most recently used item. Returns
    /// `None` if the LRU list is empty, or after `EVICTION_TRIES_MAX` visits to pinned items.
    fn allocate(&mut self) -> Option<u32> {
        for _ in 0..EVICTION_TRIES_MAX {
            if let Some(block) = self.arena.allocate() {
                return Some(block);
            }
            let item = Item(Some(self.oldest).filter(|oldest| *oldest != NONE)?);
            if self.pins(item) > 0 {
                self.make_newest(item);
                continue;
            }
            self.counts.evictions += 1;
            let is_unfetched = !self.is_marked(item, Mark::Fetched);
            self.counts.evicted_unfetched += u64::from(is_unfetched);
            self.remove(item);
        }
        self.arena.allocate()
    }

    /// Frees the blocks of an item that is neither in the hash table nor pinned.
    fn free(&mut self, item: Item) {
        let last = self.arena.get(item.0).word(Word::Last);
        let count = self.block_count(item);
        self.arena.free_chain(item.0, last, count);
    }

    fn block_count(&self, item: Item) -> u32 {
        blocks_for(self.key_len(item) + self.value_len(item))
    }

    /// Returns true if the key of the item equals `key`.
    fn has_key(&self, item: Item, key: &[u8]) -> bool {
        if self.key_len(item) != key.len() {
            return false;
        }
        let in_first = &self.arena.get(item.0).bytes()[FIRST_DATA..];
        if let Some(stored) = in_first.get(..key.len()) {
            return stored == key;
        }
        let mut buffer = [0; KEY_LEN_MAX];
        self.copy_key(item, &mut buffer) == key
    }
}
