//! A record of the mux port that owns each 3-tuple (protocol, local address, local port). The
//! oracle (`oracle.rs`) checks the mux against this record.
//!
//! The mux shares a host's NIC between the service and programs with their own stacks. A *mux port*
//! is the pair of packet rings between one of these programs and the mux. A *claim* makes a mux
//! port the owner of a 3-tuple: the mux port then sends and receives the packets of the 3-tuple.
//! The mux's driver in the simulator (`driver.rs`) makes each claim, move and release in the mux
//! and also in this record. The record shares no code with the claims in the mux.

use std::collections::BTreeMap;

use tidelane_wire::{Endpoint, IpAddress};

/// Number of a mux port in the run. A `PortKey` is never reused, unlike the number of a mux port in
/// the mux (`PortId`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortKey(pub u32);

/// A claimed address with its owner.
#[derive(Clone, Copy, Debug)]
struct Owned {
    /// The unspecified address means all addresses.
    addr: IpAddress,
    owner: PortKey,
}

/// The owners of all claimed 3-tuples.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    /// Claims by protocol and local port.
    owned: BTreeMap<(u8, u16), Vec<Owned>>,
}

impl Owned {
    fn covers(&self, addr: IpAddress) -> bool {
        self.addr.is_unspecified() || self.addr == addr
    }
}

impl Owners {
    /// Returns true if the mux must accept a claim of `local` for the mux port `key`: if the mux
    /// port already has this claim, or if no recorded claim overlaps. Records a new claim that the
    /// mux must accept.
    pub fn claim(&mut self, key: PortKey, protocol: u8, local: Endpoint) -> bool {
        let addr = local.addr;
        let is_overlapped = self.overlaps(protocol, local);
        let here = self.owned.entry((protocol, local.port)).or_default();
        if here.iter().any(|old| old.owner == key && old.addr == addr) {
            return true;
        }
        if !is_overlapped {
            here.push(Owned { addr, owner: key });
        }
        !is_overlapped
    }

    /// Returns true if a recorded claim overlaps with a claim of `local`. Two claims of one
    /// protocol and one port number overlap if they have the same address, or if an address is
    /// unspecified.
    pub fn overlaps(&self, protocol: u8, local: Endpoint) -> bool {
        let here = self.owned.get(&(protocol, local.port));
        let overlaps = |old: &Owned| local.addr.is_unspecified() || old.covers(local.addr);
        here.is_some_and(|here| here.iter().any(overlaps))
    }

    /// Records the end of a claim.
    pub fn release(&mut self, key: PortKey, protocol: u8, local: Endpoint) {
        if let Some(here) = self.owned.get_mut(&(protocol, local.port)) {
            here.retain(|old| old.owner != key || old.addr != local.addr);
        }
    }

    /// Records that one claim of `from` now belongs to `to`.
    pub fn move_one(&mut self, from: PortKey, to: PortKey, protocol: u8, local: Endpoint) {
        let here = self.owned.get_mut(&(protocol, local.port));
        for old in here.into_iter().flatten() {
            if old.owner == from && old.addr == local.addr {
                old.owner = to;
            }
        }
    }

    /// Records that all claims of `from` now belong to `to`.
    pub fn move_all(&mut self, from: PortKey, to: PortKey) {
        for old in self.owned.values_mut().flatten() {
            if old.owner == from {
                old.owner = to;
            }
        }
    }

    /// Records the end of all claims of `key`.
    pub fn release_all(&mut self, key: PortKey) {
        for here in self.owned.values_mut() {
            here.retain(|old| old.owner != key);
        }
    }

    /// Returns the mux port that owns a 3-tuple, or `None` if no claim covers the 3-tuple.
    pub fn owner(&self, protocol: u8, local: Endpoint) -> Option<PortKey> {
        let here = self.owned.get(&(protocol, local.port))?;
        let owned = here.iter().find(|old| old.covers(local.addr));
        owned.map(|old| old.owner)
    }

    /// Returns all claims: owner, protocol, local address and port.
    pub fn all(&self) -> impl Iterator<Item = (PortKey, u8, Endpoint)> {
        self.owned.iter().flat_map(|((protocol, port), here)| {
            here.iter()
                .map(move |old| (old.owner, *protocol, Endpoint::new(old.addr, *port)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::frame::{TCP, UDP};

    #[test]
    fn claims_overlap_by_address_and_move_between_ports() {
        let addr = |last| IpAddress::from_v4([10, 0, 0, last]);
        let (one, two) = (PortKey(1), PortKey(2));
        let at = |last, port| Endpoint::new(addr(last), port);
        let any = Endpoint::new(IpAddress::UNSPECIFIED_V4, 80);
        let mut owners = Owners::default();
        assert!(owners.claim(one, TCP, at(1, 80)) && owners.claim(one, TCP, at(1, 80)));
        assert!(!owners.claim(two, TCP, at(1, 80)) && !owners.claim(two, TCP, any));
        assert!(owners.claim(two, UDP, any) && owners.claim(two, TCP, at(2, 80)));
        assert_eq!(owners.owner(UDP, at(9, 80)), Some(two));
        assert_eq!(owners.owner(TCP, at(9, 80)), None);
        owners.move_one(one, two, TCP, at(1, 80));
        assert_eq!(owners.owner(TCP, at(1, 80)), Some(two));
        owners.move_all(two, one);
        assert_eq!(owners.all().filter(|(owner, ..)| *owner == one).count(), 3);
        owners.release(one, UDP, any);
        owners.release(two, TCP, at(1, 80));
        assert_eq!(owners.all().count(), 2);
        owners.release_all(one);
        assert_eq!(owners.all().count(), 0);
    }
}
