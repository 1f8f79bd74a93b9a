//! The commands that store a value, such as `set` and `ms`. The value follows the command line, and
//! arrives in any number of pieces.

use crate::{
    base64::{self, KEY_LEN_MAX},
    kv::Kv,
    number::{Decimal, parse_i32},
    output::Output,
    store::{Item, Mark, New, OutOfMemory, Store, Upload},
    turn::Turn,
};

/// Condition and effect of a store command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Store the value.
    Set,
    /// Store the value if no item has the key.
    Add,
    /// Store the value if an item has the key.
    Replace,
    /// Append the value to the item's value.
    Append,
    /// Put the value before the item's value.
    Prepend,
    /// Store the value if the item has the CAS number (version, for compare-and-swap) that the
    /// command names.
    Cas,
}

/// Result of a store command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    /// The value is stored. The item has this CAS number.
    Yes(u64),
    /// The mode does not allow the store, or the value that `Append` or `Prepend` would create is
    /// too large, or no memory is left.
    No,
    /// The item has another CAS number.
    OtherCas,
    /// No item has the key ([`Mode::Cas`] only).
    NotFound,
}

/// A store command.
#[derive(Debug)]
pub struct Command {
    /// Condition and effect.
    pub mode: Mode,
    /// CAS number that the item must have, for the modes `Cas`, `Append` and `Prepend`. For
    /// `Append` and `Prepend`, zero means any number.
    pub cas: u64,
    /// True if the client wants no answer. `ms` then omits only the answer to a success.
    pub is_quiet: bool,
    /// Further properties of a meta command (`ms`).
    pub meta: Option<MetaCommand>,
}

/// Properties of `ms` that the classic commands lack.
#[derive(Debug)]
pub struct MetaCommand {
    /// Flag I: if the CAS number of the command is lower than the CAS number of the item, the
    /// command stores the value as stale.
    pub is_invalidating: bool,
    /// Flags of the request that the answer repeats, in the order of the request, each after a
    /// space: the opaque token, `k` and `c`. The answer adds the values of `k` and `c`.
    pub reply: Vec<u8>,
}

/// A command whose value is being received.
#[derive(Debug)]
pub struct Receiving {
    command: Command,
    upload: Upload,
    /// The two bytes after the value, which must be a CRLF.
    tail: [u8; 2],
    /// Number of bytes of `tail` that have arrived.
    tail_len: usize,
}

/// A command that the server does not execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Number of bytes to skip: the rest of the value, and the CRLF after the value.
    pub to_skip: u64,
}

/// Parses the length of a value in bytes. Returns `None` if the text is not a number, or if the
/// length is not in the range from 0 to 2^31 - 3.
pub fn value_len(text: &[u8]) -> Option<usize> {
    let len = parse_i32(text)?;
    let is_possible = (0..=i32::MAX - 2).contains(&len);
    is_possible.then_some(len as usize)
}

/// State of a value that is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// More bytes have to arrive.
    InPart,
    /// The value and its CRLF have arrived.
    Whole,
    /// No memory is left. This number of bytes of the value has yet to arrive.
    WithoutMemory(usize),
}

/// Starts to receive the value of an item. Refuses the command if the item would be too large, or
/// if no memory is left.
pub fn start(
    turn: &mut Turn<'_, impl Output>,
    new: &New<'_>,
    command: Command,
) -> Result<Box<Receiving>, Refused> {
    let is_allowed = Store::is_size_allowed(new.key, new.value_len, new.client_flags);
    let upload = match is_allowed {
        true => turn.kv.store.begin(new).ok(),
        false => None,
    };
    match upload {
        Some(upload) => Ok(Box::new(Receiving {
            command,
            upload,
            tail: [0; 2],
            tail_len: 0,
        })),
        None => {
            command.refuse(turn, new.key, !is_allowed);
            Err(Refused {
                to_skip: new.value_len as u64 + 2,
            })
        }
    }
}

impl Command {
    /// Refuses a command whose value cannot be stored. `set` and `ms` also remove the item of the
    /// key, so that no client reads an outdated value.
    fn refuse(&self, turn: &mut Turn<'_, impl Output>, key: &[u8], is_too_large: bool) {
        let is_quiet = self.is_quiet && self.meta.is_none();
        if is_too_large {
            turn.kv.counts.store_too_large += 1;
            turn.answer(is_quiet, "SERVER_ERROR object too large for cache");
        } else {
            turn.kv.counts.store_no_memory += 1;
            turn.answer(is_quiet, "SERVER_ERROR out of memory storing object");
        }
        if self.mode == Mode::Set || self.meta.is_some() {
            let old = turn.kv.store.find(turn.now, key);
            if let Some(old) = old {
                turn.kv.store.remove(old);
            }
        }
    }

    /// Returns true if the item's CAS number permits the command.
    fn permits(&self, store: &Store, old: Item) -> bool {
        let is_equal = self.cas == store.cas(old);
        match self.mode {
            Mode::Cas => is_equal || self.is_stale(store, old),
            Mode::Append | Mode::Prepend => self.cas == 0 || is_equal,
            Mode::Set | Mode::Add | Mode::Replace => true,
        }
    }

    /// Returns true if the command stores its value as stale (flag I with an older CAS number).
    fn is_stale(&self, store: &Store, old: Item) -> bool {
        let is_invalidating = self.meta.as_ref().is_some_and(|meta| meta.is_invalidating);
        is_invalidating && self.cas != 0 && self.cas < store.cas(old)
    }

    /// Stores the value if the condition of the command holds.
    fn store(&self, turn: &mut Turn<'_, impl Output>, upload: Upload, key: &[u8]) -> Stored {
        let (store, now) = (&mut turn.kv.store, turn.now);
        let mode = self.mode;
        let Some(old) = store.find(now, key) else {
            if matches!(mode, Mode::Set | Mode::Add) {
                let item = store.link(now, None, upload);
                return Stored::Yes(store.cas(item));
            }
            store.abandon(upload);
            turn.kv.counts.cas_misses += u64::from(mode == Mode::Cas);
            return match mode {
                Mode::Cas => Stored::NotFound,
                _ => Stored::No,
            };
        };
        if mode == Mode::Add {
            store.abandon(upload);
            store.touch(now, old);
            return Stored::No;
        }
        if !self.permits(store, old) {
            store.abandon(upload);
            turn.kv.counts.cas_badval += u64::from(mode == Mode::Cas);
            return Stored::OtherCas;
        }
        let item = match mode {
            Mode::Append | Mode::Prepend => {
                let len = store.value_len(old) + store.value_len(upload.item());
                if !Store::is_size_allowed(key, len, store.client_flags(old)) {
                    store.abandon(upload);
                    return Stored::No;
                }
                turn.spend_bytes(len);
                let store = &mut turn.kv.store;
                let Ok(joined) = store.join(old, upload, mode == Mode::Append) else {
                    return Stored::No;
                };
                store.link(now, Some(old), joined)
            }
            _ => {
                turn.kv.counts.cas_hits += u64::from(mode == Mode::Cas);
                self.replace(turn, old, upload)
            }
        };
        Stored::Yes(turn.kv.store.cas(item))
    }

    /// Replaces an item by the received item.
    fn replace(&self, turn: &mut Turn<'_, impl Output>, old: Item, upload: Upload) -> Item {
        let (store, now) = (&mut turn.kv.store, turn.now);
        if self.mode != Mode::Cas || self.cas == store.cas(old) {
            return store.link(now, Some(old), upload);
        }
        // A stale value keeps the expiry of the replaced item, and the mark that an answer has
        // asked a client to renew the item.
        let is_token_sent = store.is_marked(old, Mark::TokenSent);
        let expiry = store.expiry(old);
        let item = store.link(now, Some(old), upload);
        store.set_expiry(item, expiry);
        store.mark(item, Mark::Stale, true);
        store.mark(item, Mark::TokenSent, is_token_sent);
        item
    }
}

impl Receiving {
    /// Consumes bytes of the value, or of the CRLF if the whole value has arrived. Returns the
    /// number of consumed bytes, and the state of the value.
    pub fn receive(&mut self, turn: &mut Turn<'_, impl Output>, input: &[u8]) -> (usize, Arrived) {
        let missing = self.upload.missing();
        if missing > 0 {
            let len = missing.min(input.len());
            let arrived = match turn.kv.store.extend(&mut self.upload, &input[..len]) {
                Ok(()) => Arrived::InPart,
                Err(OutOfMemory) => Arrived::WithoutMemory(missing - len),
            };
            return (len, arrived);
        }
        let len = (2 - self.tail_len).min(input.len());
        self.tail[self.tail_len..self.tail_len + len].copy_from_slice(&input[..len]);
        self.tail_len += len;
        match self.tail_len {
            2 => (len, Arrived::Whole),
            _ => (len, Arrived::InPart),
        }
    }

    /// Refuses the command for lack of memory. `missing` bytes of the value are still to arrive.
    pub fn run_out(self, turn: &mut Turn<'_, impl Output>, missing: usize) -> Refused {
        let mut buffer = [0; KEY_LEN_MAX];
        let key = turn.kv.store.copy_key(self.upload.item(), &mut buffer);
        turn.kv.store.abandon(self.upload);
        self.command.refuse(turn, key, false);
        Refused {
            to_skip: missing as u64 + 2,
        }
    }

    /// Frees the memory of an incomplete value.
    pub fn abandon(self, kv: &mut Kv) {
        kv.store.abandon(self.upload);
    }

    /// Executes the command after its value has arrived, and answers.
    pub fn finish(self, turn: &mut Turn<'_, impl Output>) {
        turn.kv.counts.cmd_set += 1;
        if self.tail != *b"\r\n" {
            turn.kv.store.abandon(self.upload);
            let is_quiet = self.command.is_quiet && self.command.meta.is_none();
            turn.answer(is_quiet, "CLIENT_ERROR bad data chunk");
            return;
        }
        let mut buffer = [0; KEY_LEN_MAX];
        let item = self.upload.item();
        let has_binary_key = turn.kv.store.is_marked(item, Mark::BinaryKey);
        let key = turn.kv.store.copy_key(item, &mut buffer);
        let stored = self.command.store(turn, self.upload, key);
        let is_quiet = self.command.is_quiet;
        let Some(meta) = &self.command.meta else {
            let text = match stored {
                Stored::Yes(_) => "STORED",
                Stored::No => "NOT_STORED",
                Stored::OtherCas => "EXISTS",
                Stored::NotFound => "NOT_FOUND",
            };
            turn.answer(is_quiet, text);
            return;
        };
        let (code, cas) = match stored {
            Stored::Yes(_) if is_quiet => return,
            Stored::Yes(cas) => ("HD", cas),
            Stored::No => ("NS", 0),
            Stored::OtherCas => ("EX", 0),
            Stored::NotFound => ("NF", 0),
        };
        let answer = &mut turn.kv.scratch;
        answer.clear();
        answer.extend_from_slice(code.as_bytes());
        meta.write_reply((key, has_binary_key), cas, answer);
        answer.extend_from_slice(b"\r\n");
        turn.out.write(answer);
    }
}

impl MetaCommand {
    /// Appends the flags that the client has requested. `cas` is the CAS number of the stored item,
    /// or zero if no item was stored.
    fn write_reply(&self, (key, is_binary): (&[u8], bool), cas: u64, answer: &mut Vec<u8>) {
        for part in self.reply.split(|byte| *byte == b' ').skip(1) {
            answer.push(b' ');
            match part {
                b"k" => write_key(key, is_binary, answer),
                b"c" => {
                    answer.push(b'c');
                    answer.extend_from_slice(Decimal::new(cas).as_bytes());
                }
                opaque => answer.extend_from_slice(opaque),
            }
        }
    }
}

/// Appends the flag `k` of an answer, and the flag `b` if the key is binary. Omits the space before
/// `k`.
pub fn write_key(key: &[u8], is_binary: bool, answer: &mut Vec<u8>) {
    answer.push(b'k');
    if is_binary {
        base64::encode(key, answer);
        answer.extend_from_slice(b" b");
    } else {
        answer.extend_from_slice(key);
    }
}
