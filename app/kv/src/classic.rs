//! The commands of memcached's classic text protocol.

use crate::{
    arithmetic::{Changed, Delta},
    base64::KEY_LEN_MAX,
    clock::Second,
    get::{self, Get},
    meta_commands,
    number::{parse_i32, parse_u32, parse_u64},
    outcome::Outcome,
    output::Output,
    receive::{self, Command, Mode},
    stats,
    store::New,
    tokens::Tokens,
    turn::Turn,
};

/// Answer to `version`. Clients read the version number to learn which commands the server has.
const VERSION: &str = "VERSION 1.6.18-tidelane";
/// Largest level of `verbosity`.
const VERBOSITY_MAX: u32 = 2;

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";

/// Executes a command line. A command of two letters that starts with `m` is a meta command.
pub fn execute(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>) -> Outcome {
    match tokens.get(0) {
        &[b'm', name] => return meta_commands::execute(turn, name, tokens),
        b"get" | b"bget" => return keys(turn, tokens, false),
        b"gets" => return keys(turn, tokens, true),
        b"gat" => return touch_keys(turn, tokens, false),
        b"gats" => return touch_keys(turn, tokens, true),
        b"set" => return store(turn, tokens, Mode::Set),
        b"add" => return store(turn, tokens, Mode::Add),
        b"replace" => return store(turn, tokens, Mode::Replace),
        b"append" => return store(turn, tokens, Mode::Append),
        b"prepend" => return store(turn, tokens, Mode::Prepend),
        b"cas" => return store(turn, tokens, Mode::Cas),
        b"quit" => return Outcome::Close,
        b"delete" => delete(turn, tokens),
        b"incr" => change(turn, tokens, true),
        b"decr" => change(turn, tokens, false),
        b"touch" => touch(turn, tokens),
        b"flush_all" => flush_all(turn, tokens),
        b"verbosity" => verbosity(turn, tokens),
        b"version" => turn.out.line(VERSION),
        b"stats" => stats::answer(turn, tokens),
        b"shutdown" => turn.out.line("ERROR: shutdown not enabled"),
        name => return unknown(turn, name, tokens),
    }
    Outcome::Done
}

/// Answers an unknown command. A command that may be HTTP closes the connection, so that a web page
/// cannot send commands in the body of a browser's request.
fn unknown(turn: &mut Turn<'_, impl Output>, name: &[u8], tokens: &Tokens<'_>) -> Outcome {
    // As in memcached, a command that starts with one of the listed letters is never taken for
    // HTTP.
    let may_be_http = name.len() > 1 && !b"acdgist".contains(&name[0]);
    if may_be_http && tokens.last().starts_with(b"HTTP/") {
        return Outcome::Close;
    }
    turn.out.line("ERROR");
    Outcome::Done
}

/// Returns true if the last word of the line is `noreply`.
fn is_quiet(tokens: &Tokens<'_>) -> bool {
    tokens.last() == b"noreply"
}

/// Starts a `get`, `bget` or `gets`. The session (the client's protocol state) then processes the
/// keys.
fn keys(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>, has_cas: bool) -> Outcome {
    if tokens.len() < 2 {
        turn.out.line("ERROR");
        return Outcome::Done;
    }
    let get = Get {
        has_cas,
        touch: None,
    };
    Outcome::Keys(get, tokens.place(1).start)
}

/// Starts a `gat` or `gats`, which also sets the expiry of the items.
fn touch_keys(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>, has_cas: bool) -> Outcome {
    if tokens.len() < 2 {
        turn.out.line("ERROR");
        return Outcome::Done;
    }
    let Some(exptime) = parse_i32(tokens.get(1)) else {
        turn.out.line(BAD_EXPTIME);
        return Outcome::Done;
    };
    let get = Get {
        has_cas,
        touch: Some(turn.kv.clock.expiry(turn.now, exptime)),
    };
    Outcome::Keys(get, tokens.place(1).end)
}

/// Starts a command that stores a value. The value follows the command line.
fn store(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>, mode: Mode) -> Outcome {
    let words = if mode == Mode::Cas { 6 } else { 5 };
    if tokens.len() != words && tokens.len() != words + 1 {
        turn.out.line("ERROR");
        return Outcome::Done;
    }
    let is_quiet = is_quiet(tokens);
    let Some((new, cas)) = new_item(turn, tokens, mode) else {
        turn.answer(is_quiet, BAD_FORMAT);
        return Outcome::Done;
    };
    let command = Command {
        mode,
        cas,
        is_quiet,
        meta: None,
    };
    Outcome::of_store(receive::start(turn, &new, command))
}

/// Reads the arguments of a store command: the properties of the item, and the CAS number (zero
/// except for `cas`). Returns `None` if an argument is invalid.
fn new_item<'a>(
    turn: &Turn<'_, impl Output>,
    tokens: &Tokens<'a>,
    mode: Mode,
) -> Option<(New<'a>, u64)> {
    let client_flags = parse_u32(tokens.get(2))?;
    let exptime = parse_i32(tokens.get(3))?;
    let value_len = receive::value_len(tokens.get(4))?;
    let cas = match mode {
        Mode::Cas => parse_u64(tokens.get(5))?,
        _ => 0,
    };
    let new = New {
        key: tokens.get(1),
        value_len,
        client_flags,
        expiry: turn.kv.clock.expiry(turn.now, exptime),
        has_binary_key: false,
    };
    (new.key.len() <= KEY_LEN_MAX).then_some((new, cas))
}

fn delete(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>) {
    if !(2..=4).contains(&tokens.len()) {
        return turn.out.line("ERROR");
    }
    let (key, is_quiet) = (tokens.get(1), is_quiet(tokens) && tokens.len() > 2);
    let has_zero = tokens.get(2) == b"0";
    let is_valid = match tokens.len() {
        2 => true,
        3 => has_zero || is_quiet,
        _ => has_zero && is_quiet,
    };
    if !is_valid {
        let usage = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
        return turn.answer(is_quiet, usage);
    }
    if key.len() > KEY_LEN_MAX {
        return turn.answer(is_quiet, BAD_FORMAT);
    }
    match turn.kv.store.find(turn.now, key) {
        Some(item) => {
            turn.kv.store.remove(item);
            turn.kv.counts.delete_hits += 1;
            turn.answer(is_quiet, "DELETED");
        }
        None => {
            turn.kv.counts.delete_misses += 1;
            turn.answer(is_quiet, "NOT_FOUND");
        }
    }
}

fn change(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>, is_increment: bool) {
    if !(3..=4).contains(&tokens.len()) {
        return turn.out.line("ERROR");
    }
    let (key, is_quiet) = (tokens.get(1), is_quiet(tokens));
    if key.len() > KEY_LEN_MAX {
        return turn.answer(is_quiet, BAD_FORMAT);
    }
    let Some(amount) = parse_u64(tokens.get(2)) else {
        return turn.answer(is_quiet, "CLIENT_ERROR invalid numeric delta argument");
    };
    let delta = Delta {
        is_increment,
        amount,
        cas: None,
    };
    match delta.apply(turn, key) {
        Changed::To(_, number) if !is_quiet => {
            turn.out.write(number.as_bytes());
            turn.out.write(b"\r\n");
        }
        Changed::To(..) => {}
        Changed::NotFound | Changed::OtherCas => turn.answer(is_quiet, "NOT_FOUND"),
        Changed::NotNumeric => turn.answer(is_quiet, meta_commands::NOT_NUMERIC),
        Changed::OutOfMemory => turn.answer(is_quiet, "SERVER_ERROR out of memory"),
    }
}

fn touch(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>) {
    if !(3..=4).contains(&tokens.len()) {
        return turn.out.line("ERROR");
    }
    let (key, is_quiet) = (tokens.get(1), is_quiet(tokens));
    if key.len() > KEY_LEN_MAX {
        return turn.answer(is_quiet, BAD_FORMAT);
    }
    let Some(exptime) = parse_i32(tokens.get(2)) else {
        return turn.answer(is_quiet, BAD_EXPTIME);
    };
    let get = Get {
        has_cas: false,
        touch: Some(turn.kv.clock.expiry(turn.now, exptime)),
    };
    let text = match get::fetch(turn.kv, turn.now, get, key) {
        Some(_) => "TOUCHED",
        None => "NOT_FOUND",
    };
    turn.answer(is_quiet, text);
}

fn flush_all(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>) {
    if tokens.len() > 3 {
        return turn.out.line("ERROR");
    }
    let is_quiet = is_quiet(tokens);
    turn.kv.counts.cmd_flush += 1;
    let exptime = match tokens.len() - usize::from(is_quiet) {
        1 => Some(0),
        _ => parse_i32(tokens.get(1)),
    };
    let Some(exptime) = exptime else {
        return turn.answer(is_quiet, BAD_EXPTIME);
    };
    let from = match exptime {
        1.. => Second(turn.kv.clock.expiry(turn.now, exptime).0),
        _ => turn.now,
    };
    turn.kv.store.flush(turn.now, from);
    turn.answer(is_quiet, "OK");
}

fn verbosity(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>) {
    if !(2..=3).contains(&tokens.len()) {
        return turn.out.line("ERROR");
    }
    let is_quiet = is_quiet(tokens);
    match parse_u32(tokens.get(1)) {
        Some(level) => {
            turn.kv.verbosity = level.min(VERBOSITY_MAX);
            turn.answer(is_quiet, "OK");
        }
        None => turn.answer(is_quiet, BAD_FORMAT),
    }
}
