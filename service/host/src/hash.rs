//! Hashes without randomness of their own: what they give must repeat in the simulator.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hasher};

use siphasher::sip::SipHasher13;
use tidelane_time::Instant;
use tidelane_wire::{FlowKey, IpAddress};

/// Builds hashers that all start from the same state. Only for maps whose keys the service chooses;
/// what a peer can choose is hashed with a secret.
pub type FixedState = BuildHasherDefault<DefaultHasher>;

/// Builds hashers for what a peer can choose: without the key nobody makes keys collide.
pub struct SecretState(pub [u8; 16]);

impl BuildHasher for SecretState {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

/// The seed of the flow labels of IPv6. Everybody on the path sees labels: the secret that protects
/// sequence numbers must not be the key of a hash that was not made to hide it.
pub fn label_seed(secret: [u8; 16]) -> [u64; 2] {
    let mut hasher = SipHasher13::new_with_key(&secret);
    hasher.write(b"flow label");
    let first = hasher.finish();
    hasher.write_u64(first);
    [first, hasher.finish()]
}

/// How far the timestamps between the addresses of `key` are ahead of the clock (RFC 7323 §7.1), as
/// in Linux: no peer learns how long the machine runs, or which addresses are one machine's.
pub fn timestamp_offset(secret: &[u8; 16], key: &FlowKey) -> u32 {
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(b"timestamps");
    hasher.write(&key.local.addr.0);
    hasher.write(&key.peer.addr.0);
    hasher.finish() as u32
}

/// The identification with which a flow's IPv4 packets begin, which nobody can tell, nor from that
/// of another flow or of an earlier one between the same ends.
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

/// The identification of a packet to `peer` that is of no flow and that routers may cut. There are
/// a few in a second, so that a random number is unlike those of the packets before.
pub fn stray_ip_id(secret: &[u8; 16], peer: IpAddress, now: Instant) -> u16 {
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(b"stray");
    hasher.write(&peer.0);
    hasher.write_u64(now.0);
    hasher.finish() as u16
}
