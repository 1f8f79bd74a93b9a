//! The commands `get`, `gets`, `gat` and `gats`, with any number of keys in one line.
//!
//! The session (the client's protocol state) processes one key at a time, so that a line may arrive
//! in pieces. If a value does not fit into the output, a [`Reader`] continues the value later.

use crate::{
    base64::KEY_LEN_MAX,
    clock::{Expiry, Second},
    kv::Kv,
    number::Decimal,
    output::{KEY_ROOM, Output},
    store::{Item, Reader},
    turn::Turn,
};

/// Variant of the command.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    /// True if the answer contains the CAS numbers.
    pub has_cas: bool,
    /// New expiry of the items that the command reads. `None` leaves the expiry unchanged.
    pub touch: Option<Expiry>,
}

/// Reason why [`process_keys`] has stopped.
#[derive(Debug)]
pub enum Left {
    /// All keys of the line are answered.
    AtEnd,
    /// The rest of the line has not arrived.
    Incomplete,
    /// The output has no room for the next answer.
    NoRoom,
    /// The budget of the turn is spent.
    Turn,
    /// The value of the last processed key does not fit into the output. The caller writes the
    /// value from the reader before the next key is processed.
    InValue(Reader),
    /// The answer is complete, but the rest of the line has to be skipped.
    BeforeEnd,
}

/// Answers the keys at the start of `input`. Returns the number of consumed bytes, and the reason
/// for the stop.
pub fn process_keys(turn: &mut Turn<'_, impl Output>, get: Get, input: &[u8]) -> (usize, Left) {
    let mut at = 0;
    loop {
        at += input[at..].iter().take_while(|byte| **byte == b' ').count();
        let rest = &input[at..];
        let end = rest.iter().position(|byte| matches!(byte, b' ' | b'\n'));
        if turn.out.room() < KEY_ROOM {
            return (at, Left::NoRoom);
        }
        let word = &rest[..end.unwrap_or(rest.len())];
        let is_last = end.is_some_and(|end| rest[end] == b'\n');
        let key = match word.strip_suffix(b"\r") {
            Some(key) if is_last => key,
            _ => word,
        };
        if let Some(nul) = key.iter().position(|byte| *byte == 0) {
            // A NUL ends the line, as it ends a C string.
            if nul > 0
                && let Some(reader) = answer_key(turn, get, &key[..nul])
            {
                return (at + nul, Left::InValue(reader));
            }
            turn.out.write(b"END\r\n");
            return (at + nul, Left::BeforeEnd);
        }
        // The last byte of an incomplete word may be the CR before the LF, so allow one more byte.
        if key.len() > KEY_LEN_MAX + usize::from(end.is_none()) {
            turn.out.line("CLIENT_ERROR bad command line format");
            return (at, Left::BeforeEnd);
        }
        let Some(end) = end else {
            return (at, Left::Incomplete);
        };
        if key.is_empty() {
            turn.out.write(b"END\r\n");
            return (at + end + 1, Left::AtEnd);
        }
        if turn.budget == 0 {
            return (at, Left::Turn);
        }
        turn.spend(1);
        at += key.len();
        if let Some(reader) = answer_key(turn, get, key) {
            return (at, Left::InValue(reader));
        }
    }
}

/// Writes an error as the answer to a complete line that contains a key of more than 250 bytes.
/// Like memcached, looks up the keys before the long key.
pub fn refuse_keys(turn: &mut Turn<'_, impl Output>, get: Get, keys: &[u8]) {
    let words = keys.split(|byte| *byte == b' ');
    let words = words.filter(|key| !key.is_empty());
    for key in words.take_while(|key| key.len() <= KEY_LEN_MAX) {
        fetch(turn.kv, turn.now, get, key);
        turn.spend(1);
    }
    turn.out.line("CLIENT_ERROR bad command line format");
}

/// Returns true if a complete line contains a key of more than 250 bytes.
pub fn has_long_key(keys: &[u8]) -> bool {
    let mut words = keys.split(|byte| *byte == b' ');
    keys.len() > KEY_LEN_MAX && words.any(|key| key.len() > KEY_LEN_MAX)
}

/// Looks up a key, sets the expiry if `get` has a new expiry, and records the read in the item and
/// in the statistics.
pub fn fetch(kv: &mut Kv, now: Second, get: Get, key: &[u8]) -> Option<Item> {
    let found = kv.store.find(now, key);
    if let Some(item) = found {
        kv.store.record_read(now, item);
        if let Some(expiry) = get.touch {
            kv.store.set_expiry(item, expiry);
        }
    }
    kv.count_get(get.touch.is_some(), found.is_some());
    found
}

/// Writes the answer for one key: nothing if no item has the key. Returns a reader if the value
/// does not fit into the output.
fn answer_key(turn: &mut Turn<'_, impl Output>, get: Get, key: &[u8]) -> Option<Reader> {
    let item = fetch(turn.kv, turn.now, get, key)?;
    let (store, out) = (&turn.kv.store, &mut turn.out);
    out.write(b"VALUE ");
    out.write(key);
    out.write(b" ");
    out.write(Decimal::new(store.client_flags(item).into()).as_bytes());
    out.write(b" ");
    out.write(Decimal::new(store.value_len(item) as u64).as_bytes());
    if get.has_cas {
        out.write(b" ");
        out.write(Decimal::new(store.cas(item)).as_bytes());
    }
    out.write(b"\r\n");
    start_value(turn, item)
}

/// Writes the value of an item and a CRLF. If the value does not fit into the output, pins the item
/// (keeps its value until the reader has read the value) and returns a reader instead.
pub fn start_value(turn: &mut Turn<'_, impl Output>, item: Item) -> Option<Reader> {
    if turn.out.room() <= turn.kv.store.value_len(item) + 1 {
        return Some(turn.kv.store.pin(item));
    }
    let mut reader = turn.kv.store.reader(item);
    continue_value(turn, &mut reader);
    None
}

/// Writes as much of a value as fits into the output, and a CRLF after the value. Returns true if
/// the whole value and the CRLF are written.
pub fn continue_value(turn: &mut Turn<'_, impl Output>, reader: &mut Reader) -> bool {
    turn.spend_bytes(reader.left());
    let (store, out) = (&turn.kv.store, &mut turn.out);
    // Reserve two bytes for the CRLF.
    let mut room = out.room().saturating_sub(2);
    while reader.left() > 0 {
        if room == 0 {
            return false;
        }
        let piece = store.next_piece(reader, room);
        out.write(piece);
        room -= piece.len();
    }
    if out.room() < 2 {
        return false;
    }
    out.write(b"\r\n");
    true
}
