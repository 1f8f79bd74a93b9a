//! The commands `incr`, `decr` and `ma` of memcached's protocol: changes of decimal numbers.

use crate::{
    number::{Decimal, parse_u64},
    output::Output,
    store::Item,
    turn::Turn,
};

/// Largest length in bytes of an item whose value may be incremented or decremented. The length is
/// by memcached's count: key, value, flags and overhead. memcached stores a longer item in pieces,
/// and refuses to increment or decrement its value.
const WHOLE_LEN_MAX: usize = 512 * 1024;
/// Limit in bytes of the length of a number in a value, including the spaces and zeros at its
/// start.
const NUMBER_LEN_MAX: usize = 1024;

/// A change of a number, as the client requests it.
#[derive(Clone, Copy, Debug)]
pub struct Delta {
    /// True for an increment, false for a decrement.
    pub is_increment: bool,
    /// Amount of the change. An increment wraps at 2^64. A decrement stops at zero.
    pub amount: u64,
    /// CAS number (the version of an item, for compare-and-swap) that the item must have. `None`
    /// accepts any number.
    pub cas: Option<u64>,
}

/// Result of a [`Delta`].
#[derive(Clone, Copy, Debug)]
pub enum Changed {
    /// The item with the new value, and the new value.
    To(Item, Decimal),
    /// No item has the key.
    NotFound,
    /// The value of the item is not a number, or the item is longer than `WHOLE_LEN_MAX`.
    NotNumeric,
    /// The item has another CAS number.
    OtherCas,
    /// No memory is left for the new value.
    OutOfMemory,
}

impl Delta {
    /// Changes the number in the item of `key`.
    pub fn apply(&self, turn: &mut Turn<'_, impl Output>, key: &[u8]) -> Changed {
        let store = &mut turn.kv.store;
        let Some(item) = store.find(turn.now, key) else {
            self.count(turn, false);
            return Changed::NotFound;
        };
        let len = store.value_len(item);
        if len == 0 || store.counted_len_of(item) > WHOLE_LEN_MAX {
            return Changed::NotNumeric;
        }
        if self.cas.is_some_and(|cas| cas != store.cas(item)) {
            return Changed::OtherCas;
        }
        turn.spend_bytes(len);
        let Some(value) = number_of(turn, item) else {
            return Changed::NotNumeric;
        };
        let value = match self.is_increment {
            true => value.wrapping_add(self.amount),
            false => value.saturating_sub(self.amount),
        };
        self.count(turn, true);
        let digits = Decimal::new(value);
        let store = &mut turn.kv.store;
        // A value that is shorter than the number, or that is being sent to a client, is not
        // overwritten. A new item then replaces the old item.
        if store.overwrite(item, digits.as_bytes()) {
            let cas = store.next_cas();
            store.set_cas(item, cas);
            store.touch(turn.now, item);
            return Changed::To(item, digits);
        }
        match store.replace_value(turn.now, item, digits.as_bytes()) {
            Ok(item) => Changed::To(item, digits),
            Err(_) => Changed::OutOfMemory,
        }
    }

    /// Counts the command in the statistics. `is_hit` is true if an item with a number was found.
    fn count(&self, turn: &mut Turn<'_, impl Output>, is_hit: bool) {
        let counts = &mut turn.kv.counts;
        let count = match (self.is_increment, is_hit) {
            (true, true) => &mut counts.incr_hits,
            (true, false) => &mut counts.incr_misses,
            (false, true) => &mut counts.decr_hits,
            (false, false) => &mut counts.decr_misses,
        };
        *count += 1;
    }
}

/// Returns the number at the start of an item's value. Returns `None` if the value does not start
/// with a number, or if the first `NUMBER_LEN_MAX` bytes of the value do not show where the number
/// ends.
fn number_of(turn: &mut Turn<'_, impl Output>, item: Item) -> Option<u64> {
    let mut text = std::mem::take(&mut turn.kv.scratch);
    text.clear();
    let mut reader = turn.kv.store.reader(item);
    let is_long = reader.left() > NUMBER_LEN_MAX;
    while reader.left() > 0 && text.len() < NUMBER_LEN_MAX {
        let room = NUMBER_LEN_MAX - text.len();
        text.extend_from_slice(turn.kv.store.next_piece(&mut reader, room));
    }
    let is_cut = is_long && text.last().is_some_and(u8::is_ascii_digit);
    let number = parse_u64(&text).filter(|_| !is_cut);
    turn.kv.scratch = text;
    number
}
