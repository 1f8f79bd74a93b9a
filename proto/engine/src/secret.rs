//! The secret of an engine, and the values that are derived from it: keyed hashes, initial sequence
//! numbers and timestamp offsets.

use core::fmt;

use siphasher::sip::SipHasher24;
use tidelane_interface::EngineConfig;
use tidelane_time::Instant;
use tidelane_wire::{FlowKey, SeqNumber};

/// Key with which an engine computes keyed hashes. A peer without the key cannot predict a hash.
#[derive(Clone, Copy)]
pub struct Secret([u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Returns the secret with these bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the key, with which another module computes its own keyed hash.
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns a keyed hash of `number`. The hashes for two purposes are independent only if the
    /// callers hash different numbers for these purposes.
    pub fn hash(&self, number: u64) -> u64 {
        self.hash_of(&number.to_le_bytes())
    }

    /// Returns the initial sequence number (ISS) of a connection with the 4-tuple `key` that is
    /// opened at `now`. The ISS is the sum of a clock with a tick of 4 µs and a keyed hash of the
    /// 4-tuple (RFC 9293 §3.4.1, MUST-8, MUST-9, SHLD-1; RFC 6528 §3).
    pub fn initial_seq(&self, key: &FlowKey, now: Instant) -> SeqNumber {
        let mut bytes = [0; 36];
        bytes[..16].copy_from_slice(&key.local.addr.0);
        bytes[16..18].copy_from_slice(&key.local.port.to_le_bytes());
        bytes[18..34].copy_from_slice(&key.peer.addr.0);
        bytes[34..].copy_from_slice(&key.peer.port.to_le_bytes());
        SeqNumber((now.0 / 4000) as u32).add(self.hash_of(&bytes) as u32)
    }

    /// Returns the timestamp offset of connections between the addresses of `key` (RFC 7323 §7.1),
    /// as in Linux. TSval is the sum of the engine's millisecond clock and the offset. With
    /// offsets, a peer learns neither the uptime of the machine nor which addresses belong to one
    /// machine. The offset does not depend on the ports or on the time. Between two addresses, the
    /// timestamps of a new connection are therefore later than the timestamps of an old connection
    /// in TIME-WAIT (RFC 6191 §2). Returns zero if `config` turns offsets off.
    pub fn timestamp_offset(&self, key: &FlowKey, config: &EngineConfig) -> u32 {
        if !config.timestamp_offsets {
            return 0;
        }
        let mut bytes = [0; 42];
        bytes[..10].copy_from_slice(b"timestamps");
        bytes[10..26].copy_from_slice(&key.local.addr.0);
        bytes[26..].copy_from_slice(&key.peer.addr.0);
        self.hash_of(&bytes) as u32
    }

    /// Returns a keyed hash of `bytes`. To hash all bytes in one call costs half as much as to hash
    /// their parts one after another.
    fn hash_of(&self, bytes: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.0).hash(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidelane_wire::Endpoint;

    use super::*;

    const SECRET: Secret = Secret::new([9; 16]);
    const NOW: Instant = Instant(77_000_000_000_000);

    fn key(local: [u8; 4], local_port: u16, peer: [u8; 4], peer_port: u16) -> FlowKey {
        let local = Endpoint::v4(local, local_port);
        FlowKey::new(local, Endpoint::v4(peer, peer_port))
    }

    fn one() -> FlowKey {
        key([10, 0, 0, 1], 80, [10, 0, 0, 2], 4242)
    }

    #[test]
    fn must_8_the_iss_advances_by_one_in_four_microseconds() {
        let first = SECRET.initial_seq(&one(), NOW);
        for us in [0, 4, 400, 1_000_000, 3_600_000_000] {
            let later = SECRET.initial_seq(&one(), Instant(NOW.0 + us * 1000));
            assert_eq!(later, first.add((us / 4) as u32));
        }
    }

    #[test]
    fn shld_1_each_4_tuple_has_an_iss_of_its_own() {
        let all = [
            one(),
            key([10, 0, 0, 3], 80, [10, 0, 0, 2], 4242),
            key([10, 0, 0, 1], 81, [10, 0, 0, 2], 4242),
            key([10, 0, 0, 1], 80, [10, 0, 0, 3], 4242),
            key([10, 0, 0, 1], 80, [10, 0, 0, 2], 4243),
        ];
        let chosen: BTreeSet<u32> = all
            .iter()
            .map(|key| SECRET.initial_seq(key, NOW).to_u32())
            .collect();
        assert_eq!(chosen.len(), all.len());
        // Adjacent ports give unrelated numbers: about half of the 32 bits differ, as with a
        // random function.
        let differ = |port| {
            let next = SECRET.initial_seq(&key([10, 0, 0, 1], 80, [10, 0, 0, 2], port + 1), NOW);
            let this = SECRET.initial_seq(&key([10, 0, 0, 1], 80, [10, 0, 0, 2], port), NOW);
            (next.to_u32() ^ this.to_u32()).count_ones()
        };
        let bits: u32 = (1000..2000).map(differ).sum();
        assert!((15_000..17_000).contains(&bits), "{bits}");
    }

    #[test]
    fn must_9_another_secret_gives_other_numbers() {
        let bits: u32 = (0..128)
            .map(|bit| {
                let mut secret = *SECRET.bytes();
                secret[bit / 8] ^= 1 << (bit % 8);
                let other = Secret::new(secret).initial_seq(&one(), NOW).to_u32();
                (other ^ SECRET.initial_seq(&one(), NOW).to_u32()).count_ones()
            })
            .sum();
        assert!((1_800..2_300).contains(&bits), "{bits}");
    }
}
