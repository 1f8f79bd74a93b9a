//! The table of neighbours (next hops) on a link. The path of a flow keeps the [`HopId`] of the
//! flow's neighbour, so that the host (the TCP/IP stack of one core) can apply a changed link
//! address to the flow.
//!
//! Received packets can cause entries for any number of neighbours, so the size of the table is
//! limited. An unused neighbour stays in the table until another neighbour needs the place, because
//! a flow may soon need the unused neighbour again.

use std::collections::{HashMap, VecDeque};

use tidelane_time::{Duration, Instant};
use tidelane_wire::{IpAddress, MacAddress};

use crate::hash::SecretState;

/// Largest number of neighbours in the table.
const HOPS_MAX: usize = 65_536;
/// Time within which uses of a resolved hop cause at most one request to the kernel. The request
/// asks the kernel to confirm the link address.
const REFRESH_INTERVAL: Duration = Duration::from_secs(15);
/// Time within which uses of an unresolved hop cause at most one request to the kernel. The request
/// asks the kernel to resolve the hop.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);

/// Number of a hop. The number is valid while a flow holds the hop. Without a hold, the number is
/// valid until another hop is added to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopId(u32);

/// A neighbour, which is the next hop of flows.
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    /// IP address of the neighbour.
    pub addr: IpAddress,
    /// Link address of the neighbour. `None` while the kernel has no link address for the
    /// neighbour.
    pub mac: Option<MacAddress>,
    /// Time of the most recent request to the kernel about the hop. `None` before the first
    /// request.
    probed: Option<Instant>,
    /// Number of flows that hold the hop.
    users: u32,
    /// True if the hop is in [`Hops::unused`].
    listed: bool,
}

/// All neighbours of an interface.
pub struct Hops {
    /// The hops, by [`HopId`].
    entries: Vec<Hop>,
    /// The hop of each address in the table.
    index: HashMap<IpAddress, HopId, SecretState>,
    /// Hops that no flow held when they entered the list, in the order of their entry. A hop that a
    /// flow holds again stays in the list until [`take_unused`](Self::take_unused) removes the hop.
    unused: VecDeque<HopId>,
}

impl Hops {
    /// Returns an empty table.
    pub fn new(secret: [u8; 16]) -> Self {
        Self {
            entries: Vec::new(),
            index: HashMap::with_hasher(SecretState(secret)),
            unused: VecDeque::new(),
        }
    }

    /// Returns the hop with this address.
    pub fn find(&self, addr: IpAddress) -> Option<HopId> {
        self.index.get(&addr).copied()
    }

    /// Returns the hop with this address. Adds a hop if the table has no hop with this address.
    /// Returns `None` if the table is full of hops in use.
    pub fn find_or_make(&mut self, addr: IpAddress) -> Option<HopId> {
        if let Some(known) = self.find(addr) {
            return Some(known);
        }
        let hop = Hop {
            addr,
            mac: None,
            probed: None,
            users: 0,
            listed: true,
        };
        let id = if self.entries.len() < HOPS_MAX {
            self.entries.push(hop);
            HopId(self.entries.len() as u32 - 1)
        } else {
            let id = self.take_unused()?;
            let old = std::mem::replace(self.entry(id), hop);
            self.index.remove(&old.addr);
            id
        };
        self.index.insert(addr, id);
        self.unused.push_back(id);
        Some(id)
    }

    /// Removes hops from the front of the list `unused`, up to and including the first hop that no
    /// flow holds, and returns this hop. Returns `None` if flows hold all hops of the list.
    fn take_unused(&mut self) -> Option<HopId> {
        while let Some(id) = self.unused.pop_front() {
            let hop = self.entry(id);
            hop.listed = false;
            if hop.users == 0 {
                return Some(id);
            }
        }
        None
    }

    fn entry(&mut self, id: HopId) -> &mut Hop {
        &mut self.entries[id.0 as usize]
    }

    /// Returns the present state of a hop.
    pub fn get(&self, id: HopId) -> &Hop {
        &self.entries[id.0 as usize]
    }

    /// Counts one more flow over hop `id`.
    pub fn hold(&mut self, id: HopId) {
        self.entry(id).users += 1;
    }

    /// Counts one flow less over hop `id`.
    pub fn release(&mut self, id: HopId) {
        let hop = self.entry(id);
        debug_assert!(hop.users > 0, "released without a hold");
        hop.users = hop.users.saturating_sub(1);
        if hop.users == 0 && !hop.listed {
            hop.listed = true;
            self.unused.push_back(id);
        }
    }

    /// Applies the kernel's entry for a neighbour. `mac` is `None` if the kernel has no link
    /// address for the neighbour. Returns the hop if its link address changed.
    ///
    /// A resolved neighbour gets a hop even if no flow needs the hop yet. If a SYN from the
    /// neighbour's IP address arrives later, the SYN-ACK goes to the link address that the kernel
    /// resolved. Without the hop, the SYN-ACK would go to the source link address of the SYN's
    /// frame, which may be forged.
    pub fn set_neighbour(&mut self, addr: IpAddress, mac: Option<MacAddress>) -> Option<HopId> {
        let id = match mac {
            Some(_) => self.find_or_make(addr),
            None => self.find(addr),
        }?;
        let before = std::mem::replace(&mut self.entry(id).mac, mac);
        (before != mac).then_some(id)
    }

    /// Returns true if a flow holds hop `id`.
    pub fn is_used(&self, id: HopId) -> bool {
        self.get(id).users > 0
    }

    /// Records a request to the kernel about hop `id`. Returns the hop's address.
    pub fn note_probe(&mut self, id: HopId, now: Instant) -> IpAddress {
        let hop = self.entry(id);
        hop.probed = Some(now);
        hop.addr
    }

    /// Returns the address of hop `id` if a use of the hop at `now` has to cause a request to the
    /// kernel, and records the request. Otherwise, returns `None`.
    pub fn use_at(&mut self, id: HopId, now: Instant) -> Option<IpAddress> {
        let hop = self.entry(id);
        let due = match (hop.probed, hop.mac) {
            (None, _) => true,
            (Some(at), None) => now - at >= PROBE_INTERVAL,
            (Some(at), Some(_)) => now - at >= REFRESH_INTERVAL,
        };
        due.then(|| self.note_probe(id, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddress {
        IpAddress::from_v4(number.to_be_bytes())
    }

    #[test]
    fn only_unused_next_hops_are_evicted() {
        let mut hops = Hops::new([7; 16]);
        let used = hops.find_or_make(address(0)).expect("room");
        hops.hold(used);
        for number in 1..3 * HOPS_MAX as u32 {
            let id = hops.find_or_make(address(number)).expect("room");
            assert_eq!(hops.get(id).addr, address(number));
            assert_eq!(hops.find_or_make(address(number)), Some(id));
            hops.hold(id);
            hops.release(id);
        }
        assert_eq!(hops.find(address(0)), Some(used));
        assert_eq!(hops.find(address(1)), None);
        let sizes = (hops.entries.len(), hops.index.len());
        assert_eq!(sizes, (HOPS_MAX, HOPS_MAX));
        assert!(hops.unused.len() <= HOPS_MAX, "{}", hops.unused.len());
    }

    #[test]
    fn no_entry_in_use_is_replaced() {
        let mut hops = Hops::new([7; 16]);
        for number in 0..HOPS_MAX as u32 {
            let id = hops.find_or_make(address(number)).expect("room");
            hops.hold(id);
        }
        let one_more = address(HOPS_MAX as u32);
        assert_eq!(hops.find_or_make(one_more), None);
        let first = hops.find(address(0)).expect("it is in use");
        hops.release(first);
        assert_eq!(hops.find_or_make(one_more), Some(first));
        assert_eq!(hops.find(address(0)), None);
    }

    #[test]
    fn the_kernel_is_asked_once_per_probe_interval() {
        let mut hops = Hops::new([7; 16]);
        let id = hops.find_or_make(address(1)).expect("room");
        let start = Instant(1_000_000_000);
        assert_eq!(hops.use_at(id, start), Some(address(1)));
        assert_eq!(hops.use_at(id, start + Duration::from_millis(199)), None);
        let again = start + PROBE_INTERVAL;
        assert_eq!(hops.use_at(id, again), Some(address(1)));
        let mac = Some(MacAddress([1; 6]));
        assert_eq!(hops.set_neighbour(address(1), mac), Some(id));
        assert_eq!(hops.set_neighbour(address(1), mac), None);
        assert_eq!(hops.use_at(id, again + PROBE_INTERVAL), None);
        assert!(hops.use_at(id, again + REFRESH_INTERVAL).is_some());
    }

    #[test]
    fn a_resolved_neighbour_is_stored_before_its_first_use() {
        let mut hops = Hops::new([7; 16]);
        assert_eq!(hops.set_neighbour(address(1), None), None);
        assert_eq!(hops.find(address(1)), None);
        let mac = Some(MacAddress([1; 6]));
        let id = hops.set_neighbour(address(1), mac).expect("news");
        assert_eq!((hops.find(address(1)), hops.get(id).mac), (Some(id), mac));
        assert!(!hops.is_used(id));
        hops.hold(id);
        assert!(hops.is_used(id));
    }
}
