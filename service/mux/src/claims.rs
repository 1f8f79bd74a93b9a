//! The 3-tuples that mux ports have claimed.
//!
//! The mux shares one NIC between TCP/IP stacks. A *mux port* ([`PortId`]) is a pair of packet
//! rings for a program that has its own stack. The mux port gets the packets to the 3-tuples
//! (protocol, local address, local port) that the mux port has claimed. A *local port* is a TCP or
//! UDP port number.

use tidelane_wire::{Endpoint, IpAddress};

use crate::address::Address as _;

/// Number of a mux port. A new mux port may reuse the number of a closed mux port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u32);

/// A 3-tuple: protocol, local address and local port (paper on MultiStack, §3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuple {
    /// Protocol number: TCP or UDP.
    pub protocol: u8,
    /// Local address and port. An unspecified address (`0.0.0.0` or `::`) means all local addresses
    /// of both IP versions.
    pub local: Endpoint,
}

/// Reason why a claim is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimError {
    /// The 3-tuple, or an overlapping 3-tuple, is already claimed (EADDRINUSE). An unspecified
    /// address overlaps every address.
    InUse,
    /// The local port is zero, or the protocol is neither TCP nor UDP.
    Invalid,
}

/// Protocol numbers that can be claimed: TCP and UDP.
pub(crate) const PROTOCOLS: [u8; 2] = [6, 17];

/// Number of local ports of one protocol.
const PORTS: usize = 1 << 16;
/// Index that ends a list of claims.
const NONE: u32 = u32::MAX;
/// Owner that marks a free entry of `Claims::claims`.
const NO_OWNER: PortId = PortId(u32::MAX);

/// A claim, as an entry of the list of all claims to one protocol and local port.
#[derive(Clone, Copy, Debug)]
struct Claim {
    tuple: Tuple,
    /// The mux port that has the claim; [`NO_OWNER`] in a free entry.
    owner: PortId,
    /// Index in `Claims::claims` of the next claim in the list, or [`NONE`].
    next: u32,
}

impl Claim {
    /// Returns true if packets to `addr` belong to this claim.
    fn covers(&self, addr: IpAddress) -> bool {
        addr.is_one_of(&[self.tuple.local.addr]) || self.tuple.local.addr.is_unspecified()
    }
}

/// All claims of a mux. A look-up reads the list of one protocol and local port. The list has more
/// than one claim only if several addresses have a claim for that local port.
///
/// The caller has a kernel socket that is bound to the 3-tuple. The socket proves that the claimant
/// may use the 3-tuple. The caller keeps the socket open for the life of the claim.
#[derive(Debug, Default)]
pub struct Claims {
    /// Index in `claims` of the first claim of each local port: the ports of TCP, then the ports of
    /// UDP. [`NONE`] for a local port without a claim. The table is empty before the first claim.
    heads: Box<[u32]>,
    /// The claims, and free entries.
    claims: Vec<Claim>,
    /// Indices of free entries of `claims`.
    free: Vec<u32>,
}

impl Claims {
    /// Claims `tuple` for `owner`. A repeated claim of the same owner changes nothing.
    pub fn claim(&mut self, tuple: Tuple, owner: PortId) -> Result<(), ClaimError> {
        let head = head_of(tuple.protocol, tuple.local.port);
        let Some(head) = head.filter(|_| tuple.local.port != 0) else {
            return Err(ClaimError::Invalid);
        };
        let all = tuple.local.addr.is_unspecified();
        for claim in self.list(head) {
            if claim.tuple == tuple && claim.owner == owner {
                return Ok(());
            }
            if all || claim.covers(tuple.local.addr) {
                return Err(ClaimError::InUse);
            }
        }
        let claim = Claim {
            tuple,
            owner,
            next: self.first(head),
        };
        if self.heads.is_empty() {
            self.heads = vec![NONE; PROTOCOLS.len() * PORTS].into_boxed_slice();
        }
        self.heads[head] = match self.free.pop() {
            Some(at) => {
                self.claims[at as usize] = claim;
                at
            }
            None => {
                self.claims.push(claim);
                self.claims.len() as u32 - 1
            }
        };
        Ok(())
    }

    /// Ends the claim of `owner` to `tuple`. Returns false if `owner` has no such claim.
    pub fn release(&mut self, tuple: Tuple, owner: PortId) -> bool {
        let Some(head) = head_of(tuple.protocol, tuple.local.port) else {
            return false;
        };
        let mut before = None;
        let mut at = self.first(head);
        while at != NONE {
            let claim = self.claims[at as usize];
            if claim.tuple == tuple && claim.owner == owner {
                match before {
                    None => self.heads[head] = claim.next,
                    Some(before) => self.claims[before as usize].next = claim.next,
                }
                self.claims[at as usize].owner = NO_OWNER;
                self.free.push(at);
                return true;
            }
            (before, at) = (Some(at), claim.next);
        }
        false
    }

    /// Ends all claims of `owner`.
    pub fn release_all(&mut self, owner: PortId) {
        let tuples: Vec<Tuple> = self.tuples(owner).collect();
        for tuple in tuples {
            self.release(tuple, owner);
        }
    }

    /// Moves all claims from mux port `from` to mux port `to` in one step, so that each 3-tuple has
    /// an owner at all times.
    pub fn hand_over(&mut self, from: PortId, to: PortId) {
        for claim in self.claims.iter_mut().filter(|claim| claim.owner == from) {
            claim.owner = to;
        }
    }

    /// Moves one claim from mux port `from` to mux port `to`. Returns false if `from` has no such
    /// claim.
    pub fn move_claim(&mut self, tuple: Tuple, from: PortId, to: PortId) -> bool {
        let Some(head) = head_of(tuple.protocol, tuple.local.port) else {
            return false;
        };
        let mut at = self.first(head);
        while let Some(claim) = self.claims.get_mut(at as usize) {
            if claim.tuple == tuple && claim.owner == from {
                claim.owner = to;
                return true;
            }
            at = claim.next;
        }
        false
    }

    /// Returns the mux port whose claim covers `protocol` and `local`, the local address and local
    /// port of a packet. Returns `None` if no claim covers them.
    #[inline]
    pub fn owner(&self, protocol: u8, local: Endpoint) -> Option<PortId> {
        let head = head_of(protocol, local.port)?;
        let mut list = self.list(head);
        Some(list.find(|claim| claim.covers(local.addr))?.owner)
    }

    /// Returns the 3-tuples of a mux port.
    pub fn tuples(&self, owner: PortId) -> impl Iterator<Item = Tuple> {
        let owned = self.claims.iter().filter(move |claim| claim.owner == owner);
        owned.map(|claim| claim.tuple)
    }

    /// Returns the number of claims.
    pub fn len(&self) -> usize {
        self.claims.len() - self.free.len()
    }

    /// Returns true if there is no claim.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the index of the first claim in list `head`, or [`NONE`].
    #[inline]
    fn first(&self, head: usize) -> u32 {
        self.heads.get(head).copied().unwrap_or(NONE)
    }

    /// Returns the claims in list `head`: the claims for one protocol and local port.
    fn list(&self, head: usize) -> impl Iterator<Item = &Claim> {
        let mut at = self.first(head);
        std::iter::from_fn(move || {
            let claim = self.claims.get(at as usize)?;
            at = claim.next;
            Some(claim)
        })
    }
}

/// Returns the index in `heads` for a protocol and local port. Returns `None` if the protocol is
/// neither TCP nor UDP.
fn head_of(protocol: u8, port: u16) -> Option<usize> {
    let protocol = PROTOCOLS.iter().position(|known| *known == protocol)?;
    Some(protocol * PORTS + usize::from(port))
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
        // Another address, port or protocol is free. The unspecified address overlaps the claims.
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
        // Only the owner of a claim can end the claim.
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
            if round % 2 == 0 {
                claims.hand_over(old, new);
            } else {
                let tuples: Vec<Tuple> = claims.tuples(old).collect();
                for tuple in tuples {
                    assert!(!claims.move_claim(tuple, new, old));
                    assert!(claims.move_claim(tuple, old, new));
                }
            }
            assert_eq!(
                (claims.tuples(old).count(), claims.tuples(new).count()),
                (0, 1000)
            );
            claims.release_all(new);
            assert!(claims.is_empty());
            assert!(claims.heads.iter().all(|head| *head == NONE));
        }
    }
}
