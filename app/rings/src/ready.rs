//! The ready list, the result of a [`sync`](crate::Context::sync): descriptors with data or events,
//! each with a chain of slots. A slot holds one received buffer (StackMap paper, USENIX ATC 2016,
//! §4.5).
//!
//! The list is built in one pass in the order of arrival. A scratchpad indexed by descriptor finds
//! the entry of a descriptor without a search.

use std::net::SocketAddr;

use crate::{Buffer, descriptor::Descriptor};

/// Index that stands for no slot or no sender.
const NONE: u32 = u32::MAX;

/// Events of a descriptor in one [`sync`](crate::Context::sync).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Events(u8);

impl Events {
    /// The descriptor is a new connection of a listener.
    pub const ACCEPTED: Self = Self(1);
    /// The connection that the program started is established.
    pub const CONNECTED: Self = Self(1 << 1);
    /// The entry has slots with data.
    pub const READABLE: Self = Self(1 << 2);
    /// The peer has closed its direction. No data follows.
    pub const END: Self = Self(1 << 3);
    /// The descriptor has room for a buffer again, after a send or an allocation failed for lack of
    /// room.
    pub const WRITABLE: Self = Self(1 << 4);
    /// The connection or the UDP socket has failed: see [`Entry::cause`]. The program has to close
    /// the descriptor.
    pub const CLOSED: Self = Self(1 << 5);
    /// A datagram could not be sent: see [`Entry::cause`]. The descriptor stays open.
    pub const SEND_FAILED: Self = Self(1 << 6);

    /// Returns the events of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if the sets have an event in common.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the bits of the set: ACCEPTED is 1, CONNECTED 2, READABLE 4, END 8, WRITABLE 16,
    /// CLOSED 32, SEND_FAILED 64.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns true if there is no event.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Reason why a connection or a UDP socket has failed, or why a datagram could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The peer has reset the connection.
    Reset,
    /// The peer has refused the connection.
    Refused,
    /// The peer did not answer in time.
    TimedOut,
    /// The peer or its network cannot be reached.
    Unreachable,
    /// The datagram is longer than the path allows.
    TooLong,
    /// Any other error.
    Other,
}

/// An entry of a [`ReadyList`]: a descriptor, its events and the start of its chain of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The descriptor.
    pub descriptor: Descriptor,
    /// The events of the descriptor.
    pub events: Events,
    /// Reason for a CLOSED or SEND_FAILED event. If the entry has several failures, the reason for
    /// the most recent failure.
    pub cause: Option<Cause>,
    /// The listener of an ACCEPTED event.
    pub listener: Option<Descriptor>,
    /// Number of slots of the descriptor, including slots that the program has already taken.
    pub slots: u32,
    /// Number of bytes in these slots.
    pub bytes: u32,
    /// Index of the first slot of the descriptor. The slots of all descriptors are numbered from
    /// zero in the order of arrival. [`Arrival::next`] is the index of the next slot.
    pub first: Option<u32>,
}

/// One received buffer, as returned by [`ReadyList::take_slots`].
#[derive(Debug)]
pub struct Arrival {
    /// Descriptor to which the data belongs.
    pub descriptor: Descriptor,
    /// The data.
    pub buffer: Buffer,
    /// Index of the next slot of the same descriptor. `None` for the last slot.
    pub next: Option<u32>,
    /// The sender of a datagram; `None` for data of a connection.
    pub sender: Option<SocketAddr>,
}

/// An entry, with the ends of its chain of slots.
#[derive(Clone, Copy, Debug)]
struct ChainedEntry {
    entry: Entry,
    /// Index of the first slot that the program has not taken, or `NONE`.
    first: u32,
    /// Index of the last slot of the chain, or `NONE`.
    last: u32,
}

/// A slot: one received buffer, linked to the next buffer of the same descriptor.
#[derive(Debug)]
struct Slot {
    descriptor: Descriptor,
    /// The data; `None` once the program has taken the buffer.
    buffer: Option<Buffer>,
    /// Index of the next slot of the same descriptor, or `NONE`.
    next: u32,
    /// Index of the datagram's sender in the list of senders, or `NONE`.
    sender: u32,
}

/// The descriptors with data or events of one call of [`sync`](crate::Context::sync).
#[derive(Debug)]
pub struct ReadyList {
    entries: Vec<ChainedEntry>,
    /// Slots in the order of arrival.
    slots: Vec<Slot>,
    /// Senders of the datagrams among the slots.
    senders: Vec<SocketAddr>,
    /// For each descriptor, the index of its most recent entry plus the base of the list that had
    /// this entry. A value below the present base belongs to an earlier list.
    scratchpad: Vec<u64>,
    /// Base of the present list: a number larger than all scratchpad values of earlier lists.
    base: u64,
}

impl Default for ReadyList {
    fn default() -> Self {
        Self::new()
    }
}

impl ReadyList {
    /// Returns an empty list.
    pub fn new() -> Self {
        Self {
            entries: Vec::new(),
            slots: Vec::new(),
            senders: Vec::new(),
            scratchpad: Vec::new(),
            base: 1,
        }
    }

    /// Returns the number of descriptors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if the list has no descriptor.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns entry `at` of the list, counted from zero.
    ///
    /// # Panics
    ///
    /// If there is no entry `at`.
    pub fn entry(&self, at: usize) -> Entry {
        self.entries[at].entry
    }

    /// Returns the payloads of entry `at` that the program has not taken, oldest first.
    pub fn payloads(&self, at: usize) -> impl Iterator<Item = &[u8]> {
        let mut next = self.entries.get(at).map_or(NONE, |listed| listed.first);
        std::iter::from_fn(move || {
            let slot = self.slots.get(next as usize)?;
            next = slot.next;
            slot.buffer.as_ref().map(Buffer::payload)
        })
    }

    /// Takes the next buffer of entry `at`. The program owns the buffer, and may keep the buffer
    /// when the list is cleared. Returns `None` if the entry has no further buffer.
    pub fn take_next(&mut self, at: usize) -> Option<Buffer> {
        let listed = self.entries.get_mut(at)?;
        let slot = self.slots.get_mut(listed.first as usize)?;
        listed.first = slot.next;
        slot.buffer.take()
    }

    /// Takes the next datagram of entry `at`: its sender, and the buffer with its payload. Returns
    /// `None` if the entry has no further datagram, or if the descriptor is a connection.
    pub fn take_datagram(&mut self, at: usize) -> Option<(SocketAddr, Buffer)> {
        let next = self.entries.get(at)?.first;
        let sender = self.slots.get(next as usize)?.sender;
        let sender = *self.senders.get(sender as usize)?;
        Some((sender, self.take_next(at)?))
    }

    /// Takes all remaining buffers of all descriptors, in the order of their arrival.
    pub fn take_arrivals(&mut self) -> impl Iterator<Item = (Descriptor, Buffer)> {
        for listed in &mut self.entries {
            listed.first = NONE;
        }
        self.slots
            .drain(..)
            .filter_map(|slot| Some((slot.descriptor, slot.buffer?)))
    }

    /// Takes all slots in the order of their arrival, with their chains. Call this function only if
    /// no buffer of the list was taken: the result omits taken buffers, so that [`Arrival::next`]
    /// would point to wrong slots.
    pub fn take_slots(&mut self) -> impl Iterator<Item = Arrival> {
        for listed in &mut self.entries {
            listed.first = NONE;
        }
        let senders = &self.senders;
        self.slots.drain(..).filter_map(|slot| {
            Some(Arrival {
                descriptor: slot.descriptor,
                buffer: slot.buffer?,
                next: (slot.next != NONE).then_some(slot.next),
                sender: senders.get(slot.sender as usize).copied(),
            })
        })
    }

    /// Empties the list. The remaining buffers return to their owners. For back ends
    /// (implementations of [`Context`](crate::Context)).
    pub fn clear(&mut self) {
        // The new base is larger than all values in the scratchpad.
        self.base += self.entries.len() as u64 + 1;
        self.entries.clear();
        self.slots.clear();
        self.senders.clear();
    }

    /// Adds received data of a descriptor. For back ends.
    pub fn add_buffer(&mut self, descriptor: Descriptor, buffer: Buffer) {
        let number = self.slots.len() as u32;
        let listed = self.listed(descriptor);
        listed.entry.events = listed.entry.events.union(Events::READABLE);
        listed.entry.slots += 1;
        listed.entry.bytes += buffer.len() as u32;
        let last = std::mem::replace(&mut listed.last, number);
        if last == NONE {
            listed.first = number;
            listed.entry.first = Some(number);
        } else {
            self.slots[last as usize].next = number;
        }
        self.slots.push(Slot {
            descriptor,
            buffer: Some(buffer),
            next: NONE,
            sender: NONE,
        });
    }

    /// Adds a received datagram of a descriptor, in a slot of its own. For back ends.
    pub fn add_datagram(&mut self, descriptor: Descriptor, sender: SocketAddr, buffer: Buffer) {
        self.add_buffer(descriptor, buffer);
        if let Some(slot) = self.slots.last_mut() {
            slot.sender = self.senders.len() as u32;
            self.senders.push(sender);
        }
    }

    /// Adds the event that a datagram could not be sent. For back ends.
    pub fn add_send_failed(&mut self, descriptor: Descriptor, cause: Cause) {
        let entry = &mut self.listed(descriptor).entry;
        entry.events = entry.events.union(Events::SEND_FAILED);
        entry.cause = Some(cause);
    }

    /// Adds events of a descriptor. For back ends.
    pub fn add_events(&mut self, descriptor: Descriptor, events: Events) {
        let entry = &mut self.listed(descriptor).entry;
        entry.events = entry.events.union(events);
    }

    /// Adds the event that a connection or a UDP socket has failed. For back ends.
    pub fn add_closed(&mut self, descriptor: Descriptor, cause: Cause) {
        let entry = &mut self.listed(descriptor).entry;
        entry.events = entry.events.union(Events::CLOSED);
        entry.cause = Some(cause);
    }

    /// Adds a connection that `listener` has accepted. For back ends.
    pub fn add_accepted(&mut self, descriptor: Descriptor, listener: Descriptor) {
        let entry = &mut self.listed(descriptor).entry;
        entry.events = entry.events.union(Events::ACCEPTED);
        entry.listener = Some(listener);
    }

    /// Returns the entry of a descriptor. Adds an entry if the descriptor has none.
    fn listed(&mut self, descriptor: Descriptor) -> &mut ChainedEntry {
        let place = descriptor.0 as usize;
        if place >= self.scratchpad.len() {
            self.scratchpad.resize(place + 1, 0);
        }
        let known = self.scratchpad[place].checked_sub(self.base);
        let at = known.map_or(self.entries.len(), |at| at as usize);
        if at == self.entries.len() {
            self.scratchpad[place] = self.base + at as u64;
            self.entries.push(ChainedEntry {
                entry: Entry {
                    descriptor,
                    events: Events::default(),
                    cause: None,
                    listener: None,
                    slots: 0,
                    bytes: 0,
                    first: None,
                },
                first: NONE,
                last: NONE,
            });
        }
        &mut self.entries[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    fn buffer(pool: &Pool, text: &str) -> Buffer {
        let mut buffer = pool.allocate().expect("a free buffer");
        buffer.append(text.as_bytes());
        buffer
    }

    #[test]
    fn slots_form_a_chain_for_each_descriptor() {
        let pool = Pool::new(16, 64).expect("there is memory");
        let mut list = ReadyList::new();
        for cycle in 0..3 {
            for (descriptor, text) in [(7, "a"), (3, "b"), (7, "cc"), (9, "d"), (3, "e")] {
                list.add_buffer(Descriptor(descriptor), buffer(&pool, text));
            }
            list.add_events(Descriptor(4), Events::WRITABLE);
            list.add_closed(Descriptor(3), Cause::Reset);
            let descriptors: Vec<u32> = (0..list.len())
                .map(|at| list.entry(at).descriptor.0)
                .collect();
            assert_eq!(descriptors, [7, 3, 9, 4], "cycle {cycle}");
            let first = list.entry(0);
            assert_eq!((first.slots, first.bytes), (2, 3));
            let text: Vec<&[u8]> = list.payloads(0).collect();
            assert_eq!(text, [&b"a"[..], b"cc"]);
            assert_eq!(list.take_next(0).expect("a buffer").payload(), b"a");
            assert_eq!(list.payloads(0).count(), 1);
            assert_eq!(list.take_next(0).expect("a buffer").payload(), b"cc");
            assert!(list.take_next(0).is_none() && list.take_next(3).is_none());
            let closed = list.entry(1);
            assert!(closed.events.intersects(Events::CLOSED));
            assert_eq!(closed.cause, Some(Cause::Reset));
            let rest: Vec<(u32, Vec<u8>)> = list
                .take_arrivals()
                .map(|(descriptor, buffer)| (descriptor.0, buffer.payload().to_vec()))
                .collect();
            assert_eq!(
                rest,
                [(3, b"b".to_vec()), (9, b"d".to_vec()), (3, b"e".to_vec())]
            );
            assert!(list.payloads(1).next().is_none());
            list.clear();
            assert!(list.is_empty());
            assert_eq!(pool.free_count(), 16);
        }
    }

    #[test]
    fn taken_slots_keep_their_chains() {
        let pool = Pool::new(16, 64).expect("there is memory");
        let mut list = ReadyList::new();
        for _ in 0..2 {
            for (descriptor, text) in [(7, "a"), (3, "b"), (7, "c"), (7, "d"), (3, "e")] {
                list.add_buffer(Descriptor(descriptor), buffer(&pool, text));
            }
            list.add_events(Descriptor(4), Events::END);
            let firsts: Vec<Option<u32>> = (0..list.len()).map(|at| list.entry(at).first).collect();
            assert_eq!(firsts, [Some(0), Some(1), None]);
            let slots: Vec<Arrival> = list.take_slots().collect();
            let chains: Vec<(u32, Option<u32>)> = slots
                .iter()
                .map(|slot| (slot.descriptor.0, slot.next))
                .collect();
            let expected = [
                (7, Some(2)),
                (3, Some(4)),
                (7, Some(3)),
                (7, None),
                (3, None),
            ];
            assert_eq!(chains, expected);
            let text: Vec<&[u8]> = slots.iter().map(|slot| slot.buffer.payload()).collect();
            assert_eq!(text, [b"a", b"b", b"c", b"d", b"e"]);
            assert!(list.take_next(0).is_none() && list.payloads(1).next().is_none());
            list.clear();
        }
        assert_eq!(pool.free_count(), 16);
    }

    #[test]
    fn a_datagram_has_a_slot_and_a_sender() {
        let pool = Pool::new(8, 64).expect("there is memory");
        let mut list = ReadyList::new();
        let sender = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        for _ in 0..2 {
            list.add_datagram(Descriptor(5), sender(1), buffer(&pool, "a"));
            list.add_buffer(Descriptor(2), buffer(&pool, "stream"));
            list.add_datagram(Descriptor(5), sender(2), buffer(&pool, ""));
            list.add_datagram(Descriptor(5), sender(3), buffer(&pool, "c"));
            assert_eq!((list.entry(0).slots, list.entry(0).bytes), (3, 2));
            for (port, payload) in [(1, "a"), (2, ""), (3, "c")] {
                let (from, buffer) = list.take_datagram(0).expect("a datagram");
                assert_eq!((from, buffer.payload()), (sender(port), payload.as_bytes()));
            }
            assert!(list.take_datagram(0).is_none());
            assert!(list.take_datagram(1).is_none());
            assert!(list.take_next(1).is_some());
            list.add_datagram(Descriptor(5), sender(4), buffer(&pool, "d"));
            let slots = list.take_slots();
            let senders: Vec<Option<SocketAddr>> = slots.map(|slot| slot.sender).collect();
            assert_eq!(senders, [Some(sender(4))]);
            list.add_send_failed(Descriptor(5), Cause::TooLong);
            assert_eq!(list.entry(0).cause, Some(Cause::TooLong));
            assert!(list.entry(0).events.intersects(Events::SEND_FAILED));
            list.clear();
        }
        assert_eq!(pool.free_count(), 8);
    }

    #[test]
    fn buffers_left_in_the_list_return_to_the_pool() {
        let pool = Pool::new(4, 64).expect("there is memory");
        let mut list = ReadyList::new();
        list.add_buffer(Descriptor(0), buffer(&pool, "x"));
        list.add_buffer(Descriptor(0), buffer(&pool, "y"));
        let held = list.take_next(0).expect("a buffer");
        list.clear();
        assert_eq!(pool.free_count(), 3);
        assert_eq!(held.payload(), b"x");
    }
}
