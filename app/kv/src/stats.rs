//! The command `stats` of memcached's protocol, which reports counters and settings.

use std::fmt::{Display, Write};

use crate::{kv::Counts, output::Output, store::ITEM_LEN_MAX, tokens::Tokens, turn::Turn};

/// The lines `STAT name value` of an answer.
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: impl Display) {
        // A write to a string does not fail.
        let _ = write!(self.0, "STAT {name} {value}\r\n");
    }
}

/// Answers `stats`, `stats settings` and `stats reset`. Any other argument gets `ERROR`.
pub fn answer(turn: &mut Turn<'_, impl Output>, tokens: &Tokens<'_>) {
    let mut lines = Lines(String::new());
    match (tokens.len(), tokens.get(1)) {
        (1, _) => {
            server(turn, &mut lines);
            commands(&turn.kv.counts, &mut lines);
            items(turn, &mut lines);
        }
        (_, b"settings") => settings(turn, &mut lines),
        (_, b"reset") => {
            turn.kv.reset_counts();
            return turn.out.line("RESET");
        }
        _ => return turn.out.line("ERROR"),
    }
    turn.out.write(lines.0.as_bytes());
    turn.out.line("END");
}

/// Adds the statistics of the process and of its connections.
fn server(turn: &Turn<'_, impl Output>, lines: &mut Lines) {
    let (kv, now) = (&*turn.kv, turn.now);
    let connections = &kv.connections;
    lines.add("pid", std::process::id());
    lines.add("uptime", kv.clock.uptime(now));
    lines.add("time", kv.clock.unix(now));
    lines.add("version", "1.6.18-tidelane");
    lines.add("pointer_size", usize::BITS);
    lines.add("max_connections", connections.limit);
    lines.add("curr_connections", connections.current);
    lines.add("total_connections", connections.total);
    lines.add("rejected_connections", connections.rejected);
    lines.add("evicted_connections", connections.evicted);
    lines.add("bytes_read", connections.bytes_read);
    lines.add("bytes_written", connections.bytes_written);
    lines.add("threads", 1);
}

/// Adds the counters of commands.
fn commands(counts: &Counts, lines: &mut Lines) {
    let all = [
        ("cmd_get", counts.cmd_get),
        ("cmd_set", counts.cmd_set),
        ("cmd_flush", counts.cmd_flush),
        ("cmd_touch", counts.cmd_touch),
        ("cmd_meta", counts.cmd_meta),
        ("get_hits", counts.get_hits),
        ("get_misses", counts.get_misses),
        ("delete_misses", counts.delete_misses),
        ("delete_hits", counts.delete_hits),
        ("incr_misses", counts.incr_misses),
        ("incr_hits", counts.incr_hits),
        ("decr_misses", counts.decr_misses),
        ("decr_hits", counts.decr_hits),
        ("cas_misses", counts.cas_misses),
        ("cas_hits", counts.cas_hits),
        ("cas_badval", counts.cas_badval),
        ("touch_hits", counts.touch_hits),
        ("touch_misses", counts.touch_misses),
        ("store_too_large", counts.store_too_large),
        ("store_no_memory", counts.store_no_memory),
    ];
    for (name, value) in all {
        lines.add(name, value);
    }
}

/// Adds the statistics of the stored items and of their memory.
fn items(turn: &Turn<'_, impl Output>, lines: &mut Lines) {
    let (kv, counts) = (&*turn.kv, turn.kv.store.counts());
    lines.add("get_expired", counts.get_expired);
    lines.add("get_flushed", counts.get_flushed);
    lines.add("limit_maxbytes", kv.memory);
    lines.add("bytes", counts.bytes);
    lines.add("curr_items", counts.items);
    lines.add("total_items", counts.items_total);
    lines.add("expired_unfetched", counts.expired_unfetched);
    lines.add("evicted_unfetched", counts.evicted_unfetched);
    lines.add("evictions", counts.evictions);
    lines.add("reclaimed", counts.reclaimed);
}

/// Adds the settings, under the names that memcached's `stats settings` uses.
fn settings(turn: &Turn<'_, impl Output>, lines: &mut Lines) {
    let kv = &*turn.kv;
    lines.add("maxbytes", kv.memory);
    lines.add("maxconns", kv.connections.limit);
    lines.add("verbosity", kv.verbosity);
    lines.add("evictions", "on");
    lines.add("cas_enabled", "yes");
    lines.add("item_size_max", ITEM_LEN_MAX);
    lines.add("num_threads", 1);
    lines.add("flush_enabled", "yes");
}
