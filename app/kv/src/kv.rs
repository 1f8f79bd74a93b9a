//! [`Kv`]: the state that the sessions of all clients share.

use crate::{
    clock::{Clock, Second},
    store::Store,
};

/// Counts of commands, named as in memcached's `stats`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub cmd_get: u64,
    pub cmd_set: u64,
    pub cmd_flush: u64,
    pub cmd_touch: u64,
    pub cmd_meta: u64,
    pub get_hits: u64,
    pub get_misses: u64,
    pub delete_misses: u64,
    pub delete_hits: u64,
    pub incr_misses: u64,
    pub incr_hits: u64,
    pub decr_misses: u64,
    pub decr_hits: u64,
    pub cas_misses: u64,
    pub cas_hits: u64,
    pub cas_badval: u64,
    pub touch_hits: u64,
    pub touch_misses: u64,
    pub store_too_large: u64,
    pub store_no_memory: u64,
}

/// Counts of connections, which the server updates.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionCounts {
    /// Open connections.
    pub current: u64,
    /// Connections that were accepted since the start or the most recent `stats reset`, except the
    /// refused connections.
    pub total: u64,
    /// Connections that were refused because the open connections had reached `limit`.
    pub rejected: u64,
    /// Limit of the open connections.
    pub limit: u64,
    /// Clients that were reset because they held scarce memory, such as buffers with unread
    /// answers.
    pub evicted: u64,
    /// Received bytes.
    pub bytes_read: u64,
    /// Sent bytes.
    pub bytes_written: u64,
}

/// A key-value store, with its clock and its statistics.
pub struct Kv {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) counts: Counts,
    /// Reused memory for the answer of a meta command and for the text of a number.
    pub(crate) scratch: Vec<u8>,
    /// Memory limit of the store in bytes, for `stats`.
    pub(crate) memory: u64,
    /// Level of the most recent `verbosity` command, for `stats settings`. The level has no other
    /// effect.
    pub(crate) verbosity: u32,
    /// Counts of connections.
    pub connections: ConnectionCounts,
    /// Second of the most recent sweep (the removal of expired items), and the number of buckets of
    /// the hash table that may still be swept in this second.
    sweep: (Second, usize),
}

/// Time in seconds in which the sweep visits every bucket, if the server calls [`Kv::sweep`] often
/// enough.
const SWEEP_SECONDS: usize = 64;

impl Kv {
    /// Returns an empty store. Items and hash table use at most `memory` bytes, clamped to the
    /// range from 8 MiB to 256 GiB. `start` is the present Unix time in seconds. `seed` keys the
    /// hash and must be secret.
    pub fn new(start: u64, memory: u64, seed: [u8; 16]) -> Self {
        Self {
            store: Store::new(memory, seed),
            clock: Clock::new(start),
            counts: Counts::default(),
            scratch: Vec::new(),
            memory,
            verbosity: 0,
            connections: ConnectionCounts::default(),
            sweep: (Second(0), 0),
        }
    }

    /// Counts the lookup of a key. `is_touch` is true if the command also sets the expiry.
    pub(crate) fn count_get(&mut self, is_touch: bool, is_hit: bool) {
        let counts = &mut self.counts;
        let (commands, hits, misses) = match is_touch {
            true => (
                &mut counts.cmd_touch,
                &mut counts.touch_hits,
                &mut counts.touch_misses,
            ),
            false => (
                &mut counts.cmd_get,
                &mut counts.get_hits,
                &mut counts.get_misses,
            ),
        };
        *commands += 1;
        *hits += u64::from(is_hit);
        *misses += u64::from(!is_hit);
    }

    /// Resets the counts of past events (`stats reset`).
    pub(crate) fn reset_counts(&mut self) {
        self.counts = Counts::default();
        self.store.reset_counts();
        let connections = &mut self.connections;
        connections.total = 0;
        connections.rejected = 0;
        connections.evicted = 0;
        connections.bytes_read = 0;
        connections.bytes_written = 0;
    }

    /// Removes the items that are expired or were flushed (`flush_all`) from at most `buckets`
    /// buckets of the hash table. In one second, all calls together visit at most the part
    /// 1/`SWEEP_SECONDS` of the buckets. `unix` is the present Unix time in seconds.
    pub fn sweep(&mut self, unix: u64, buckets: usize) {
        let now = self.clock.second(unix);
        if self.sweep.0 != now {
            self.sweep = (now, self.store.bucket_count() / SWEEP_SECONDS);
        }
        let count = buckets.min(self.sweep.1);
        self.sweep.1 -= count;
        self.store.sweep(now, count);
    }

    /// Returns the memory in bytes that items and the hash table take.
    pub fn memory_used(&self) -> u64 {
        self.store.memory_used()
    }

    /// Returns true if unfinished uploads (values that are being received) or pinned values (values
    /// that are being sent) hold so much memory that new items may lack room.
    pub fn is_pinned_high(&self) -> bool {
        self.store.is_pinned_high()
    }

    /// Returns true if unfinished uploads or pinned values hold so much memory that the store soon
    /// refuses values.
    pub fn is_pinned_full(&self) -> bool {
        self.store.is_pinned_full()
    }

    /// Returns true if each block in use belongs to an item of the hash table, and there are no
    /// uploads and no pins. For tests.
    pub fn has_no_leak(&self) -> bool {
        self.store.has_no_leak()
    }
}
