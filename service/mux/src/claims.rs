//! The 3-tuples that ports have claimed.

use std::collections::{HashMap, hash_map::Entry};

use tidelane_wire::{Endpoint, IpAddress};

/// Number of a port. The number is used again after the port is closed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u32);

/// A 3-tuple: protocol, local address and local port (MultiStack §3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuple {
    /// Protocol number: TCP or UDP.
    pub protocol: u8,
    /// Local address and port. An unspecified address means all local addresses.
    pub local: Endpoint,
}

/// Reason why a claim is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimError {
    /// Another port has the 3-tuple, or one that covers it or that it covers (EADDRINUSE).
    InUse,
    /// The port of the 3-tuple is zero, or the protocol is neither TCP nor UDP.
    Invalid,
}

/// Protocol numbers that can be claimed: TCP and UDP.
pub(crate) const PROTOCOLS: [u8; 2] = [6, 17];

/// All claims of a mux, found by 3-tuple in constant time.
///
/// The caller has the kernel's proof that the claimant may use the 3-tuple: a bound socket, which
/// the caller holds as long as the claim.
#[derive(Debug, Default)]
pub struct Claims {
    owners: HashMap<Tuple, PortId>,
    /// Number of claims with a specific address, by protocol and port, so that a claim of all
    /// addresses finds clashes.
    specific: HashMap<(u8, u16), u32>,
}

impl Claims {
    /// Claims `tuple` for `port`. A repeated claim of the same port changes nothing.
    pub fn claim(&mut self, tuple: Tuple, port: PortId) -> Result<(), ClaimError> {
        if tuple.local.port == 0 || !PROTOCOLS.contains(&tuple.protocol) {
            return Err(ClaimError::Invalid);
        }
        if self.owners.get(&tuple) == Some(&port) {
            return Ok(());
        }
        let place = (tuple.protocol, tuple.local.port);
        let specific = !tuple.local.addr.is_unspecified();
        let clashes = if specific {
            self.owners.contains_key(&all_addresses(tuple))
        } else {
            self.specific.contains_key(&place)
        };
        match self.owners.entry(tuple) {
            Entry::Vacant(entry) if !clashes => entry.insert(port),
            _ => return Err(ClaimError::InUse),
        };
        if specific {
            *self.specific.entry(place).or_default() += 1;
        }
        Ok(())
    }

    /// Ends the claim of `port` to `tuple`. Returns false if `port` has no such claim.
    pub fn release(&mut self, tuple: Tuple, port: PortId) -> bool {
        if self.owners.get(&tuple) != Some(&port) {
            return false;
        }
        self.owners.remove(&tuple);
        self.forget_specific(tuple);
        true
    }

    /// Ends all claims of `port`.
    pub fn release_all(&mut self, port: PortId) {
        let of_port: Vec<Tuple> = self.tuples(port).collect();
        for tuple in of_port {
            self.release(tuple, port);
        }
    }

    /// Gives all claims of `from` to `to` at once: no packet finds a 3-tuple without an owner.
    pub fn hand_over(&mut self, from: PortId, to: PortId) {
        for owner in self.owners.values_mut().filter(|owner| **owner == from) {
            *owner = to;
        }
    }

    /// Returns the port that has claimed the destination or source `local` of a packet.
    pub fn owner(&self, protocol: u8, local: Endpoint) -> Option<PortId> {
        let tuple = Tuple { protocol, local };
        let owner = self.owners.get(&tuple);
        owner
            .or_else(|| self.owners.get(&all_addresses(tuple)))
            .copied()
    }

    /// Returns the 3-tuples of a port.
    pub fn tuples(&self, port: PortId) -> impl Iterator<Item = Tuple> {
        let of_port = move |(tuple, owner): (&Tuple, &PortId)| (*owner == port).then_some(*tuple);
        self.owners.iter().filter_map(of_port)
    }

    /// Returns the number of claims.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// Returns true if there is no claim.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    fn forget_specific(&mut self, tuple: Tuple) {
        let place = (tuple.protocol, tuple.local.port);
        if tuple.local.addr.is_unspecified() {
            return;
        }
        if let Entry::Occupied(mut count) = self.specific.entry(place) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Returns `tuple` with the unspecified address.
fn all_addresses(tuple: Tuple) -> Tuple {
    Tuple {
        local: Endpoint::new(IpAddress::default(), tuple.local.port),
        ..tuple
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: u8 = PROTOCOLS[0];
    const UDP: u8 = PROTOCOLS[1];

    fn tuple(protocol: u8, last: u8, port: u16) -> Tuple {
        let addr = match last {
            0 => IpAddress::default(),
            last => IpAddress::from_v4([10, 0, 0, last]),
        };
        Tuple {
            protocol,
            local: Endpoint::new(addr, port),
        }
    }

    #[test]
    fn claims_clash_as_bound_sockets_do() {
        let mut claims = Claims::default();
        let (first, second) = (PortId(0), PortId(1));
        assert_eq!(claims.claim(tuple(TCP, 1, 80), first), Ok(()));
        assert_eq!(claims.claim(tuple(TCP, 1, 80), first), Ok(()));
        assert_eq!(
            claims.claim(tuple(TCP, 1, 80), second),
            Err(ClaimError::InUse)
        );
        // Another address, port or protocol is free. All addresses are not.
        assert_eq!(claims.claim(tuple(TCP, 2, 80), second), Ok(()));
        assert_eq!(claims.claim(tuple(TCP, 1, 81), second), Ok(()));
        assert_eq!(claims.claim(tuple(UDP, 1, 80), second), Ok(()));
        assert_eq!(
            claims.claim(tuple(TCP, 0, 80), second),
            Err(ClaimError::InUse)
        );
        assert_eq!(claims.claim(tuple(TCP, 0, 82), second), Ok(()));
        assert_eq!(
            claims.claim(tuple(TCP, 1, 82), first),
            Err(ClaimError::InUse)
        );
        assert_eq!(
            claims.claim(tuple(TCP, 1, 0), first),
            Err(ClaimError::Invalid)
        );
        assert_eq!(
            claims.claim(tuple(1, 1, 80), first),
            Err(ClaimError::Invalid)
        );
        // A claim ends only for its owner.
        assert!(!claims.release(tuple(TCP, 1, 80), second));
        assert!(claims.release(tuple(TCP, 1, 80), first));
        assert!(claims.release(tuple(TCP, 2, 80), second));
        assert_eq!(claims.claim(tuple(TCP, 0, 80), first), Ok(()));
        assert_eq!(claims.owner(TCP, tuple(TCP, 9, 80).local), Some(first));
    }

    #[test]
    fn a_hand_over_and_an_end_leave_nothing_behind() {
        let mut claims = Claims::default();
        for round in 0..100_u32 {
            let (old, new) = (PortId(round), PortId(round + 1));
            for port in 1..=1000 {
                let claimed = claims.claim(tuple(TCP, (port % 2) as u8, port), old);
                assert_eq!(claimed, Ok(()), "{round} {port}");
            }
            claims.hand_over(old, new);
            assert_eq!(
                (claims.tuples(old).count(), claims.tuples(new).count()),
                (0, 1000)
            );
            claims.release_all(new);
            assert!(claims.is_empty() && claims.specific.is_empty());
        }
    }
}
