//! Initial sequence numbers (RFC 6528): a 4 us clock plus a keyed hash of both ends.

use core::hash::Hasher;

use siphasher::sip::SipHasher24;
use tidelane_time::Instant;
use tidelane_wire::{FlowKey, SeqNumber};

/// A number that only who knows the secret can tell, for each `number`.
pub fn mix(secret: &[u8; 16], number: u64) -> u64 {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write_u64(number);
    hasher.finish()
}

/// ISS of a connection with these ends, opened now.
pub fn choose(secret: &[u8; 16], key: &FlowKey, now: Instant) -> SeqNumber {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(&key.local.addr.0);
    hasher.write_u16(key.local.port);
    hasher.write(&key.peer.addr.0);
    hasher.write_u16(key.peer.port);
    SeqNumber((now.0 / 4000) as u32).add(hasher.finish() as u32)
}
