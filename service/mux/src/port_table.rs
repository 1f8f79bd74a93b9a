//! The open mux ports by number, and the rotation in which the mux polls them. A mux port is a pair
//! of packet rings through which a program with a TCP/IP stack of its own shares the NIC.

use crate::{
    check::SendRefusal, claims::PortId, port::Port, port_counters::PortCounters, port_end::PortEnd,
};

/// The open mux ports.
pub struct PortTable<P> {
    /// The open mux ports, indexed by number. `None` for a free number.
    ports: Vec<Option<Port<P>>>,
    /// Largest count of open mux ports. The number ([`PortId`]) of each port is smaller than
    /// `ports_max`.
    ports_max: usize,
    /// Numbers of the open mux ports, in no particular order.
    open: Vec<PortId>,
    /// Position in `open` of the next mux port to poll.
    next_look: usize,
    /// Mux ports that got frames since the last flush.
    queued: Vec<PortId>,
    /// Mux ports that are corrupt ([`PortEnd::is_corrupt`]). A port may appear more than once.
    corrupt: Vec<PortId>,
}

impl<P: PortEnd> PortTable<P> {
    /// Makes an empty table for at most `ports_max` mux ports.
    pub fn new(ports_max: usize) -> Self {
        Self {
            ports: Vec::new(),
            ports_max,
            open: Vec::new(),
            next_look: 0,
            queued: Vec::new(),
            corrupt: Vec::new(),
        }
    }

    /// Returns the number of open mux ports.
    #[inline]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns the lowest number that no open mux port has. If the table is full, this number is
    /// `ports_max`.
    pub fn lowest_free(&self) -> PortId {
        let free = self.ports.iter().position(Option::is_none);
        PortId(free.unwrap_or(self.ports.len()) as u32)
    }

    /// Adds a mux port with number `id`. Returns false if a port has this number, or if the number
    /// is too large.
    pub fn add(&mut self, id: PortId, io: P) -> bool {
        let at = id.0 as usize;
        if at >= self.ports_max || self.get(id).is_some() {
            return false;
        }
        if at >= self.ports.len() {
            self.ports.resize_with(at + 1, || None);
        }
        self.ports[at] = Some(Port::new(io));
        self.open.push(id);
        true
    }

    /// Removes and returns a mux port.
    pub fn remove(&mut self, id: PortId) -> Option<Port<P>> {
        let removed = self.ports.get_mut(id.0 as usize)?.take()?;
        self.open.retain(|open| *open != id);
        self.corrupt.retain(|corrupt| *corrupt != id);
        Some(removed)
    }

    /// Returns a mux port.
    #[inline(always)]
    pub fn get(&self, id: PortId) -> Option<&Port<P>> {
        self.ports.get(id.0 as usize)?.as_ref()
    }

    /// Returns a mux port.
    #[inline(always)]
    pub fn get_mut(&mut self, id: PortId) -> Option<&mut Port<P>> {
        self.ports.get_mut(id.0 as usize)?.as_mut()
    }

    /// Calls `count` with the counters of a mux port. Does nothing if the port is not open.
    #[inline]
    pub fn count(&mut self, id: PortId, count: impl FnOnce(&mut PortCounters)) {
        if let Some(port) = self.get_mut(id) {
            count(&mut port.counters);
        }
    }

    /// Counts a packet that the mux refused to send for a mux port.
    #[cold]
    pub fn refuse(&mut self, id: PortId, refusal: SendRefusal) {
        self.count(id, |counters| counters.count_refused(refusal));
    }

    /// Copies a packet to the packet ring of a mux port, whose program sees the packet after the
    /// next [`flush`](Self::flush).
    #[inline(always)]
    pub fn give(&mut self, id: PortId, frame: &[u8]) {
        let port = self.get_mut(id);
        if port.is_some_and(|port| port.give(frame)) {
            self.queued.push(id);
        }
    }

    /// Publishes the packets that were copied to mux ports.
    pub fn flush(&mut self) {
        let mut queued = std::mem::take(&mut self.queued);
        for id in queued.drain(..) {
            if let Some(Some(port)) = self.ports.get_mut(id.0 as usize) {
                port.queued = false;
                port.io.tx_flush();
                if port.io.is_corrupt() {
                    self.corrupt.push(id);
                }
            }
        }
        self.queued = queued;
    }

    /// Records a mux port if the port is corrupt ([`PortEnd::is_corrupt`]).
    #[inline]
    pub fn note_if_corrupt(&mut self, id: PortId) {
        if self.get(id).is_some_and(|port| port.io.is_corrupt()) {
            self.corrupt.push(id);
        }
    }

    /// Returns true if [`take_corrupt`](Self::take_corrupt) would return a mux port.
    pub fn has_corrupt(&self) -> bool {
        !self.corrupt.is_empty()
    }

    /// Takes the numbers of the corrupt mux ports, in ascending order.
    pub fn take_corrupt(&mut self) -> Vec<PortId> {
        let mut corrupt = std::mem::take(&mut self.corrupt);
        corrupt.sort_unstable();
        corrupt.dedup();
        corrupt
    }

    /// Returns all mux ports, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Port<P>> {
        self.open.iter().filter_map(|id| self.get(*id))
    }

    /// Returns the number of the next mux port to poll. With n open mux ports, n calls in a row
    /// return each port once. Returns `None` if no mux port is open.
    #[inline]
    pub fn next_to_poll(&mut self) -> Option<PortId> {
        if self.next_look >= self.open.len() {
            self.next_look = 0;
        }
        let id = self.open.get(self.next_look)?;
        self.next_look += 1;
        Some(*id)
    }
}

#[cfg(test)]
mod tests {
    use tidelane_packet_io::{MemConfig, MemPort};

    use super::*;

    #[test]
    fn ports_have_the_lowest_free_number_and_are_polled_in_rotation() {
        let io = || MemPort::pair(MemConfig::default()).0;
        let mut table = PortTable::new(3);
        for number in 0..3 {
            let id = table.lowest_free();
            assert_eq!(id, PortId(number));
            assert!(table.add(id, io()) && !table.add(id, io()));
        }
        assert!(!table.add(table.lowest_free(), io()), "the table was full");
        let polled: Vec<_> = (0..6).filter_map(|_| table.next_to_poll()).collect();
        assert_eq!(polled, [0, 1, 2, 0, 1, 2].map(PortId));
        assert!(table.remove(PortId(1)).is_some() && table.remove(PortId(1)).is_none());
        assert!(table.get(PortId(1)).is_none() && table.get_mut(PortId(2)).is_some());
        assert_eq!((table.len(), table.iter().count()), (2, 2));
        assert_eq!(table.lowest_free(), PortId(1));
        let polled: Vec<_> = (0..4).filter_map(|_| table.next_to_poll()).collect();
        assert_eq!(polled, [0, 2, 0, 2].map(PortId));
        assert!(table.remove(PortId(0)).is_some() && table.remove(PortId(2)).is_some());
        assert_eq!(table.next_to_poll(), None);
    }
}
