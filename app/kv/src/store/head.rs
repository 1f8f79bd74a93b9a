//! The head of an item: the fields that precede the key and the value in the item's first block.

use super::{Item, Store, Word};
use crate::clock::{Expiry, Second};

/// A flag bit of an item, in the word `Word::KeyLenAndMarks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mark {
    /// The item is in the hash table and in the LRU list.
    Linked = 1 << 8,
    /// A client has read the item.
    Fetched = 1 << 9,
    /// A client has marked the item as outdated (flag I of the commands `md` and `ms`).
    Stale = 1 << 10,
    /// An answer has contained the flag W, which asks the client of the answer to renew the item.
    TokenSent = 1 << 11,
    /// The client sent the key in base64.
    BinaryKey = 1 << 12,
}

/// Properties of a new item.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// The key, at most 250 bytes.
    pub key: &'a [u8],
    /// Length of the value in bytes.
    pub value_len: usize,
    /// Flags that the client stores with the item.
    pub client_flags: u32,
    /// The second from which the item is expired.
    pub expiry: Expiry,
    /// True if the client has sent the key in base64.
    pub has_binary_key: bool,
}

impl Store {
    fn word(&self, item: Item, word: Word) -> u32 {
        self.arena.get(item.0).word(word)
    }

    pub(super) fn set_word(&mut self, item: Item, word: Word, value: u32) {
        self.arena.get_mut(item.0).set_word(word, value);
    }

    /// Writes the head of a new item. The item is not yet in a bucket of the hash table or in the
    /// LRU list.
    pub(super) fn write_head(&mut self, item: Item, new: &New<'_>) {
        let hash = self.hash(new.key);
        let marks = if new.has_binary_key {
            Mark::BinaryKey as u32
        } else {
            0
        };
        let block = self.arena.get_mut(item.0);
        block.set_word(Word::Hash, hash);
        block.set_word(Word::ValueLen, new.value_len as u32);
        block.set_word(Word::Expiry, new.expiry.0);
        block.set_word(Word::ClientFlags, new.client_flags);
        block.set_word(Word::Pins, 0);
        block.set_word(Word::Last, item.0);
        block.set_word(Word::KeyLenAndMarks, new.key.len() as u32 | marks);
    }

    /// Returns the length of the key in bytes.
    pub fn key_len(&self, item: Item) -> usize {
        (self.word(item, Word::KeyLenAndMarks) & 0xff) as usize
    }

    /// Returns the length of the value in bytes.
    pub fn value_len(&self, item: Item) -> usize {
        self.word(item, Word::ValueLen) as usize
    }

    /// Returns the flags that the client stores with the item.
    pub fn client_flags(&self, item: Item) -> u32 {
        self.word(item, Word::ClientFlags)
    }

    /// Returns the CAS number of the item (its version, for memcached's command `cas`).
    pub fn cas(&self, item: Item) -> u64 {
        let high = u64::from(self.word(item, Word::CasHigh));
        high << 32 | u64::from(self.word(item, Word::CasLow))
    }

    pub fn set_cas(&mut self, item: Item, cas: u64) {
        self.set_word(item, Word::CasLow, cas as u32);
        self.set_word(item, Word::CasHigh, (cas >> 32) as u32);
    }

    pub fn expiry(&self, item: Item) -> Expiry {
        Expiry(self.word(item, Word::Expiry))
    }

    pub fn set_expiry(&mut self, item: Item, expiry: Expiry) {
        self.set_word(item, Word::Expiry, expiry.0);
    }

    /// Returns the second of the last access.
    pub fn last_access(&self, item: Item) -> Second {
        Second(self.word(item, Word::LastAccess))
    }

    pub(super) fn set_last_access(&mut self, item: Item, now: Second) {
        self.set_word(item, Word::LastAccess, now.0);
    }

    /// Returns true if the item has the mark.
    pub fn is_marked(&self, item: Item, mark: Mark) -> bool {
        self.word(item, Word::KeyLenAndMarks) & mark as u32 != 0
    }

    /// If `is_set` is true, sets the mark. Otherwise clears the mark.
    pub fn mark(&mut self, item: Item, mark: Mark, is_set: bool) {
        let others = self.word(item, Word::KeyLenAndMarks) & !(mark as u32);
        let bit = if is_set { mark as u32 } else { 0 };
        self.set_word(item, Word::KeyLenAndMarks, others | bit);
    }

    /// Returns the number of readers that pin the item.
    pub(super) fn pins(&self, item: Item) -> u32 {
        self.word(item, Word::Pins)
    }
}
