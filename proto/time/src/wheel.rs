//! A hierarchical hashed timer wheel. Insertion and cancellation take constant time. An insertion
//! allocates only if the number of entries exceeds its previous maximum.
//!
//! Deadlines keep their full resolution; the wheel only sorts them into slots. A tick is 2^16 ns
//! (about 66 us). Level 0 has 64 slots of one tick each. Each further level also has 64 slots,
//! which are 64 times as long as the slots of the level below. Eight levels cover all of `u64`, so
//! the wheel needs no overflow list:
//!
//! ```text
//! level 0   one tick per slot     up to   4.2 ms ahead
//! level 1   64 ticks per slot     up to 268   ms
//! level 2   4096 ticks per slot   up to 17    s
//! ...
//! level 7   2^42 ticks per slot   up to `Instant::MAX`
//! ```
//!
//! The level of an entry follows from the highest bit in which its tick differs from `cursor`, the
//! tick up to which all slots were processed. No occupied slot is therefore before the cursor, and
//! all entries of a level are earlier than those of the next level. The earliest slot is the lowest
//! set bit in the bitmap `occupied` of the lowest non-empty level.
//!
//! When the cursor reaches a slot of a higher level, the entries of that slot move to lower levels.
//! A TCP retransmission timer of 200 ms moves to a lower level once or twice before it fires. When
//! the cursor reaches a slot of level 0, the expired entries move to the due list.
//! [`TimerWheel::expire_next`] takes the entries from the due list one by one.

use alloc::{boxed::Box, vec::Vec};

use crate::Instant;

/// Binary logarithm of the nanoseconds per tick.
const TICK_LOG2: u32 = 16;
/// Binary logarithm of the slots per level.
const LEVEL_LOG2: u32 = 6;
/// Slots per level.
const SLOTS: usize = 1 << LEVEL_LOG2;
/// Number of levels. Together they cover every `Instant`.
const LEVELS: usize = 8;
/// Index of the due list in `lists`. The due list holds the expired entries.
const DUE: u16 = (SLOTS * LEVELS) as u16;
/// Value of [`Entry::list`] in a free entry.
const FREE: u16 = DUE + 1;
/// Index of no entry, which ends a list.
const NIL: u32 = u32::MAX;
/// A poll (a call of [`TimerWheel::expire_next`]) searches the first occupied slot after the cursor
/// for the earliest entry only if the slot has fewer entries than this number. Otherwise, the poll
/// uses the start of the slot as the next deadline.
const EXACT_SCAN_MAX: usize = 8;

const _: () = assert!(LEVELS as u32 * LEVEL_LOG2 + TICK_LOG2 == u64::BITS);

/// Handle of one entry of a [`TimerWheel`]. A handle becomes stale when its entry fires or is
/// cancelled. A stale handle matches no entry until the memory of its entry has been reused 2^32
/// times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimerHandle {
    /// Index of the entry in `TimerWheel::entries`.
    index: u32,
    /// `Entry::generation` at the insertion.
    generation: u32,
}

impl TimerHandle {
    /// A handle that matches no entry.
    pub const NULL: Self = Self {
        index: NIL,
        generation: 0,
    };

    /// Returns true if this is [`TimerHandle::NULL`].
    pub const fn is_null(self) -> bool {
        self.index == NIL
    }
}

/// An entry of the wheel. Each used entry is in one doubly linked list: a slot or the due list.
#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    /// Deadline of the entry.
    at: Instant,
    /// Index of the next entry of the list, or `NIL`.
    next: u32,
    /// Index of the previous entry of the list, or `NIL`.
    prev: u32,
    /// Number of times that the entry was freed, modulo 2^32. A handle with a different number is
    /// stale.
    generation: u32,
    /// Index in `lists` of the list that has this entry, or `FREE`.
    list: u16,
    /// Value that the caller of [`TimerWheel::insert`] passed.
    value: T,
}

/// A doubly linked list of entries: the indices of the first and the last entry, or `NIL`.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

const EMPTY: List = List {
    head: NIL,
    tail: NIL,
};

/// A set of entries. Each entry has a deadline and a small value, such as a flow id. Entries fire
/// in the order of their ticks: see [`TimerWheel::expire_next`].
#[derive(Debug)]
pub struct TimerWheel<T: Copy> {
    entries: Vec<Entry<T>>,
    /// Index of the first free entry, or `NIL`. The free entries are linked by `Entry::next`.
    free: u32,
    /// Number of used entries.
    len: u32,
    /// Tick up to which all slots were processed. The slot of this tick may have entries that are
    /// not due yet.
    cursor: u64,
    /// Time before which no entry is due, apart from the entries in the due list.
    not_before: Instant,
    /// Earliest time at which a poll can find an entry: `not_before`, or zero while the due list
    /// has entries. A poll before this time only compares its `now` with this field.
    wake_at: Instant,
    /// One bitmap per level: bit n is set if slot n of the level has entries.
    occupied: [u64; LEVELS],
    /// The slots of all levels, and then the due list.
    lists: Box<[List; DUE as usize + 1]>,
}

impl<T: Copy> Default for TimerWheel<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> TimerWheel<T> {
    /// Creates an empty wheel. The wheel grows with its entries and never shrinks.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// Creates an empty wheel with room for `capacity` entries.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            entries: Vec::with_capacity(capacity),
            free: NIL,
            len: 0,
            cursor: 0,
            not_before: Instant::MAX,
            wake_at: Instant::MAX,
            occupied: [0; LEVELS],
            lists: Box::new([EMPTY; DUE as usize + 1]),
        }
    }

    /// Returns the number of entries.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of entries that the wheel can hold without an allocation.
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Adds an entry with the deadline `at`. An entry whose deadline has passed fires at the next
    /// poll.
    pub fn insert(&mut self, at: Instant, value: T) -> TimerHandle {
        let index = self.allocate(at, value);
        self.place(index);
        self.not_before = self.not_before.min(at);
        self.wake_at = self.wake_at.min(at);
        self.len += 1;
        TimerHandle {
            index,
            generation: self.entries[index as usize].generation,
        }
    }

    /// Removes the entry of `handle`. Returns `None` if the handle is stale.
    pub fn cancel(&mut self, handle: TimerHandle) -> Option<T> {
        let entry = self.entries.get(handle.index as usize)?;
        if entry.generation != handle.generation || entry.list == FREE {
            return None;
        }
        Some(self.remove(handle.index))
    }

    /// Returns the deadline of the entry of `handle`, or `None` if the handle is stale.
    pub fn deadline(&self, handle: TimerHandle) -> Option<Instant> {
        let entry = self.entries.get(handle.index as usize)?;
        (entry.generation == handle.generation && entry.list != FREE).then_some(entry.at)
    }

    /// Removes one entry whose deadline is at or before `now`, and returns its value. The caller
    /// repeats the call until the result is `None`.
    ///
    /// Entries fire in the order of their ticks, and in any order within a tick. An entry that is
    /// inserted after its deadline may fire after entries of later ticks. If `now` is lower than in
    /// an earlier call, an entry fires only if its deadline is at or before the highest `now` so
    /// far.
    #[inline]
    pub fn expire_next(&mut self, now: Instant) -> Option<T> {
        if now < self.wake_at {
            return None;
        }
        if self.lists[usize::from(DUE)].head == NIL {
            self.advance(now);
        }
        match self.lists[usize::from(DUE)].head {
            NIL => None,
            index => Some(self.remove(index)),
        }
    }

    /// Returns the time at which the caller should poll next, or `None` if the wheel is empty. The
    /// time is never later than the earliest deadline.
    ///
    /// After a poll ([`TimerWheel::expire_next`]) that returned `None`, the time is exact if fewer
    /// than eight entries share the earliest slot. Otherwise, the time is early by at most the span
    /// of that slot. After a cancellation, the time may be earlier than all remaining deadlines.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.len == 0 {
            return None;
        }
        match self.lists[usize::from(DUE)].head {
            NIL => Some(self.not_before),
            index => Some(self.entries[index as usize].at.min(self.not_before)),
        }
    }

    /// Returns true if [`TimerWheel::expire_next`] should be called at `now`. The call may find no
    /// entry, for example after a cancellation.
    #[inline]
    pub const fn is_due(&self, now: Instant) -> bool {
        now.0 >= self.wake_at.0
    }

    /// Sets `wake_at` from the due list and `not_before`.
    fn note_wake(&mut self) {
        self.wake_at = match self.lists[usize::from(DUE)].head {
            NIL => self.not_before,
            _ => Instant(0),
        };
    }

    /// Moves all entries that have expired at `now` to the due list.
    #[inline(never)]
    fn advance(&mut self, now: Instant) {
        self.advance_cursor(now);
        self.note_wake();
    }

    /// Moves the cursor to the tick of `now`, but never back. Moves the entries that have expired
    /// at `now` to the due list, and updates `not_before`.
    fn advance_cursor(&mut self, now: Instant) {
        let target = (now.0 >> TICK_LOG2).max(self.cursor);
        while let Some((level, slot, start)) = self.earliest_slot() {
            if start > target {
                self.cursor = target;
                self.not_before = self.lower_bound(level, slot, start);
                return;
            }
            self.cursor = self.cursor.max(start);
            if level > 0 {
                self.cascade(level, slot);
            } else if self.collect_due(slot, now) {
                return;
            }
        }
        self.cursor = target;
        self.not_before = Instant::MAX;
    }

    /// Returns the earliest non-empty slot: its level, its index in the level, and its first tick.
    fn earliest_slot(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|bits| *bits != 0)?;
        let slot = self.occupied[level].trailing_zeros() as usize;
        let shift = level as u32 * LEVEL_LOG2;
        let above = (self.cursor >> shift) >> LEVEL_LOG2;
        let start = ((above << LEVEL_LOG2) | slot as u64) << shift;
        Some((level, slot, start))
    }

    /// Returns the earliest deadline in a slot with fewer than [`EXACT_SCAN_MAX`] entries. Returns
    /// the start of any other slot. `start` is the first tick of the slot.
    fn lower_bound(&self, level: usize, slot: usize, start: u64) -> Instant {
        let mut earliest = Instant::MAX;
        let mut index = self.lists[level * SLOTS + slot].head;
        for _ in 0..EXACT_SCAN_MAX {
            if index == NIL {
                return earliest;
            }
            let entry = &self.entries[index as usize];
            earliest = earliest.min(entry.at);
            index = entry.next;
        }
        Instant(start << TICK_LOG2)
    }

    /// Moves the entries of a slot to lower levels. The slot is above level 0, and the cursor has
    /// reached the slot.
    fn cascade(&mut self, level: usize, slot: usize) {
        let list = level * SLOTS + slot;
        let mut index = self.lists[list].head;
        self.lists[list] = EMPTY;
        self.occupied[level] &= !(1 << slot);
        while index != NIL {
            let next = self.entries[index as usize].next;
            self.place(index);
            index = next;
        }
    }

    /// Moves the entries of a level-0 slot that have expired at `now` to the due list. If entries
    /// remain in the slot, sets `not_before` to their earliest deadline and returns true.
    fn collect_due(&mut self, slot: usize, now: Instant) -> bool {
        let mut earliest_left = Instant::MAX;
        let mut index = self.lists[slot].head;
        while index != NIL {
            let Entry { at, next, .. } = self.entries[index as usize];
            if at <= now {
                self.unlink(index);
                self.link(index, DUE);
            } else {
                earliest_left = earliest_left.min(at);
            }
            index = next;
        }
        let left = self.lists[slot].head != NIL;
        if left {
            self.not_before = earliest_left;
        }
        left
    }

    /// Links an entry into the slot that follows from its deadline and the cursor. The slot of an
    /// entry whose tick is before the cursor is the slot of the cursor.
    fn place(&mut self, index: u32) {
        let tick = (self.entries[index as usize].at.0 >> TICK_LOG2).max(self.cursor);
        // `| 1` selects level 0 for an entry whose tick equals the cursor.
        let highest_difference = u64::BITS - 1 - ((tick ^ self.cursor) | 1).leading_zeros();
        let level = (highest_difference / LEVEL_LOG2) as usize;
        let slot = (tick >> (level as u32 * LEVEL_LOG2)) as usize % SLOTS;
        self.occupied[level] |= 1 << slot;
        self.link(index, (level * SLOTS + slot) as u16);
    }

    fn link(&mut self, index: u32, list: u16) {
        let tail = core::mem::replace(&mut self.lists[usize::from(list)].tail, index);
        let entry = &mut self.entries[index as usize];
        entry.list = list;
        entry.prev = tail;
        entry.next = NIL;
        match tail {
            NIL => self.lists[usize::from(list)].head = index,
            _ => self.entries[tail as usize].next = index,
        }
    }

    fn unlink(&mut self, index: u32) {
        let Entry {
            next, prev, list, ..
        } = self.entries[index as usize];
        match prev {
            NIL => self.lists[usize::from(list)].head = next,
            _ => self.entries[prev as usize].next = next,
        }
        match next {
            NIL => self.lists[usize::from(list)].tail = prev,
            _ => self.entries[next as usize].prev = prev,
        }
        if list != DUE && self.lists[usize::from(list)].head == NIL {
            self.occupied[usize::from(list) / SLOTS] &= !(1 << (usize::from(list) % SLOTS));
        }
    }

    fn allocate(&mut self, at: Instant, value: T) -> u32 {
        if self.free != NIL {
            let index = self.free;
            let entry = &mut self.entries[index as usize];
            self.free = entry.next;
            entry.at = at;
            entry.value = value;
            return index;
        }
        let index = u32::try_from(self.entries.len())
            .ok()
            .filter(|index| *index != NIL);
        let index = index.expect("fewer than 2^32 - 1 timers");
        self.entries.push(Entry {
            at,
            next: NIL,
            prev: NIL,
            generation: 0,
            list: FREE,
            value,
        });
        index
    }

    fn remove(&mut self, index: u32) -> T {
        self.unlink(index);
        let entry = &mut self.entries[index as usize];
        entry.list = FREE;
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = self.free;
        self.free = index;
        self.len -= 1;
        let value = entry.value;
        self.note_wake();
        value
    }
}
