//! Hashes of addresses and ports. No hash uses its own randomness, so that the simulator can repeat
//! a run.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hasher};

use siphasher::sip::SipHasher13;
use tidelane_time::Instant;
use tidelane_wire::{FlowKey, IpAddress};

/// Builds hashers with a fixed initial state, only for maps whose keys the service chooses. Maps
/// with keys that a peer can choose use [`SecretState`].
pub type FixedState = BuildHasherDefault<DefaultHasher>;

/// Builds keyed hashers for keys that a peer can choose, so that a peer cannot cause collisions.
pub struct SecretState(pub [u8; 16]);

impl BuildHasher for SecretState {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

/// Returns the seed of IPv6 flow labels (RFC 6437). Labels are visible on the path, and their hash
/// is not made to hide its key. The key is therefore not the secret that protects sequence numbers.
pub fn label_seed(secret: [u8; 16]) -> [u64; 2] {
    let mut hasher = SipHasher13::new_with_key(&secret);
    hasher.write(b"flow label");
    let first = hasher.finish();
    hasher.write_u64(first);
    [first, hasher.finish()]
}

/// Returns the first identification of a flow's IPv4 packets. The value cannot be predicted from
/// other flows, or from earlier connections with the same 4-tuple.
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

/// Returns the identification of a packet to `peer` without a flow and without DF. There are few
/// such packets per second, so a pseudo-random number hardly repeats a recent number.
pub fn stray_ip_id(secret: &[u8; 16], peer: IpAddress, now: Instant) -> u16 {
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(b"stray");
    hasher.write(&peer.0);
    hasher.write_u64(now.0);
    hasher.finish() as u16
}
