//! The meta commands of memcached's protocol: `mg`, `ms`, `md`, `ma`, `me` and `mn`.

use crate::{
    arithmetic::{Changed, Delta},
    base64::{self, KEY_LEN_MAX},
    clock::{Expiry, Second},
    get::start_value,
    kv::Kv,
    meta::{BAD_FORMAT, Flags, Key, check_words},
    number::Decimal,
    outcome::Outcome,
    output::Output,
    receive::{self, Command, MetaCommand, Mode, write_key},
    store::{Item, Mark, New, Store},
    tokens::Tokens,
    turn::Turn,
};

/// Longest opaque token (flag O, which the answer repeats) in bytes, including its `O`.
const OPAQUE_LEN_MAX: usize = 32;

pub const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const BAD_FLAG: &str = "CLIENT_ERROR invalid or duplicate flag";
const TOO_MANY_FLAGS: &str = "CLIENT_ERROR options flags too long";
const LONG_OPAQUE: &str = "CLIENT_ERROR opaque token too long";

/// Executes a meta command. `name` is the letter after the `m`.
pub fn execute(turn: &mut Turn<'_, impl Output>, name: u8, tokens: &Tokens<'_>) -> Outcome {
    let result = match name {
        b'g' => get(turn, tokens),
        b's' => set(turn, tokens),
        b'd' => delete(turn, tokens),
        b'a' => change(turn, tokens),
        b'e' => examine(turn, tokens),
        b'n' => {
            turn.out.line("MN");
            Ok(Outcome::Done)
        }
        _ => Err("ERROR"),
    };
    result.unwrap_or_else(|text| {
        turn.out.line(text);
        Outcome::Done
    })
}

/// An answer to a meta command, under construction. The answer starts with a return code of two
/// letters.
struct Reply(Vec<u8>);

impl Reply {
    /// Starts an answer with its return code of two letters.
    fn start(kv: &mut Kv, code: &[u8; 2]) -> Self {
        let mut text = std::mem::take(&mut kv.scratch);
        text.clear();
        text.extend_from_slice(code);
        Self(text)
    }

    fn set_code(&mut self, code: &[u8; 2]) {
        self.0[..2].copy_from_slice(code);
    }

    /// Appends a flag that has no argument.
    fn mark(&mut self, name: u8) {
        self.0.extend_from_slice(&[b' ', name]);
    }

    /// Appends a flag with a number.
    fn number(&mut self, name: u8, value: u64) {
        self.mark(name);
        self.0.extend_from_slice(Decimal::new(value).as_bytes());
    }

    /// Appends the flag `t` with the remaining time to live in seconds, or with -1 if the item does
    /// not expire. As in memcached, a negative remaining time is written as its low 32 bits.
    fn ttl(&mut self, expiry: Expiry, now: Second) {
        match expiry {
            Expiry::NEVER => self.0.extend_from_slice(b" t-1"),
            expiry => self.number(b't', expiry.0.wrapping_sub(now.0).into()),
        }
    }

    /// Appends the flag `k` with the key, and the flag `b` if the key is binary.
    fn key(&mut self, key: &[u8], is_binary: bool) {
        self.0.push(b' ');
        write_key(key, is_binary, &mut self.0);
    }

    /// Appends the flag `word` of the request if `word` is the opaque token or asks for the key.
    /// Fails if the opaque token is too long.
    fn echo(&mut self, word: &[u8], key: &Key<'_>) -> Result<(), &'static str> {
        match word[0] {
            b'O' if word.len() > OPAQUE_LEN_MAX => return Err(LONG_OPAQUE),
            b'O' => {
                self.0.push(b' ');
                self.0.extend_from_slice(word);
            }
            b'k' => self.key(key.as_bytes(), key.is_binary()),
            _ => {}
        }
        Ok(())
    }

    /// Calls [`Reply::echo`] for each flag of the request. The flags are the tokens from `start`
    /// on.
    fn echo_all(
        &mut self,
        tokens: &Tokens<'_>,
        start: usize,
        key: &Key<'_>,
    ) -> Result<(), &'static str> {
        tokens.from(start).try_for_each(|word| self.echo(word, key))
    }

    /// Writes the answer, unless `is_quiet` is true.
    fn finish(mut self, turn: &mut Turn<'_, impl Output>, is_quiet: bool) {
        self.0.extend_from_slice(b"\r\n");
        if !is_quiet {
            turn.out.write(&self.0);
        }
        turn.kv.scratch = self.0;
    }
}

/// `mg`: reads an item or its properties.
fn get(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>) -> Result<Outcome, &'static str> {
    check_words(tokens, "CLIENT_ERROR options flags are too long")?;
    let now = turn.now;
    let flags = Flags::parse((turn.kv, now), tokens, 2)?;
    let found = turn.kv.store.find(now, flags.key.as_bytes());
    let is_created = found.is_none() && flags.vivify.is_some();
    let found = match is_created {
        true => create(turn, &flags, b""),
        false => found,
    };
    let is_touch = flags.ttl.is_some();
    turn.kv.count_get(is_touch, found.is_some());
    let Some(item) = found else {
        let mut reply = Reply::start(turn.kv, b"EN");
        reply.echo_all(tokens, 2, &flags.key)?;
        reply.finish(turn, flags.is_quiet);
        return Ok(Outcome::Done);
    };
    if !flags.is_used_late && !flags.is_no_use {
        turn.kv.store.record_read(now, item);
    }
    let mut reply = Reply::start(turn.kv, b"HD");
    if flags.has_value {
        reply.set_code(b"VA");
        reply.0.push(b' ');
        let len = turn.kv.store.value_len(item) as u64;
        reply.0.extend_from_slice(Decimal::new(len).as_bytes());
    }
    let mut is_renewing = false;
    for word in tokens.from(2) {
        let store = &mut turn.kv.store;
        match word[0] {
            // If the command has both N and T, the later of the two flags sets the expiry.
            b'N' if is_created => {
                store.set_expiry(item, flags.vivify.unwrap_or(Expiry::NEVER));
                is_renewing = true;
            }
            b'T' => store.set_expiry(item, flags.ttl.unwrap_or(Expiry::NEVER)),
            b'R' => is_renewing |= !is_created && is_renewal_due(store, item, &flags),
            _ => write_property(&mut reply, (store, item), word, now)?,
        }
    }
    write_marks(&mut reply, (&mut turn.kv.store, item), is_renewing);
    reply.finish(turn, false);
    let reader = match flags.has_value {
        true => start_value(turn, item),
        false => None,
    };
    if flags.is_used_late && !flags.is_no_use {
        turn.kv.store.record_read(now, item);
    }
    Ok(reader.map_or(Outcome::Done, Outcome::Value))
}

/// Creates a missing item for a command with the flag N. The new item has no expiry. The caller
/// sets the expiry when the caller processes the flag N. Returns `None` if no memory is left.
fn create(turn: &mut Turn<'_, impl Output>, flags: &Flags<'_>, value: &[u8]) -> Option<Item> {
    let store = &mut turn.kv.store;
    let mut upload = store
        .begin(&New {
            key: flags.key.as_bytes(),
            value_len: value.len(),
            client_flags: 0,
            expiry: Expiry::NEVER,
            has_binary_key: false,
        })
        .ok()?;
    if store.extend(&mut upload, value).is_err() {
        store.abandon(upload);
        return None;
    }
    Some(store.link(turn.now, None, upload))
}

/// Returns true if this client has to renew the item because of the flag R.
fn is_renewal_due(store: &Store, item: Item, flags: &Flags<'_>) -> bool {
    let expiry = store.expiry(item);
    let is_soon = flags.recache.is_some_and(|limit| expiry.0 < limit.0);
    is_soon && expiry != Expiry::NEVER && !store.is_marked(item, Mark::TokenSent)
}

/// Appends the property that a flag of `mg` requests.
fn write_property(
    reply: &mut Reply,
    (store, item): (&Store, Item),
    word: &[u8],
    now: Second,
) -> Result<(), &'static str> {
    match word[0] {
        b's' => reply.number(b's', store.value_len(item) as u64),
        b't' => reply.ttl(store.expiry(item), now),
        b'c' => reply.number(b'c', store.cas(item)),
        b'f' => reply.number(b'f', store.client_flags(item).into()),
        b'l' => {
            let age = now.0.saturating_sub(store.last_access(item).0);
            reply.number(b'l', age.into());
        }
        b'h' => reply.number(b'h', store.is_marked(item, Mark::Fetched).into()),
        b'k' => {
            let mut buffer = [0; KEY_LEN_MAX];
            let key = store.copy_key(item, &mut buffer);
            reply.key(key, store.is_marked(item, Mark::BinaryKey));
        }
        _ => reply.echo(word, &Key::from_text(b""))?,
    }
    Ok(())
}

/// Appends the flags Z (another client renews the item), X (the item is stale) and W (this client
/// has to renew the item).
fn write_marks(reply: &mut Reply, (store, item): (&mut Store, Item), is_renewing: bool) {
    let is_token_sent = store.is_marked(item, Mark::TokenSent);
    let is_stale = store.is_marked(item, Mark::Stale);
    if is_token_sent {
        reply.mark(b'Z');
    }
    if is_stale {
        reply.mark(b'X');
    }
    if is_renewing || (is_stale && !is_token_sent) {
        reply.mark(b'W');
        store.mark(item, Mark::TokenSent, true);
    }
}

/// `ms`: stores an item.
fn set(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>) -> Result<Outcome, &'static str> {
    if tokens.len() == 2 {
        return Err(BAD_FORMAT);
    }
    check_words(tokens, TOO_MANY_FLAGS)?;
    let value_len = receive::value_len(tokens.get(2)).ok_or(BAD_FORMAT)?;
    match set_command(turn, tokens) {
        Ok((command, flags)) => {
            let new = New {
                key: flags.key.as_bytes(),
                value_len,
                client_flags: flags.client_flags,
                expiry: flags.ttl.unwrap_or(Expiry::NEVER),
                has_binary_key: flags.key.is_binary(),
            };
            Ok(Outcome::of_store(receive::start(turn, &new, command)))
        }
        Err(text) => {
            turn.out.line(text);
            Ok(Outcome::Swallow(value_len as u64 + 2))
        }
    }
}

/// Parses the flags of `ms`.
fn set_command<'a>(
    turn: &Turn<'_, impl Output>,
    tokens: &Tokens<'a>,
) -> Result<(Command, Flags<'a>), &'static str> {
    let flags = Flags::parse((turn.kv, turn.now), tokens, 3)?;
    let mode = match flags.mode {
        None | Some(b'S') => Mode::Set,
        Some(b'E') => Mode::Add,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(b'R') => Mode::Replace,
        Some(_) => return Err("CLIENT_ERROR invalid mode for ms M token"),
    };
    let mode = match mode {
        Mode::Set | Mode::Replace if flags.cas.is_some() => Mode::Cas,
        mode => mode,
    };
    // `MetaCommand::write_reply` completes the flags `k` and `c` after the value has arrived.
    let mut reply = Vec::new();
    for word in tokens.from(3) {
        match word[0] {
            b'O' if word.len() > OPAQUE_LEN_MAX => return Err(LONG_OPAQUE),
            b'O' => {
                reply.push(b' ');
                reply.extend_from_slice(word);
            }
            b'k' => reply.extend_from_slice(b" k"),
            b'c' => reply.extend_from_slice(b" c"),
            _ => {}
        }
    }
    let command = Command {
        mode,
        cas: flags.cas.unwrap_or(0),
        is_quiet: flags.is_quiet,
        meta: Some(MetaCommand {
            is_invalidating: flags.is_invalidating && mode == Mode::Cas,
            reply,
        }),
    };
    Ok((command, flags))
}

/// `md`: deletes or invalidates an item.
fn delete(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>) -> Result<Outcome, &'static str> {
    check_words(tokens, TOO_MANY_FLAGS)?;
    let flags = Flags::parse((turn.kv, turn.now), tokens, 2).map_err(|_| BAD_FLAG)?;
    let mut reply = Reply::start(turn.kv, b"HD");
    reply.echo_all(tokens, 2, &flags.key)?;
    let found = turn.kv.store.find(turn.now, flags.key.as_bytes());
    let (store, counts) = (&mut turn.kv.store, &mut turn.kv.counts);
    let is_done = match found {
        Some(item) if flags.cas.is_some_and(|cas| cas != store.cas(item)) => {
            counts.delete_misses += 1;
            reply.set_code(b"EX");
            false
        }
        Some(item) if flags.is_invalidating => {
            if let Some(expiry) = flags.ttl {
                store.set_expiry(item, expiry);
            }
            store.mark(item, Mark::Stale, true);
            store.mark(item, Mark::TokenSent, false);
            let cas = store.next_cas();
            store.set_cas(item, cas);
            true
        }
        Some(item) => {
            counts.delete_hits += 1;
            store.remove(item);
            true
        }
        None => {
            counts.delete_misses += 1;
            reply.set_code(b"NF");
            false
        }
    };
    reply.finish(turn, flags.is_quiet && is_done);
    Ok(Outcome::Done)
}

/// `ma`: increments or decrements a number.
fn change(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>) -> Result<Outcome, &'static str> {
    check_words(tokens, TOO_MANY_FLAGS)?;
    let now = turn.now;
    let flags = Flags::parse((turn.kv, now), tokens, 2).map_err(|_| BAD_FLAG)?;
    let delta = Delta {
        is_increment: match flags.mode {
            None | Some(b'I' | b'+') => true,
            Some(b'D' | b'-') => false,
            Some(_) => return Err("CLIENT_ERROR invalid mode for ma M token"),
        },
        amount: flags.delta,
        // A CAS number of zero means that any item may be changed.
        cas: flags.cas.filter(|cas| *cas != 0),
    };
    let (item, digits, is_created) = match delta.apply(turn, flags.key.as_bytes()) {
        Changed::To(item, digits) => (item, digits, false),
        Changed::NotFound if flags.vivify.is_some() => {
            let digits = Decimal::new(flags.initial);
            let item = create(turn, &flags, digits.as_bytes());
            let error = "SERVER_ERROR Out of memory allocating new item";
            (item.ok_or(error)?, digits, true)
        }
        Changed::NotNumeric => return Err(NOT_NUMERIC),
        Changed::OutOfMemory => return Err("SERVER_ERROR out of memory"),
        Changed::NotFound => return reply_without_item(turn, b"NF", tokens, &flags),
        Changed::OtherCas => return reply_without_item(turn, b"EX", tokens, &flags),
    };
    let mut reply = Reply::start(turn.kv, b"HD");
    if flags.has_value {
        reply.set_code(b"VA");
        reply.0.push(b' ');
        let len = Decimal::new(digits.as_bytes().len() as u64);
        reply.0.extend_from_slice(len.as_bytes());
    }
    for word in tokens.from(2) {
        let store = &mut turn.kv.store;
        match word[0] {
            b'c' => reply.number(b'c', store.cas(item)),
            b't' => reply.ttl(store.expiry(item), now),
            b'N' if is_created => {
                store.set_expiry(item, flags.vivify.unwrap_or(Expiry::NEVER));
            }
            b'T' => store.set_expiry(item, flags.ttl.unwrap_or(Expiry::NEVER)),
            _ => reply.echo(word, &flags.key)?,
        }
    }
    if flags.has_value {
        reply.0.extend_from_slice(b"\r\n");
        reply.0.extend_from_slice(digits.as_bytes());
    }
    reply.finish(turn, flags.is_quiet && !is_created);
    Ok(Outcome::Done)
}

/// Answers an `ma` that has changed no item.
fn reply_without_item(
    turn: &mut Turn<'_, impl Output>,
    code: &[u8; 2],
    tokens: &Tokens<'_>,
    flags: &Flags<'_>,
) -> Result<Outcome, &'static str> {
    let mut reply = Reply::start(turn.kv, code);
    reply.echo_all(tokens, 2, &flags.key)?;
    reply.finish(turn, false);
    Ok(Outcome::Done)
}

/// `me`: returns the internal properties of an item.
fn examine(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>) -> Result<Outcome, &'static str> {
    let key = tokens.get(1);
    if tokens.len() < 2 || key.len() > KEY_LEN_MAX {
        return Err(BAD_FORMAT);
    }
    let key = match tokens.get(2) {
        b"b" => Key::from_base64(key).ok_or(BAD_FORMAT)?,
        _ => Key::from_text(key),
    };
    turn.kv.counts.cmd_meta += 1;
    let Some(item) = turn.kv.store.find(turn.now, key.as_bytes()) else {
        turn.out.line("EN");
        return Ok(Outcome::Done);
    };
    let mut reply = Reply::start(turn.kv, b"ME");
    let (store, now) = (&turn.kv.store, turn.now);
    let mut buffer = [0; KEY_LEN_MAX];
    let key = store.copy_key(item, &mut buffer);
    reply.0.push(b' ');
    match store.is_marked(item, Mark::BinaryKey) {
        true => base64::encode(key, &mut reply.0),
        false => reply.0.extend_from_slice(key),
    }
    // Seconds since the expiry: negative until the item expires. An item without expiry has -1.
    let exp = match store.expiry(item) {
        Expiry::NEVER => -1,
        expiry => i64::from(now.0) - i64::from(expiry.0),
    };
    let is_fetched = store.is_marked(item, Mark::Fetched);
    let text = format!(
        " exp={exp} la={} cas={} fetch={} cls=0 size={}",
        now.0.saturating_sub(store.last_access(item).0),
        store.cas(item),
        if is_fetched { "yes" } else { "no" },
        store.counted_len_of(item),
    );
    reply.0.extend_from_slice(text.as_bytes());
    reply.finish(turn, false);
    Ok(Outcome::Done)
}
