//! Hashes of addresses and ports. No hash uses its own randomness, so that the simulator can repeat
//! a run.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hasher};

use siphasher::sip::SipHasher13;
use tidelane_time::Instant;
use tidelane_wire::{FlowKey, IpAddress};

/// Builds hashers with a fixed initial state, only for maps whose keys no peer can choose. A map
/// whose keys a peer can choose uses [`SecretState`].
pub type FixedState = BuildHasherDefault<DefaultHasher>;

/// Builds hashers from a secret. Maps whose keys a peer can choose use these hashers, so that the
/// peer cannot cause collisions.
pub struct SecretState(pub [u8; 16]);

impl BuildHasher for SecretState {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

/// Returns the seed of the hash for IPv6 flow labels (RFC 6437). Labels are visible on the path,
/// and the hash does not hide its seed. The seed is therefore a SipHash value with `secret` as the
/// key, so that a label does not reveal `secret`, which also protects sequence numbers.
pub fn label_seed(secret: [u8; 16]) -> [u64; 2] {
    let mut hasher = SipHasher13::new_with_key(&secret);
    hasher.write(b"flow label");
    let first = hasher.finish();
    hasher.write_u64(first);
    [first, hasher.finish()]
}

/// Returns the first identification (IP ID) of a flow's IPv4 packets. A peer cannot predict the
/// value from the IP IDs of other flows, or of earlier connections with the same 4-tuple.
pub fn first_ip_id(secret: &[u8; 16], key: &FlowKey, now: Instant) -> u16 {
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(b"identification");
    for end in [&key.local, &key.peer] {
        hasher.write(&end.addr.0);
        hasher.write_u16(end.port);
    }
    hasher.write_u64(now.0);
    hasher.finish() as u16
}

/// Returns the identification (IP ID) of a packet to `peer` that has no flow and no DF flag. The
/// host sends few of these packets per second, so a pseudo-random number hardly repeats a recent
/// number.
pub fn stray_ip_id(secret: &[u8; 16], peer: IpAddress, now: Instant) -> u16 {
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(b"stray");
    hasher.write(&peer.0);
    hasher.write_u64(now.0);
    hasher.finish() as u16
}
