//! The `get` family: any number of keys in one line.
//!
//! The keys are processed one after the other, and may arrive in pieces. A value that does not fit
//! into the output is continued later.

use crate::{
    base64::KEY_LEN_MAX,
    clock::{Expiry, Second},
    kv::Kv,
    number::Decimal,
    output::{KEY_ROOM, Output},
    store::{Item, Reader},
    turn::Turn,
};

/// A command of the family.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    /// The answer has the CAS numbers.
    pub has_cas: bool,
    /// The command sets the expiry.
    pub touch: Option<Expiry>,
}

/// Reason why the keys of a line were left.
#[derive(Debug)]
pub enum Left {
    /// The line is over.
    AtEnd,
    /// The rest of the line is not there yet.
    Incomplete,
    /// There is no room for the next answer.
    NoRoom,
    /// The session has done its work for this turn.
    Turn,
    /// The value of this reader follows, and then the other keys.
    InValue(Reader),
    /// The answer is over, but not the line.
    BeforeEnd,
}

/// Processes the keys at the start of `input`. Returns the number of bytes that are used.
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
            // The line ends at a NUL.
            if nul > 0
                && let Some(reader) = answer_key(turn, get, &key[..nul])
            {
                return (at + nul, Left::InValue(reader));
            }
            turn.out.write(b"END\r\n");
            return (at + nul, Left::BeforeEnd);
        }
        // The last byte of an unfinished word may be part of the end of the line.
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

/// Looks up the keys of a whole line that has a key that is too long: the first keys are touched,
/// and the answer is an error.
pub fn refuse_keys(turn: &mut Turn<'_, impl Output>, get: Get, keys: &[u8]) {
    let words = keys.split(|byte| *byte == b' ');
    let words = words.filter(|key| !key.is_empty());
    for key in words.take_while(|key| key.len() <= KEY_LEN_MAX) {
        fetch(turn.kv, turn.now, get, key);
        turn.spend(1);
    }
    turn.out.line("CLIENT_ERROR bad command line format");
}

/// Returns true if a key of a whole line is too long.
pub fn has_long_key(keys: &[u8]) -> bool {
    let mut words = keys.split(|byte| *byte == b' ');
    keys.len() > KEY_LEN_MAX && words.any(|key| key.len() > KEY_LEN_MAX)
}

/// Finds the item of a key, as a read of a client.
pub fn fetch(kv: &mut Kv, now: Second, get: Get, key: &[u8]) -> Option<Item> {
    let found = kv.store.find(now, key);
    if let Some(item) = found {
        kv.store.bump(now, item);
        if let Some(expiry) = get.touch {
            kv.store.set_expiry(item, expiry);
        }
    }
    kv.count_get(get.touch.is_some(), found.is_some());
    found
}

/// Answers a key. Returns the reader of a value that has to be continued.
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

/// Writes the value of an item and the end of its line. If the value does not fit, pins the item
/// instead and returns its reader.
pub fn start_value(turn: &mut Turn<'_, impl Output>, item: Item) -> Option<Reader> {
    if turn.out.room() <= turn.kv.store.value_len(item) + 1 {
        return Some(turn.kv.store.pin(item));
    }
    let mut reader = turn.kv.store.reader(item);
    continue_value(turn, &mut reader);
    None
}

/// Writes as much of a value as there is room for, and the end of its line after the value.
/// Returns true if the value is over.
pub fn continue_value(turn: &mut Turn<'_, impl Output>, reader: &mut Reader) -> bool {
    turn.spend_bytes(reader.left());
    let (store, out) = (&turn.kv.store, &mut turn.out);
    // Two bytes are kept for the end of the line.
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
