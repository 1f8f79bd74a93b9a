//! Local ports for active opens.
//!
//! The driver (the daemon) reserves each port of the pool in the kernel with a bound socket, so
//! that no other socket can bind to the port. A port serves any number of connections to different
//! peers. When the pool asks for more ports, the driver adds ports in an order that the kernel
//! chose at random. The driver removes ports that were unused for a while.
//!
//! The pool selects a port by double hashing (RFC 6056 §3.3.4), as Linux does. A hash of the local
//! address and the peer's address and port determines where the search begins. Another hash of
//! these values selects a counter, which says how far earlier searches have advanced. Each peer
//! thus sees ports in an order of its own. This order reveals nothing about the ports that other
//! peers see. As long as the pool has the same ports, a peer gets a port again only after the
//! search has passed all other ports.

use std::{
    collections::{HashMap, HashSet},
    hash::Hasher,
};

use siphasher::sip::SipHasher13;
use tidelane_wire::{Endpoint, FlowKey, IpAddress};

use crate::{
    accounts::{User, UserId, Weight},
    hash::{FixedState, label_seed},
};

/// Number of ports in one request to the driver.
pub const PORTS_PER_REQUEST: u32 = 64;
/// Limit of the ports of one address: the size of Linux's default ephemeral range
/// (`net.ipv4.ip_local_port_range`).
const PORTS_MAX: usize = 28_232;
/// Below this number of ports, the pool asks for more ports even if a search finds a port. An
/// observer then has to guess the next port among many.
const PORTS_MIN: usize = 512;
/// Number of ports that a search tries before the pool asks for more ports. If the pool cannot
/// grow, a search tries all ports.
const PROBES_MAX: usize = 64;
/// Number of search counters. Linux has 64 Ki (`INET_TABLE_PERTURB_SIZE`).
const PERTURB_LEN: usize = 1 << 12;

/// The ephemeral ports from which a user may connect.
///
/// All users share the ports of the pool, and a port serves only one connection to the same peer. A
/// hash of user, port and peer therefore gives each user half of the ports for each peer, so that
/// no user can take all ports. Root and unlimited users ([`Weight::Unlimited`]) have all ports.
#[derive(Clone, Copy, Debug)]
pub struct PortShare {
    /// Key of the hash; `None` for the share that has all ports.
    seed: Option<[u64; 2]>,
}

impl PortShare {
    /// The share that has all ports.
    pub const ALL: Self = Self { seed: None };

    /// Returns the share of `user`. `seed` is the key of the host for the hash of the shares.
    fn of_user(user: UserId, seed: [u64; 2]) -> Self {
        // Spread the uid over 64 bits, because the hash combines the low bits of the seed with the
        // ports by exclusive or.
        let UserId(uid) = user;
        let salt = u64::from(uid).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self {
            seed: Some([seed[0] ^ salt, seed[1]]),
        }
    }

    /// Returns true if the user may open a connection with this 4-tuple.
    pub fn has(self, key: &FlowKey) -> bool {
        self.seed.is_none_or(|seed| key.hash64(seed) >> 63 == 0)
    }
}

/// The ports of one local address.
#[derive(Default)]
struct AddressPorts {
    ports: Vec<u16>,
    /// True while the driver has not answered a request for more ports.
    requested: bool,
    /// True if the driver has no more ports, or if its last answer had more ports than `PORTS_MAX`
    /// allows.
    exhausted: bool,
}

/// The result of [`EphemeralPorts::choose`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The selected port; `None` if the search found no free port.
    pub port: Option<u16>,
    /// True if the caller has to request more ports from the driver now.
    pub ask: bool,
    /// True if the pool of the address cannot grow, because the driver has no more ports, or
    /// because the pool has no room for the ports of another request. If `port` is `None`, the open
    /// then fails.
    pub exhausted: bool,
}

/// The ports of all local addresses.
pub struct EphemeralPorts {
    pools: HashMap<IpAddress, AddressPorts, FixedState>,
    /// Key of the two hashes that determine the start and the counter of a search.
    secret: [u8; 16],
    /// Key of the hash that gives each user a share of the ports.
    share_seed: [u64; 2],
    /// Counters of how far the searches have advanced. Peers whose hashes select the same counter
    /// share this counter.
    perturb: Box<[u32]>,
}

impl EphemeralPorts {
    /// Returns an empty pool. `secret` is the key of the hashes.
    pub fn new(secret: [u8; 16]) -> Self {
        let mut seed = SipHasher13::new_with_key(&secret);
        let mut random = |_| {
            seed.write(b"perturb");
            seed.finish() as u32
        };
        Self {
            pools: HashMap::default(),
            secret,
            share_seed: label_seed(secret),
            perturb: (0..PERTURB_LEN).map(&mut random).collect(),
        }
    }

    /// Returns the ports from which `user` may connect.
    pub fn share_of(&self, user: &User) -> PortShare {
        match user.weight() {
            Weight::User => PortShare::of_user(user.id(), self.share_seed),
            _ => PortShare::ALL,
        }
    }

    /// Adds ports that the driver reserved at `addr`. An empty list means that the driver has no
    /// more ports.
    pub fn add(&mut self, addr: IpAddress, ports: &[u16]) {
        let pool = self.pools.entry(addr).or_default();
        pool.requested = false;
        pool.exhausted = ports.is_empty() || pool.ports.len() + ports.len() > PORTS_MAX;
        let room = PORTS_MAX.saturating_sub(pool.ports.len());
        pool.ports.extend(ports.iter().take(room));
    }

    /// Removes ports. No later connection gets one of these ports, unless [`add`](Self::add) adds
    /// the port again. After the removal, all pools may ask for more ports, even pools that were
    /// exhausted.
    pub fn remove(&mut self, ends: &HashSet<Endpoint>) {
        for (addr, pool) in &mut self.pools {
            let addr = *addr;
            pool.ports
                .retain(|port| !ends.contains(&Endpoint { addr, port: *port }));
            pool.exhausted = false;
        }
    }

    /// Removes the ports of an address.
    pub fn remove_address(&mut self, addr: IpAddress) {
        self.pools.remove(&addr);
    }

    /// Selects a port at `addr` that satisfies `is_free`, for a connection to `peer`.
    pub fn choose(
        &mut self,
        addr: IpAddress,
        peer: Endpoint,
        mut is_free: impl FnMut(u16) -> bool,
    ) -> Choice {
        let begin = self.hash(b"begin", addr, peer);
        let counter = self.hash(b"counter", addr, peer) as usize % PERTURB_LEN;
        let counter = &mut self.perturb[counter];
        let pool = self.pools.entry(addr).or_default();
        let len = pool.ports.len();
        let full = len + PORTS_PER_REQUEST as usize > PORTS_MAX;
        let exhausted = full || pool.exhausted;
        let probes = if exhausted { len } else { PROBES_MAX.min(len) };
        let first = begin.wrapping_add(u64::from(*counter));
        let ports = (0..probes as u64).map(|probe| {
            let at = first.wrapping_add(probe) % len as u64;
            (probe, pool.ports[at as usize])
        });
        let found = { ports }.find(|(_, port)| is_free(*port));
        if let Some((probe, _)) = found {
            *counter = counter.wrapping_add(probe as u32 + 1);
        }
        let few = found.is_none() || len < PORTS_MIN;
        let ask = few && !exhausted && !pool.requested;
        pool.requested |= ask;
        Choice {
            port: found.map(|(_, port)| port),
            ask,
            exhausted,
        }
    }

    fn hash(&self, purpose: &[u8], local: IpAddress, peer: Endpoint) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        hasher.write(purpose);
        hasher.write(&local.0);
        hasher.write(&peer.addr.0);
        hasher.write_u16(peer.port);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddress = IpAddress([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);

    fn peer(last: u8) -> Endpoint {
        let mut addr = HERE;
        addr.0[15] = last;
        Endpoint { addr, port: 80 }
    }

    fn filled(secret: u8, ports: u16) -> EphemeralPorts {
        let mut pool = EphemeralPorts::new([secret; 16]);
        let ports: Vec<u16> = (32_768..32_768 + ports).collect();
        pool.add(HERE, &ports);
        pool
    }

    fn chosen(pool: &mut EphemeralPorts, peer: Endpoint, count: usize) -> Vec<u16> {
        let choose = |_| pool.choose(HERE, peer, |_| true).port.expect("a port");
        (0..count).map(choose).collect()
    }

    #[test]
    fn rfc6056_section_3_3_4_each_peer_sees_an_order_of_its_own() {
        let mut pool = filled(1, 512);
        let mut one = chosen(&mut pool, peer(2), 50);
        let unique: HashSet<u16> = one.iter().copied().collect();
        assert_eq!(unique.len(), 50, "a port came back too soon");
        // Connections to these other peers do not change the order of ports that one peer sees.
        let mut quiet = filled(1, 512);
        for other in 3..10 {
            chosen(&mut pool, peer(other), 20);
        }
        one.extend(chosen(&mut pool, peer(2), 50));
        assert_eq!(chosen(&mut quiet, peer(2), 100), one);
        // The next ports of 254 peers have many different values, and so do the first ports of 256
        // runs with different secrets.
        let starts: HashSet<u16> = (2..=255)
            .map(|n| chosen(&mut pool, peer(n), 1)[0])
            .collect();
        assert!(starts.len() > 150, "{} of 254 starts", starts.len());
        let starts: HashSet<u16> = (0..=255)
            .map(|secret| chosen(&mut filled(secret, 512), peer(2), 1)[0])
            .collect();
        assert!(starts.len() > 150, "{} of 256 starts", starts.len());
    }

    #[test]
    fn connections_in_a_row_use_many_ports_and_no_cycle() {
        let mut pool = EphemeralPorts::new([3; 16]);
        let mut next = 40_000u16;
        let mut seen = Vec::new();
        while seen.len() < 140 {
            let choice = pool.choose(HERE, peer(2), |_| true);
            seen.extend(choice.port);
            if choice.ask {
                let more: Vec<u16> = (0..PORTS_PER_REQUEST as u16)
                    .map(|n| next + n * 7)
                    .collect();
                next += 1;
                pool.add(HERE, &more);
            }
        }
        let unique: HashSet<u16> = seen.iter().copied().collect();
        assert!(unique.len() > 64, "{} ports of 140", unique.len());
        let cycles = seen.iter().zip(&seen[64..]).filter(|(a, b)| a == b).count();
        assert!(cycles < 38, "{cycles} of 76 come again after 64");
    }

    #[test]
    fn ports_in_use_are_skipped_and_more_ports_requested_once() {
        let mut pool = EphemeralPorts::new([1; 16]);
        let first = pool.choose(HERE, peer(2), |_| true);
        assert_eq!((first.port, first.ask), (None, true));
        assert!(!pool.choose(HERE, peer(2), |_| true).ask);
        pool.add(HERE, &[4000, 4001]);
        let choice = pool.choose(HERE, peer(2), |port| port == 4001);
        assert_eq!((choice.port, choice.ask), (Some(4001), true));
        pool.remove(&HashSet::from([Endpoint {
            addr: HERE,
            port: 4001,
        }]));
        assert_eq!(pool.choose(HERE, peer(2), |port| port == 4001).port, None);
        pool.add(HERE, &[]);
        let choice = pool.choose(HERE, peer(2), |_| false);
        assert!(choice.exhausted && choice.port.is_none() && !choice.ask);
    }
}
